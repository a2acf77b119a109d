"""Steps as processes of this machine, from tools on PATH."""

from __future__ import annotations

import shutil

from engineroom.runner import process
from engineroom.runner.executors.base import StepRun
from engineroom.types import Step


class LocalExecutor:
    """Tools on PATH."""

    name = "local"

    def missing(self, step: Step) -> str | None:
        return step.argv[0] if step.argv and shutil.which(step.argv[0]) is None else None

    def run(self, run: StepRun) -> None:
        run.log.parent.mkdir(parents=True, exist_ok=True)
        process.run_tool(run.step.argv_into(str(run.output)), cwd=run.workspace, log=run.log)
