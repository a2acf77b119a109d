"""Which bytes of a TensorRT-LLM checkpoint of one rank each rank of TP x PP gets.

Pure: a plan from tensor names, types and shapes. The rules are those of the contract
`deploy/contracts/trtllm_checkpoint.json`; a tensor that it does not describe is refused, because a
wrongly cut one builds and answers with wrong text. Nothing is computed on values, so what the ranks
hold is what the whole checkpoint holds, bit for bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from engineroom.catalog.trtllm_checkpoint import Format, TensorForm, TrtllmCheckpointFile
from engineroom.errors import UsageError, Where
from engineroom.planning.rank_parts import ITEM_BYTES, Layout, Part, Run, Tensor, stage_layers

_MODEL_DTYPE = {"bfloat16": "BF16", "float16": "F16"}
_EMBEDDING, _HEAD = "transformer.vocab_embedding.weight", "lm_head.weight"


class Planner:
    """The plan of one checkpoint.

    Args:
        contract: the layout's rules.
        config: `config.json` of the checkpoint of one rank.
        tensors: every tensor of its `rank0.safetensors`.
        file: where both were read, for messages.
    """

    def __init__(
        self,
        contract: TrtllmCheckpointFile,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        file: str,
    ) -> None:
        self.contract, self.config, self.tensors, self.file = contract, config, tensors, file
        mapping = config.get("mapping") or {}
        if mapping.get("world_size", 1) != 1:
            raise self._error("the checkpoint is sharded already", "mapping.world_size")
        quantization = config.get("quantization") or {}
        self.algo: str | None = quantization.get("quant_algo")
        self.group = int(quantization.get("group_size") or 0)
        if (self.algo or "none") not in contract.formats:
            known = ", ".join(name for name in contract.formats if name != "none")
            raise self._error(
                f"the layout of {self.algo} is not known; {known} are", "quantization.quant_algo"
            )
        dtype = str(config.get("dtype"))
        if dtype not in _MODEL_DTYPE:
            raise self._error(f"dtype {dtype} is neither bfloat16 nor float16", "dtype")
        self.model_dtype = _MODEL_DTYPE[dtype]
        prefix = re.escape(contract.layers.prefix).replace(re.escape("{index}"), r"(\d+)")
        self._layer = re.compile(prefix)

    def _error(self, reason: str, key: str | None = None, hint: str | None = None) -> UsageError:
        return UsageError(reason, where=Where(self.file, key=key), hint=hint)

    def _number(self, key: str) -> int:
        value = self.config.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._error(f"`{value}` is no size", key)
        return value

    def ranks(self, layout: Layout) -> list[list[Part]]:
        """The tensors of every rank, in rank order.

        Raises:
            UsageError: what does not divide, a group or block that would be cut, a tensor that the
                contract does not describe or that has another type or shape than it says.
        """
        stages = stage_layers(self._number("num_hidden_layers"), layout.pipeline_parallel)
        if any(not len(layers) for layers in stages):
            raise self._error(
                f"pipeline_parallel {layout.pipeline_parallel} is more than the "
                f"{self._number('num_hidden_layers')} layers",
                "num_hidden_layers",
            )
        self._heads_fit(layout.tensor_parallel)
        present = {int(m[1]) for name in self.tensors if (m := self._layer.match(name))}
        missing = sorted(set(range(self._number("num_hidden_layers"))) - present)
        if missing:
            raise self._error(f"layer {missing[0]} has no tensors", "num_hidden_layers")
        return [
            list(self._rank(layout.tensor_parallel, tp_rank, layers, stage, len(stages)))
            for stage, layers in enumerate(stages)
            for tp_rank in range(layout.tensor_parallel)
        ]

    def _heads_fit(self, tp: int) -> None:
        heads, kv = self._number("num_attention_heads"), self._number("num_key_value_heads")
        if heads % tp or (kv % tp and tp % kv):
            raise self._error(
                f"tensor_parallel {tp}: {heads} attention heads and {kv} KV heads neither divide by "
                "it, nor can the KV heads be copied evenly",
                "num_key_value_heads" if heads % tp == 0 else "num_attention_heads",
                "use a tensor_parallel that divides the attention heads",
            )

    def _rank(
        self, tp: int, tp_rank: int, layers: range, stage: int, stages: int
    ) -> Iterator[Part]:
        here = {"first": stage == 0, "last": stage == stages - 1}
        for name, tensor in self.tensors.items():
            match = self._layer.match(name)
            if match is not None:
                if int(match[1]) in layers:
                    local = self.contract.layers.prefix.format(index=int(match[1]) - layers[0])
                    rest = name[match.end() :]
                    yield self._in_layer(tensor, local + rest, rest, tp, tp_rank)
                continue
            module, _, part = name.rpartition(".")
            outside = self.contract.outside.get(module)
            if outside is None or part not in ("weight", "bias"):
                raise self._unknown(name)
            if here[outside.stage]:
                yield self._outside(tensor, name, outside.cut, tp, tp_rank)
        if stages > 1 and here["last"] and _HEAD not in self.tensors:
            if _EMBEDDING not in self.tensors:
                raise self._error("neither lm_head.weight nor the embedding is there")
            # The embedding it shares is on the first stage.
            yield self._outside(self.tensors[_EMBEDDING], _HEAD, "output", tp, tp_rank)

    def _unknown(self, name: str) -> UsageError:
        return self._error(
            f"the contract does not say how ranks share `{name}`",
            None,
            "use one GPU (tensor_parallel and pipeline_parallel 1), or lane: llmapi",
        )

    # ---- one tensor
    def _in_layer(self, tensor: Tensor, local: str, rest: str, tp: int, tp_rank: int) -> Part:
        if rest in self.contract.whole:
            return self._whole(tensor, local)
        module, _, part = rest.rpartition(".")
        linear = self.contract.linears.get(module)
        if linear is None:
            raise self._unknown(tensor.name)
        form = self._format(tensor.name.removesuffix(f".{part}")).tensors.get(part)
        if form is None:
            raise self._unknown(tensor.name)
        try:
            output, width = linear.sizes(self.config)
        except (KeyError, ValueError, TypeError) as error:
            raise self._error(f"no size for `{module}`: {error}") from None
        self._as_the_contract_says(tensor, form, output, width)
        axis = "output" if linear.cut == "heads" else linear.cut
        at = next((i for i, label in enumerate(form.axes) if label.startswith(axis)), None)
        if at is None:  # scalars, and what counts the other axis
            return self._whole(tensor, local)
        if linear.cut == "heads":
            per = 2 if form.axes[at].endswith("/2") else 1
            return self._heads(tensor, local, per, tp, tp_rank)
        return self._equal(tensor, local, at, form.axes[at], tp, tp_rank)

    def _format(self, module: str) -> Format:
        quantized = f"{module}.weights_scaling_factor" in self.tensors
        return self.contract.form_of(self.algo if quantized else None)

    def _as_the_contract_says(
        self, tensor: Tensor, form: TensorForm, output: int, width: int
    ) -> None:
        sizes = {
            "output": (output, 1), "output/2": (output, 2), "input": (width, 1),
            "input/2": (width, 2), "input/group": (width, self.group), "1": (1, 1),
        }  # fmt: skip
        wanted = []
        for label in form.axes:
            whole, per = sizes[label]
            if per == 0 or whole % per:
                raise self._error(
                    f"`{tensor.name}`: {whole} {label.split('/')[0]} columns are no whole number of "
                    f"groups of {per}",
                    "quantization.group_size",
                )
            wanted.append(whole // per)
        dtype = self.model_dtype if form.dtype == "model" else form.dtype
        if (tensor.dtype, tensor.shape) != (dtype, tuple(wanted)):
            raise self._error(
                f"`{tensor.name}` is {tensor.dtype} {list(tensor.shape)}; the contract says "
                f"{dtype} {wanted}",
                None,
                "run `engineroom quantize` again, with the pinned nvidia-modelopt",
            )

    def _whole(self, tensor: Tensor, name: str) -> Part:
        return self._rows(tensor, name, [(0, tensor.shape[0] if tensor.shape else 1)])

    def _rows(
        self, tensor: Tensor, name: str, pieces: list[tuple[int, int]], rows: int | None = None
    ) -> Part:
        """Rows [a, b) of each piece, then zeros up to `rows`; a scalar has one row."""
        if tensor.dtype not in ITEM_BYTES:
            raise self._error(f"`{tensor.name}` has the type {tensor.dtype}, which is not known")
        row = prod(tensor.shape[1:]) * ITEM_BYTES[tensor.dtype]
        runs = tuple(Run(tensor.offset + a * row, (b - a) * row) for a, b in pieces if b > a)
        there = sum(b - a for a, b in pieces)
        count = there if rows is None else rows
        shape = (count, *tensor.shape[1:]) if tensor.shape else ()
        return Part(name, tensor.dtype, shape, runs, (count - there) * row)

    def _heads(self, tensor: Tensor, name: str, per: int, tp: int, tp_rank: int) -> Part:
        heads, kv = self._number("num_attention_heads"), self._number("num_key_value_heads")
        size = self._number("head_size")
        if size % per:
            raise self._error(f"head_size {size} is odd: two rows make a byte", "head_size")
        size //= per
        pieces, base = [], 0
        for count in (heads, kv, kv):  # Q, K, V
            mine = max(1, count // tp)
            first = tp_rank * count // tp
            pieces.append(((base + first) * size, (base + first + mine) * size))
            base += count
        return self._rows(tensor, name, pieces)

    def _equal(self, tensor: Tensor, name: str, at: int, label: str, tp: int, tp_rank: int) -> Part:
        whole = tensor.shape[at]
        if whole % tp:
            unit = {"input/group": f"groups of {self.group}", "input/2": "bytes of two columns",
                    "output/2": "bytes of two rows"}.get(label, "values")  # fmt: skip
            raise self._error(
                f"`{tensor.name}` has {whole} {unit} along its {label.split('/')[0]}: they do not divide "
                f"by tensor_parallel {tp}, and none is cut",
                "quantization.group_size" if label == "input/group" else None,
                f"use a tensor_parallel that divides {whole}"
                + (", or a smaller group_size" if label == "input/group" else ""),
            )
        mine = whole // tp
        if at == 0:
            return self._rows(tensor, name, [(tp_rank * mine, (tp_rank + 1) * mine)])
        item = ITEM_BYTES[tensor.dtype]
        run = Run(tensor.offset + tp_rank * mine * item, mine * item, whole * item, tensor.shape[0])
        return Part(name, tensor.dtype, (tensor.shape[0], mine), (run,))

    def _outside(self, tensor: Tensor, name: str, cut: str, tp: int, tp_rank: int) -> Part:
        if cut == "none":
            return self._whole(tensor, name)
        if not tensor.shape or tensor.shape[0] != self._number("vocab_size"):
            raise self._error(
                f"`{tensor.name}` has {list(tensor.shape)[:1]} rows, not vocab_size", "vocab_size"
            )
        rows = -(-tensor.shape[0] // tp)
        last = tensor.shape[0]
        return self._rows(
            tensor, name, [(min(tp_rank * rows, last), min((tp_rank + 1) * rows, last))], rows
        )
