"""KV cache to the token, and what its features need of the engine's build command."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from packaging.version import Version

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.model_config import kv_bytes_per_token
from engineroom.names import KvCacheFormat, Severity, Topic, WeightFormat
from engineroom.reading.commands import flags
from engineroom.types import Figure

NO_ROOM = declare(
    "kv-cache-no-room", Topic.KV_CACHE, Severity.ERROR,
    says="at least one block of KV cache fits",
    why="the server loads the engine and then stops for want of cache",
    source="NVIDIA/TensorRT-LLM cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp (calculateMaxNumBlocks); "
    "figures of issue #2894",
)  # fmt: skip
SEQUENCE = declare(
    "kv-cache-below-one-sequence", Topic.KV_CACHE, Severity.WARN,
    says="the KV cache holds one sequence of the longest length",
    why="a request of full length can never be scheduled",
    source="NVIDIA/TensorRT-LLM docs, Memory Usage of TensorRT-LLM (KV cache manager)",
)  # fmt: skip
FRACTION = declare(
    "kv-fraction-not-below-one", Topic.KV_CACHE, Severity.ERROR,
    says="kv_cache_free_gpu_mem_fraction is below 1",
    why="the cache manager refuses 1.0; activations and CUDA graphs need the rest",
    source="NVIDIA/TensorRT-LLM cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp (freeMemFraction < 1.0)",
)  # fmt: skip
VOLTA = declare(
    "paged-fmha-on-volta", Topic.KV_CACHE, Severity.ERROR,
    says="paged context FMHA is used on Ampere or newer",
    why="there are no kernels for Volta and none are planned; the flag itself is valid",
    source="NVIDIA/TensorRT-LLM issue #1671 (assertion and maintainer)",
)  # fmt: skip
INT8_PAGED = declare(
    "int8-kv-with-paged-fmha", Topic.KV_CACHE, Severity.ERROR,
    says="an INT8 KV cache is built without paged context FMHA",
    why="no kernel combines them, so neither reuse nor chunked context work with INT8",
    source="NVIDIA/TensorRT-LLM issue #2166",
)  # fmt: skip
FP8_PAGED = declare(
    "fp8-kv-with-paged-fmha", Topic.KV_CACHE, Severity.ERROR,
    says="paged context FMHA on an FP8 KV cache goes with FP8 activations",
    why="up to 0.17 the build stops; later ones switch the flag off in a log line, and KV reuse with it",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/builder.py (build) @ 008b2b8d; attentionOp.cpp (enqueueContext)",
)  # fmt: skip
NOT_PAGED = declare(
    "paged-fmha-needs-paged-cache", Topic.KV_CACHE, Severity.ERROR,
    says="paged context FMHA is built on a paged KV cache",
    why="it reads the context from cache blocks, which a contiguous cache does not have",
    source="NVIDIA/TensorRT-LLM docs/source/advanced/gpt-attention.md @ a7e572fb",
)  # fmt: skip
FP8_FMHA = declare(
    "fp8-context-fmha-needs-fp8", Topic.KV_CACHE, Severity.ERROR,
    says="use_fp8_context_fmha goes with an FP8 checkpoint on compute capability 8.9 or 9.0",
    why="the kernel takes FP8 queries with the checkpoint's scales; other inputs fail in the build",
    source="NVIDIA/TensorRT-LLM docs/source/advanced/gpt-attention.md @ a7e572fb; issue #2855",
)  # fmt: skip
BLOCK = declare(
    "tokens-per-block-not-power-of-two", Topic.KV_CACHE, Severity.ERROR,
    says="tokens_per_block is a power of two",
    why="block arithmetic in the kernels is by shifts; the build refuses other sizes",
    source="NVIDIA/TensorRT-LLM docs/source/advanced/kv-cache-reuse.md",
)  # fmt: skip

_DEFAULT_FRACTION = 0.9
_FP16_ACTIVATIONS = (WeightFormat.BF16, WeightFormat.FP16, WeightFormat.W4A16_AWQ)
_FP8_QUERIES = (None, WeightFormat.FP8, WeightFormat.W4A8_AWQ, WeightFormat.NVFP4)
"""Weight formats whose checkpoints have FP8 queries (builder.py); unknown ones are no fault."""
_MIB = 1024 * 1024


def _tokens_per_block(c: Context) -> int:
    """Wished, else built, else the default: 32, and 64 before 0.17 (trtllm-build --help)."""
    if c.spec.tokens_per_block:
        return c.spec.tokens_per_block
    given = flags(c.evidence.build_argv or ()).get("--tokens_per_block", "")
    if given.isdecimal() and int(given[:9]) > 0:
        return int(given[:9])
    old = c.trtllm is not None and Version(c.trtllm) < Version("0.17")
    return 64 if old else 32


def _free_bytes(c: Context) -> int | None:
    memory = c.evidence.memory
    if memory is None:
        return None
    if memory.free_after_load_bytes is not None:
        return memory.free_after_load_bytes
    if memory.engine_bytes is None or c.memory_mib is None:
        return None
    return max(0, c.memory_mib * _MIB - memory.engine_bytes - (memory.other_runtime_bytes or 0))


@about(Topic.KV_CACHE)
def budget(c: Context) -> Iterator[Answer]:
    """Blocks = free memory x fraction / (bytes per token x block), whole ones; then the cap."""
    fraction, cap = c.spec.kv_cache_free_gpu_mem_fraction, c.spec.max_tokens_in_paged_kv_cache
    if fraction is not None and fraction >= 1:
        yield FRACTION.found(
            c, "spec.kv_cache_free_gpu_mem_fraction", f"{fraction:g} is not below 1",
            "use 0.90: the fraction is of the memory that is free after the engine is loaded",
        )  # fmt: skip
        return
    per_token, free = kv_bytes_per_token(c), _free_bytes(c)
    if per_token is None or free is None:
        return
    block = _tokens_per_block(c)
    # With a cap and no fraction the cap alone holds: the fraction's default is for a missing cap.
    share = Decimal(str(fraction if fraction is not None else _DEFAULT_FRACTION))
    by_fraction = int(Decimal(free) * share) // (per_token * block)
    tokens, blocks = by_fraction * block, by_fraction
    if cap is not None and cap < tokens:
        tokens, blocks = cap, -(-cap // block)
    yield Figure("kv_blocks", blocks)
    yield Figure("kv_tokens_by_fraction", by_fraction * block)
    yield Figure("kv_tokens", tokens)
    if blocks == 0:
        yield NO_ROOM.found(
            c, "memory",
            f"{free / _MIB:.0f} MiB free x {share} hold no block of {block} tokens x {per_token} bytes",
            "use a smaller weight or KV format, more tensor parallelism, or a larger GPU",
        )  # fmt: skip
        return
    longest = flags(c.evidence.build_argv or ()).get("--max_seq_len", "")
    if longest.isdecimal() and int(longest[:12]) > tokens:
        yield SEQUENCE.found(
            c, "build_argv",
            f"the KV cache holds {tokens} tokens, fewer than the {longest[:12]} of --max_seq_len",
            "lower max_seq_len, or free memory for the cache (an FP8 KV cache doubles the tokens)",
        )  # fmt: skip


@about(Topic.KV_CACHE)
def build_options(c: Context) -> Iterator[Answer]:
    argv = c.evidence.build_argv
    if argv is None:
        return
    given = flags(argv)
    paged_fmha = given.get("--use_paged_context_fmha") == "enable"
    capability = c.compute_capability
    if paged_fmha and capability and int(capability.split(".")[0]) < 8:
        name = "Volta" if capability == "7.0" else "older than Ampere"
        yield VOLTA.found(
            c, "build_argv.use_paged_context_fmha",
            f"--use_paged_context_fmha enable on {c.product or 'a GPU'} (compute capability {capability}, "
            f"{name}): no kernels",
            "leave use_paged_context_fmha disabled (and with it KV reuse and chunked context), or use "
            "Ampere or newer",
        )  # fmt: skip
    if paged_fmha and c.spec.kv_cache is KvCacheFormat.INT8:
        yield INT8_PAGED.found(
            c, "build_argv.use_paged_context_fmha",
            "--use_paged_context_fmha enable with an INT8 KV cache: no kernel combines them",
            "use an FP8 or 16-bit KV cache, or leave paged context FMHA (and reuse) off",
        )  # fmt: skip
    if paged_fmha and c.spec.kv_cache is KvCacheFormat.FP8 and c.spec.weights in _FP16_ACTIVATIONS:
        yield FP8_PAGED.found(
            c, "build_argv.use_paged_context_fmha",
            f"--use_paged_context_fmha enable with an FP8 KV cache and {c.spec.weights} weights, whose "
            "activations are 16 bit",
            "use a 16-bit KV cache, or leave use_paged_context_fmha (and reuse) off, or quantize the weights to fp8",
        )  # fmt: skip
    contiguous = (
        given.get("--paged_kv_cache") == "disable"
        or given.get("--kv_cache_type") in ("continuous", "disabled")
    )  # fmt: skip
    if paged_fmha and contiguous:
        yield NOT_PAGED.found(
            c, "build_argv.use_paged_context_fmha",
            "--use_paged_context_fmha enable without a paged KV cache",
            "build with --kv_cache_type paged (older releases: --paged_kv_cache enable)",
        )  # fmt: skip
    if given.get("--use_fp8_context_fmha") == "enable":
        wrong = []
        if c.spec.weights not in _FP8_QUERIES:
            wrong.append(f"the checkpoint's weights are {c.spec.weights}")
        if capability and capability not in ("8.9", "9.0"):
            wrong.append(f"the GPU has compute capability {capability}")
        if given.get("--use_paged_context_fmha") == "disable":
            wrong.append("use_paged_context_fmha is disabled, and both are enabled together")
        if wrong:
            yield FP8_FMHA.found(
                c, "build_argv.use_fp8_context_fmha",
                "--use_fp8_context_fmha enable, but " + " and ".join(wrong),
                "leave use_fp8_context_fmha disabled; an FP8 KV cache works without it",
            )  # fmt: skip


@about(Topic.KV_CACHE)
def block_size(c: Context) -> Iterator[Answer]:
    if c.spec.tokens_per_block is None and not c.evidence.build_argv:
        return
    block = _tokens_per_block(c)
    if block & (block - 1):
        yield BLOCK.found(
            c, "spec.tokens_per_block" if c.spec.tokens_per_block else "build_argv.tokens_per_block",
            f"tokens_per_block {block} is no power of two", "use 32 (the default), 64 or 128",
        )  # fmt: skip


RULES = (budget, build_options, block_size)
