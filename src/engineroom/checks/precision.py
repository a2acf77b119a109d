"""Weight and KV-cache formats against compute capability; two axes, two verdicts."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import TargetContext
from engineroom.names import KvCacheFormat, LaneName, Severity, Support, WeightFormat
from engineroom.types import Finding

# What runs where the wanted format does not, best first; filtered by the support table.
_ALTERNATIVES = ("fp8", "w4a16_awq", "nvfp4", "bf16")
_KV_ALTERNATIVES = ("fp8", "int8", "auto")
_NEEDS = {
    "fp8": "FP8 needs compute capability 8.9 (Ada), 9.0 (Hopper) or newer",
    "nvfp4": "NVFP4 needs Blackwell tensor cores (compute capability 10.0 or newer)",
    "mxfp4": "MXFP4 is listed from compute capability 10.0 on",
    "w4a8_awq": "W4A8 AWQ computes in FP8 and needs compute capability 8.9 or 9.0",
}


def _verdict(
    c: TargetContext, axis: str, fmt: str, key: str, alternatives: tuple[str, ...]
) -> Iterator[Finding]:
    capability, version = c.sku.compute_capability, c.stack.tensorrt_llm
    support, source = c.catalog.precision_support(c.target.lane, version, axis, fmt, capability)
    what = "weights" if axis == "weights" else "KV cache"
    if support is Support.YES or (c.contract and not c.lane_in_contract):
        return  # where the lane does not exist, its formats are not the question
    subject = (
        f"{fmt} {what} on {c.sku.id} (compute capability {capability}), {c.target.lane} lane, "
        f"TensorRT-LLM {version}"
    )
    if support is Support.UNKNOWN:
        yield c.finding(
            f"unknown-{axis.replace('_', '-')}-support",
            Severity.WARN,
            key,
            f"{subject}: nothing found in a source that was read; unknown is not yes",
            f"test it on one such GPU first, or choose {_working(c, axis, alternatives)}",
            source,
        )
        return
    reason = _NEEDS.get(fmt)
    yield c.finding(
        f"{axis.replace('_', '-')}-format-not-supported",
        Severity.ERROR,
        key,
        f"{subject}: {support}" + (f"; {reason}" if reason else ""),
        f"use {_working(c, axis, alternatives)}, or a SKU that supports {fmt}",
        source,
    )


def _working(c: TargetContext, axis: str, candidates: tuple[str, ...]) -> str:
    version, capability = c.stack.tensorrt_llm, c.sku.compute_capability
    name = "precision.weights" if axis == "weights" else "precision.kv_cache"
    good = [
        fmt
        for fmt in candidates
        if fmt == "auto"
        or c.catalog.precision_support(c.target.lane, version, axis, fmt, capability)[0]
        is Support.YES
    ]
    return f"{name}: {' or '.join(good) if good else 'bf16'}"


def weights_on_sku(c: TargetContext) -> Iterator[Finding]:
    yield from _verdict(c, "weights", c.spec.precision.weights, "precision.weights", _ALTERNATIVES)


def kv_cache_on_sku(c: TargetContext) -> Iterator[Finding]:
    if c.spec.precision.kv_cache is not KvCacheFormat.AUTO:
        yield from _verdict(
            c, "kv_cache", c.spec.precision.kv_cache, "precision.kv_cache", _KV_ALTERNATIVES
        )


def recipe_exists(c: TargetContext) -> Iterator[Finding]:
    """A format may be servable and still be one that we do not make."""
    p = c.spec.precision
    name = p.recipe or str(p.weights)
    if name not in c.catalog.weight_recipes:
        yield c.finding(
            "recipe-not-implemented",
            Severity.ERROR,
            "precision.recipe" if p.recipe else "precision.weights",
            f"there is no PTQ recipe `{name}`: not implemented",
            f"use one of {', '.join(sorted(c.catalog.weight_recipes))}",
            "build/recipes/weights/ of the catalog",
        )
    elif c.catalog.weight_recipes[name].weights is not p.weights:
        yield c.finding(
            "recipe-other-format",
            Severity.ERROR,
            "precision.recipe",
            f"the recipe `{name}` makes {c.catalog.weight_recipes[name].weights}, not {p.weights}",
            f"set precision.weights: {c.catalog.weight_recipes[name].weights}, or drop the recipe",
            f"build/recipes/weights/{name}.yaml",
        )
    if p.kv_cache in (KvCacheFormat.NVFP4, KvCacheFormat.INT8):
        yield c.finding(
            "kv-recipe-not-implemented",
            Severity.ERROR,
            "precision.kv_cache",
            f"engineroom does not calibrate a {p.kv_cache} KV cache yet: not implemented",
            "set precision.kv_cache: fp8, or auto for 16 bit",
            "build/recipes/kv_cache/ of the catalog",
        )


def engine_checkpoint(c: TargetContext) -> Iterator[Finding]:
    """The engine lane reads a TensorRT-LLM checkpoint, which we write for FP8 at TP 1 x PP 1."""
    if c.target.lane is not LaneName.ENGINE or (c.contract and not c.contract.has_engine_lane):
        return
    recipe = c.catalog.weight_recipes.get(c.spec.precision.recipe or str(c.spec.precision.weights))
    sharded = c.target.tensor_parallel * c.target.pipeline_parallel > 1
    if recipe is not None and (not recipe.trtllm_checkpoint or sharded):
        what = (
            f"TP {c.target.tensor_parallel} x PP {c.target.pipeline_parallel}"
            if sharded
            else recipe.id
        )
        yield c.finding(
            "engine-checkpoint-not-implemented",
            Severity.ERROR,
            c.key("tensor_parallel" if sharded else "lane"),
            f"a TensorRT-LLM checkpoint for {what} is not implemented; only fp8 at TP 1 x PP 1 is",
            "use lane: llmapi for this target, or weights: fp8 on one GPU",
            "engineroom itself (docs/limits.md)",
        )


def fp8_kv_with_qkv_bias(c: TargetContext) -> Iterator[Finding]:
    """Models with a bias on QKV lose their output quality with an FP8 KV cache."""
    if (
        c.model is not None
        and c.model.model_type in ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl")
        and c.spec.precision.kv_cache is KvCacheFormat.FP8
    ):
        yield c.finding(
            "fp8-kv-with-qkv-bias",
            Severity.WARN,
            "precision.kv_cache",
            f"{c.model.architecture} has a bias on QKV; an FP8 KV cache is reported to break its output",
            "set precision.kv_cache: auto, or compare parity prompts before accepting",
            "NVIDIA/TensorRT-LLM issue #4218; verl-project/verl issue #4435",
        )


def awq_with_fp8_kv(c: TargetContext) -> Iterator[Finding]:
    if (
        c.target.lane is LaneName.LLMAPI
        and c.spec.precision.weights is WeightFormat.W4A16_AWQ
        and c.spec.precision.kv_cache is KvCacheFormat.FP8
    ):
        yield c.finding(
            "awq-fp8-kv-fmha",
            Severity.INFO,
            "precision.kv_cache",
            "W4A16 AWQ weights with an FP8 KV cache: a missing fused prefill kernel was reported "
            "around 1.1 to 1.2",
            "watch the log for unfused attention; kv_cache: auto avoids it",
            "NVIDIA/TensorRT-LLM PR #8862",
        )


RULES = (
    weights_on_sku,
    kv_cache_on_sku,
    recipe_exists,
    engine_checkpoint,
    fp8_kv_with_qkv_bias,
    awq_with_fp8_kv,
)
