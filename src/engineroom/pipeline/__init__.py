"""One function per verb, typed in and out: the public Python API.

from engineroom import pipeline
job = pipeline.open_job(Path("engineroom.yaml"))
findings = pipeline.check(job)
"""

from engineroom.pipeline.build import build
from engineroom.pipeline.check import check
from engineroom.pipeline.deploy import deploy
from engineroom.pipeline.generate import generate
from engineroom.pipeline.job import Job, Reporter, open_job
from engineroom.pipeline.lint import LintReport, lint, lint_topics
from engineroom.pipeline.plan import plan
from engineroom.pipeline.quantize import quantize
from engineroom.pipeline.render import render
from engineroom.pipeline.serve import serve
from engineroom.pipeline.up import up

__all__ = [
    "Job",
    "LintReport",
    "Reporter",
    "build",
    "check",
    "deploy",
    "generate",
    "lint",
    "lint_topics",
    "open_job",
    "plan",
    "quantize",
    "render",
    "serve",
    "up",
]
