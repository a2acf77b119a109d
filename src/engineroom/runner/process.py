"""Child processes: argv lists, progress events, bounded waits, and words for how they ended."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engineroom.errors import (
    EngineroomError,
    ExternalToolError,
    InternalError,
    MissingError,
    UsageError,
)

Event = dict[str, Any]
_ERRORS: dict[str, type[EngineroomError]] = {
    "usage": UsageError,
    "missing": MissingError,
    "external": ExternalToolError,
}


# Looked up now: between fork and exec, a lock that another thread held would never be released.
_PRCTL: Any = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """In a child, before exec: the kernel sends it TERM when this process dies (Linux only)."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def run_module(
    module: str,
    request: Mapping[str, Any],
    *,
    log: Path | None,
    on_event: Callable[[Event], None] = lambda event: None,
    env: Mapping[str, str] | None = None,
) -> Event:
    """Run one of our modules as a child: request on stdin, JSON lines on stdout, log on stderr.

    The last event must be ``{"event": "result", ...}``; ``{"event": "error", "class": ...}`` raises.

    Raises:
        UsageError, MissingError, ExternalToolError: what the child reported.
        InternalError: the child died without a word; the message has the end of its log.
    """
    # -I would drop the user's site; -P only keeps the working directory out of sys.path.
    flags = ["-P"] if sys.version_info >= (3, 11) else []
    argv = [sys.executable, *flags, "-m", module]
    child_env = {**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"}
    sink: Any = log.open("wb") if log is not None else subprocess.DEVNULL
    try:
        with subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sink,
            env=child_env,
            preexec_fn=die_with_parent if os.name == "posix" else None,
        ) as child:
            try:
                return _converse(child, request, on_event, log, module)
            except BaseException:
                child.kill()
                raise
    finally:
        if log is not None:
            sink.close()


def _converse(
    child: subprocess.Popen[bytes],
    request: Mapping[str, Any],
    on_event: Callable[[Event], None],
    log: Path | None,
    module: str,
) -> Event:
    if child.stdin is None or child.stdout is None:
        raise InternalError("the child has no pipes")
    try:
        child.stdin.write(json.dumps(request).encode())
        child.stdin.close()
    except BrokenPipeError:
        pass  # it died at once; its log says why
    result: Event | None = None
    for line in child.stdout:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # a library printed to stdout
        if not isinstance(event, dict) or "event" not in event:
            continue
        if event["event"] == "result":
            result = event
        elif event["event"] == "error":
            cls = _ERRORS.get(str(event.get("class")), InternalError)
            raise cls(str(event["message"]), hint=event.get("hint"))
        else:
            on_event(event)
    code = child.wait()
    if code != 0 or result is None:
        raise InternalError(f"{module} {describe_exit(code)}{_tail(log)}")
    return result


def _tail(log: Path | None, lines: int = 5) -> str:
    if log is None or not log.is_file():
        return ""
    with log.open("r", encoding="utf-8", errors="replace") as file:
        last = deque((line.rstrip() for line in file if line.strip()), maxlen=lines)
    return f"; end of {log}:\n    " + "\n    ".join(last) if last else ""


def describe_exit(code: int) -> str:
    """How a process ended, in words that name the usual cause."""
    if code in (137, -9):
        return (
            f"was killed (exit {code}): usually the host ran out of memory (RAM or the cgroup's limit), "
            "not the GPU"
        )
    if code < 0:
        return f"ended by signal {-code}{_signal_name(-code)}"
    if 128 < code < 128 + 65:
        return f"ended with exit code {code}{_signal_name(code - 128)}"
    return f"ended with exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""
