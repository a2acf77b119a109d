"""Weights of a unified Hugging Face checkpoint (ModelOpt export) back to float32.

Formats, as exported by nvidia-modelopt 0.47:

* FP8: e4m3 weights, one float32 `weight_scale` a tensor: W = q * scale.
* W4A16_AWQ: int4 in uint8, two output rows a byte (even row in the low nibble), float32
  `weight_scale` [out, in / group]; an optional `pre_quant_scale` [in] multiplies the input.
* NVFP4: e2m1 in uint8, two input columns a byte (even column in the low nibble), e4m3
  `weight_scale` [out, in / 16] and a float32 `weight_scale_2`: W = q * scale * scale_2.
"""

import json
from pathlib import Path

import torch
from safetensors import safe_open

E2M1 = torch.tensor(
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
)
_SCALES = (
    "weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale", "k_scale", "v_scale",
)  # fmt: skip


def quantization(folder):
    """(quant_algo, kv_cache_quant_algo) of hf_quant_config.json; (None, None) without the file."""
    path = Path(folder) / "hf_quant_config.json"
    if not path.is_file():
        return None, None
    facts = json.loads(path.read_text(encoding="utf-8"))["quantization"]
    return facts.get("quant_algo"), facts.get("kv_cache_quant_algo")


def read_tensors(folder):
    """Every tensor of the folder's safetensors files, as stored."""
    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - safe_open has no iterator
                tensors[name] = file.get_tensor(name)
    if not tensors:
        raise FileNotFoundError(f"no safetensors files in {folder}")
    return tensors


def _int4_rows(packed):
    low, high = packed & 0x0F, packed >> 4
    rows = torch.stack([low, high], dim=1).reshape(-1, packed.shape[1]).to(torch.int8)
    return torch.where(rows > 7, rows - 16, rows).float()


def _fp4_columns(packed):
    both = torch.stack([packed & 0x0F, packed >> 4], dim=2).reshape(packed.shape[0], -1)
    return E2M1[both.long()]


def dequantize_weight(algo, weight, scale, scale_2=None, pre_quant_scale=None):
    """One weight matrix [out, in] in float32.

    Raises:
        ValueError: a quantization algorithm that this runtime does not know.
    """
    if algo == "FP8":
        full = weight.float() * scale.float()
    elif algo == "W4A16_AWQ":
        values = _int4_rows(weight)
        group = values.shape[1] // scale.shape[1]
        full = values * scale.float().repeat_interleave(group, dim=1)
    elif algo == "NVFP4":
        values = _fp4_columns(weight)
        full = values * scale.float().repeat_interleave(16, dim=1) * scale_2.float()
    else:
        raise ValueError(f"the reference runtime cannot dequantize {algo!r}")
    return full if pre_quant_scale is None else full * pre_quant_scale.float()


def dequantized(folder):
    """(float32 state dict, {layer: (k_scale, v_scale)}) of a checkpoint folder.

    Raises:
        ValueError: unknown algorithm, or an FP8 KV cache without scales.
    """
    algo, kv_algo = quantization(folder)
    tensors = read_tensors(folder)
    state, kv_scales = {}, {}
    for name, tensor in tensors.items():
        base, _, leaf = name.rpartition(".")
        if leaf in _SCALES:
            continue
        scale = tensors.get(f"{base}.weight_scale") if leaf == "weight" else None
        if scale is None:
            state[name] = tensor.float()
        else:
            state[name] = dequantize_weight(
                algo,
                tensor,
                scale,
                tensors.get(f"{base}.weight_scale_2"),
                tensors.get(f"{base}.pre_quant_scale"),
            )
    for name, tensor in tensors.items():
        if name.endswith(".k_proj.k_scale"):
            layer = int(name.split(".layers.")[1].split(".")[0])
            value = tensors[name.replace(".k_proj.k_scale", ".v_proj.v_scale")]
            kv_scales[layer] = (float(tensor), float(value))
    if kv_algo not in (None, "FP8"):
        raise ValueError(f"the reference runtime has no {kv_algo} KV cache")
    if kv_algo == "FP8" and not kv_scales:
        raise ValueError(f"{folder} says its KV cache is FP8, but has no k_scale and v_scale")
    return state, kv_scales if kv_algo else {}
