"""Plugins and profiles of an engine: what upstream recommends for the case, or what the spec overrides.

Sources: NVIDIA/TensorRT-LLM docs/source/legacy/performance/performance-tuning-guide
(useful-build-time-flags.md, fp8-quantization.md) for what is recommended, tensorrt_llm/builder.py
@ 008b2b8d (build) for what the builder overrides or refuses.
"""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.engine_options import FUSED_ARCHITECTURES, generation_heavy
from engineroom.lanes.base import LaneRequest
from engineroom.names import KvCacheFormat, WeightFormat
from engineroom.spec.target_options import EngineOptions

Choice = tuple[str, str, str]
"""(flag, word, reason)"""
FP8_QUERIES = (WeightFormat.FP8, WeightFormat.W4A8_AWQ, WeightFormat.NVFP4)
"""Formats with FP8 queries, which an FP8 KV cache needs in the context phase (builder.py, build)."""
DEFAULT_TOKENS_PER_BLOCK = 32


def fp8_context_fmha_documented(compute_capability: str) -> bool:
    """FP8 context FMHA is documented for Ada and Hopper; a build on 12.0 is reported to fail.

    Source: NVIDIA/TensorRT-LLM docs/source/advanced/gpt-attention.md; issue #2855.
    """
    return compute_capability in ("8.9", "9.0")


def paged_context_fmha_possible(
    weights: WeightFormat, kv_cache: KvCacheFormat, compute_capability: str
) -> bool:
    """Whether the context phase can read a paged KV cache of this format.

    A 16-bit cache: always. FP8: with FP8 queries, in the kernels that are documented for the GPU. INT8:
    never. Source: builder.py (build); constraints `fp8-paged-fmha`, `int8kv-paged-fmha`.
    """
    if kv_cache is KvCacheFormat.FP8:
        return weights in FP8_QUERIES and fp8_context_fmha_documented(compute_capability)
    return kv_cache is not KvCacheFormat.INT8


def paged_context_fmha(request: LaneRequest) -> bool:
    """Whether the engine gets paged context FMHA, without which KV reuse and chunking are off.

    Draft tokens from outside and EAGLE need it as well (NVIDIA/TensorRT-LLM
    docs/source/advanced/speculative-decoding.md; builder.py).
    """
    serving = request.spec.serving
    speculative = serving.features.speculative
    wanted = serving.kv_block_reuse or serving.chunked_context
    wanted = wanted or (speculative is not None and speculative.mode in ("draft_target", "eagle"))
    return wanted and paged_context_fmha_possible(
        request.weight_recipe.weights,
        request.kv_recipe.kv_cache,
        request.sku.compute_capability,
    )


def choices(request: LaneRequest) -> Iterator[Choice]:
    """Attention, KV blocks, profiles, GEMM and communication."""
    options = request.target.engine
    yield "--gpt_attention_plugin", "auto", "in-flight batching needs it; in the model's own type"
    yield "--context_fmha", "enable", "the fused context kernel; paged context FMHA is a part of it"
    yield "--kv_cache_type", "paged", "in-flight batching needs a paged KV cache"
    yield "--remove_input_padding", "enable", "in-flight batching needs packed inputs"
    yield from _block(options)
    yield from _context(request)
    yield from _profiles(request, options)
    yield from _gemm(request, options)
    yield from _fusions(request, options)
    yield from _experts(request)


def _block(options: EngineOptions) -> Iterator[Choice]:
    chosen = options.tokens_per_block
    yield (
        "--tokens_per_block",
        str(chosen or DEFAULT_TOKENS_PER_BLOCK),
        "targets[].engine.tokens_per_block" if chosen
        else "written out, because releases before 0.17 had 64; 16 or 32 is what practitioners use",
    )  # fmt: skip


def _context(request: LaneRequest) -> Iterator[Choice]:
    paged = paged_context_fmha(request)
    fp8 = request.kv_recipe.kv_cache is KvCacheFormat.FP8
    reason = "KV block reuse and chunked context need it"
    if not paged:
        reason = f"{reason}; neither is on, or the KV format has no such kernel on this GPU"
    yield "--use_paged_context_fmha", _switch(paged), reason
    yield (
        "--use_fp8_context_fmha", _switch(paged and fp8),
        "an FP8 KV cache is read by paged context FMHA with FP8 queries" if paged and fp8
        else "only together with paged context FMHA on an FP8 KV cache",
    )  # fmt: skip


def _profiles(request: LaneRequest, options: EngineOptions) -> Iterator[Choice]:
    wanted, tokens = options.multiple_profiles, request.target.limits.opt_num_tokens
    flag = "--multiple_profiles"
    if tokens is not None:
        yield "--opt_num_tokens", str(tokens), "targets[].limits.opt_num_tokens"
    if wanted is not None:
        yield flag, _switch(wanted), "targets[].engine.multiple_profiles"
    elif tokens is not None:
        yield flag, "disable", "trtllm-build refuses it together with --opt_num_tokens"
    else:
        yield (
            flag, "enable",
            "recommended for every production build: kernels for several loads; the same prompt may "
            "get slightly different text at another load",
        )  # fmt: skip


def _gemm(request: LaneRequest, options: EngineOptions) -> Iterator[Choice]:
    weights, flag = request.weight_recipe.weights, "--gemm_plugin"
    if options.gemm_plugin is not None:
        yield flag, options.gemm_plugin, "targets[].engine.gemm_plugin"
    elif weights is WeightFormat.FP8:
        yield flag, "disable", "recommended for FP8: TensorRT's own kernels are faster"
    elif weights is WeightFormat.NVFP4:
        yield flag, "nvfp4", "the FP4 GEMM; other values multiply in 16 bit"
    elif weights in (WeightFormat.BF16, WeightFormat.FP16):
        yield flag, "auto", "recommended for 16-bit models, in the model's own type"
    else:
        yield flag, "auto", "for the layers that stay in 16 bit; the format brings its own kernels"
    for name in (
        "gemm_swiglu_plugin",
        "low_latency_gemm_plugin",
        "low_latency_gemm_swiglu_plugin",
    ):
        if getattr(options, name):
            yield f"--{name}", "fp8", f"targets[].engine.{name}"
    if options.use_fused_mlp is not None:
        reason = "targets[].engine.use_fused_mlp"
        yield "--use_fused_mlp", _switch(options.use_fused_mlp), reason


def _fusions(request: LaneRequest, options: EngineOptions) -> Iterator[Choice]:
    chosen = options.reduce_fusion
    reason = "targets[].engine.reduce_fusion"
    if chosen is None:
        architecture = request.shape.architecture if request.shape else None
        split = request.target.tensor_parallel > 1 and architecture in FUSED_ARCHITECTURES
        chosen = split and generation_heavy(request.spec)
        if chosen:
            reason = "recommended for Llama over several GPUs where answers outweigh prompts"
        elif split:
            reason = "it helps where answers outweigh prompts, which the workload does not say"
        else:
            reason = "AllReduce with the norm: for Llama with tensor_parallel over 1 only"
    yield "--reduce_fusion", _switch(chosen), reason
    yield (
        "--user_buffer", _switch(options.user_buffer),
        "targets[].engine.user_buffer" if options.user_buffer
        else "off unless asked: its gain depends on the workload, and it fails on some GPUs",
    )  # fmt: skip


def _experts(request: LaneRequest) -> Iterator[Choice]:
    if request.shape is not None and request.shape.has_experts:
        yield "--moe_plugin", "auto", "a mixture of experts, in the model's own type"


def _switch(on: bool) -> str:
    return "enable" if on else "disable"
