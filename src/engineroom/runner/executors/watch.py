"""What an executor does with each line of output."""

from __future__ import annotations

from engineroom.runner.executors.base import StepRun
from engineroom.runner.executors.phases import PhaseReader


class Watch:
    """Hands lines to the caller, and the progress that they show."""

    def __init__(self, run: StepRun) -> None:
        self._run = run
        ranks = sum(1 for name in run.step.outputs if name.endswith(".engine"))
        self._phases = PhaseReader(ranks)
        run.on_progress(self._phases.progress)

    def line(self, text: str) -> None:
        self._run.on_line(text)
        progress = self._phases.feed(text)
        if progress is not None:
            self._run.on_progress(progress)
