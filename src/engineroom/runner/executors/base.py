"""The executor protocol: a `Step` is data, an executor runs it somewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engineroom.types import GpuSku, Step


def _ignore(text: str) -> None:
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
        timeout: seconds, or None for no limit.
        on_line: called with each line of output as it comes.
    """

    step: Step
    sku: GpuSku
    workspace: Path
    output: Path
    log: Path
    timeout: float | None = None
    on_line: Callable[[str], None] = _ignore


class Executor(Protocol):
    """Runs steps somewhere."""

    @property
    def name(self) -> str: ...

    def missing(self, step: Step) -> str | None:
        """The tool that is not there and without which the step cannot run; None: it can."""

    def run(self, run: StepRun) -> None:
        """Run a step to its end; its outputs are then in `run.output`.

        Raises:
            MissingError: the tool is not there. ExternalToolError: it failed, or took too long.
            KeyboardInterrupt: after what was started has been stopped.
        """
