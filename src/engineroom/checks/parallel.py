"""The GPUs of one node. Heads, widths and layers are rules over evidence."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.names import Severity, Topic
from engineroom.types import Finding

NODES = declare(
    "multi-node-not-implemented", Topic.SPEC, Severity.ERROR,
    says="a target fits on one node",
    why="ranks on several nodes need MPI between pods, which is not implemented",
    source="vendor's system data sheets (GPUs per host); kubernetes-sigs/lws documentation",
)  # fmt: skip


def fits_one_node(c: TargetContext) -> Iterator[Finding]:
    gpus = c.target.ranks
    if gpus > c.sku.max_gpus_per_node:
        yield NODES.found(
            c, "@.tensor_parallel",
            f"TP {c.target.tensor_parallel} x PP {c.target.pipeline_parallel} = {gpus} GPUs, more than "
            f"the {c.sku.max_gpus_per_node} of one node; several nodes are not implemented",
            f"use at most {c.sku.max_gpus_per_node} GPUs a target",
            source="; ".join(c.sku.source),
        )  # fmt: skip


RULES = (fits_one_node,)
