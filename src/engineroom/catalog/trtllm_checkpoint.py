"""Schema of `deploy/contracts/trtllm_checkpoint.json`: the layout of a TensorRT-LLM checkpoint.

What `trtllm-build` of TensorRT-LLM 0.21 to 1.2 reads, as ModelOpt writes it at TP 1 x PP 1: tensor
names, what each axis of a tensor counts, how a rank's part is cut from the whole, which pipeline
stage holds what is outside the layers, and which sizes the loader accepts. Cutting (in
`engineroom.runner.trtllm_shards`) and checking follow this file; nothing is known twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from engineroom.catalog.models import Confidence, Ranges, Row, Sources

Cut = Literal["heads", "output", "input", "none"]
Axis = Literal["output", "output/2", "input", "input/2", "input/group", "1"]
Dtype = Literal["model", "F32", "F8_E4M3", "I8", "U8"]


class Writer(Row):
    """The exporter, pinned: a later release removes it."""

    tool: str
    version: str
    function: str
    deprecated_in: str
    removed_in: str
    writes: tuple[str, ...]
    source: Sources
    confidence: Confidence


class Files(Row):
    config: str
    weights: str
    rank: str
    source: Sources
    confidence: Confidence


class Config(Row):
    """Keys of `config.json`; `from_source_config`: taken from the model's own where it has them."""

    required: tuple[str, ...]
    mapping: tuple[str, ...]
    from_source_config: dict[str, str]
    note: str
    source: Sources
    confidence: Confidence


class Layers(Row):
    prefix: str
    index: str
    split: str
    source: Sources
    confidence: Confidence


Products = tuple[tuple[str | int, ...], ...]
"""A size as a sum of products of keys of `config.json` and numbers."""


def size(products: Products, config: Mapping[str, Any]) -> int:
    """The number that `products` says.

    Raises:
        KeyError, ValueError, TypeError: a key is missing or no whole number.
    """
    return sum(
        prod(int(config[part]) if isinstance(part, str) else part for part in product)
        for product in products
    )


class Linear(Row):
    """A linear layer: how ranks cut it, and its whole sizes."""

    cut: Cut
    output: Products
    input: Products

    def sizes(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """(output, input) of the whole layer; errors as of :func:`size`."""
        return size(self.output, config), size(self.input, config)


class Cuts(Row):
    heads: str
    output: str
    input: str
    source: Sources
    confidence: Confidence


class Outside(Row):
    """What is outside the layers, and on which pipeline stage."""

    stage: Literal["first", "last"]
    cut: Literal["output", "none"]
    output: Products | None = None
    input: Products | None = None
    padded: bool = False


class KvCache(Row):
    tensors: tuple[str, ...]
    dtype: Dtype
    shape: tuple[int, ...]
    minimum: float
    note: str
    source: Sources
    confidence: Confidence


class TensorForm(Row):
    """One tensor of a linear layer: its stored type and what each axis counts.

    ``output/2``: two output rows a byte; ``input/group``: one value a group (AWQ) or block (NVFP4).
    """

    dtype: Dtype
    axes: tuple[Axis, ...]


class Multiple(Row):
    """Sizes that the loader takes: multiples of `of`, or of the group where it is larger and
    `or_group`; of that times tp_size with `times_tp` (then for the whole layer, else for a rank)."""

    of: Annotated[int, Field(gt=0)]
    or_group: bool
    times_tp: bool
    axes: tuple[Literal["output", "input"], ...]


class EarlyMultiple(Row):
    """Sizes of a rank's layer that every loader takes, where a later one takes more."""

    output: Annotated[int, Field(gt=0)]
    input: Annotated[int, Field(gt=0)]
    note: str
    source: Sources
    confidence: Confidence


class Format(Row):
    tensors: dict[str, TensorForm]
    multiple: Multiple | None = None
    early_multiple: EarlyMultiple | None = None
    note: str | None = None
    source: Sources
    confidence: Confidence


def _has_none(value: dict[str, Format]) -> dict[str, Format]:
    if "none" not in value:
        raise ValueError("`none`, the format of what is not quantized, is missing")
    return value


class TrtllmCheckpointFile(Row):
    """The whole file; see the module's docstring."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    versions: Ranges
    writer: Writer
    files: Files
    config: Config
    architectures: dict[str, Literal["llama", "qwen"]]
    architectures_source: Sources
    layers: Layers
    linears: dict[str, Linear]
    linears_note: str
    cuts: Cuts
    outside: dict[str, Outside]
    outside_note: str
    outside_source: Sources
    whole: tuple[str, ...]
    kv_cache: KvCache
    formats: Annotated[dict[str, Format], AfterValidator(_has_none)]

    def form_of(self, quant_algo: str | None) -> Format:
        """The format of quantized linear layers by `quantization.quant_algo`.

        Raises:
            KeyError: no such format in the contract.
        """
        return self.formats[quant_algo or "none"]
