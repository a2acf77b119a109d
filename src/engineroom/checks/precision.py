"""What engineroom can make of the two precisions. Whether a GPU runs them is a rule over evidence."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.names import KvCacheFormat, LaneName, Severity, Topic, WeightFormat
from engineroom.types import Finding

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
    says="a TensorRT-LLM checkpoint can be written for the format and layout",
    why="trtllm-build reads that layout only; it is written for FP8 at TP 1 x PP 1",
    source="NVIDIA/Model-Optimizer modelopt/torch/export/model_config_export.py (export_tensorrt_llm_checkpoint)",
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


def engine_checkpoint(c: TargetContext) -> Iterator[Finding]:
    """The engine lane reads a TensorRT-LLM checkpoint, which we write for FP8 at TP 1 x PP 1."""
    if c.target.lane is not LaneName.ENGINE or (c.contract and not c.contract.has_engine_lane):
        return
    recipe = c.catalog.weight_recipes.get(c.spec.precision.recipe or str(c.spec.precision.weights))
    sharded = c.target.ranks > 1
    if recipe is not None and (not recipe.trtllm_checkpoint or sharded):
        what = (
            f"TP {c.target.tensor_parallel} x PP {c.target.pipeline_parallel}"
            if sharded
            else recipe.id
        )
        yield ENGINE_CHECKPOINT.found(
            c, "@.tensor_parallel" if sharded else "@.lane",
            f"a TensorRT-LLM checkpoint for {what} is not implemented; only fp8 at TP 1 x PP 1 is",
            "use lane: llmapi for this target, or weights: fp8 on one GPU",
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


RULES = (recipe_exists, engine_checkpoint, fp8_kv_with_qkv_bias, awq_with_fp8_kv)
