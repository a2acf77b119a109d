"""What engineroom can make of the two precisions. Whether a GPU runs them is a rule over evidence."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.catalog.trtllm_checkpoint import TrtllmCheckpointFile
from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.names import KvCacheFormat, LaneName, Severity, Topic, WeightFormat
from engineroom.types import Finding, ModelShape

_RECIPES = (
    "NVIDIA/Model-Optimizer modelopt_recipes/general/ptq and modelopt.torch.quantization configs"
)
NO_RECIPE = declare(
    "recipe-not-implemented", Topic.SPEC, Severity.ERROR,
    says="there is a PTQ recipe for the weight format",
    why="a format may be servable and still be one that is not made here: not implemented is not no",
    source=_RECIPES,
)  # fmt: skip
OTHER_FORMAT = declare(
    "recipe-other-format", Topic.SPEC, Severity.ERROR,
    says="the recipe makes the weight format that the spec names",
    why="support is checked for the format, and the recipe decides what is written",
    source=_RECIPES,
)  # fmt: skip
KV_RECIPE = declare(
    "kv-recipe-not-implemented", Topic.SPEC, Severity.ERROR,
    says="there is a recipe for the KV-cache format",
    why="INT8 and NVFP4 KV caches need calibration that is not implemented here",
    source="NVIDIA/Model-Optimizer modelopt_recipes/configs/ptq/units (kv_fp8, kv_nvfp4)",
)  # fmt: skip
ENGINE_CHECKPOINT = declare(
    "engine-checkpoint-not-implemented", Topic.SPEC, Severity.ERROR,
    says="a TensorRT-LLM checkpoint can be written for the format and the architecture",
    why="trtllm-build reads that layout only, and what its config.json must say differs by architecture",
    source="NVIDIA/Model-Optimizer modelopt/torch/export/tensorrt_llm_utils.py (convert_to_tensorrt_llm_config); "
    "NVIDIA/TensorRT-LLM tensorrt_llm/models/llama/config.py, qwen/config.py",
)  # fmt: skip
AWQ_MULTIPLE = declare(
    "engine-awq-multiple", Topic.SPEC, Severity.ERROR,
    says="both sizes of each AWQ layer are multiples of max(64, group_size) x tensor_parallel",
    why="the loader rounds its own layer up to that multiple and then refuses the checkpoint's tensors",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/quantization/layers.py (WeightOnlyGroupwiseQuantLinear), "
    "tensorrt_llm/parameter.py (value setter)",
)  # fmt: skip
NVFP4_PADDED = declare(
    "engine-nvfp4-padded-scales", Topic.SPEC, Severity.WARN,
    says="a rank's NVFP4 layers have outputs in multiples of 128 and inputs in multiples of 64",
    why="else the builder pads the interleaved block scales, which an early loader does not allow for; "
    "which releases can do it was not found",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/models/modeling_utils.py (preprocess_perlayer_weights), two snapshots",
)  # fmt: skip
QKV_BIAS = declare(
    "fp8-kv-with-qkv-bias", Topic.SPEC, Severity.WARN,
    says="models with a bias on QKV keep a 16-bit KV cache",
    why="their keys have outliers that FP8 cuts; broken output is reported",
    source="NVIDIA/TensorRT-LLM issue #4218; verl-project/verl issue #4435",
)  # fmt: skip
AWQ_FP8_KV = declare(
    "awq-fp8-kv-fmha", Topic.SPEC, Severity.INFO,
    says="W4A16 AWQ weights with an FP8 KV cache have a fused prefill kernel",
    why="its absence was reported around 1.1 to 1.2; attention then runs unfused and slower",
    source="NVIDIA/TensorRT-LLM PR #8862",
)  # fmt: skip


def recipe_exists(c: TargetContext) -> Iterator[Finding]:
    """A format may be servable and still be one that we do not make."""
    p = c.spec.precision
    name = p.recipe or str(p.weights)
    if name not in c.catalog.weight_recipes:
        yield NO_RECIPE.found(
            c, "precision.recipe" if p.recipe else "precision.weights",
            f"there is no PTQ recipe `{name}`: not implemented",
            f"use one of {', '.join(sorted(c.catalog.weight_recipes))}",
        )  # fmt: skip
    elif c.catalog.weight_recipes[name].weights is not p.weights:
        yield OTHER_FORMAT.found(
            c, "precision.recipe",
            f"the recipe `{name}` makes {c.catalog.weight_recipes[name].weights}, not {p.weights}",
            f"set precision.weights: {c.catalog.weight_recipes[name].weights}, or drop the recipe",
        )  # fmt: skip
    if p.kv_cache in (KvCacheFormat.NVFP4, KvCacheFormat.INT8):
        yield KV_RECIPE.found(
            c, "precision.kv_cache",
            f"a {p.kv_cache} KV cache is not calibrated here: not implemented",
            "set precision.kv_cache: fp8, or auto for 16 bit",
        )  # fmt: skip


def _engine_lane(c: TargetContext) -> bool:
    return c.target.lane is LaneName.ENGINE and (c.contract is None or c.contract.has_engine_lane)


def engine_checkpoint(c: TargetContext) -> Iterator[Finding]:
    """The engine lane reads a TensorRT-LLM checkpoint: of formats and architectures whose layout is known."""
    recipe = c.catalog.weight_recipes.get(c.spec.precision.recipe or str(c.spec.precision.weights))
    if not _engine_lane(c) or recipe is None:
        return
    layout = c.catalog.trtllm_checkpoint
    if not recipe.trtllm_checkpoint or (recipe.quant_algo or "none") not in layout.formats:
        yield ENGINE_CHECKPOINT.found(
            c, "@.lane", f"a TensorRT-LLM checkpoint in {recipe.id} is not implemented",
            "use lane: llmapi for this target, or another format",
        )  # fmt: skip
    if c.model is not None and c.model.architecture not in layout.architectures:
        yield ENGINE_CHECKPOINT.found(
            c, "@.lane",
            f"a TensorRT-LLM checkpoint of {c.model.architecture} is not implemented; "
            f"{', '.join(sorted(layout.architectures))} are",
            "use lane: llmapi for this target",
        )  # fmt: skip


def _linear_sizes(
    layout: TrtllmCheckpointFile, model: ModelShape, tp: int
) -> dict[str, tuple[int, int, str]]:
    """(output, input, how it is cut) of each linear layer, KV heads copied for the ranks counted in."""
    kv = model.num_key_value_heads
    sizes = {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": tp if kv < tp else kv,
        "head_size": model.head_dim,
    }
    return {name: (*linear.sizes(sizes), linear.cut) for name, linear in layout.linears.items()}


def group_misfits(
    layout: TrtllmCheckpointFile, quant_algo: str | None, model: ModelShape, group: int, tp: int
) -> tuple[int, list[str]]:
    """(multiple, layers that are none of it) of a group-wise format in `trtllm-build`; 1 where any does."""
    form = layout.formats.get(quant_algo or "none")
    if form is None or form.multiple is None or not form.multiple.times_tp:
        return 1, []
    multiple = max(form.multiple.of, group) * tp
    return multiple, [
        f"{name} is {output} x {width}"
        for name, (output, width, _) in _linear_sizes(layout, model, tp).items()
        if output % multiple or width % multiple
    ]


def engine_awq_multiple(c: TargetContext) -> Iterator[Finding]:
    """The AWQ layers of the engine lane are as wide as the loader makes its own."""
    recipe = c.catalog.weight_recipes.get(c.spec.precision.recipe or str(c.spec.precision.weights))
    if not _engine_lane(c) or recipe is None or recipe.group_size is None or c.model is None:
        return
    group, tp = c.spec.precision.group_size or recipe.group_size.default, c.target.tensor_parallel
    multiple, bad = group_misfits(
        c.catalog.trtllm_checkpoint, recipe.quant_algo, c.model, group, tp
    )
    if bad:
        yield AWQ_MULTIPLE.found(
            c, "@.tensor_parallel" if tp > 1 else "precision.group_size",
            f"group {group} at tensor_parallel {tp} needs multiples of {multiple}: {'; '.join(bad)}",
            "use a smaller tensor_parallel or group_size, weights: fp8, or lane: llmapi",
        )  # fmt: skip


def engine_nvfp4_padded(c: TargetContext) -> Iterator[Finding]:
    """NVFP4 on the engine lane with scales that the builder must pad."""
    recipe = c.catalog.weight_recipes.get(c.spec.precision.recipe or str(c.spec.precision.weights))
    if not _engine_lane(c) or recipe is None or c.model is None:
        return
    layout = c.catalog.trtllm_checkpoint
    form = layout.formats.get(recipe.quant_algo or "none")
    if form is None or form.early_multiple is None:
        return
    tp, early = c.target.tensor_parallel, form.early_multiple
    bad = []
    for name, (output, width, cut) in _linear_sizes(layout, c.model, tp).items():
        rows, columns = (output, width // tp) if cut == "input" else (output // tp, width)
        if rows % early.output or columns % early.input:
            bad.append(f"{name} has {rows} x {columns}")
    if bad:
        yield NVFP4_PADDED.found(
            c, "@.tensor_parallel" if tp > 1 else "precision.weights",
            f"per rank {'; '.join(bad)}: not all multiples of {early.output} x {early.input}, and whether "
            f"TensorRT-LLM {c.stack.runtime_version} pads the block scales is not known",
            "use a smaller tensor_parallel, weights: fp8, or lane: llmapi; else try the build first",
        )  # fmt: skip


def fp8_kv_with_qkv_bias(c: TargetContext) -> Iterator[Finding]:
    """Models with a bias on QKV lose their output quality with an FP8 KV cache."""
    if (
        c.model is not None
        and c.model.model_type in ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl")
        and c.spec.precision.kv_cache is KvCacheFormat.FP8
    ):
        yield QKV_BIAS.found(
            c, "precision.kv_cache",
            f"{c.model.architecture} has a bias on QKV; an FP8 KV cache is reported to break its output",
            "set precision.kv_cache: auto, or compare parity prompts before accepting",
        )  # fmt: skip


def awq_with_fp8_kv(c: TargetContext) -> Iterator[Finding]:
    if (
        c.target.lane is LaneName.LLMAPI
        and c.spec.precision.weights is WeightFormat.W4A16_AWQ
        and c.spec.precision.kv_cache is KvCacheFormat.FP8
    ):
        yield AWQ_FP8_KV.found(
            c, "precision.kv_cache",
            "W4A16 AWQ weights with an FP8 KV cache: a missing fused prefill kernel was reported "
            "around 1.1 to 1.2",
            "watch the log for unfused attention; kv_cache: auto avoids it",
        )  # fmt: skip


RULES = (
    recipe_exists, engine_checkpoint, engine_awq_multiple, engine_nvfp4_padded, fp8_kv_with_qkv_bias,
    awq_with_fp8_kv,
)  # fmt: skip
