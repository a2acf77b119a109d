"""`plan`: bytes, tokens and sequences for every target."""

from __future__ import annotations

from engineroom import planning
from engineroom.pipeline.job import Job, ResolvedTarget, only_targets
from engineroom.runner import model_source
from engineroom.types import Capacity, ProfilePlan, TargetPlan


def plan(job: Job, target: str | None = None) -> list[TargetPlan]:
    """Capacity of every target; `capacity` is None where the model's shapes are not known."""
    shapes = model_source.tensor_shapes(job.local_model) if job.local_model else {}
    return [_one(job, item, shapes) for item in only_targets(job, target)]


def _one(job: Job, item: ResolvedTarget, shapes: dict[str, tuple[int, ...]]) -> TargetPlan:
    spec, target = job.loaded.spec, item.target
    assumptions = ["weights and embeddings are split evenly over tensor-parallel ranks"]
    if item.sku.memory_basis != "nvml":
        assumptions.append(f"memory of {item.sku.id} is nominal, not an NVML reading")
    capacity: Capacity | None = None
    profiles: tuple[ProfilePlan, ...] = ()
    weights = None
    if job.shape is not None:
        weights = planning.weight_bytes(
            job.shape, job.weight_recipe, job.group_size, shapes or None
        )
    if job.shape is None or weights is None:
        assumptions.append("the model's tensors are not on this machine: nothing was computed")
    else:
        capacity, reserve = planning.target_capacity(
            job.shape, weights, spec, target, item.sku, item.stack
        )
        assumptions.insert(0, reserve)
        profiles = planning.profile_plans(capacity, spec.workload, target.limits.max_batch_size)
    return TargetPlan(
        target=target.id,
        sku=item.sku.id,
        lane=str(target.lane),
        stack=item.stack.id,
        weights=str(spec.precision.weights),
        kv_cache=str(spec.precision.kv_cache),
        tensor_parallel=target.tensor_parallel,
        pipeline_parallel=target.pipeline_parallel,
        capacity=capacity,
        profiles=profiles,
        assumptions=tuple(assumptions),
    )
