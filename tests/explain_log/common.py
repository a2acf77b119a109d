"""Fixtures by row, and a run over text."""

from __future__ import annotations

import importlib
import io
from functools import cache
from pathlib import Path

import yaml

from engineroom.catalog import log_lines

# The package shows the function of this name; the test needs the module.
module = importlib.import_module("engineroom.pipeline.explain_log")

FIXTURES = Path(__file__).parent / "fixtures"


@cache
def rows():
    return log_lines.load()


@cache
def cases():
    files = sorted(FIXTURES.glob("*.yaml"))
    return tuple(case for file in files for case in yaml.safe_load(file.read_text("utf-8")))


def explain(text):
    """The explanation of a log given as text or bytes, by the shipped rows."""
    raw = text if isinstance(text, bytes) else text.encode()
    return module._Reading(rows(), "log").run(io.BytesIO(raw))


def ids(explanation):
    return [known.row.id for known in explanation.known]
