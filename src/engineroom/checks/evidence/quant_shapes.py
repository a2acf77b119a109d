"""Group and block sizes against layer widths, per rank; and recipes that reach the output head."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic, WeightFormat
from engineroom.reading.files import HfConfig
from engineroom.types import Figure, Finding

GROUPS = (64, 128)
"""Group sizes with weight-only GEMM kernels (NVIDIA/TensorRT-LLM issues #988, #1547)."""
BITS = (4, 8)
"""Weight bits of ready-made GPTQ and AWQ checkpoints with kernels: W4A16 and, for GPTQ, W8A16."""
NVFP4_BLOCK = 16
_HEAD_BYTES = 32
"""The int4 packer takes rows of a multiple of 32 bytes (NVIDIA/TensorRT-LLM issue #843)."""

GROUP = declare(
    "group-size-without-kernel", Topic.QUANT_SHAPE, Severity.ERROR,
    says="AWQ and GPTQ groups are 64 or 128 wide",
    why="other sizes quantize and build; the first GEMM finds no valid tactic",
    source="NVIDIA/TensorRT-LLM issues #988 (maintainer: 64 or 128 only) and #1547",
)  # fmt: skip
WEIGHT_BITS = declare(
    "weight-bits-without-kernel", Topic.QUANT_SHAPE, Severity.ERROR,
    says="GPTQ and AWQ checkpoints have 4-bit weights (GPTQ also 8)",
    why="the converter unpacks 4-bit words whatever the config says; other widths give nonsense or a shape error",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/quantization/mode.py (W4A16_GPTQ, W8A16_GPTQ, W4A16_AWQ); "
    "release notes 0.15 (INT8 support for GPTQ)",
)  # fmt: skip
PARTIAL = declare(
    "group-size-partial", Topic.QUANT_SHAPE, Severity.ERROR,
    says="each rank's input width is a whole number of groups",
    why="the checkpoint is valid at TP 1; the fault appears only when it is sharded",
    source="NVIDIA/Model-Optimizer modelopt/torch/export/postprocess.py, (in_features // tp) % block; "
    "PR #2320 (partial groups are refused); vllm-project/vllm issue #1258",
)  # fmt: skip
BLOCK = declare(
    "nvfp4-partial-block", Topic.QUANT_SHAPE, Severity.ERROR,
    says="NVFP4 layers are a whole number of 16-wide blocks",
    why="the quantizer pads inside, and the export stops on a shape mismatch far from the cause",
    source="NVIDIA/Model-Optimizer issue #1552; modelopt default_disabled_quantizers.yaml",
)  # fmt: skip
HEAD_WIDTH = declare(
    "lm-head-columns", Topic.QUANT_LM_HEAD, Severity.ERROR,
    says="a quantized output head packs into whole 32-byte rows on each rank",
    why="the packer's message gives only a number of bytes; nobody thinks of the head",
    source="NVIDIA/TensorRT-LLM issue #843 (TP 8 fails, TP 4 works)",
)  # fmt: skip
HEAD_BY_RECIPE = declare(
    "lm-head-quantized-by-recipe", Topic.QUANT_LM_HEAD, Severity.ERROR,
    says="a recipe quantizes the output head only when that is asked for",
    why="later entries win: a wildcard after the exception turns the head's quantizer on again",
    source="NVIDIA/Model-Optimizer modelopt_recipes/configs/ptq/units/default_disabled_quantizers.yaml "
    "(*lm_head* is disabled last)",
)  # fmt: skip

HEAD_TIED = declare(
    "lm-head-quantized-but-tied", Topic.QUANT_LM_HEAD, Severity.ERROR,
    says="an output head that is to be quantized has weights of its own",
    why="with tied embeddings the runtime takes the embedding's 16-bit table as head: the quantized copy is "
    "dropped, or spoils the embedding",
    source="NVIDIA/Model-Optimizer modelopt/torch/export/quant_utils.py (tied weights in postprocess_state_dict); "
    "vllm-project/vllm PR #42124 (quantized heads with tie_word_embeddings false); NVIDIA/TensorRT-LLM issue #1394",
)  # fmt: skip
_GROUPED = (WeightFormat.W4A16_AWQ, WeightFormat.W4A8_AWQ)
_HEAD_QUANTIZERS = ("lm_head.weight_quantizer", "lm_head.input_quantizer")


def _group(c: Context) -> tuple[int | None, str]:
    """The group size asked for or found, and the evidence key that says so."""
    if c.spec.weights in _GROUPED and c.spec.group_size is not None:
        return c.spec.group_size, "spec.group_size"
    source = c.evidence.hf_config.quantization_config if c.evidence.hf_config else None
    method = (source.quant_method or "").lower() if source else ""
    if source and method in ("gptq", "awq") and source.group_size is not None:
        return source.group_size, "hf_config.quantization_config.group_size"
    return None, ""


@about(Topic.QUANT_SHAPE)
def group_has_kernels(c: Context) -> Iterator[Answer]:
    group, key = _group(c)
    if group is None:
        return
    yield Figure("allowed_group_sizes", list(GROUPS))
    if group in GROUPS:
        return
    if group == -1:
        reason = "one scale per column (group_size -1) is not group-wise quantization"
    else:
        reason = f"weight-only kernels exist for groups of 64 and 128 only, not {group}"
    fix = (
        "set group_size to 128 (or 64)" if key.startswith("spec")
        else "take the checkpoint's 128g or 64g variant, or quantize anew"
    )  # fmt: skip
    yield GROUP.found(c, key, reason, fix)


@about(Topic.QUANT_SHAPE)
def bits_have_kernels(c: Context) -> Iterator[Answer]:
    source = c.evidence.hf_config.quantization_config if c.evidence.hf_config else None
    method = (source.quant_method or "").lower() if source else ""
    if source is None or method not in ("gptq", "awq") or source.bits is None:
        return
    if source.bits not in (BITS if method == "gptq" else BITS[:1]):
        yield WEIGHT_BITS.found(
            c, "hf_config.quantization_config.bits",
            f"{method} weights of {source.bits} bits: there are kernels for "
            + ("4 (and 8)" if method == "gptq" else "4"),
            "take the 4-bit variant, or quantize the 16-bit model anew",
        )  # fmt: skip


def widths(hf: HfConfig) -> dict[str, tuple[int, bool]]:
    """Input width of each kind of linear layer that is known, and whether TP cuts it there.

    Row-parallel layers (o_proj, down_proj) are cut along their input, the others keep it whole;
    q_proj stands for all that read the hidden state (k_proj, v_proj, gate_proj, up_proj).
    """
    known: dict[str, tuple[int, bool]] = {}
    if hf.hidden_size:
        known["q_proj"] = (hf.hidden_size, False)
    if hf.head_size and hf.num_attention_heads:
        known["o_proj"] = (hf.head_size * hf.num_attention_heads, True)
    if hf.intermediate_size and not hf.has_experts:
        known["down_proj"] = (hf.intermediate_size, True)
    if hf.moe_intermediate_size:
        known["experts' down_proj"] = (hf.moe_intermediate_size, True)
    return known


def partial(hf: HfConfig, group: int, tp: int) -> list[str]:
    """Layers whose input width per rank is no whole number of groups, with the arithmetic."""
    bad = []
    for name, (width, cut) in widths(hf).items():
        ranks = tp if cut else 1
        if (width % ranks == 0 and (width // ranks) % group) or (cut and width % ranks):
            shown = f"{width}/{ranks} = {width / ranks:g}" if ranks > 1 else f"{width}"
            bad.append(f"{name} has {shown} = {width / ranks / group:g} x {group}")
    return bad


@about(Topic.QUANT_SHAPE)
def groups_whole(c: Context) -> Iterator[Answer]:
    hf = c.evidence.hf_config
    if hf is None:
        return
    if c.spec.weights in _GROUPED:
        group = c.spec.group_size or 128
    elif c.spec.weights is WeightFormat.NVFP4:
        group = NVFP4_BLOCK
    else:
        found, _ = _group(c)
        group = found or 0
    if group <= 0 or (group not in GROUPS and c.spec.weights is not WeightFormat.NVFP4):
        return
    bad = partial(hf, group, c.tp)
    if not bad:
        return
    fitting = [g for g in reversed(GROUPS) if not partial(hf, g, c.tp)]
    ranks = [n for n in range(1, c.tp) if not partial(hf, group, n) and c.tp % n == 0]
    options = []
    if ranks:
        options.append(f"tensor_parallel: {ranks[-1]}")
    if fitting and c.spec.weights in _GROUPED:
        options.append(f"group_size: {fitting[0]}")
    options.append("weights: fp8")
    yield PARTIAL.found(
        c, "spec.group_size" if c.spec.group_size else "spec.weights",
        f"group {group} at tensor_parallel {c.tp}: {'; '.join(bad)}", "use " + ", or ".join(options),
    )  # fmt: skip


def _unquantized(dtype: str | None) -> bool:
    return dtype is None or dtype.upper() in ("BF16", "F16", "F32")


def _is_linear(name: str) -> bool:
    lowered = name.lower()
    return name.endswith(".weight") and not any(
        word in lowered
        for word in ("norm", "embed_tokens", "embeddings", "lm_head", "rotary", "conv")
    )


@about(Topic.QUANT_SHAPE)
def tensors_whole(c: Context) -> Iterator[Answer]:
    """Before NVFP4 or AWQ quantization: which layers must stay out."""
    nvfp4 = c.spec.weights is WeightFormat.NVFP4
    group = NVFP4_BLOCK if nvfp4 else c.spec.group_size or 128
    if not c.evidence.tensors or not (nvfp4 or (c.spec.weights in _GROUPED and group in GROUPS)):
        return
    bad = [
        tensor
        for tensor in c.evidence.tensors
        if tensor.shape and len(tensor.shape) == 2 and _unquantized(tensor.dtype)
        and _is_linear(tensor.name) and tensor.shape[1] % group
    ]  # fmt: skip
    yield Figure("modules_to_exclude", [t.name.removesuffix(".weight") for t in bad])
    if bad:
        shown = "; ".join(
            f"{t.name} has {t.shape[1]} = {t.shape[1] // group} x {group} + {t.shape[1] % group}"
            for t in bad[:4] if t.shape
        )  # fmt: skip
        what = "NVFP4 blocks are 16 wide" if nvfp4 else f"groups are {group} wide"
        yield (BLOCK if nvfp4 else PARTIAL).found(
            c, "tensors", f"{what}: {shown}" + (" …" if len(bad) > 4 else ""),
            "exclude these modules from the recipe, or choose fp8 for them",
        )  # fmt: skip


def _head_enabled(c: Context) -> bool | None:
    """Whether the recipe's entries leave the head's weight quantizer on; None without a recipe."""
    if c.evidence.quant_cfg is None:
        return None
    state = False
    for entry in c.evidence.quant_cfg:
        name = entry.quantizer_name
        if name is None or entry.enable is None:
            continue
        if any(fnmatch.fnmatchcase(full, name[:200]) for full in _HEAD_QUANTIZERS):
            state = entry.enable
    return state


@about(Topic.QUANT_LM_HEAD)
def head_packs(c: Context) -> Iterator[Answer]:
    by_recipe = _head_enabled(c)
    wanted = c.spec.quantize_lm_head
    if by_recipe and not wanted:
        yield Figure("culprit", "lm_head")
        yield HEAD_BY_RECIPE.found(
            c, "quant_cfg",
            "the recipe's last matching entry turns the quantizer of lm_head on, which the spec does not ask for",
            "add {quantizer_name: '*lm_head*', enable: false} as the last entry",
        )  # fmt: skip
        return
    if not (by_recipe if by_recipe is not None else wanted):
        return
    hf = c.evidence.hf_config
    if hf is not None and hf.tie_word_embeddings:
        yield Figure("culprit", "lm_head")
        yield HEAD_TIED.found(
            c, "spec.quantize_lm_head" if wanted else "quant_cfg",
            "lm_head is to be quantized, and tie_word_embeddings is true: it shares the embedding's tensor",
            "leave lm_head unquantized, or untie the weights in the model first",
        )  # fmt: skip
        return
    if c.spec.weights not in _GROUPED:
        return
    if hf is None or not hf.vocab_size:
        return
    yield from _columns(c, hf)


def _columns(c: Context, hf: HfConfig) -> Iterator[Figure | Finding]:
    vocab = -(-(hf.vocab_size or 0) // c.tp) * c.tp  # padded as the converter does
    per_rank = vocab // c.tp
    if per_rank % (2 * _HEAD_BYTES) == 0:
        return
    good = [n for n in range(1, c.tp) if c.tp % n == 0 and (vocab // n) % (2 * _HEAD_BYTES) == 0]
    pipeline = (
        f", or tensor_parallel {good[-1]} with pipeline_parallel {c.pp * c.tp // good[-1]}"
        if good
        else ""
    )
    yield Figure("culprit", "lm_head")
    yield HEAD_WIDTH.found(
        c, "spec.quantize_lm_head",
        f"lm_head: {vocab}/{c.tp} = {per_rank} int4 columns = {per_rank / 2:g} bytes = "
        f"{per_rank / 2 / _HEAD_BYTES:g} x {_HEAD_BYTES} on each rank",
        f"leave lm_head unquantized (ModelOpt's default){pipeline}",
    )  # fmt: skip


RULES = (group_has_kernels, bits_have_kernels, groups_whole, tensors_whole, head_packs)
