"""Size and dtypes of a whole checkpoint against what its config claims.

Sizes: quantized linears at their format's bits plus scales, everything else in 16 bit
(docs/measurements/plan.md compares the formula with published checkpoints).
"""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.quant_metadata import excluded
from engineroom.names import Severity, Topic
from engineroom.reading.files import HfConfig
from engineroom.types import Figure

DTYPES = declare(
    "checkpoint-not-quantized", Topic.QUANT_METADATA, Severity.ERROR,
    says="a checkpoint that claims a quantized format holds tensors in that format",
    why="an export of simulated quantization keeps 16-bit weights: it loads wrong or saves nothing",
    source="NVIDIA/Model-Optimizer documentation, Unified HuggingFace Checkpoint (tensor dtypes per format)",
)  # fmt: skip
SIZE = declare(
    "checkpoint-size-unexpected", Topic.QUANT_METADATA, Severity.WARN,
    says="the weight files together have the size that the format and the shapes give",
    why="layers left in 16 bit, or shards missing, show first in the size",
    source="arithmetic on the shapes of config.json; NVIDIA/Model-Optimizer documentation, Unified "
    "HuggingFace Checkpoint",
)  # fmt: skip

# Bits of one weight with its scales: FP8 per tensor; AWQ 4 bit + one 16-bit scale a group; NVFP4
# 4 bit + one 8-bit scale per 16.
_PACKED = {"FP8": "F8_E4M3", "NVFP4": "U8", "NVFP4_AWQ": "U8", "W4A16_NVFP4": "U8",
           "W4A16_AWQ": "U8", "W4A8_AWQ": "U8"}  # fmt: skip
_TOLERANCE = 0.15


def bits_per_weight(algo: str | None, group: int | None) -> float | None:
    if algo is None or algo == "NO_QUANT":
        return 16.0
    if algo in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"):
        return 8.0
    if algo in ("NVFP4", "NVFP4_AWQ", "W4A16_NVFP4"):
        return 4 + 8 / (group or 16)
    if algo in ("W4A16_AWQ", "W4A8_AWQ"):
        return 4 + 16 / (group or 128)
    return None


def parameters(hf: HfConfig) -> tuple[int, int] | None:
    """(in quantizable linears, elsewhere) of a dense decoder; None when a size is missing."""
    if hf.has_experts or not (
        hf.hidden_size and hf.intermediate_size and hf.num_hidden_layers and hf.num_attention_heads
        and hf.vocab_size and hf.head_size
    ):  # fmt: skip
        return None
    q = hf.num_attention_heads * hf.head_size
    kv = (hf.kv_heads or 0) * hf.head_size
    layer = hf.hidden_size * (2 * q + 2 * kv + 3 * hf.intermediate_size)
    tables = hf.vocab_size * hf.hidden_size * (1 if hf.tie_word_embeddings else 2)
    norms = (2 * hf.num_hidden_layers + 1) * hf.hidden_size
    return layer * hf.num_hidden_layers, tables + norms


def excluded_parameters(hf: HfConfig, patterns: tuple[str, ...] | None) -> int:
    """Parameters that the exclude list moves out of the quantized linears (below zero: into them).

    Without a list the head alone stays out, as in ModelOpt's recipes.
    """
    if patterns is None or not (hf.hidden_size and hf.num_attention_heads and hf.head_size):
        return 0
    q, kv = hf.num_attention_heads * hf.head_size, (hf.kv_heads or 0) * hf.head_size
    sizes = {
        "self_attn.q_proj": q, "self_attn.o_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv,
        "mlp.gate_proj": hf.intermediate_size or 0, "mlp.up_proj": hf.intermediate_size or 0,
        "mlp.down_proj": hf.intermediate_size or 0,
    }  # fmt: skip
    exact = {p for p in patterns if not set("*?[") & set(p)}
    wild = tuple(p for p in patterns if p not in exact)[:50]

    def out(name: str) -> bool:
        parts = name.split(".")
        return excluded(name, wild) or any(".".join(parts[i:]) in exact for i in range(len(parts)))

    moved = 0
    for layer in range(min(hf.num_hidden_layers or 0, 200)):
        for name, width in sizes.items():
            if out(f"model.layers.{layer}.{name}"):
                moved += width * hf.hidden_size
    if not hf.tie_word_embeddings and not out("lm_head"):
        moved -= (hf.vocab_size or 0) * hf.hidden_size
    return moved


@about(Topic.QUANT_METADATA)
def dtypes_match(c: Context) -> Iterator[Answer]:
    quantization = c.evidence.quant_config.quantization if c.evidence.quant_config else None
    counts = c.evidence.tensor_dtype_counts
    if quantization is None or counts is None:
        return
    wanted = _PACKED.get(quantization.quant_algo or "")
    if wanted and not counts.get(wanted):
        shown = ", ".join(f"{n} x {dtype}" for dtype, n in sorted(counts.items()))
        yield DTYPES.found(
            c, "quant_config.quantization.quant_algo",
            f"quant_algo {quantization.quant_algo} stores its weights as {wanted}, and no tensor has that "
            f"dtype ({shown})",
            "export with export_hf_checkpoint (real quantization), not with save_pretrained",
        )  # fmt: skip


@about(Topic.QUANT_METADATA)
def size_expected(c: Context) -> Iterator[Answer]:
    hf, size = c.evidence.hf_config, c.evidence.checkpoint_bytes
    quantization = c.evidence.quant_config.quantization if c.evidence.quant_config else None
    counted = parameters(hf) if hf else None
    if counted is None:
        return
    linear, rest = counted
    if size is not None:
        yield Figure("bits_per_parameter", size * 8 / (linear + rest))
    if c.evidence.quant_config is None:
        return
    bits = bits_per_weight(
        quantization.quant_algo if quantization else None,
        quantization.group_size if quantization else None,
    )
    if bits is None:
        return
    moved = excluded_parameters(hf, quantization.exclude_modules) if hf and quantization else 0
    expected = round((linear - moved) * bits / 8) + (rest + moved) * 2
    yield Figure("checkpoint_bytes", expected)
    if size is None:
        yield Figure("bits_per_parameter", expected * 8 / (linear + rest))
    if size is None or abs(size - expected) <= _TOLERANCE * expected:
        return
    plain = (linear + rest) * 2
    whole = abs(size - plain) <= 0.05 * plain and bits < 16
    algo = quantization.quant_algo if quantization else "no quantization"
    yield (DTYPES if whole else SIZE).found(
        c, "checkpoint_bytes",
        f"{size} bytes of weights, and {algo} with these shapes gives about {expected} "
        f"({size * 8 / (linear + rest):.2f} bits per parameter)"
        + (": the size of 16-bit weights" if whole else ""),
        "export with export_hf_checkpoint, and compare exclude_modules with the recipe",
    )  # fmt: skip


RULES = (dtypes_match, size_expected)
