"""`model.json`: fields of vLLM's AsyncEngineArgs of one version, each with the reason it was set.

The vLLM backend passes the file on as keyword arguments, so an unknown key is a TypeError at load:
nothing is emitted that the version's contract does not list. What upstream re-defaulted between
versions, and whatever decides a comparison with another lane, is always written out.
"""

from __future__ import annotations

from typing import Any

from engineroom.catalog import VllmContract
from engineroom.errors import FindingsError, InternalError, UsageError, Where
from engineroom.lanes.base import LaneRequest
from engineroom.names import KvCacheFormat
from engineroom.planning import VLLM_MEMORY_SHARE

_QUANTIZATION = {"FP8": "modelopt", "NVFP4": "modelopt_fp4"}
"""`quantization` by ModelOpt's quant_algo (vllm docs/features/quantization/modelopt.md)."""
_KV_DTYPES = {
    KvCacheFormat.FP8: "fp8",
    KvCacheFormat.BF16: "bfloat16",
    KvCacheFormat.FP16: "float16",
}
_GUIDED = {"xgrammar": "xgrammar", "llguidance": "guidance"}


def contract_of(request: LaneRequest) -> VllmContract:
    """The request's contract as vLLM's."""
    if not isinstance(request.contract, VllmContract):
        raise InternalError(f"the vllm lane got a contract of {type(request.contract).__name__}")
    return request.contract


def engine_args(request: LaneRequest) -> tuple[dict[str, Any], dict[str, str]]:
    """(arguments without `model`, reasons by argument).

    Raises:
        FindingsError: a checkpoint or KV format that this version does not load.
        UsageError: an argument that the contract does not list. A test holds that no shipped one
            does this, so it is the contract of an overlay.
    """
    spec, target, contract = request.spec, request.target, contract_of(request)
    serving, limits, fields = spec.serving, target.limits, contract.engine_args
    own, features = serving.vllm, serving.features
    args: dict[str, Any] = {}
    why: dict[str, str] = {}

    def put(name: str, value: Any, reason: str) -> None:
        args[name] = value
        why[name] = reason

    put("tensor_parallel_size", target.tensor_parallel, "targets[].tensor_parallel")
    put("pipeline_parallel_size", target.pipeline_parallel, "targets[].pipeline_parallel")
    share = serving.gpu_memory_utilization
    put(
        "gpu_memory_utilization",
        VLLM_MEMORY_SHARE if share is None else share,
        "share of the GPU's total memory, weights included; the default is 0.90 up to 0.19 and 0.92 "
        "in 0.21",
    )
    put("max_num_seqs", limits.max_batch_size, "limits.max_batch_size; the default differs by GPU")
    put(
        "max_num_batched_tokens",
        limits.max_num_tokens,
        "limits.max_num_tokens; the default differs by GPU and version",
    )
    if request.max_seq_len is not None:
        put("max_model_len", request.max_seq_len, "targets[].limits.max_seq_len, or the model's")
    dtype, reason = _kv_dtype(request, contract)
    put("kv_cache_dtype", dtype, reason)
    algo = request.weight_recipe.quant_algo
    if algo is not None:
        if algo not in contract.quant_algos or algo not in _QUANTIZATION:
            raise FindingsError(
                f"{target.id}: vLLM {contract.version} loads no ModelOpt checkpoint of {algo}",
                hint="`engineroom check` names the formats that it loads",
            )
        put("quantization", _QUANTIZATION[algo], f"ModelOpt checkpoint with quant_algo {algo}")
    put(
        "enable_prefix_caching",
        serving.kv_block_reuse,
        "serving.kv_block_reuse; on by default here, and it changes a benchmark",
    )
    put("enable_chunked_prefill", serving.chunked_context, "serving.chunked_context")
    put("disable_log_stats", not own.report_metrics, "metrics come from the statistics logger")
    if own.block_size is not None:
        put("block_size", own.block_size, "serving.vllm.block_size")
    if own.enforce_eager:
        put("enforce_eager", True, "serving.vllm.enforce_eager")
    if own.enable_sleep_mode:
        put("enable_sleep_mode", True, "serving.vllm.enable_sleep_mode")
    if own.cpu_offload_gb:
        put("cpu_offload_gb", own.cpu_offload_gb, "serving.vllm.cpu_offload_gb")
    if serving.stream_interval > 1 and "stream_interval" in fields:
        put("stream_interval", serving.stream_interval, "serving.stream_interval")
    if spec.model.trust_remote_code:
        put("trust_remote_code", True, "model.trust_remote_code was asked for")
    if features.lora is not None:
        lora = features.lora
        put("enable_lora", True, "serving.features.lora")
        put("max_lora_rank", lora.max_rank, "serving.features.lora.max_rank")
        put("max_loras", lora.max_adapters, "serving.features.lora.max_adapters")
        put("max_cpu_loras", lora.max_cpu_adapters, "serving.features.lora.max_cpu_adapters")
    if features.guided_decoding != "off":
        backend = _GUIDED[features.guided_decoding]
        if "guided_decoding_backend" in fields:
            put("guided_decoding_backend", backend, "serving.features.guided_decoding")
        else:
            put(
                "structured_outputs_config",
                {"backend": backend},
                "serving.features.guided_decoding",
            )
    if features.speculative is not None and features.speculative.mode == "ngram":
        put(
            "speculative_config",
            {"method": "ngram", "num_speculative_tokens": features.speculative.max_draft_tokens},
            "serving.features.speculative",
        )
    unknown = sorted({*args, "model"} - set(fields))
    if unknown:
        raise UsageError(
            f"engineroom writes the engine arguments {', '.join(unknown)}, which the contract of "
            f"vLLM {contract.version} does not list",
            where=Where(contract.file),
            hint="correct the contract of the --catalog overlay, or choose another stack",
        )
    return args, why


def _kv_dtype(request: LaneRequest, contract: VllmContract) -> tuple[str, str]:
    """`kv_cache_dtype`, never left out: `auto` takes FP8 from a checkpoint that has KV scales.

    A 16-bit KV recipe leaves no scales in the checkpoint, so there `auto` is the model's own 16-bit
    type in every version; versions that do not know the type's name get `auto`.
    """
    wanted = request.spec.precision.kv_cache
    name = _KV_DTYPES.get(wanted)
    if wanted is KvCacheFormat.AUTO:
        name = str(request.model_dtype or "auto")
    if name is None:
        raise FindingsError(
            f"{request.target.id}: a {wanted} KV cache is not made for the vllm lane",
            hint="set precision.kv_cache: fp8, bf16 or auto",
        )
    if name in contract.kv_cache_dtypes:
        return name, "precision.kv_cache, named because auto follows the checkpoint's KV scales"
    return "auto", f"{name} is no name in this version; without KV scales auto is 16 bit"
