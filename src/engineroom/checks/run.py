"""The list of topics. A new topic is a new module with ``RULES`` and an entry here."""

from __future__ import annotations

from engineroom.checks import (
    drivers,
    engine_options,
    features,
    features_lora,
    features_speculative,
    lanes,
    limits,
    llmapi_options,
    model,
    parallel,
    placement,
    precision,
    shapes,
    target_options,
    vllm,
)
from engineroom.checks.base import Rule, TargetContext
from engineroom.types import Finding

TOPICS = (
    lanes,
    precision,
    drivers,
    model,
    parallel,
    shapes,
    limits,
    features,
    features_lora,
    features_speculative,
    placement,
    target_options,
    engine_options,
    llmapi_options,
    vllm,
)


def all_rules() -> tuple[Rule, ...]:
    """Every rule of every topic, in order."""
    return tuple(rule for topic in TOPICS for rule in topic.RULES)


def check_target(context: TargetContext) -> list[Finding]:
    """All findings of all rules; nothing is dropped after the first."""
    return [finding for rule in all_rules() for finding in rule(context)]
