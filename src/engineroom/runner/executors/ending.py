"""What a bad end means: words, the likely cause, and whether trying again makes sense."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from engineroom.runner.executors.base import StepFailed, StepRun, StepStopped
from engineroom.runner.process import describe_exit
from engineroom.runner.tool import Ended

DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
"""strerror of ENOSPC, EDQUOT and EFBIG (GNU libc, errno.h)."""

_NEARLY_NOTHING = 32 << 20
"""Bytes: a disk with less left is full for an engine."""

_OUT_OF_MEMORY = (137, -9)
"""SIGKILL, by number: Windows has no such name, and imports this."""


def was_preempted(code: int) -> bool:
    """Ended by SIGTERM that we did not send: the tool itself, or a shell or mpirun around it (143)."""
    return code in (-signal.SIGTERM, 128 + signal.SIGTERM)


def stopped(run: StepRun) -> StepStopped:
    return StepStopped(f"`{run.step.argv[0]}` was stopped", log=run.log)


def failure(
    run: StepRun, ended: Ended, *, attempts: int = 1, meaning: str | None = None
) -> StepFailed:
    """The error of a run that ended badly.

    Args:
        meaning: what the executor knows about this exit code, or None.
    """
    what = run.step.argv[0]
    if ended.timed_out:
        return StepFailed(
            f"`{what}` did not end within {run.timeout:g} s and was stopped",
            log=run.log,
            tail=ended.tail,
            hint="give it more time (--timeout), or look in the log for where it hangs",
        )
    code = ended.code if ended.code >= 0 else 128 - ended.code
    message = f"`{what}` {describe_exit(ended.code)}"
    if attempts > 1:
        message += f", {attempts} times: somebody else ends it"
    hint = None
    if meaning is not None:
        message += f": {meaning}"
    if (full := disk_full(run, ended)) is not None:
        message += f"; {full}"
        hint = "free space there, or move the workspace with --out"
    elif ended.code in _OUT_OF_MEMORY:
        need = run.step.host_memory_bytes
        estimate = "" if need is None else f" (this step is estimated to need {_gib(need)})"
        hint = f"give it more host memory{estimate}, or build fewer targets at once"
    return StepFailed(message, log=run.log, tail=ended.tail, code=code, hint=hint)


def disk_full(run: StepRun, ended: Ended) -> str | None:
    """Which disk is full, when that is what the end says."""
    said = next((words for words in DISK_FULL for line in ended.tail if words in line), None)
    for folder in (run.output, run.log.parent):
        if (free := _free(folder)) is not None and free < _NEARLY_NOTHING:
            return f"the disk of {folder} is full ({free >> 20} MiB left)"
    if said is not None:
        return f"a disk is full, or a limit on file sizes is reached (the log says: {said})"
    return None if ended.log_error is None else f"the log is not complete: {ended.log_error}"


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
