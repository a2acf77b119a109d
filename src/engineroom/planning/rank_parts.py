"""A rank's share of a checkpoint as data: tensors, the bytes that they are made of, and the layout."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I8": 1, "U8": 1}
"""Bytes of an element by safetensors type, of those that the contract has."""


@dataclass(frozen=True)
class Tensor:
    """A tensor as its file lists it; `offset` counts from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Run:
    """`count` pieces of `length` bytes, the first at `start` of the file, `step` bytes apart."""

    start: int
    length: int
    step: int = 0
    count: int = 1


@dataclass(frozen=True)
class Part:
    """A tensor of one rank: its bytes are the runs in order, then `zeros` bytes of zero."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    runs: tuple[Run, ...]
    zeros: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Layout:
    """TP x PP; rank = pipeline stage x `tensor_parallel` + tensor rank."""

    tensor_parallel: int
    pipeline_parallel: int

    @property
    def ranks(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


def stage_layers(layers: int, stages: int) -> list[range]:
    """Layers of each pipeline stage: consecutive, the first stages one more where it is uneven."""
    share, more = divmod(layers, stages)
    starts = [stage * share + min(stage, more) for stage in range(stages + 1)]
    return [range(a, b) for a, b in itertools.pairwise(starts)]


def rank_config(config: Mapping[str, Any], layout: Layout, *, has_head: bool) -> dict[str, Any]:
    """`config.json` of the sharded checkpoint: one for all ranks."""
    shared = bool(config.get("share_embedding_table")) and not has_head
    return {
        **config,
        "share_embedding_table": shared and layout.pipeline_parallel == 1,
        "rank": layout.ranks - 1,  # as ModelOpt leaves it; the loader sets its own
        "mapping": {
            "world_size": layout.ranks,
            "tp_size": layout.tensor_parallel,
            "pp_size": layout.pipeline_parallel,
        },
    }
