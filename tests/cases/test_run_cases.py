"""The runner of cases: its comparison, its merge, its exit code; and the shared cases where they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cases import run_cases
from tests.conftest import ROOT

SHARED = ROOT.parent / "shared/cases"
STAGES = ("check", "build", "package", "quantize", "render")


def case(folder: Path, name: str, **parts: Any) -> None:
    body = {"id": name, "title": "t", "kind": "quant-gpu-support", "stage": "check", **parts}
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(body), encoding="utf-8")


FP8_ON_AMPERE = {"spec": {"weights": "fp8"}, "gpu": {"compute_capability": "8.0"}}


@pytest.mark.parametrize(
    ("expected", "passes"),
    [
        ({"verdict": "error"}, True),
        ({"verdict": "ok"}, False),
        ({"verdict": "warn"}, False),
        ({"verdict": "error", "must_mention": [["nowhere", "8.9"]]}, True),
        ({"verdict": "error", "must_mention": [["8.9"], ["nowhere"]]}, False),
        ({"verdict": "error", "value": {"kv_tokens": 1}}, False),
    ],
)
def test_verdict_value_and_mention(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], expected: dict[str, Any], passes: bool
) -> None:
    case(tmp_path / "c", "one", input=FP8_ON_AMPERE, expected=expected)
    assert run_cases.main([str(tmp_path / "c")]) == (0 if passes else 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("PASS one: " if passes else "FAIL one: ")
    assert lines[-1] == ("1 passed, 0 failed, 0 later" if passes else "0 passed, 1 failed, 0 later")


def test_variants_are_judged_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variants = [
        {"gpu": {"compute_capability": "8.9"}},
        {"spec": {"weights": "bf16"}},
        {"gpu": None},
    ]
    value = [{"verdict": "ok"}, {"verdict": "ok"}, {"verdict": "ok"}]
    case(tmp_path / "c", "v", input={**FP8_ON_AMPERE, "variants": variants},
         expected={"verdict": "ok", "value": value})  # fmt: skip
    assert run_cases.main([str(tmp_path / "c")]) == 0
    variants.append({})
    case(tmp_path / "c", "v", input={**FP8_ON_AMPERE, "variants": variants},
         expected={"verdict": "error", "value": [*value, {"verdict": "ok"}]})  # fmt: skip
    assert run_cases.main([str(tmp_path / "c")]) == 1


def test_a_case_that_breaks_is_a_failure_not_an_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case(tmp_path / "c", "a", input={"no_such_part": 1}, expected={"verdict": "ok"})
    case(tmp_path / "c", "b", input=FP8_ON_AMPERE, expected={"verdict": "error"})
    case(tmp_path / "c", "c", input={}, expected={"verdict": "ok"}, kind="of-another-world")
    (tmp_path / "c/SCHEMA.json").write_text("{}")
    assert run_cases.main([str(tmp_path / "c")]) == 1
    out = capsys.readouterr().out
    assert "no_such_part" in out
    assert "later c:" in out
    assert out.splitlines()[-1] == "1 passed, 1 failed, 1 later"


@pytest.mark.parametrize(
    ("want", "got", "same"),
    [
        (4, 4.0, True), (4, 5, False), (True, 1, False), (1, True, False), ("a", "a", True),
        ([1, 2], [1, 2], True), ([1, 2], [2, 1], False), ([1], [1, 2], False),
        ({"a": 1}, {"a": 1, "b": 2}, True), ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"set": [1, 2]}, [2, 1], True), ({"set": [1]}, [1, 1], False), ({"set": []}, [], True),
        ({"between": [1, 2]}, 2, True), ({"between": [1, 2]}, 3, False),
        ({"approx": 100, "rel": 0.01}, 101, True), ({"approx": 100, "rel": 0.01}, 102, False),
        ({"matches": "a+"}, "aaa", True), ({"matches": "a+"}, "aab", False), (1, "1", False),
    ],
)  # fmt: skip
def test_comparison(want: Any, got: Any, same: bool) -> None:
    assert (list(run_cases.differences(want, got, "value")) == []) is same


def test_shapes_allow_no_further_key() -> None:
    assert list(
        run_cases.differences({"tensor_shapes": {}}, {"tensor_shapes": {"a": [1]}}, "value")
    )
    assert not list(run_cases.differences({"fields": {}}, {"fields": {"a": 1}}, "value"))


def test_merge_patch() -> None:
    """The examples of RFC 7396, appendix A, that cases can use."""
    assert run_cases.merged({"a": "b"}, {"a": "c"}) == {"a": "c"}
    assert run_cases.merged({"a": "b", "b": "c"}, {"a": None}) == {"b": "c"}
    assert run_cases.merged({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}) == {"a": {"b": "d"}}
    assert run_cases.merged({"a": [{"b": "c"}]}, {"a": [1]}) == {"a": [1]}
    assert run_cases.merged({}, {"a": {"bb": {"ccc": None}}}) == {"a": {"bb": {}}}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared cases are not beside this checkout")
def test_shared_cases(capsys: pytest.CaptureFixture[str]) -> None:
    options = [word for stage in STAGES for word in ("--stage", stage)]
    failed = run_cases.main([str(SHARED), *options])
    out = capsys.readouterr().out
    assert failed == 0, "\n".join(line for line in out.splitlines() if line.startswith("FAIL"))
    assert not [line for line in out.splitlines() if line.startswith("later ")]
