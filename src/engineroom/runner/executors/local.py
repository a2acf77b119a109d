"""Steps as processes of this machine, from tools on PATH."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from engineroom.errors import MissingError
from engineroom.runner.executors.attempts import run_attempts
from engineroom.runner.executors.base import StepRun
from engineroom.runner.executors.gpus import require_sku
from engineroom.runner.executors.options import check_retries, check_seconds
from engineroom.runner.tool import GRACE_SECONDS
from engineroom.types import Step


@dataclass(frozen=True)
class LocalExecutor:
    """Tools on PATH.

    Attributes:
        retries: times that a step is started again when somebody else ended it with SIGTERM, as
            batch systems and spot machines do before they take the machine away.
        grace: seconds between SIGTERM and SIGKILL when a step is stopped.
    """

    retries: int = 2
    grace: float = GRACE_SECONDS

    name = "local"

    def __post_init__(self) -> None:
        check_retries(self.name, self.retries)
        check_seconds(self.name, "grace", self.grace)

    def missing(self, step: Step) -> str | None:
        return step.argv[0] if step.argv and shutil.which(step.argv[0]) is None else None

    def run(self, run: StepRun) -> None:
        if (absent := self.missing(run.step)) is not None:
            raise MissingError(
                f"`{absent}` is not on PATH",
                hint=f"run inside {run.step.image or 'the container of the stack'}, or use "
                "--executor docker",
            )
        require_sku(run)
        argv = run.step.argv_into(str(run.output))
        run_attempts(run, lambda attempt: argv, retries=self.retries, grace=self.grace)
