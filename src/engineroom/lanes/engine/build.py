"""The `trtllm-build` command of one target, each flag with its reason."""

from __future__ import annotations

from engineroom.errors import InternalError
from engineroom.lanes.base import LaneRequest
from engineroom.names import WeightFormat

OUTPUT = "engine"


def build_flags(request: LaneRequest) -> tuple[dict[str, str], dict[str, str]]:
    """(flags with values, reasons by flag); every flag is in the version's contract.

    In-flight batching needs a paged KV cache and packed inputs; KV block reuse and chunked context
    need paged context FMHA. FP8 KV is no flag: the builder takes it from the checkpoint, which
    `build` asserts.

    Raises:
        InternalError: a flag or value that the contract does not know; our fault.
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
    paged_fmha = serving.kv_block_reuse or serving.chunked_context
    put(
        "--use_paged_context_fmha",
        "enable" if paged_fmha else "disable",
        "KV block reuse and chunked context need it",
    )
    fp8 = request.weight_recipe.weights is WeightFormat.FP8
    documented = request.sku.compute_capability in ("8.9", "9.0")
    put(
        "--use_fp8_context_fmha",
        "enable" if fp8 and documented and paged_fmha else "disable",
        "needs an FP8 checkpoint and paged context FMHA; documented for compute capability 8.9, 9.0",
    )
    put(
        "--gemm_plugin",
        "fp8" if fp8 and limits.max_batch_size <= 4 else "auto",
        "the fp8 plugin serves small batches; larger ones let TensorRT choose",
    )
    put(
        "--workers", request.target.tensor_parallel * request.target.pipeline_parallel, "one a rank"
    )
    _assert_in_contract(request, flags)
    return flags, why


def _assert_in_contract(request: LaneRequest, flags: dict[str, str]) -> None:
    known = request.contract.build_flags
    for flag, value in flags.items():
        if flag not in known:
            raise InternalError(f"{flag} is not in the contract of {request.contract.version}")
        choices = known[flag].get("choices")
        if choices and value not in choices:
            raise InternalError(f"{flag} {value}: the contract allows {', '.join(choices)}")


def argv(flags: dict[str, str]) -> tuple[str, ...]:
    """Words of the command; never a shell string."""
    return ("trtllm-build", *(word for item in flags.items() for word in item))
