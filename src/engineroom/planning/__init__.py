"""Capacity arithmetic: pure functions from sizes to tokens and sequences."""

from engineroom.planning.capacity import (
    RESERVE_MIB,
    WeightBytes,
    capacity_of,
    profile_plans,
    weight_bytes,
)

__all__ = ["RESERVE_MIB", "WeightBytes", "capacity_of", "profile_plans", "weight_bytes"]
