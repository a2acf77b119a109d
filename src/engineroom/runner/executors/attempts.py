"""One run of a step as attempts of a command on this machine: what `local` and `docker` share."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from engineroom.runner import tool
from engineroom.runner.executors.base import StepRun
from engineroom.runner.executors.ending import failure, stopped, was_preempted
from engineroom.runner.executors.watch import Watch


def run_attempts(
    run: StepRun,
    command: Callable[[int], Sequence[str]],
    *,
    retries: int,
    grace: float,
    clean_up: Callable[[int], None] = lambda attempt: None,
    hints: Callable[[int], str | None] = lambda code: None,
) -> None:
    """Run a command until it ends well, fails, or was ended from outside too often.

    Args:
        command: the words of an attempt, counted from 0.
        clean_up: called after an attempt that did not end by itself (time limit, Ctrl-C, `run.stop`).
        hints: what an exit code means to the caller, or None.

    Raises:
        StepFailed, StepStopped, ExternalToolError: as `Executor.run` says.
    """
    run.log.parent.mkdir(parents=True, exist_ok=True)
    before = {path.name for path in run.output.iterdir()}
    end = None if run.timeout is None else time.monotonic() + run.timeout
    for attempt in range(retries + 1):
        try:
            ended = tool.follow(
                command(attempt),
                cwd=run.workspace,
                log=run.log,
                on_line=Watch(run).line,
                seconds=None if end is None else max(0.0, end - time.monotonic()),
                stop=run.stop,
                append=attempt > 0,
                grace=grace,
            )
        except BaseException:
            clean_up(attempt)
            raise
        if ended.stopped or ended.timed_out:
            clean_up(attempt)
        if ended.stopped:
            raise stopped(run)
        if ended.code == 0 and not ended.timed_out:
            return
        if ended.timed_out or not was_preempted(ended.code) or attempt == retries:
            raise failure(run, ended, attempts=attempt + 1, meaning=hints(ended.code))
        _clear(run.output, keep=before)
        run.on_line(f"engineroom: ended by SIGTERM from outside, attempt {attempt + 2}")


def _clear(folder: Path, keep: set[str]) -> None:
    """Remove what a run left; what the caller had put there stays."""
    for path in folder.iterdir():
        if path.name in keep:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
