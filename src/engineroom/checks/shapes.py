"""Group and block sizes of 4-bit formats against layer widths, per rank."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import TargetContext
from engineroom.names import Severity
from engineroom.types import Finding, ModelShape

# Row-parallel layers are cut along their input, the others keep it whole.
_ROW_PARALLEL = ("o_proj", "down_proj")
_SOURCE = (
    "NVIDIA/Model-Optimizer export: (in_features / tp) must be a multiple of the block; "
    "NVIDIA/TensorRT-LLM issue #988: group 64 or 128"
)


def partial_groups(model: ModelShape, group: int, tp: int) -> list[str]:
    """Layers whose input width per rank is no multiple of `group`, with the arithmetic."""
    bad = []
    for name, (_, width) in model.linear_shapes.items():
        cut = tp if name in _ROW_PARALLEL else 1
        if width % cut == 0 and (width // cut) % group:
            shown = f"{width}/{cut} = {width // cut}" if cut > 1 else f"{width}"
            bad.append(f"{name} has {shown} = {width / cut / group:g} x {group}")
    return bad


def groups_fit(c: TargetContext) -> Iterator[Finding]:
    p = c.spec.precision
    recipe = c.catalog.weight_recipes.get(p.recipe or str(p.weights))
    if recipe is None:
        return
    if recipe.group_size is None:
        if p.group_size is not None:
            yield c.finding(
                "group-size-unused", Severity.ERROR, "precision.group_size",
                f"{p.weights} has no groups (scales: {recipe.weight_granularity})",
                "remove precision.group_size", f"build/recipes/weights/{recipe.id}.yaml",
            )  # fmt: skip
        return
    group = p.group_size or recipe.group_size.default
    allowed = recipe.group_size.allowed
    if group not in allowed:
        yield c.finding(
            "group-size-not-allowed", Severity.ERROR, "precision.group_size",
            f"{p.weights} kernels exist for groups of {', '.join(map(str, allowed))} only, not {group}",
            f"set precision.group_size: {recipe.group_size.default}", _SOURCE,
        )  # fmt: skip
        return
    if c.model is None or c.model.has_experts:
        return
    bad = partial_groups(c.model, group, c.target.tensor_parallel)
    if bad:
        fitting = [
            g for g in sorted(allowed, reverse=True)
            if not partial_groups(c.model, g, c.target.tensor_parallel)
        ]  # fmt: skip
        fix = (
            f"set precision.group_size: {fitting[0]}"
            if fitting
            else "use another tensor_parallel, or weights: fp8"
        )
        yield c.finding(
            "group-size-partial", Severity.ERROR, "precision.group_size",
            f"group {group} does not fit the layer widths: {'; '.join(bad)}", fix, _SOURCE,
        )  # fmt: skip


RULES = (groups_fit,)
