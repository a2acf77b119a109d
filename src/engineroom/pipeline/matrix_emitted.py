"""What engineroom writes for a target on a stack, name by name, as the contracts call it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from engineroom.catalog import Contract
from engineroom.catalog.contract_index import ContractIndex, Key
from engineroom.catalog.contract_parts import Area
from engineroom.catalog.version_change import Change, ChangeKind
from engineroom.checks.llmapi_options import PLACES
from engineroom.lanes import RepositoryRequest
from engineroom.names import RuntimeName
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.types import StackRelease

_LIMITS, _SERVING = "targets[].limits", "serving"
_ENGINE, _LLMAPI = "targets[].engine", "targets[].llmapi"
_LORA, _SPECULATIVE = "serving.features.lora", "serving.features.speculative"
SETTINGS: dict[str, str] = {
    "tensor_parallel_size": "targets[].tensor_parallel",
    "pipeline_parallel_size": "targets[].pipeline_parallel",
    "max_batch_size": f"{_LIMITS}.max_batch_size",
    "max_num_tokens": f"{_LIMITS}.max_num_tokens",
    "max_seq_len": f"{_LIMITS}.max_seq_len",
    "max_input_len": f"{_LIMITS}.max_num_tokens",
    "max_beam_width": f"{_LIMITS}.max_beam_width",
    "cuda_graph_config.max_batch_size": f"{_LIMITS}.max_batch_size",
    "cuda_graph_max_batch_size": f"{_LIMITS}.max_batch_size",
    "enable_chunked_prefill": f"{_SERVING}.chunked_context",
    "enable_chunked_context": f"{_SERVING}.chunked_context",
    "enable_kv_cache_reuse": f"{_SERVING}.kv_block_reuse",
    "use_paged_context_fmha": f"{_SERVING}.kv_block_reuse",
    "kv_cache_config.enable_block_reuse": f"{_SERVING}.kv_block_reuse",
    "kv_cache_config.free_gpu_memory_fraction": f"{_SERVING}.kv_cache_free_gpu_mem_fraction",
    "kv_cache_free_gpu_mem_fraction": f"{_SERVING}.kv_cache_free_gpu_mem_fraction",
    "scheduler_config.capacity_scheduler_policy": f"{_SERVING}.scheduler_policy",
    "batch_scheduler_policy": f"{_SERVING}.scheduler_policy",
    "attn_backend": f"{_SERVING}.attention_backend",
    "triton_config.decoupled": f"{_SERVING}.streaming",
    "streaming": f"{_SERVING}.streaming",
    "stop_ids": f"{_SERVING}.stop_ids",
    "trust_remote_code": "model.trust_remote_code",
    "tokenizer_dir": "model.tokenizer",
    "kv_cache_config.dtype": "precision.kv_cache",
    "kv_cache_dtype": "precision.kv_cache",
    "use_fp8_context_fmha": "precision.weights",
    "gemm_plugin": "precision.weights",
    "workers": "targets[].tensor_parallel",
    "opt_num_tokens": f"{_LIMITS}.opt_num_tokens",
    **{
        name: f"{_ENGINE}.{name}"
        for name in (
            "multiple_profiles", "reduce_fusion", "user_buffer", "tokens_per_block", "use_fused_mlp",
            "gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin",
            "max_prompt_embedding_table_size",
        )
    },
    **{
        ".".join(place): f"{_LLMAPI}.{option}"
        for option, places in PLACES.items() for place in places
    },
    "moe_tensor_parallel_size": f"{_LLMAPI}.moe_expert_parallel_size",
    "cuda_graph_config": f"{_LLMAPI}.cuda_graphs",
    "use_cuda_graph": f"{_LLMAPI}.cuda_graphs",
    "cuda_graph_config.enable_padding": f"{_LLMAPI}.cuda_graph_padding",
    "cuda_graph_padding_enabled": f"{_LLMAPI}.cuda_graph_padding",
    "guided_decoding_backend": "serving.features.guided_decoding",
    "gather_generation_logits": "serving.features.generation_logits",
    "gather_context_logits": "serving.features.context_logits",
    "stream_interval": f"{_SERVING}.stream_interval",
    "enable_lora": _LORA,
    "lora_plugin": _LORA,
    "max_lora_rank": f"{_LORA}.max_rank",
    "lora_target_modules": f"{_LORA}.target_modules",
    "lora_config.max_lora_rank": f"{_LORA}.max_rank",
    "lora_config.lora_target_modules": f"{_LORA}.target_modules",
    "lora_config.max_loras": f"{_LORA}.max_adapters",
    "lora_config.max_cpu_loras": f"{_LORA}.max_cpu_adapters",
    "speculative_decoding_mode": f"{_SPECULATIVE}.mode",
    "max_draft_len": f"{_SPECULATIVE}.max_draft_tokens",
    "speculative_config.decoding_type": f"{_SPECULATIVE}.mode",
    "speculative_config.max_draft_len": f"{_SPECULATIVE}.max_draft_tokens",
    "speculative_config.num_nextn_predict_layers": f"{_SPECULATIVE}.max_draft_tokens",
    "speculative_config.speculative_model": f"{_SPECULATIVE}.draft_model",
    "speculative_config.speculative_model_dir": f"{_SPECULATIVE}.draft_model",
}  # fmt: skip
"""Emitted name -> setting; what is not here is the lane's own choice (`targets[].lane`)."""

LEFT_TO_DEFAULT = frozenset({"attn_backend", "trust_remote_code", "max_seq_len"})
"""Names that a lane writes for some values of the setting only (auto, false, the model's own)."""


def emitted(
    job: Job,
    item: ResolvedTarget,
    stack: StackRelease,
    contract: Contract,
    names: ContractIndex,
) -> dict[Key, Any]:
    """Every contract name that engineroom writes for a target on a stack, with its value.

    Args:
        names: the contract, indexed.

    Raises:
        EngineroomError: nothing is written there (no such lane, no recipe).
    """
    moved = dataclasses.replace(item, stack=stack, contract=contract)
    request = job.lane_request(moved, "checkpoints/CHECKPOINT")
    found: dict[Key, Any] = {}
    for document in item.lane.documents(request).values():
        found |= {(Area.LLM_ARGS, name): value for name, value in _leaves("", document)}
    for step in item.lane.steps(request):
        found |= {(Area.BUILD, flag): value for flag, value in _flags(step.argv[1:])}
    context = item.lane.repository_context(
        RepositoryRequest(request, RuntimeName.TENSORRT_LLM, "/ARTEFACT", "/TOKENIZER")
    )
    models = [key for key in names.entries if key[0] is Area.TRITON]
    for path, value in _parameters(context.variables):
        found |= {key: value for key in models if key[1].endswith(f"/{path}")}
    return found


def _flags(words: Iterable[str]) -> list[tuple[str, Any]]:
    """Flags with their values: True for a switch, one text for several words."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            found.append((word, []))
        elif found:
            found[-1][1].append(word)
    return [(flag, " ".join(values) if values else True) for flag, values in found]


def in_use(
    changes: Iterable[Change], written: Mapping[Key, Any], names: ContractIndex | None
) -> Iterator[Change]:
    """New defaults that apply: nothing is written there, and the object around is not off."""
    if names is None:
        return
    areas = {area for area, _ in written}
    for change in changes:
        entry = names.entries.get((change.area, change.name))
        if change.kind is not ChangeKind.REDEFAULTED or entry is None or change.area not in areas:
            continue
        above = names.entries.get((change.area, entry.parent or ""))
        off = above is not None and above.default is None and above.default_known
        inside = f"{entry.parent}."
        if (change.area, change.name) not in written and (
            not off or any(key[1].startswith(inside) for key in written)
        ):
            yield change


def without_model(job: Job) -> Job:
    """The job as if its model were a hub id that nobody downloaded: sizes of the spec alone.

    A change of versions is judged on machines that do not have the weights.
    """
    copy = dataclasses.replace(job)
    copy.__dict__["shape"] = None  # where `cached_property` keeps it
    return copy


def _leaves(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and (value or not prefix):
        return [
            leaf
            for key, inner in value.items()
            for leaf in _leaves(f"{prefix}.{key}" if prefix else str(key), inner)
        ]
    return [(prefix, value)]


def _parameters(variables: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Parameters of the rendered models, as ends of contract paths."""
    found: list[tuple[str, Any]] = []
    for model, part in variables.items():
        rows = part.get("parameters") if isinstance(part, dict) else None
        for key, value in (rows or {}).items():
            found.append((f"{model}/parameters/{key}", value))
    config = variables.get("model_yaml", {}).get("triton_config", {})
    found += [(f"model.yaml/triton_config.{key}", value) for key, value in config.items()]
    return found


def setting_of(name: str, position: int) -> str:
    """The setting of the spec that an emitted name comes from."""
    return SETTINGS.get(short_name(name), "targets[].lane").replace("[]", f"[{position}]")


def short_name(name: str) -> str:
    return name.rsplit("/", 1)[-1].lstrip("-")
