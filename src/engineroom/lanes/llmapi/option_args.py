"""LLM arguments of `targets[].llmapi`, and of mixtures of experts, in the words of a version's contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engineroom.checks.llmapi_options import PLACES, place_of
from engineroom.errors import UsageError, Where
from engineroom.lanes.base import LaneRequest

Placed = tuple[tuple[str, ...], Any, str]
"""(path of the argument, value, reason)"""
_CUDA_GRAPHS = "cuda_graph_batch_sizes"  # beside the other settings of graphs, in llm_args.py


def option_arguments(request: LaneRequest) -> Iterator[Placed]:
    """Arguments that the spec sets, then those that experts need.

    Raises:
        UsageError: the version has no place for an option.
    """
    options, target = request.target.llmapi, request.target
    for name in PLACES:
        value = getattr(options, name)
        if value in (None, False) and name not in options.model_fields_set:
            continue
        if name != _CUDA_GRAPHS and value is not None:
            yield _path(request, name), value, f"targets[].llmapi.{name}"
    if options.moe_expert_parallel_size is not None:
        yield (
            ("moe_tensor_parallel_size",),
            target.tensor_parallel // options.moe_expert_parallel_size,
            "the ranks of tensor_parallel that are left for each expert",
        )
    if request.shape is None or not request.shape.has_experts:
        return
    place = place_of(request.contract, "moe_backend")
    if options.moe_backend is None and place is not None:
        path, facts = place
        known = "AUTO" in (facts.get("allowed") or ())
        yield (
            path, "AUTO" if known else "CUTLASS",
            "a default that differs between releases (CUTLASS, AUTO); AUTO goes by GPU and format",
        )  # fmt: skip


def graph_sizes(request: LaneRequest) -> tuple[tuple[str, ...], list[int]] | None:
    """(path, batch sizes) of the CUDA graphs that the spec asks for, or None.

    Raises:
        UsageError: the version has no place for them.
    """
    sizes = request.target.llmapi.cuda_graph_batch_sizes
    return None if sizes is None else (_path(request, _CUDA_GRAPHS), list(sizes))


def _path(request: LaneRequest, name: str) -> tuple[str, ...]:
    place = place_of(request.contract, name)
    if place is None:
        raise UsageError(
            f"the contract of TensorRT-LLM {request.contract.version} lists no `{name}`",
            where=Where(request.contract.file, key=f"targets[].llmapi.{name}"),
            hint="leave it out, choose another stack, or capture the contract with "
            "`engineroom matrix capture`",
        )
    return place[0]
