"""An asyncio event loop that is run by whoever has work for it, one thread at a time.

A request that is handed to a loop in another thread costs a wake-up of that thread and a fight over
the interpreter lock. Here the thread that brings a request runs the loop itself until there is nothing
to do; what other threads bring (an engine's results) wakes a thread of the loop's own.

Only documented parts of asyncio are used: a selector of our own, `run_forever` and `stop`.
"""

import asyncio
import math
import select
import selectors
import threading
import time

# Steps that a borrowing thread makes at most, so that others' results never keep it.
STEPS = 4
# The loop's own thread looks this often even if nothing wakes it, in ms.
LATEST_MS = 50
# poll() takes whole milliseconds: a thread that waits for a timer wakes up to this many seconds after it,
# and is not to be woken for that by every request that comes before.
ROUNDED = 0.0015


class _Selector(selectors.DefaultSelector):
    """Never waits: when the loop would, or after `steps`, it is stopped.

    Attributes:
        idle: the loop had nothing more to do.
        wait: seconds from then to its next timer; None: it has none.
    """

    def prepare(self, loop, steps):
        self._loop, self._steps, self.idle, self.wait = loop, steps, False, None

    def select(self, timeout=None):
        # A borrower looks at nothing from outside: that is for the loop's own thread.
        ready = super().select(0) if self._steps < 0 else []
        self._steps -= 1
        if not ready and (timeout is None or timeout > 0):
            self.idle, self.wait = True, timeout
            self._loop.stop()
        elif self._steps == 0:
            self._loop.stop()
        return ready


class SharedLoop:
    """The loop and its own thread.

    Attributes:
        loop: for `call_soon_threadsafe` from anywhere and everything else from its callbacks.
    """

    def __init__(self, name):
        self._selector, self._turn = _Selector(), threading.Lock()
        self._selector.prepare(None, -1)
        self.loop = asyncio.SelectorEventLoop(self._selector)
        self._closed, self._until = False, 0.0
        self._poll = select.poll()
        self._poll.register(self._selector.fileno(), select.POLLIN)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self):
        self._thread.start()

    def run(self, start, *args):
        """Call `start`, which makes a task, and run what follows from it at once in this thread.

        While another thread runs the loop, that one does it.
        """
        if not self._turn.acquire(blocking=False):
            self.loop.call_soon_threadsafe(start, *args)
            return
        try:
            start(*args)
            idle, wait = self._go(STEPS)
        finally:
            self._turn.release()
        if not idle or (wait is not None and time.monotonic() + wait + ROUNDED < self._until):
            self.loop.call_soon_threadsafe(_nothing)  # wakes the loop's own thread

    def close(self):
        """End the thread; returns when it has ended, or after 30 s."""
        self._closed = True
        self.loop.call_soon_threadsafe(_nothing)
        self._thread.join(timeout=30)

    def _go(self, steps):
        self._selector.prepare(self.loop, steps)
        self.loop.run_forever()
        return self._selector.idle, self._selector.wait

    def _serve(self):
        wait = None
        while not self._closed:
            sleep = LATEST_MS if wait is None else min(LATEST_MS, math.ceil(wait * 1000))
            self._until = time.monotonic() + sleep / 1000
            self._poll.poll(sleep)
            with self._turn:
                _, wait = self._go(-1)


def _nothing():
    pass
