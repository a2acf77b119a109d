"""The shared event loop: timers keep their time, whoever sets them."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest


@pytest.fixture
def shared():
    from event_loop import SharedLoop

    loop = SharedLoop("test")
    loop.start()
    yield loop
    loop.close()


def sleeper(shared, seconds, times, done):
    async def sleep():
        for _ in range(times):
            await asyncio.sleep(seconds)
        done.set()

    return lambda: shared.loop.create_task(sleep())


@pytest.mark.parametrize("company", [False, True], ids=["alone", "beside a slow timer"])
def test_a_paced_result_is_not_late(shared, company):
    """Twenty tokens of 5 ms: looked at only every 50 ms they would take a second."""
    tasks = []
    if company:  # like the watcher of statistics
        shared.run(lambda: tasks.append(sleeper(shared, 0.1, 1000, threading.Event())()))
    done = threading.Event()
    started = time.monotonic()
    shared.run(lambda: tasks.append(sleeper(shared, 0.005, 20, done)()))
    assert done.wait(10)
    assert 0.1 <= time.monotonic() - started < 0.7
    shared.loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
