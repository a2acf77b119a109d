"""A group size on a format without groups. Widths are rules over evidence."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.names import Severity, Topic, WeightFormat
from engineroom.types import Finding

UNUSED = declare(
    "group-size-unused", Topic.SPEC, Severity.ERROR,
    says="group_size is set for formats that have groups",
    why="it would be ignored, and the reader of the spec would believe it",
    source="NVIDIA/Model-Optimizer modelopt_recipes (scales per tensor have no block size)",
)  # fmt: skip


def group_size_used(c: TargetContext) -> Iterator[Finding]:
    p = c.spec.precision
    recipe = c.catalog.weight_recipes.get(p.recipe or str(p.weights))
    if recipe is not None and recipe.group_size is None and p.group_size is not None:
        yield UNUSED.found(
            c, "precision.group_size",
            f"{p.weights} has no groups (scales: {recipe.weight_granularity})",
            "remove precision.group_size", source="; ".join(recipe.source),
        )  # fmt: skip


def group_size_of_recipe(c: TargetContext) -> Iterator[Finding]:
    """What the recipe takes; AWQ's group kernels are a rule over evidence."""
    p = c.spec.precision
    if p.weights in (WeightFormat.W4A16_AWQ, WeightFormat.W4A8_AWQ):
        return
    recipe = c.catalog.weight_recipes.get(p.recipe or str(p.weights))
    groups = recipe.group_size if recipe else None
    if recipe and groups and p.group_size is not None and p.group_size not in groups.allowed:
        yield OF_RECIPE.found(
            c, "precision.group_size",
            f"{p.weights} is made in groups of {', '.join(map(str, groups.allowed))} only, not "
            f"{p.group_size}",
            f"set precision.group_size: {groups.default}", source="; ".join(recipe.source),
        )  # fmt: skip


OF_RECIPE = declare(
    "group-size-not-allowed", Topic.SPEC, Severity.ERROR,
    says="the group size is one that the format has kernels for",
    why="other sizes quantize and build; the first GEMM finds no valid tactic",
    source="NVIDIA/TensorRT-LLM issues #988, #1547; NVIDIA/Model-Optimizer modelopt_recipes",
)  # fmt: skip

RULES = (group_size_used, group_size_of_recipe)
