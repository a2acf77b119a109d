"""Threads for calls that wait. Leaner than concurrent.futures: nobody asks for a result."""

import queue
import threading


class Workers:
    """Runs calls, each in a thread of its own; a thread is started only when all others are busy.

    Args:
        most: threads at most; further calls wait. Calls must not raise.
    """

    def __init__(self, most):
        self._most, self._threads = most, []
        self._calls, self._lock = queue.SimpleQueue(), threading.Lock()
        self._free = 0

    def submit(self, call):
        with self._lock:
            start = self._free <= 0 and len(self._threads) < self._most
            if start:
                thread = threading.Thread(target=self._run, name="bls", daemon=True)
                self._threads.append(thread)
            else:
                self._free -= 1  # below zero: calls that wait
        self._calls.put(call)
        if start:
            thread.start()

    def _run(self):
        while (call := self._calls.get()) is not None:
            call()
            with self._lock:
                self._free += 1

    def close(self, seconds=None):
        """Let every thread end after what it does, and wait for them up to `seconds` each."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(seconds)
