"""safetensors, E4M3, E2M1 and packed INT4 from their definitions, in numpy; no import from `src`.

* safetensors: 8 bytes little-endian header length, JSON header, raw little-endian tensors.
* E4M3 (OCP FP8, "fn"): 1 sign, 4 exponent bits of bias 7, 3 mantissa bits; no infinities, S.1111.111
  is NaN, largest value 448.
* E2M1 (OCP FP4): 1 sign, 2 exponent bits of bias 1, 1 mantissa bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
* ModelOpt's unified layout: FP8 `weight * weight_scale`; INT4 packs output rows 2i (low nibble) and
  2i+1 (high nibble) into one byte, one scale per `group` input columns; NVFP4 packs input columns
  2i (low) and 2i+1 (high), an E4M3 scale per 16 columns and one float32 scale per tensor.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np


def e4m3_value(byte: int) -> float:
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, mantissa = (byte >> 3) & 0x0F, byte & 0x07
    if exponent == 0x0F and mantissa == 0x07:
        return float("nan")
    if exponent == 0:
        return sign * (mantissa / 8) * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def e2m1_value(nibble: int) -> float:
    sign = -1.0 if nibble & 0x8 else 1.0
    exponent, mantissa = (nibble >> 1) & 0x3, nibble & 0x1
    if exponent == 0:
        return sign * mantissa * 0.5
    return sign * (1 + mantissa / 2) * 2.0 ** (exponent - 1)


E4M3 = np.array([e4m3_value(b) for b in range(256)], np.float32)
E2M1 = np.array([e2m1_value(n) for n in range(16)], np.float32)
_POSITIVE = E4M3[:127].astype(np.float64)  # codes 0..126, ascending, last one 448


def e4m3_round_trip(x: np.ndarray, scale: float) -> np.ndarray:
    """x through an E4M3 cache: divide, saturate at 448, round to nearest even code, multiply."""
    scaled = (x.astype(np.float32) / np.float32(scale)).astype(np.float32)
    magnitude = np.minimum(np.abs(scaled).astype(np.float64), 448.0)
    above = np.searchsorted(_POSITIVE, magnitude, side="left").clip(1, 126)
    below = above - 1
    down, up = magnitude - _POSITIVE[below], _POSITIVE[above] - magnitude
    # A tie goes to the even mantissa, which is the even code.
    pick_up = (up < down) | ((up == down) & (above % 2 == 0))
    code = np.where(pick_up, above, below)
    value = np.copysign(_POSITIVE[code], scaled)
    return value.astype(np.float32) * np.float32(scale)


def read_safetensors(folder: Path) -> dict[str, tuple[str, np.ndarray]]:
    """name -> (dtype as stored, raw array); 8-bit floats stay uint8, bf16 becomes float32."""
    tensors: dict[str, tuple[str, np.ndarray]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        for name, entry in json.loads(raw[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            start, end = entry["data_offsets"]
            data = raw[8 + length + start : 8 + length + end]
            dtype, shape = entry["dtype"], entry["shape"]
            if dtype == "BF16":
                wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16
                array = wide.view(np.float32)
            elif dtype in ("F8_E4M3", "U8"):
                array = np.frombuffer(data, np.uint8)
            else:
                array = np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype])
            tensors[name] = (dtype, array.reshape(shape))
    return tensors


def dequantize(folder: Path) -> tuple[dict[str, np.ndarray], dict[int, tuple[float, float]]]:
    """(float32 weights, {layer: (k_scale, v_scale)}) of a unified checkpoint folder."""
    facts = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
    algo, kv_algo = facts["quant_algo"], facts["kv_cache_quant_algo"]
    stored = read_safetensors(folder)
    weights: dict[str, np.ndarray] = {}
    kv: dict[int, tuple[float, float]] = {}
    for name, (_, array) in stored.items():
        if name.endswith("_scale") or name.endswith("_scale_2"):
            continue
        base = name.removesuffix(".weight")
        scale = stored.get(f"{base}.weight_scale")
        if scale is None:
            weights[name] = array.astype(np.float32)
            continue
        if algo == "FP8":
            full = E4M3[array] * scale[1].astype(np.float32)
        elif algo == "W4A16_AWQ":
            rows = np.empty((2 * array.shape[0], array.shape[1]), np.int32)
            rows[0::2], rows[1::2] = array & 0x0F, array >> 4
            rows[rows > 7] -= 16
            group = facts["group_size"]
            full = rows.astype(np.float32) * np.repeat(scale[1], group, axis=1)
        else:
            assert algo == "NVFP4", algo
            columns = np.empty((array.shape[0], 2 * array.shape[1]), np.uint8)
            columns[:, 0::2], columns[:, 1::2] = array & 0x0F, array >> 4
            blocks = np.repeat(E4M3[scale[1]], 16, axis=1)
            full = E2M1[columns] * blocks * stored[f"{base}.weight_scale_2"][1]
        pre = stored.get(f"{base}.pre_quant_scale")
        weights[name] = full if pre is None else full * pre[1].astype(np.float32)
    if kv_algo == "FP8":
        for name, (_, array) in stored.items():
            if name.endswith("k_proj.k_scale"):
                layer = int(name.split(".")[2])
                twin = stored[name.replace("k_proj.k_scale", "v_proj.v_scale")][1]
                kv[layer] = (float(array), float(twin))
    return weights, kv
