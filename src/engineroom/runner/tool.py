"""An external tool, followed while it runs: its lines as they come, a time limit, and an end that
takes its children along."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from engineroom.errors import ExternalToolError, Where
from engineroom.runner.process import die_with_parent

GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL."""

TAIL_LINES = 12
_BLOCK = 1 << 13
"""Bytes taken between two looks at the clock: a block of the shortest lines has 4096."""
_QUEUE = 4
_LEFT = _QUEUE + 1 + (1 << 16) // _BLOCK
"""Blocks that may be under way when nobody writes any more: queue, reader, and a pipe's 64 KiB (pipe(7))."""
_LINE_LIMIT = 1 << 16
_TICK = 0.1
"""Seconds between looks at the clock and at `stop`."""

_KILLED_SECONDS = 10.0
_LINGER = 1.0
"""Seconds that what a tool left behind may hold its output open after it ended."""


@dataclass(frozen=True)
class Ended:
    """How a tool ended.

    Attributes:
        code: 0 or the exit code; negative for a signal, as `subprocess` has it.
        timed_out: it was stopped because its time was up.
        stopped: it was stopped because `stop` was set.
        tail: its last lines that are not blank.
        log_error: why the log is not complete (a full disk), or None.
    """

    code: int
    timed_out: bool
    stopped: bool
    tail: tuple[str, ...]
    log_error: str | None


def follow(
    argv: Sequence[str],
    *,
    cwd: Path,
    log: Path,
    on_line: Callable[[str], None],
    seconds: float | None = None,
    stop: threading.Event | None = None,
    append: bool = False,
    env: Mapping[str, str] | None = None,
    grace: float = GRACE_SECONDS,
) -> Ended:
    """Run a tool to its end, in a process group of its own.

    Whatever ends the wait (the end of the tool, its time limit, `stop`, Ctrl-C, an error of
    `on_line`), no process of the group is left when this returns: SIGTERM, then SIGKILL after `grace`
    seconds; a second Ctrl-C kills at once. If this process is killed, the tool itself gets SIGTERM from
    the kernel (Linux), and the guard does with the group what this would have done.

    Args:
        log: gets all output, byte for byte.
        on_line: each line without its end; a carriage return ends a line too, so that a bar that is
            redrawn in place is seen.
        seconds: time limit, or None.
        append: go on in the log, rather than start it anew.
        env: the whole environment; None: this process's.

    Raises:
        ExternalToolError: it cannot be started.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(log.open("ab" if append else "wb", buffering=0))
        child = _start(argv, cwd, env)
        stack.callback(_release, child)
        stack.enter_context(_guarded(child, grace))
        output = _Output(child, sink, on_line)
        timed_out = stopped = False
        try:
            while not _has_ended(child):
                timed_out = seconds is not None and time.monotonic() - started >= seconds
                stopped = stop is not None and stop.is_set()
                if timed_out or stopped:
                    break
                output.pump(_TICK)
            else:
                output.drain(_LINGER)
        except BaseException:
            output.on_line = _ignore  # the caller is on its way out
            raise
        finally:
            _stop_group(child, grace, output.pump)
            output.close(hurry=timed_out or stopped)
        output.finish()
    code = -9 if child.returncode is None else child.returncode
    return Ended(code, timed_out, stopped, tuple(output.tail), output.log_error)


def _ignore(text: str) -> None:
    pass


def _start(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A group of its own: a Ctrl-C on the terminal reaches us alone, and we stop the group.
            start_new_session=True,
            preexec_fn=die_with_parent if os.name == "posix" else None,
        )
    except OSError as error:
        raise ExternalToolError(
            f"`{argv[0]}` cannot be started: {error.strerror}",
            where=None if cwd.is_dir() else Where(cwd.as_posix()),
        ) from None


_GUARD = """
read word && exit
kill -s TERM -- "-$1"
left=$2
while [ "$left" -gt 0 ] && kill -s 0 -- "-$1"; do sleep 1; left=$((left - 1)); done
kill -s KILL -- "-$1"
"""
"""Ends a group when the pipe that it reads from closes without a word: then our process is gone."""


@contextlib.contextmanager
def _guarded(child: subprocess.Popen[bytes], grace: float) -> Iterator[None]:
    """A shell of its own session that outlives us and ends the tool's group if we are killed.

    Where there is no shell the tool goes on without.
    """
    guard = None
    if os.name == "posix":
        with contextlib.suppress(OSError):
            guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "engineroom-guard", str(child.pid), str(math.ceil(grace))],
                cwd="/", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
    try:
        yield
    finally:
        if guard is not None:
            try:
                guard.communicate(b"over\n", timeout=5)
            except subprocess.TimeoutExpired:
                pass  # a machine that is this busy; killed below, before it can do anything
            finally:
                guard.kill()
                guard.wait()


def _release(child: subprocess.Popen[bytes]) -> None:
    if child.stdout is not None:
        with contextlib.suppress(OSError, ValueError):
            child.stdout.close()


class _Output:
    """The tool's output: a thread reads it, the caller's thread writes the log and hands lines on."""

    def __init__(
        self, child: subprocess.Popen[bytes], sink: FileIO, on_line: Callable[[str], None]
    ) -> None:
        self.sink, self.on_line = sink, on_line
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.log_error: str | None = None
        self._blocks: queue.Queue[bytes] = queue.Queue(maxsize=_QUEUE)
        self._rest = b""
        self._quiet_from: float | None = None
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(child,), daemon=True)
        self._reader.start()

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        stream = child.stdout
        while stream is not None and not self._closed.is_set():
            try:
                block = os.read(stream.fileno(), _BLOCK)
            except (OSError, ValueError):
                break
            if not block:
                break
            while not self._closed.is_set():
                try:
                    self._blocks.put(block, timeout=_TICK)
                    break
                except queue.Full:
                    continue

    def pump(self, seconds: float) -> None:
        """Take what came, or wait at most `seconds` for something.

        It takes no longer than that and one block, however fast the tool prints: the caller has a
        clock to look at.
        """
        end = time.monotonic() + seconds
        with contextlib.suppress(queue.Empty):
            self._take(self._blocks.get(timeout=seconds))
            while time.monotonic() < end:
                self._take(self._blocks.get_nowait())

    def drain(self, seconds: float) -> None:
        """Take what is left after the tool's end."""
        end = time.monotonic() + seconds
        while self._reader.is_alive() and time.monotonic() < end:
            self.pump(_TICK / 5)

    def close(self, *, hurry: bool) -> None:
        """Take what is left in the pipe, then stop reading; none of the group holds it any more.

        Args:
            hurry: the run was given up, so a slow reader of lines does not get all of what is left; the
                log does.
        """
        if hurry:
            self._quiet_from = time.monotonic() + _LINGER
        end = time.monotonic() + _LINGER
        for _ in range(_LEFT):
            while self._reader.is_alive() and self._blocks.empty() and time.monotonic() < end:
                time.sleep(_TICK / 20)
            if self._blocks.empty():
                break
            self._take(self._blocks.get_nowait())
        self._closed.set()

    def finish(self) -> None:
        """Take what was read and the last, unfinished line."""
        with contextlib.suppress(queue.Empty):
            while True:  # the reader has ended or is told to: there are at most a few blocks
                self._take(self._blocks.get_nowait())
        if self._rest:
            self._line(self._rest)
            self._rest = b""

    def _take(self, block: bytes) -> None:
        if self.log_error is None:
            try:
                view = memoryview(block)
                while view:
                    view = view[self.sink.write(view) :]
            except OSError as error:
                # The tool goes on: it may end well, and its end says more than ours would.
                self.log_error = error.strerror or str(error)
        parts = (self._rest + block).replace(b"\r", b"\n").split(b"\n")
        self._rest = parts.pop()
        for part in parts:
            self._line(part)
        if len(self._rest) > _LINE_LIMIT:
            self._line(self._rest)
            self._rest = b""

    def _line(self, raw: bytes) -> None:
        text = raw.decode("utf-8", errors="replace")
        if text.strip():
            self.tail.append(text.rstrip()[:400])
        if self._quiet_from is None or time.monotonic() < self._quiet_from:
            self.on_line(text)


def _stop_group(
    child: subprocess.Popen[bytes], grace: float, wait: Callable[[float], None]
) -> None:
    """End every process of the tool's group, and reap the tool.

    Args:
        wait: passes seconds by taking output, so that no process is stuck with its last words.
    """
    if os.name != "posix":
        child.kill()
        child.wait()
        return
    try:
        if _signal_group(child, signal.SIGTERM):
            end = time.monotonic() + grace
            while time.monotonic() < end and _group_lives(child):
                wait(0.02)
    finally:  # out of patience, or a second Ctrl-C
        _signal_group(child, signal.SIGKILL)
        # A process that a driver holds cannot be killed; it must not hold us as well.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_KILLED_SECONDS)


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Whether the tool itself has ended. It is not reaped where that can be helped: until then its
    number, which is the group's, is nobody else's, and a signal cannot reach a stranger."""
    if child.returncode is None and hasattr(os, "waitid"):
        with contextlib.suppress(ChildProcessError):  # somebody else reaped it
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, child.pid, flags) is not None
    return child.poll() is not None


def _signal_group(child: subprocess.Popen[bytes], number: int) -> bool:
    """True when there was a group to get it. The tool leads its group, so its pid is the group's."""
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _group_lives(child: subprocess.Popen[bytes]) -> bool:
    if not hasattr(os, "waitid"):
        child.poll()  # a dead leader that is not reaped would count
    return _signal_group(child, 0) and _has_members(child.pid)


def _has_members(group: int) -> bool:
    """False when the group has zombies only, which stay where nobody reaps orphans (a container whose
    first process is no init); True where that cannot be told."""
    proc = Path("/proc")
    if not (proc / "self/stat").exists():
        return True
    for path in proc.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, _, of = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(of) == group and state not in "ZX":
                return True
    return False
