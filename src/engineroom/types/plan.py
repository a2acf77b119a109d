"""Results of the capacity plan; sizes in bytes unless the name says MiB."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Capacity:
    """Memory of one GPU of a target.

    Attributes:
        weight_bytes: weights on one rank.
        weight_bytes_high_precision: the part of it left in 16 bit (embeddings, head, norms).
        reserve_bytes: assumed for CUDA context, activations and graphs; not measured.
        kv_bytes_per_token: both K and V, all layers of one rank.
        kv_pool_bytes: free after load x ``kv_cache_free_gpu_mem_fraction``; on the vllm lane, total x
            ``gpu_memory_utilization`` - weights - reserve.
        kv_tokens: tokens in whole blocks that the pool holds.
    """

    memory_mib: int
    weight_bytes: int
    weight_bytes_high_precision: int
    reserve_bytes: int
    free_bytes: int
    kv_bytes_per_token: int
    kv_pool_bytes: int
    kv_tokens: int
    tokens_per_block: int


@dataclass(frozen=True)
class ProfilePlan:
    """How many sequences of one workload profile fit at once."""

    profile: str
    tokens_per_sequence: int
    concurrent_sequences: int
    bound_by: str


@dataclass(frozen=True)
class TargetPlan:
    """The plan of one target."""

    target: str
    sku: str
    lane: str
    stack: str
    weights: str
    kv_cache: str
    tensor_parallel: int
    pipeline_parallel: int
    capacity: Capacity | None
    profiles: tuple[ProfilePlan, ...]
    assumptions: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
