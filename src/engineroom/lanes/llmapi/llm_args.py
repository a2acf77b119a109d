"""LLM arguments of one TensorRT-LLM version, each with the reason it was set.

The argument models forbid unknown keys since 1.0, so nothing is emitted that the version's contract
does not list. What upstream re-defaulted between versions is always written out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engineroom.errors import UsageError, Where
from engineroom.lanes.attached import BESIDE
from engineroom.lanes.base import LaneRequest
from engineroom.lanes.llmapi.feature_args import feature_arguments
from engineroom.lanes.llmapi.option_args import graph_sizes, option_arguments
from engineroom.names import KvCacheFormat

_NESTED = {
    "kv_cache_config": "KvCacheConfig",
    "scheduler_config": "SchedulerConfig",
    "cuda_graph_config": "CudaGraphConfig",
    "lora_config": "LoraConfig",
    "moe_config": "MoeConfig",
}
_MANAGER = "use_kv_cache_manager_v2"


def llm_args(request: LaneRequest, root: str = BESIDE) -> tuple[dict[str, Any], dict[str, str]]:
    """(arguments, reasons by argument; a dotted name for a key of an object).

    Args:
        root: the package, for arguments that name something in it; by default relative to it.

    Raises:
        UsageError: a feature that the version has no place for; or an argument that the contract does
            not list. A test holds that no shipped one does the latter, so it is the contract of an
            overlay.
    """
    spec, target, contract = request.spec, request.target, request.contract
    serving, limits, fields = spec.serving, target.limits, contract.llm_fields
    args: dict[str, Any] = {}
    why: dict[str, str] = {}

    def put(name: str, value: Any, reason: str) -> None:
        args[name] = value
        why[name] = reason

    if "backend" in fields:
        put("backend", "pytorch", "the only backend of this lane, and the default since 1.4 only")
    put("tensor_parallel_size", target.tensor_parallel, "targets[].tensor_parallel")
    put("pipeline_parallel_size", target.pipeline_parallel, "targets[].pipeline_parallel")
    put(
        "max_batch_size",
        limits.max_batch_size,
        "a default that differs between releases (unset, 2048)",
    )
    put("max_num_tokens", limits.max_num_tokens, "targets[].limits.max_num_tokens")
    longest = limits.max_num_tokens
    if request.max_seq_len is not None:
        put("max_seq_len", request.max_seq_len, "targets[].limits.max_seq_len, or the model's")
        chunked = serving.chunked_context
        longest = request.max_seq_len if chunked else min(request.max_seq_len, longest)
    if "max_input_len" in fields:
        put(
            "max_input_len",
            longest,
            "later releases default to 1024, which would cut longer prompts",
        )
    put(
        "max_beam_width",
        limits.max_beam_width,
        "a default that differs between releases (unset, 1)",
    )
    put("enable_chunked_prefill", serving.chunked_context, "serving.chunked_context")
    if "enable_iter_perf_stats" in fields:
        put(
            "enable_iter_perf_stats",
            True,
            "off by default; without it there are no queue and KV-cache metrics",
        )
    if serving.attention_backend != "auto":
        put("attn_backend", serving.attention_backend, "serving.attention_backend")
    if spec.model.trust_remote_code:
        put("trust_remote_code", True, "model.trust_remote_code was asked for")
    for name, value, reason in feature_arguments(request, root):
        put(name, value, reason)

    nested = contract.nested_fields("kv_cache_config", "KvCacheConfig")
    kv: dict[str, Any] = {
        "enable_block_reuse": serving.kv_block_reuse,
        "free_gpu_memory_fraction": serving.kv_cache_free_gpu_mem_fraction,
    }
    dtype = "fp8" if spec.precision.kv_cache is KvCacheFormat.FP8 else "auto"
    if "dtype" in nested:
        # 16-bit names are not synced to the quantization config before 1.3; auto means 16 bit here.
        kv["dtype"] = dtype
    elif "kv_cache_dtype" in fields:
        put("kv_cache_dtype", dtype, "a flat argument before 1.0")
    manager = contract.nested_facts("kv_cache_config").get(_MANAGER)
    if manager and "default" in manager and not str(manager.get("presence")).startswith("only"):
        kv[_MANAGER] = manager["default"]
        why[f"kv_cache_config.{_MANAGER}"] = "a default that differs between releases (false, auto)"
    put("kv_cache_config", kv, "fraction is a share of what is free after load")
    put(
        "scheduler_config",
        {"capacity_scheduler_policy": serving.scheduler_policy.upper()},
        "serving.scheduler_policy; enum names are upper case",
    )
    for graph, setting, reason in _cuda_graphs(request):
        put(graph, setting, reason)
    for path, value, reason in option_arguments(request):
        if len(path) == 1:
            put(path[0], value, reason)
        else:
            args.setdefault(path[0], {})[path[1]] = value
            why[".".join(path)] = reason

    unknown = sorted(set(args) - set(fields))
    for field, type_name in _NESTED.items():
        known = contract.nested_fields(field, type_name)
        unknown += sorted(f"{field}.{key}" for key in set(args.get(field) or {}) - known)
    if unknown:
        raise UsageError(
            f"engineroom writes the LLM arguments {', '.join(unknown)}, which the contract of "
            f"{contract.version} does not list",
            where=Where(contract.file),
            hint="correct the contract of the --catalog overlay, or choose another stack",
        )
    return args, why


def _cuda_graphs(request: LaneRequest) -> Iterator[tuple[str, Any, str]]:
    """Graphs of the decode step: an object since 1.0, flat arguments before."""
    options, fields = request.target.llmapi, request.contract.llm_fields
    most, sizes = request.target.limits.max_batch_size, graph_sizes(request)
    if "cuda_graph_config" in fields:
        if not options.cuda_graphs:
            yield "cuda_graph_config", None, "targets[].llmapi.cuda_graphs: false; null disables"
            return
        # Both at once are refused below 1.3, and elsewhere the larger size has to be the maximum.
        chosen = {"max_batch_size": most} if sizes is None else {"batch_sizes": sizes[1]}
        yield (
            "cuda_graph_config", {**chosen, "enable_padding": options.cuda_graph_padding},
            "CUDA graphs are on by default since 1.0; padding lets any batch size use one",
        )  # fmt: skip
    elif "use_cuda_graph" in fields:
        yield "use_cuda_graph", options.cuda_graphs, "off by default before 1.0"
        if not options.cuda_graphs:
            return
        if sizes is not None:
            yield sizes[0][0], sizes[1], "targets[].llmapi.cuda_graph_batch_sizes"
        else:
            yield "cuda_graph_max_batch_size", most, "limits.max_batch_size"
        padding = "padding lets any batch size use a graph"
        yield "cuda_graph_padding_enabled", options.cuda_graph_padding, padding
