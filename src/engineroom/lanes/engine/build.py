"""The `trtllm-build` command of one target, each flag with its reason."""

from __future__ import annotations

from engineroom.errors import UsageError, Where
from engineroom.lanes.base import LaneRequest
from engineroom.names import WeightFormat

OUTPUT = "engine"


def fp8_context_fmha_documented(compute_capability: str) -> bool:
    """FP8 context FMHA is documented for Ada and Hopper; a build on 12.0 is reported to fail.

    Source: NVIDIA/TensorRT-LLM docs/source/advanced/gpt-attention.md; issue #2855.
    """
    return compute_capability in ("8.9", "9.0")


def paged_context_fmha(request: LaneRequest) -> bool:
    """Whether the engine gets paged context FMHA, without which KV reuse and chunking are off.

    With FP8 weights it is allowed only together with FP8 context FMHA (constraint `fp8-paged-fmha`).
    """
    serving = request.spec.serving
    wanted = serving.kv_block_reuse or serving.chunked_context
    fp8 = request.weight_recipe.weights is WeightFormat.FP8
    return wanted and (not fp8 or fp8_context_fmha_documented(request.sku.compute_capability))


def build_flags(request: LaneRequest) -> tuple[dict[str, str], dict[str, str]]:
    """(flags with values, reasons by flag); every flag is in the version's contract.

    In-flight batching needs a paged KV cache and packed inputs; KV block reuse and chunked context
    need paged context FMHA. FP8 KV is no flag: the builder takes it from the checkpoint, which
    `build` asserts.

    Raises:
        UsageError: a flag or value that the contract does not list. A test holds that no shipped one
            does this, so it is the contract of an overlay.
    """
    limits, serving = request.target.limits, request.spec.serving
    flags: dict[str, str] = {}
    why: dict[str, str] = {}

    def put(flag: str, value: str | int, reason: str) -> None:
        flags[flag] = str(value)
        why[flag] = reason

    put("--checkpoint_dir", f"{request.checkpoint}/trtllm", "TensorRT-LLM checkpoint of this spec")
    put("--output_dir", OUTPUT, "replaced by the artefact's own folder when run")
    put("--max_batch_size", limits.max_batch_size, "targets[].limits.max_batch_size")
    put("--max_num_tokens", limits.max_num_tokens, "targets[].limits.max_num_tokens")
    put("--max_beam_width", limits.max_beam_width, "targets[].limits.max_beam_width")
    if request.max_seq_len is not None:
        put("--max_seq_len", request.max_seq_len, "targets[].limits.max_seq_len, or the model's")
    longest = limits.max_num_tokens
    if request.max_seq_len is not None:
        chunked = serving.chunked_context
        longest = request.max_seq_len if chunked else min(request.max_seq_len, longest)
    put("--max_input_len", longest, "the default of 1024 would cut longer prompts")
    put("--kv_cache_type", "paged", "in-flight batching needs a paged KV cache")
    put("--remove_input_padding", "enable", "in-flight batching needs packed inputs")
    paged = paged_context_fmha(request)
    put(
        "--use_paged_context_fmha",
        "enable" if paged else "disable",
        "KV block reuse and chunked context need it",
    )
    fp8 = request.weight_recipe.weights is WeightFormat.FP8
    put(
        "--use_fp8_context_fmha",
        "enable" if fp8 and paged else "disable",
        "an FP8 checkpoint needs it together with paged context FMHA",
    )
    put(
        "--gemm_plugin",
        ("fp8" if limits.max_batch_size <= 4 else "disable") if fp8 else "auto",
        "FP8: the plugin serves small batches, above them TensorRT's own kernels; else the model's type",
    )
    put(
        "--workers", request.target.tensor_parallel * request.target.pipeline_parallel, "one a rank"
    )
    _assert_in_contract(request, flags)
    return flags, why


def _assert_in_contract(request: LaneRequest, flags: dict[str, str]) -> None:
    known = request.contract.build_flags
    for flag, value in flags.items():
        wrong = None
        if flag not in known:
            wrong = f"engineroom writes {flag}, which it does not list"
        elif (choices := known[flag].get("choices")) and value not in map(str, choices):
            wrong = f"engineroom writes {flag} {value}; it allows {', '.join(map(str, choices))}"
        if wrong:
            raise UsageError(
                f"the contract of TensorRT-LLM {request.contract.version}: {wrong}",
                where=Where(request.contract.file, key=f"trtllm_build.flags.{flag}"),
                hint="correct the contract of the --catalog overlay, or choose another stack",
            )


def argv(flags: dict[str, str]) -> tuple[str, ...]:
    """Words of the command; never a shell string."""
    return ("trtllm-build", *(word for item in flags.items() for word in item))
