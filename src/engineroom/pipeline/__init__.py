"""One function per verb, typed in and out: the public Python API.

from engineroom import pipeline
job = pipeline.open_job(Path("engineroom.yaml"))
findings = pipeline.check(job)

A verb is imported when it is first used: `check` must not wait for what `deploy` needs.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engineroom.pipeline.advice import advise
    from engineroom.pipeline.build import build
    from engineroom.pipeline.check import check
    from engineroom.pipeline.deploy import deploy
    from engineroom.pipeline.doctor import doctor
    from engineroom.pipeline.explain_log import explain_log
    from engineroom.pipeline.generate import generate
    from engineroom.pipeline.job import Job, Reporter, open_job
    from engineroom.pipeline.lint import LintReport, lint, lint_topics
    from engineroom.pipeline.migrate import migrate
    from engineroom.pipeline.plan import plan
    from engineroom.pipeline.quantize import quantize
    from engineroom.pipeline.render import render
    from engineroom.pipeline.serve import serve
    from engineroom.pipeline.up import up
    from engineroom.pipeline.upgrade import upgrade

__all__ = [
    "Job",
    "LintReport",
    "Reporter",
    "advise",
    "build",
    "check",
    "deploy",
    "doctor",
    "explain_log",
    "generate",
    "lint",
    "lint_topics",
    "migrate",
    "open_job",
    "plan",
    "quantize",
    "render",
    "serve",
    "up",
    "upgrade",
]

_OTHERS = {
    "advise": "advice",
    "Job": "job",
    "Reporter": "job",
    "open_job": "job",
    "LintReport": "lint",
    "lint_topics": "lint",
}


class _Package(ModuleType):
    """A verb's module is named after its function; the package shows the function.

    The import system sets a loaded submodule as an attribute of its package, which would hide the
    function behind the module, depending on who imported what first.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in __all__ and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_OTHERS.get(name, name)}")
    return getattr(module, name)
