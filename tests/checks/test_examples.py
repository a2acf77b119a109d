"""Every code fires on its example, stays silent on the near miss, and names a source not ourselves.

`examples/*.yaml` hold evidence: the same parts that `lint` reads. Codes of rules over a spec have
their examples in `test_rules.py`, listed in `SPEC_CODES` there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engineroom.catalog import Catalog
from engineroom.checks.codes import register
from engineroom.checks.evidence import Context, judge
from engineroom.reading import Evidence
from engineroom.spec import yaml_lines
from engineroom.types import Finding

EXAMPLES = Path(__file__).parent / "examples"
CATALOG = Catalog()


def _examples() -> list[dict[str, Any]]:
    entries = []
    for path in sorted(EXAMPLES.glob("*.yaml")):
        entries += yaml_lines.parse(path.read_text(encoding="utf-8"), path.name).data
    return entries


def _findings(parts: dict[str, Any]) -> list[Finding]:
    return judge(Context(Evidence.model_validate(parts), CATALOG))[0]


@pytest.mark.parametrize("entry", _examples(), ids=lambda entry: entry["code"])
def test_code_fires_and_its_near_miss_does_not(entry: dict[str, Any]) -> None:
    code = register()[entry["code"]]
    fired = [f for f in _findings(entry["fires"]) if f.code == code.id]
    assert fired, "the example does not fire"
    for finding in fired:
        assert all((finding.reason, finding.fix, finding.key))
        assert "engineroom" not in finding.source.lower()
        assert len(finding.source) > 8
    assert code.id not in {f.code for f in _findings(entry["near_miss"])}


def test_examples_name_each_code_once() -> None:
    names = [entry["code"] for entry in _examples()]
    assert len(names) == len(set(names))
