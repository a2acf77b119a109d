"""No rule without a test that fires it and one that does not; no finding that names us as its source."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import engineroom.lanes  # noqa: F401  (lanes declare codes of their own)
from engineroom.catalog import Catalog
from engineroom.checks.codes import register
from engineroom.pipeline import check
from engineroom.spec import yaml_lines
from tests.checks.spec_examples import L4, SPEC_EXAMPLES, Changes
from tests.conftest import ROOT, SMOLLM2_CONFIG, spec_data

EXAMPLES = Path(__file__).parent / "examples"


def _codes(make_job: Any, tmp_path: Path, changes: Changes) -> set[str]:
    changes = dict(changes)
    model: Path = SMOLLM2_CONFIG
    if {"model_type", "architecture"} & set(changes):
        model = tmp_path / "other-model"
        model.mkdir(exist_ok=True)
        config = json.loads((SMOLLM2_CONFIG / "config.json").read_text())
        config["model_type"] = changes.pop("model_type", config["model_type"])
        config["architectures"] = [changes.pop("architecture", config["architectures"][0])]
        (model / "config.json").write_text(json.dumps(config))
    changes.setdefault("targets", [L4])
    source = changes.pop("model", None)
    data = spec_data(model, **changes)
    if source is not None:
        data["model"] = {**source, "source": source["source"].replace("@", str(model))}
    data = {key: value for key, value in data.items() if value is not None}
    return {finding.code for finding in check(make_job(data))}


@pytest.mark.parametrize(
    ("code", "fires", "near_miss"), SPEC_EXAMPLES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_code_of_a_spec(
    make_job: Any, tmp_path: Path, code: str, fires: Changes, near_miss: Changes
) -> None:
    assert code in _codes(make_job, tmp_path, fires)
    assert code not in _codes(make_job, tmp_path, near_miss)


def _with_examples() -> set[str]:
    named = {code for code, _, _ in SPEC_EXAMPLES}
    for path in EXAMPLES.glob("*.yaml"):
        entries = yaml_lines.parse(path.read_text(encoding="utf-8"), path.name).data
        named |= {entry["code"] for entry in entries}
    return named


def test_every_code_has_an_example_and_a_near_miss() -> None:
    declared = set(register())
    assert declared - _with_examples() == set(), "declared without an example"
    assert _with_examples() - declared == set(), "an example of a code that nobody declares"
    assert len(declared) > 150


def test_every_code_says_what_why_and_where_it_was_read() -> None:
    for code in register().values():
        assert len(code.says) > 15, code.id
        assert len(code.why) > 15, code.id
        assert len(code.source) > 10, code.id
        assert "engineroom" not in code.source.lower(), code.id
        assert "docs/limits" not in code.source, code.id


def test_findings_are_made_of_declared_codes_only() -> None:
    """A code written out where a finding is made must be in the register, or `--explain` is silent."""
    written = set()
    for folder in ("checks", "lanes"):
        for path in (ROOT / "src/engineroom" / folder).rglob("*.py"):
            if path.name == "machine.py":
                continue  # codes of `doctor`, whose own tests hold them (tests/doctor)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and node.args:
                    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    first = node.args[0]
                    if name in ("Finding", "DriverAnswer") and isinstance(first, ast.Constant):
                        written.add(first.value)
    assert written - set(register()) == set()


def test_rows_of_the_catalog_have_sources_that_are_not_ourselves() -> None:
    catalog = Catalog()
    for row in catalog.constraints.values():
        assert row.source, row.id
        assert all("engineroom" not in source.lower() for source in row.source), row.id
    for recipe in catalog.weight_recipes.values():
        assert all("engineroom" not in source.lower() for source in recipe.source), recipe.id
