"""Puts the ranks of a TensorRT-LLM checkpoint together again, from the contract's words alone.

No import from `src`: the rules are read from `deploy/contracts/trtllm_checkpoint.json` and written here a
second time, from the side of the ranks. It also says which shapes the layers of a rank must have in
`trtllm-build`, and what numbers the packed tensors stand for.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from tests.independent.formats import E2M1, E4M3

CONTRACT: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[2] / "deploy/contracts/trtllm_checkpoint.json").read_text()
)
_RAW = {"BF16": "<u2", "F16": "<u2", "F32": "<u4", "F8_E4M3": "u1", "I8": "u1", "U8": "u1"}
Tensors = dict[str, tuple[str, np.ndarray]]


def read_raw(path: Path) -> Tensors:
    """name -> (stored type, array of its raw words): bits, not numbers."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    tensors: Tensors = {}
    covered = 0
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        covered += end - start
        data = raw[8 + length + start : 8 + length + end]
        tensors[name] = (
            entry["dtype"],
            np.frombuffer(data, _RAW[entry["dtype"]]).reshape(entry["shape"]),
        )
    assert 8 + length + covered == len(raw)  # no holes, nothing after the end
    return tensors


def read_ranks(folder: Path) -> tuple[dict[str, Any], list[Tensors]]:
    config = json.loads((folder / "config.json").read_text())
    world = config["mapping"]["world_size"]
    assert sorted(p.name for p in folder.glob("*.safetensors")) == sorted(
        f"rank{rank}.safetensors" for rank in range(world)
    )
    return config, [read_raw(folder / f"rank{rank}.safetensors") for rank in range(world)]


def assemble(config: dict[str, Any], ranks: list[Tensors]) -> Tensors:
    """The tensors of one rank. Asserts that copies (norms, scales, KV heads) agree bit for bit."""
    tp, pp = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
    whole: Tensors = {}
    before = 0
    for stage in range(pp):
        group = ranks[stage * tp : (stage + 1) * tp]
        names = set(group[0])
        assert all(set(rank) == names for rank in group)
        own = {int(n.split(".")[2]) for n in names if n.startswith("transformer.layers.")}
        assert own == set(range(len(own)))
        for name in names:
            full = name
            if name.startswith("transformer.layers."):
                parts = name.split(".")
                parts[2] = str(int(parts[2]) + before)
                full = ".".join(parts)
            pieces = [rank[name] for rank in group]
            assert full not in whole
            assert len({dtype for dtype, _ in pieces}) == 1
            arrays = [array for _, array in pieces]
            whole[full] = (pieces[0][0], _join(config, name, arrays, set(group[0])))
        before += len(own)
    assert before == config["num_hidden_layers"]
    return whole


def _join(
    config: dict[str, Any], name: str, arrays: list[np.ndarray], names: set[str]
) -> np.ndarray:
    tp = len(arrays)
    module, _, part = name.rpartition(".")
    if module in CONTRACT["outside"]:
        if CONTRACT["outside"][module]["cut"] == "none":
            return _same(arrays)
        joined = np.concatenate(arrays)
        assert not joined[config["vocab_size"] :].any()  # padding is zero
        return joined[: config["vocab_size"]]
    rest = name.split(".", 3)[3]
    if rest in CONTRACT["whole"]:
        return _same(arrays)
    module = rest.rpartition(".")[0]
    cut = CONTRACT["linears"][module]["cut"]
    axes = form_of(config, name, names)[part]["axes"]
    wanted = "output" if cut == "heads" else cut
    at = [i for i, label in enumerate(axes) if label.split("/")[0] == wanted]
    if not at:
        return _same(arrays)
    if cut != "heads":
        return np.concatenate(arrays, axis=at[0])
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    rows = config["head_size"] // (2 if axes[at[0]] == "output/2" else 1)
    q_rows = heads // tp * rows
    kv_rows = (len(arrays[0]) - q_rows) // 2
    copies = max(1, tp // kv)
    queries = [a[:q_rows] for a in arrays]
    parts = [np.concatenate(queries)]
    for which in range(2):
        mine = [a[q_rows + which * kv_rows : q_rows + (which + 1) * kv_rows] for a in arrays]
        for first in range(0, tp, copies):
            _same(mine[first : first + copies])
        parts.append(np.concatenate(mine[::copies]))
        assert len(parts[-1]) == kv * rows
    return np.concatenate(parts)


def _same(arrays: list[np.ndarray]) -> np.ndarray:
    assert all(np.array_equal(arrays[0], other) for other in arrays[1:])
    return arrays[0]


def form_of(config: dict[str, Any], name: str, names: set[str]) -> dict[str, Any]:
    quantized = f"{name.rpartition('.')[0]}.weights_scaling_factor" in names
    algo = config["quantization"]["quant_algo"] if quantized else None
    forms: dict[str, Any] = CONTRACT["formats"][algo or "none"]["tensors"]
    return forms


def size(products: list[list[Any]], config: dict[str, Any]) -> int:
    return sum(
        math.prod(config[word] if isinstance(word, str) else word for word in product)
        for product in products
    )


def built_shapes(config: dict[str, Any], stage: int) -> dict[str, tuple[int, ...]]:
    """Shape of each weight in the layers that `trtllm-build` makes for one rank of a stage.

    `Linear` has out_features // tp_size rows, `RowLinear` in_features // tp_size columns; attention has
    max(1, KV heads / tp) KV heads a rank; the embedding ceil(vocab / tp) rows (sources: the contract).
    """
    tp, pp = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
    heads = config["num_attention_heads"] // tp
    kv = -(-config["num_key_value_heads"] // tp)
    head, hidden, inter = config["head_size"], config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {}
    layers = [len(part) for part in np.array_split(np.arange(config["num_hidden_layers"]), pp)]
    for layer in range(layers[stage]):
        base = f"transformer.layers.{layer}"
        shapes |= {
            f"{base}.attention.qkv.weight": ((heads + 2 * kv) * head, hidden),
            f"{base}.attention.dense.weight": (hidden, heads * head),
            f"{base}.mlp.fc.weight": (inter // tp, hidden),
            f"{base}.mlp.gate.weight": (inter // tp, hidden),
            f"{base}.mlp.proj.weight": (hidden, inter // tp),
        }
    rows = -(-config["vocab_size"] // tp)
    if stage == 0:
        shapes["transformer.vocab_embedding.weight"] = (rows, hidden)
    if stage == pp - 1:
        shapes["lm_head.weight"] = (rows, hidden)
    return shapes


def values(config: dict[str, Any], tensors: Tensors, module: str) -> np.ndarray:
    """float32 weights of a linear layer of one rank, from the packed tensors by their definitions."""

    def number(part: str) -> np.ndarray:
        dtype, raw = tensors[f"{module}.{part}"]
        if dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return E4M3[raw] if dtype == "F8_E4M3" else raw.view(np.float32)

    algo = config["quantization"]["quant_algo"]
    dtype, raw = tensors[f"{module}.weight"]
    if f"{module}.weights_scaling_factor" not in tensors:
        return number("weight")
    scale = number("weights_scaling_factor")
    if algo == "FP8":
        assert dtype == "F8_E4M3"
        return E4M3[raw] * scale
    if algo == "W4A16_AWQ":
        rows = np.empty((2 * raw.shape[0], raw.shape[1]), np.int32)
        rows[0::2], rows[1::2] = raw & 0x0F, raw >> 4
        rows[rows > 7] -= 16
        full = rows * np.repeat(scale, config["quantization"]["group_size"], axis=1)
        return full * number("prequant_scaling_factor")  # x times the scale meets these columns
    assert algo == "NVFP4"
    columns = np.empty((raw.shape[0], 2 * raw.shape[1]), np.uint8)
    columns[:, 0::2], columns[:, 1::2] = raw & 0x0F, raw >> 4
    blocks = np.repeat(scale, 16, axis=1)
    return E2M1[columns] * blocks * number("weights_scaling_factor_2")
