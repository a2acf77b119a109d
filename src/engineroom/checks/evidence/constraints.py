"""The pairwise rules of `deploy/support/constraints.yaml`, judged by their own conditions.

A row is broken when all of its `when` hold and one of its `requires` does not, or one of its
`forbids` does. A condition about something that is not given neither holds nor fails: the row is
silent, since the consumer's default may be right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from packaging.version import Version

from engineroom.catalog.load import in_range
from engineroom.catalog.support_models import Condition, ConstraintRow
from engineroom.checks.evidence.context import Context, about
from engineroom.names import KvCacheFormat, LaneName, Severity, Topic, WeightFormat
from engineroom.reading import commands, model_config
from engineroom.reading.cpp_values import cpp_bool
from engineroom.types import Finding

# Rows that a rule in Python judges with more than two values, or that no condition decides.
ELSEWHERE = frozenset(
    {"fp8-fmha-arch", "int8kv-paged-fmha", "volta-paged-fmha", "head-size-multiple-of-8",
     "chunked-needs-paged-fmha", "kv-reuse-needs-paged-fmha", "chunk-multiple-of-block",
     "cyclic-kv-beam", "cuda-graph-sizes", "tokens-per-block-pow2", "max-num-tokens-multiple"}
)  # fmt: skip
_SEVERITY = {
    "reject": Severity.ERROR,
    "warn": Severity.WARN,
    "adjust": Severity.WARN,
    "info": Severity.INFO,
    "unknown": Severity.INFO,
}
_ALGO = {
    WeightFormat.FP8: "FP8", WeightFormat.NVFP4: "NVFP4", WeightFormat.W4A16_AWQ: "W4A16_AWQ",
    WeightFormat.W4A8_AWQ: "W4A8_AWQ",
}  # fmt: skip
_KV_ALGO = {KvCacheFormat.FP8: "FP8", KvCacheFormat.INT8: "INT8", KvCacheFormat.NVFP4: "NVFP4"}


@dataclass(frozen=True)
class _Subjects:
    """What conditions are about, as far as the evidence has it; absent subjects are unknown."""

    c: Context

    @cached_property
    def flag(self) -> dict[str, Any]:
        given = commands.flags(self.c.evidence.build_argv or ())
        known: dict[str, Any] = {name.removeprefix("--"): value for name, value in given.items()}
        engine = self.c.evidence.engine_config
        plugins = engine.build_config.plugin_config if engine and engine.build_config else None
        for name, value in (plugins.model_dump(exclude_none=True) if plugins else {}).items():
            known.setdefault(name, "enable" if value else "disable")
        return known

    @cached_property
    def parameter(self) -> dict[str, Any]:
        known: dict[str, Any] = {}
        for config in self.c.evidence.triton_configs or ():
            for key, scalar in model_config.read(config.path, config.text).parameters.items():
                if not scalar.placeholders:
                    truth = cpp_bool(scalar.text)
                    plain = scalar.text in ("0", "1") or truth is None
                    known[key] = _number(scalar.text) if plain else truth
        return known

    @cached_property
    def argument(self) -> dict[str, Any]:
        known: dict[str, Any] = {}
        for key, value in (self.c.evidence.model_yaml or {}).items():
            known[str(key)] = value
            if isinstance(value, dict):
                known |= {f"{key}.{inner}": v for inner, v in value.items()}
        return known

    @cached_property
    def fact(self) -> dict[str, Any]:
        e, spec = self.c.evidence, self.c.spec
        quantization = e.quant_config.quantization if e.quant_config else None
        engine = e.engine_config.pretrained_config if e.engine_config else None
        architecture = (e.hf_config.architectures or (None,))[0] if e.hf_config else None
        known = {
            "compute_capability": self.c.compute_capability,
            "trtllm_version": self.c.trtllm,
            "weights": spec.weights and str(spec.weights),
            "kv_cache": spec.kv_cache and str(spec.kv_cache),
            "quant_algo": (quantization.quant_algo if quantization else None)
            or (_ALGO.get(spec.weights) if spec.weights else None),
            "kv_cache_quant_algo": (quantization.kv_cache_quant_algo if quantization else None)
            or (_KV_ALGO.get(spec.kv_cache) if spec.kv_cache else None),
            "model_architecture": architecture or (engine.architecture if engine else None),
            "tensor_parallel": self.c.tp if e.spec else None,
        }
        return {name: value for name, value in known.items() if value is not None}

    def get(self, condition: Condition) -> tuple[str, bool, Any]:
        """(shown name, known, value) of the condition's subject."""
        for kind in ("flag", "parameter", "argument", "fact"):
            name = getattr(condition, kind)
            if name is not None:
                values: dict[str, Any] = getattr(self, kind)
                return f"--{name}" if kind == "flag" else name, name in values, values.get(name)
        return "", False, None

    def parent_given(self, condition: Condition) -> bool:
        """Whether the object that would hold a dotted argument is given: then its absence is known."""
        head, dot, _ = (condition.argument or "").partition(".")
        return bool(dot) and isinstance(self.argument.get(head), dict)

    def named(self, reference: str) -> Any:
        """`kind:name` of `same_as`; None when it is not known."""
        kind, _, name = reference.partition(":")
        return (
            getattr(self, kind).get(name)
            if kind in ("flag", "parameter", "argument", "fact")
            else None
        )


def _number(text: str) -> Any:
    return int(text) if re.fullmatch(r"[-+]?[0-9]{1,18}", text) else text


def _compare(value: Any, limit: float | str) -> int | None:
    """Sign of value - limit, by version for texts; None when they do not compare."""
    try:
        if isinstance(limit, str):
            a, b = Version(str(value)), Version(limit)
            return (a > b) - (a < b)
        number = float(value)
    except (TypeError, ValueError):
        return None
    return (number > limit) - (number < limit)


def holds(subjects: _Subjects, condition: Condition) -> bool | None:
    """Whether a condition holds; None when its subject is not known."""
    _, known, value = subjects.get(condition)
    if condition.is_set is not None:
        if not known and not subjects.parent_given(condition):
            return None
        return (known and value is not None) is condition.is_set
    if not known or value is None:
        return None
    text = str(value)
    if condition.one_of is not None:
        return value in condition.one_of or text in [str(v) for v in condition.one_of]
    if condition.none_of is not None:
        return value not in condition.none_of and text not in [str(v) for v in condition.none_of]
    if condition.minimum is not None:
        sign = _compare(value, condition.minimum)
        return None if sign is None else sign >= 0
    if condition.maximum is not None:
        sign = _compare(value, condition.maximum)
        return None if sign is None else sign <= 0
    if condition.multiple_of is not None:
        return bool(value % condition.multiple_of == 0) if isinstance(value, int) else None
    if condition.same_as is not None:
        other = subjects.named(condition.same_as)
        return None if other is None else bool(value == other)
    return bool(value == condition.equals)


def broken(row: ConstraintRow, subjects: _Subjects) -> list[str] | None:
    """What breaks the row, as text for a reason; None when it holds or is not decidable."""
    if any(holds(subjects, condition) is not True for condition in row.when):
        return None
    faults = [c for c in row.requires if holds(subjects, c) is False]
    faults += [c for c in row.forbids if holds(subjects, c) is True]
    if not faults:
        return None
    parts = []
    for condition in (*row.when, *faults):
        name, _, value = subjects.get(condition)
        parts.append(f"{name} is {str(value)[:80]}")
    return parts


@about(Topic.BUILD_FLAGS, Topic.LLM_ARGS, Topic.KV_CACHE)
def pairwise(c: Context) -> Iterator[Finding]:
    if not (c.evidence.build_argv or c.evidence.model_yaml or c.evidence.triton_configs):
        return
    subjects = _Subjects(c)
    lane = c.lane or (LaneName.LLMAPI if c.evidence.model_yaml else LaneName.ENGINE)
    for row in c.catalog.constraints.values():
        if row.id in ELSEWHERE or row.lane not in ("both", lane):
            continue
        if not _applies(c, row):
            continue
        faults = broken(row, subjects)
        if faults:
            file, key = c.place(_part(c, row))
            yield Finding(
                row.id, _SEVERITY[row.effect], key, f"{row.rule}; here {', '.join(faults)}",
                "change one of them", "; ".join(row.source), c.target_id, file,
            )  # fmt: skip


def _applies(c: Context, row: ConstraintRow) -> bool:
    """Version and compute capability; a row for some versions is silent when the version is unknown."""
    conditions = (*row.when, *row.requires, *row.forbids)
    own = any(condition.fact == "compute_capability" for condition in conditions)
    # A row about certain cards says nothing on others, nor on an unknown one.
    if (
        row.compute_capabilities
        and not own
        and c.compute_capability not in row.compute_capabilities
    ):
        return False
    if c.trtllm is not None:
        return in_range(c.trtllm, row.versions)
    # Every release with trtllm-build is below 1.3: such a row holds for any build command.
    return row.versions == "" or (row.lane == "engine" and row.versions == "<1.3")


def _part(c: Context, row: ConstraintRow) -> str:
    for part in {"build": ("build_argv",), "llm_args": ("model_yaml",)}.get(row.applies_to, ()):
        if getattr(c.evidence, part):
            return part
    given = ("triton_configs", "model_yaml", "build_argv")
    return next(part for part in given if getattr(c.evidence, part))


RULES = (pairwise,)
