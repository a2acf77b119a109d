"""docs/executors.md names every executor, option and default that there is, and its examples run."""

from __future__ import annotations

import dataclasses
import re

import pytest

from engineroom.runner.executors import _CLASSES, EXECUTORS
from tests.conftest import ROOT

TEXT = (ROOT / "docs/executors.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", EXECUTORS)
def test_options(name):
    section = TEXT.split(f"\n## {name}\n")[1].split("\n## ")[0]
    told = set(
        re.findall(r"`([a-z_]+)`", " ".join(re.findall(r"^\| (.*?) \|", section, re.MULTILINE)))
    )
    options = {field.name for field in dataclasses.fields(_CLASSES[name])}
    assert options <= told, options - told
    table = section.split("| option |")[1]
    rows = {
        o: row
        for row in table.splitlines()
        for o in re.findall(r"`([a-z_]+)`", row.split("|")[1] if "|" in row else "")
    }
    assert set(rows) == options


def test_the_python_example_runs(capsys):
    example = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert example is not None
    exec(example[1], {})
    assert capsys.readouterr().out == f"{EXECUTORS}\n"
