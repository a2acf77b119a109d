"""Rows of constraints.yaml by their own conditions: every decidable row is broken once and kept once."""

from __future__ import annotations

from typing import Any

import pytest

from engineroom.catalog import Catalog
from engineroom.catalog.support_models import Condition, ConstraintRow
from engineroom.checks.evidence import Context, judge
from engineroom.checks.evidence.constraints import ELSEWHERE, holds
from engineroom.reading import Evidence

CATALOG = Catalog()
ROWS = [
    row
    for row in CATALOG.constraints.values()
    if row.id not in ELSEWHERE and (row.requires or row.forbids)
]
# Subjects of rows that evidence cannot give yet; such rows stay silent.
OUT_OF_REACH = {"mig_slices", "context_chunk", "hardware_compatibility_level", "beam_width",
                "built_compute_capability", "rope_scaling_type", "awq_group_size",
                "nvfp4_inner_width", "attention_head_size"}  # fmt: skip


def satisfying(condition: Condition) -> Any:
    """A value for which the condition holds."""
    if condition.is_set is not None:
        return {"x": 1}
    if condition.one_of is not None:
        return condition.one_of[0]
    if condition.none_of is not None:
        return "something-else"
    for limit in (condition.minimum, condition.maximum, condition.multiple_of):
        if limit is not None:
            return limit
    return condition.equals


ABSENT = object()


def violating(condition: Condition) -> Any:
    if condition.is_set is not None:
        return ABSENT
    if condition.one_of is not None:
        return 3 if all(isinstance(v, int) for v in condition.one_of) else "something-else"
    if condition.none_of is not None:
        return condition.none_of[0]
    if condition.minimum is not None:
        return "0.1" if isinstance(condition.minimum, str) else condition.minimum - 1
    if condition.maximum is not None:
        return "99" if isinstance(condition.maximum, str) else condition.maximum + 1
    if condition.multiple_of is not None:
        return condition.multiple_of + 1
    if isinstance(condition.equals, bool):
        return not condition.equals
    return "disable" if condition.equals == "enable" else "something-else"


def evidence(row: ConstraintRow, settings: list[tuple[Condition, Any]]) -> dict[str, Any] | None:
    parts: dict[str, Any] = {}
    argv, parameters, arguments = ["trtllm-build"], {}, {}
    quantization: dict[str, Any] = {}
    for condition, value in settings:
        if value is ABSENT:
            continue
        if condition.flag:
            argv += [f"--{condition.flag}", str(value)]
        elif condition.parameter:
            parameters[condition.parameter] = str(value).lower()
        elif condition.argument:
            head, _, tail = condition.argument.partition(".")
            if tail:
                arguments.setdefault(head, {})[tail] = value
            else:
                arguments[head] = value
        elif condition.fact in ("quant_algo", "kv_cache_quant_algo"):
            quantization[condition.fact] = value
        elif condition.fact == "compute_capability":
            parts["gpu"] = {"compute_capability": value if "." in str(value) else "7.0"}
        elif condition.fact == "model_architecture":
            parts["hf_config"] = {"architectures": [value]}
        elif condition.fact in ("weights", "kv_cache"):
            fallback = "bf16" if value == "something-else" else value
            parts["spec"] = {**parts.get("spec", {}), condition.fact: fallback}
        else:
            return None
    if quantization:
        parts["quant_config"] = {"quantization": quantization}
    text = "".join(
        f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n'
        for k, v in parameters.items()
    )
    if text:
        parts["triton_configs"] = [{"path": "tensorrt_llm/config.pbtxt", "text": text}]
    if arguments:
        parts["model_yaml"] = arguments
    if len(argv) > 1 or not (text or arguments):
        parts["build_argv"] = argv
    version = next(v for v in ("1.2.1", "1.4.0rc4", "1.0.0", "0.21.0", "0.10.0", "0.5.0")
                   if row_covers(row, v))  # fmt: skip
    parts["stack"] = {"tensorrt_llm_version": version}
    parts.setdefault("spec", {})["lane"] = "engine" if row.lane == "both" else row.lane
    if row.compute_capabilities and "gpu" not in parts:
        parts["gpu"] = {"compute_capability": row.compute_capabilities[0]}
    return parts


def row_covers(row: ConstraintRow, version: str) -> bool:
    from engineroom.catalog.load import in_range

    return in_range(version, row.versions)


def codes(parts: dict[str, Any]) -> set[str]:
    return {f.code for f in judge(Context(Evidence.model_validate(parts), CATALOG))[0]}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_row_fires_when_broken_and_not_when_kept(row: ConstraintRow) -> None:
    when = [(c, satisfying(c)) for c in row.when]
    if row.requires:
        bad = [(row.requires[0], violating(row.requires[0]))]
        bad += [(c, satisfying(c)) for c in row.requires[1:]]
        good = [(c, satisfying(c)) for c in row.requires]
    else:
        bad, good = (
            [(row.forbids[0], satisfying(row.forbids[0]))],
            [(row.forbids[0], violating(row.forbids[0]))],
        )
    subjects = {c.fact for c in (*row.when, *row.requires, *row.forbids) if c.fact}
    fires, silent = evidence(row, when + bad), evidence(row, when + good)
    if (
        fires is None
        or silent is None
        or any(c.same_as for c in (*row.when, *row.requires, *row.forbids))
    ):
        assert subjects & OUT_OF_REACH or row.id in ("helix-tpb",), "no evidence can break this row"
        return
    assert row.id in codes(fires)
    assert row.id not in codes(silent)


def test_most_rows_are_judged_by_their_conditions() -> None:
    assert len(ROWS) >= 30


def test_unknown_subjects_decide_nothing() -> None:
    from engineroom.checks.evidence.constraints import _Subjects

    context = Context(Evidence.model_validate({"build_argv": ["trtllm-build"]}), CATALOG)
    assert holds(_Subjects(context), Condition(flag="gemm_plugin", equals="auto")) is None


def test_helix_blocks_agree() -> None:
    def parts(size: int) -> dict[str, Any]:
        return {
            "model_yaml": {
                "cp_config": {"tokens_per_block": 32},
                "kv_cache_config": {"tokens_per_block": size},
            },
            "stack": {"tensorrt_llm_version": "1.4.0rc4"},
        }

    assert "helix-tpb" in codes(parts(64))
    assert "helix-tpb" not in codes(parts(32))
