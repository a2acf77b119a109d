"""Our own cases: near misses and less common faults of checkpoints, layouts, engines and versions.

Each file names the public report or upstream file that its verdict comes from.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.cases import run_cases

OWN = Path(__file__).parent / "own"
CASES = sorted(OWN.glob("*.json"))
KEYS = {"id", "source", "kind", "stage", "title", "input", "expected", "why", "difficulty",
        "verified_with", "confidence"}  # fmt: skip


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case_is_answered_rightly(path: Path) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    assert run_cases.judge(case) == []


def test_cases_have_the_shape_of_a_case() -> None:
    verdicts: Counter[str] = Counter()
    for path in CASES:
        case = json.loads(path.read_text(encoding="utf-8"))
        assert set(case) == KEYS, path.name
        assert case["id"] == path.stem
        assert set(case["expected"]) <= {"verdict", "reason", "remedy", "value", "must_mention"}
        assert case["source"]
        assert case["verified_with"]
        verdicts[case["expected"]["verdict"]] += 1
    # A rule that always alarms, or never does, must fail here.
    assert verdicts["ok"] >= 12
    assert verdicts["error"] >= 12


def test_the_whole_folder_passes_as_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cases.main([str(OWN)]) == 0
    assert f"{len(CASES)} passed, 0 failed, 0 later" in capsys.readouterr().out
