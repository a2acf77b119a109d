"""Where a step runs: one protocol, an implementation a module, one list."""

from __future__ import annotations

from engineroom.runner.executors.base import Executor, StepRun
from engineroom.runner.executors.local import LocalExecutor

__all__ = ["Executor", "LocalExecutor", "StepRun"]
