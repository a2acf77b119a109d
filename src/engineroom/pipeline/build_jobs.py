"""Several targets at once, as far as host memory allows; every failure is told.

A target starts when a place is free and its memory fits beside what runs. What is not known is never
assumed to fit: such a target runs alone. Targets start in their order, so that a large one is not
overtaken for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engineroom.errors import EngineroomError, UsageError, Where
from engineroom.pipeline.job import Reporter

_WAKE = 0.2
"""Seconds between looks at signals while waiting."""


class TargetErrors(EngineroomError):
    """Several targets failed; the exit code is the first one's.

    Attributes:
        problems: the errors in the order of the targets, each with its target in its message.
    """

    def __init__(self, failed: Sequence[tuple[str, EngineroomError]], total: int) -> None:
        names = ", ".join(name for name, _ in failed)
        super().__init__(f"{len(failed)} of {total} targets failed: {names}")
        for name, error in failed:
            error.message = f"{name}: {error.message}"
        self.problems = [error for _, error in failed]
        self.exit_code = self.problems[0].exit_code

    def render(self) -> str:
        return "\n".join([f"error: {self.message}", *(p.render() for p in self.problems)])


@dataclass(frozen=True)
class Task:
    """One target's work.

    Attributes:
        memory: host memory that it takes at its peak, in bytes; None: not known.
        work: does it.
    """

    name: str
    memory: int | None
    work: Callable[[], None]


@dataclass
class _State:
    places: int
    free: int | None
    running: dict[str, int | None] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def fits(self, task: Task) -> bool:
        if len(self.running) >= self.places:
            return False
        heavy = [need for need in self.running.values() if need != 0]
        if not heavy or task.memory == 0:
            return True
        if self.free is None or task.memory is None or None in heavy:
            return False
        return sum(need for need in heavy if need is not None) + task.memory <= self.free

    def until_idle(self) -> None:
        """Wait for every task.

        Not by `Thread.join`: when that is interrupted, it takes a living thread for ended (CPython up
        to 3.12, `_wait_for_tstate_lock` of Lib/threading.py; seen on 3.11.7).
        """
        with self.changed:
            while self.running:
                self.changed.wait(_WAKE)


def of_system(error: OSError) -> UsageError:
    """A full disk, a file that may not be read: one target's error, and perhaps not the others'."""
    name = None if error.filename is None else str(error.filename)
    return UsageError(str(error.strerror or error), where=Where(name))


def run_all(
    tasks: Sequence[Task], places: int, free: int | None, stop: threading.Event
) -> list[tuple[str, EngineroomError]]:
    """Run every task; returns (name, error) of those that failed, in their order.

    Args:
        places: tasks at once; with 1 they run in this thread.
        free: bytes of host memory for all of them; None: not known.
        stop: set when this thread is interrupted, so that running tasks end.

    Raises:
        KeyboardInterrupt, and whatever is our own fault: after every task has ended.
    """
    errors: dict[str, EngineroomError] = {}
    broken: list[BaseException] = []

    def attempt(task: Task) -> None:
        try:
            task.work()
        except EngineroomError as error:
            errors[task.name] = error
        except OSError as error:
            errors[task.name] = of_system(error)

    if places <= 1:
        for task in tasks:
            attempt(task)
    else:
        _threads(tasks, _State(places, free), attempt, broken, stop)
    if broken:
        raise broken[0]
    return [(task.name, errors[task.name]) for task in tasks if task.name in errors]


def _threads(
    tasks: Sequence[Task],
    state: _State,
    attempt: Callable[[Task], None],
    broken: list[BaseException],
    stop: threading.Event,
) -> None:
    threads: dict[str, threading.Thread] = {}

    def body(task: Task) -> None:
        try:
            attempt(task)
        except BaseException as error:
            broken.append(error)
            stop.set()
        finally:
            with state.changed:
                del state.running[task.name]
                state.changed.notify_all()

    try:
        for task in tasks:
            with state.changed:
                while not state.fits(task):
                    state.changed.wait(_WAKE)  # short, so that Ctrl-C is heard
                if stop.is_set():
                    break
                state.running[task.name] = task.memory
            threads[task.name] = threading.Thread(target=body, args=(task,), name=task.name)
            threads[task.name].start()
        state.until_idle()
    except BaseException:
        stop.set()
        with state.changed:
            state.changed.wait(_WAKE)
            for name in list(state.running):  # interrupted in the middle of a start
                if name not in threads or threads[name].ident is None:
                    del state.running[name]
        state.until_idle()
        raise


class SharedReporter(Reporter):
    """A target's view of a reporter that several use at once: every word says whose it is."""

    def __init__(self, inner: Reporter, name: str, lock: threading.Lock) -> None:
        self._inner, self._name, self._lock = inner, name, lock

    def note(self, text: str) -> None:
        with self._lock:
            self._inner.note(text)

    def progress(self, phase: str, done: int, total: int) -> None:
        with self._lock:
            self._inner.progress(f"{self._name} {phase}", done, total)

    def line(self, text: str) -> None:
        with self._lock:
            self._inner.line(f"{self._name}: {text}")
