"""Tensor parallel against head and KV-head counts, and the GPUs of one node."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import TargetContext
from engineroom.names import Severity
from engineroom.types import Finding

_SOURCE = (
    "NVIDIA/TensorRT-LLM issues #2198, #2200 (labelled not a bug); converters assert that KV heads "
    "divide by TP or TP by KV heads"
)


def heads_divide(c: TargetContext) -> Iterator[Finding]:
    if c.model is None or c.target.tensor_parallel == 1:
        return
    tp, heads, kv = (
        c.target.tensor_parallel,
        c.model.num_attention_heads,
        c.model.num_key_value_heads,
    )
    problems = []
    if heads % tp:
        problems.append(f"{heads} attention heads do not divide by {tp}")
    if kv % tp and tp % kv:
        problems.append(f"{kv} KV heads neither divide by {tp} nor can be replicated evenly")
    if problems:
        allowed = ", ".join(map(str, c.model.allowed_tensor_parallel))
        yield c.finding(
            "tensor-parallel-heads",
            Severity.ERROR,
            c.key("tensor_parallel"),
            f"tensor_parallel {tp}: " + " and ".join(problems),
            f"use tensor_parallel {allowed} (more replicas use the other GPUs)",
            _SOURCE,
        )


def widths_divide(c: TargetContext) -> Iterator[Finding]:
    if c.model is None or c.target.tensor_parallel == 1 or c.model.has_experts:
        return
    tp, width = c.target.tensor_parallel, c.model.intermediate_size
    if width % tp:
        yield c.finding(
            "tensor-parallel-width",
            Severity.ERROR,
            c.key("tensor_parallel"),
            f"intermediate_size {width} does not divide by tensor_parallel {tp}",
            "choose a tensor_parallel that divides it",
            "NVIDIA/TensorRT-LLM converters: each sharded weight dimension must divide by tp_size",
        )


def layers_cover_stages(c: TargetContext) -> Iterator[Finding]:
    pp = c.target.pipeline_parallel
    if c.model is not None and pp > c.model.num_hidden_layers:
        yield c.finding(
            "pipeline-parallel-layers",
            Severity.ERROR,
            c.key("pipeline_parallel"),
            f"pipeline_parallel {pp} is more than the model's {c.model.num_hidden_layers} layers",
            f"use at most {c.model.num_hidden_layers}",
            "arithmetic",
        )


def fits_one_node(c: TargetContext) -> Iterator[Finding]:
    gpus = c.target.tensor_parallel * c.target.pipeline_parallel
    if gpus > c.sku.max_gpus_per_node:
        yield c.finding(
            "multi-node-not-implemented",
            Severity.ERROR,
            c.key("tensor_parallel"),
            f"TP {c.target.tensor_parallel} x PP {c.target.pipeline_parallel} = {gpus} GPUs, more than "
            f"the {c.sku.max_gpus_per_node} of one node; several nodes are not implemented",
            f"use at most {c.sku.max_gpus_per_node} GPUs a target",
            f"build/skus/{c.sku.id}.yaml: max_gpus_per_node",
        )


RULES = (heads_divide, widths_divide, layers_cover_stages, fits_one_node)
