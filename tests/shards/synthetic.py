"""TensorRT-LLM checkpoints of one rank with random bits, in any format and of any small size.

The tensors are those that the contract describes; the values mean nothing, because cutting must not
depend on them. Every bit pattern occurs, NaN included.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from tests.shards.assemble import CONTRACT, Tensors, size

ALGO = {"fp8": "FP8", "awq": "W4A16_AWQ", "nvfp4": "NVFP4", "bf16": None}
_WIDTH = {"BF16": "<u2", "F16": "<u2", "F32": "<u4", "F8_E4M3": "u1", "I8": "u1", "U8": "u1"}


def config(name: str, **changes: Any) -> dict[str, Any]:
    """4 query heads, 2 KV heads, 3 layers: as the tiny model, and narrower."""
    quantization = {"quant_algo": ALGO[name], "kv_cache_quant_algo": "FP8"}
    if name == "awq":
        quantization |= {"group_size": 8, "has_zero_point": False, "pre_quant_scale": True}
    if name == "nvfp4":
        quantization |= {"group_size": 16}
    return {
        "architecture": "LlamaForCausalLM", "dtype": "bfloat16", "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "head_size": 16,
        "intermediate_size": 128, "vocab_size": 40, "share_embedding_table": False,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1}, "quantization": quantization,
        **changes,
    }  # fmt: skip


def tensors(config: dict[str, Any], *, bias: bool = False, head: bool = True) -> Tensors:
    random = np.random.default_rng(5)
    made: Tensors = {}

    def put(name: str, dtype: str, shape: tuple[int, ...]) -> None:
        dtype = "BF16" if dtype == "model" else dtype
        words = random.integers(0, 256, (*shape, np.dtype(_WIDTH[dtype]).itemsize), np.uint8)
        made[name] = (dtype, words.view(_WIDTH[dtype]).reshape(shape))

    group = config["quantization"].get("group_size", 1)
    forms = CONTRACT["formats"][config["quantization"]["quant_algo"] or "none"]["tensors"]
    put(
        "transformer.vocab_embedding.weight", "model", (config["vocab_size"], config["hidden_size"])
    )
    for layer in range(config["num_hidden_layers"]):
        base = f"transformer.layers.{layer}"
        for module, linear in CONTRACT["linears"].items():
            sizes = {
                "output": size(linear["output"], config),
                "input": size(linear["input"], config),
                "1": 1,
            }
            for part, form in forms.items():
                if part == "bias" and not (bias and module in ("attention.qkv", "attention.dense")):
                    continue
                shape = []
                for label in form["axes"]:
                    axis, _, per = label.partition("/")
                    shape.append(sizes[axis] // (group if per == "group" else int(per or 1)))
                put(f"{base}.{module}.{part}", form["dtype"], tuple(shape))
        for norm in ("input_layernorm", "post_layernorm"):
            put(f"{base}.{norm}.weight", "model", (config["hidden_size"],))
        for scale in ("k_cache", "v_cache", "kv_cache"):
            put(f"{base}.attention.{scale}_scaling_factor", "F32", (1,))
    put("transformer.ln_f.weight", "model", (config["hidden_size"],))
    if head:
        put("lm_head.weight", "model", (config["vocab_size"], config["hidden_size"]))
    return made


def write(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    """A checkpoint folder; the file's order is that of `tensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "NOTICE").write_text("terms\n")
    header, blobs, at = {}, [], 0
    for name, (dtype, array) in tensors.items():
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(blob)],
        }  # fmt: skip
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    (folder / "rank0.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(blobs)
    )
    return folder
