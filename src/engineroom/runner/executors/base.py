"""The executor protocol: a `Step` is data, an executor runs it somewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engineroom.errors import ExternalToolError, Where
from engineroom.runner.executors.phases import Progress
from engineroom.types import GpuSku, Step


def _ignore(value: object) -> None:
    pass


@dataclass(frozen=True)
class StepRun:
    """One run of one step.

    Attributes:
        step: what to run; it has an argv.
        sku: the GPU it must run on.
        workspace: folder that the step's inputs are relative to.
        output: an existing folder of the caller, below `workspace`; nothing is published from it
            unless the run ends well.
        log: file that gets the tool's whole output.
        timeout: seconds for the whole run, its retries included, or None for no limit.
        on_line: called with each line of output as it comes, without its line end.
        on_progress: called when the log shows another phase of the build, or a further share of it.
        target: id of the target, for names and labels that people look for.
        key: digest of the inputs, for the same.
        stop: set it from another thread to stop the run; `run` then raises StepStopped.
    """

    step: Step
    sku: GpuSku
    workspace: Path
    output: Path
    log: Path
    timeout: float | None = None
    on_line: Callable[[str], None] = _ignore
    on_progress: Callable[[Progress], None] = _ignore
    target: str = ""
    key: str = ""
    stop: threading.Event | None = None


class StepFailed(ExternalToolError):
    """A step's tool ended badly, or took too long.

    Attributes:
        log: file with the tool's whole output; what `explain-log` reads.
        tail: its last lines, for the message.
        code: exit code as the shell counts it (128 + signal), or None when the tool was stopped
            because of its timeout.
    """

    def __init__(
        self,
        message: str,
        *,
        log: Path,
        tail: tuple[str, ...] = (),
        code: int | None = None,
        hint: str | None = None,
    ) -> None:
        end = "; end of the log:\n    " + "\n    ".join(tail) if tail else ""
        super().__init__(message + end, hint=hint, where=Where(log.as_posix()))
        self.log, self.tail, self.code = log, tail, code


class StepStopped(ExternalToolError):
    """A step was stopped because its caller set `StepRun.stop`."""

    def __init__(self, message: str, *, log: Path) -> None:
        super().__init__(message, where=Where(log.as_posix()))
        self.log = log


class Executor(Protocol):
    """Runs steps somewhere."""

    @property
    def name(self) -> str: ...

    def missing(self, step: Step) -> str | None:
        """The tool that is not there and without which the step cannot run; None: it can."""

    def run(self, run: StepRun) -> None:
        """Run a step to its end; its outputs are then in `run.output`.

        Raises:
            MissingError: the tool is not there. StepFailed (an ExternalToolError): it failed, or
                took too long. StepStopped: `run.stop` was set. ExternalToolError: it could not be
                started.
            KeyboardInterrupt: after what was started has been stopped.
        """
