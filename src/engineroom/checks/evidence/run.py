"""The list of topic modules. A new one is a module with ``RULES`` and an entry here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from engineroom.checks.evidence import (
    adapters,
    artefact_fit,
    attention,
    build_flags,
    calibration,
    checkpoint_files,
    checkpoint_size,
    constraints,
    engine_fit,
    kubernetes,
    kv_budget,
    kv_scales,
    llm_args,
    model_config,
    parallel,
    precision,
    quant_metadata,
    quant_shapes,
    stop_words,
    text_stream,
    triton,
    versions,
    vllm_models,
)
from engineroom.checks.evidence.context import Context, TopicRule
from engineroom.names import Topic
from engineroom.types import Figure, Finding

MODULES: tuple[Any, ...] = (
    precision,
    quant_shapes,
    quant_metadata,
    kv_scales,
    checkpoint_files,
    checkpoint_size,
    calibration,
    model_config,
    parallel,
    versions,
    engine_fit,
    artefact_fit,
    kv_budget,
    llm_args,
    build_flags,
    attention,
    constraints,
    adapters,
    triton,
    text_stream,
    stop_words,
    kubernetes,
    vllm_models,
)


def evidence_rules() -> tuple[TopicRule, ...]:
    """Every rule of every module, in order."""
    return tuple(rule for module in MODULES for rule in module.RULES)


def judge(context: Context, topics: Collection[Topic] = ()) -> tuple[list[Finding], dict[str, Any]]:
    """All findings and figures of the rules of `topics` (empty: all); nothing is dropped.

    Figures that are mappings (``fields``) are merged key by key.
    """
    findings: list[Finding] = []
    figures: dict[str, Any] = {}
    for item in evidence_rules():
        if topics and not item.topics & set(topics):
            continue
        for answer in item.rule(context):
            if isinstance(answer, Finding):
                findings.append(answer)
            else:
                _merge(figures, answer)
    return findings, figures


def _merge(figures: dict[str, Any], figure: Figure) -> None:
    known = figures.get(figure.name)
    if isinstance(known, dict) and isinstance(figure.value, dict):
        merged = dict(known)
        for key, value in figure.value.items():
            merged[key] = _worse(merged[key], value) if key in merged else value
        figures[figure.name] = merged
    else:
        figures[figure.name] = figure.value


_RANK = {"ok": 0, "warn": 1, "error": 2}


def _worse(old: Any, new: Any) -> Any:
    """Of two verdicts about one field the harder one; facts that only the other has are kept."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    ranks = [_RANK.get(str(item.get("verdict")), 0) for item in (old, new)]
    return {**new, **old} if ranks[0] > ranks[1] else {**old, **new}
