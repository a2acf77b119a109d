"""KV-cache scales of a checkpoint: both of a pair, and the size that calibration warns about."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.reading.facts import Tensor

KV_PAIR = declare(
    "kv-scale-without-partner", Topic.QUANT_METADATA, Severity.ERROR,
    says="a layer with an FP8 KV cache has the scale of K and the scale of V",
    why="the exporter writes both from one pair of quantizers: a lone one is a damaged export",
    source="NVIDIA/Model-Optimizer modelopt/torch/export/quant_utils.py (get_kv_cache_scaling_factor)",
)  # fmt: skip
KV_LARGE = declare(
    "kv-scale-large", Topic.QUANT_METADATA, Severity.WARN,
    says="FP8 KV scales are at most 0.5, or 1.0 (the clamped value)",
    why="larger ones mean outliers in K or V; ModelOpt itself warns that accuracy may drop",
    source="NVIDIA/Model-Optimizer modelopt/torch/export/quant_utils.py (get_kv_cache_scaling_factor, "
    "postprocess_state_dict)",
)  # fmt: skip


def _partner(name: str) -> str | None:
    """The other half of a layer's pair of KV scales, as ModelOpt names them; None for other tensors."""
    for one, other in (("k", "v"), ("v", "k")):
        if name.endswith(f".{one}_scale"):
            stem = name.removesuffix(f".{one}_scale")
            if stem.endswith(f".{one}_proj"):
                stem = stem.removesuffix(f"{one}_proj") + f"{other}_proj"
            return f"{stem}.{other}_scale"
    return None


def _scales(c: Context) -> dict[str, Tensor]:
    """KV scales of a checkpoint that claims an FP8 KV cache."""
    config = c.evidence.quant_config
    quantization = config.quantization if config else None
    if quantization is None or quantization.kv_cache_quant_algo != "FP8":
        return {}
    return {t.name: t for t in c.evidence.tensors or () if _partner(t.name)}


def missing_halves(c: Context) -> list[str]:
    scales = _scales(c)
    return [p for p in map(_partner, scales) if p and p not in scales]


@about(Topic.QUANT_METADATA)
def pairs_whole(c: Context) -> Iterator[Answer]:
    alone = missing_halves(c)
    if alone:
        yield KV_PAIR.found(
            c, "tensors", f"{', '.join(alone[:4])}: not there, and the other half of the pair is",
            "export again; every layer has k_scale and v_scale, or no layer has",
        )  # fmt: skip


@about(Topic.QUANT_METADATA)
def scales_moderate(c: Context) -> Iterator[Answer]:
    # 1.0 is the clamped value of every normal scale.
    large = [
        t for t in _scales(c).values() if t.value is not None and t.value > 0.5 and t.value != 1
    ]
    if large:
        yield KV_LARGE.found(
            c, "tensors", "large KV activations: " + ", ".join(f"{t.name} is {t.value:g}" for t in large[:4]),
            "compare answers with a 16-bit KV cache, and keep that when they differ",
        )  # fmt: skip


RULES = (pairs_whole, scales_moderate)
