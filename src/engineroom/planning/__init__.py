"""Capacity arithmetic: pure functions from sizes to tokens and sequences."""

from engineroom.planning.capacity import (
    RESERVE_MIB,
    VLLM_MEMORY_SHARE,
    VLLM_RESERVE_MIB,
    VLLM_TOKENS_PER_BLOCK,
    WeightBytes,
    capacity_of,
    profile_plans,
    target_capacity,
    weight_bytes,
    whole_blocks,
)

__all__ = [
    "RESERVE_MIB",
    "VLLM_MEMORY_SHARE",
    "VLLM_RESERVE_MIB",
    "VLLM_TOKENS_PER_BLOCK",
    "WeightBytes",
    "capacity_of",
    "profile_plans",
    "target_capacity",
    "weight_bytes",
    "whole_blocks",
]
