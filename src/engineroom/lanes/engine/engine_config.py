"""Template variables of the `tensorrt_llm` model: what the C++ backend is configured with.

The config carries every tensor of the version, because the backend looks for them. A parameter without
a value is left out, where the backend has a default of its own; the few that it reads unguarded are
written empty. Source of both: NVIDIA/TensorRT-LLM triton_backend/inflight_batcher_llm/src/
{model_state,model_instance_state}.cc @ 0c8de69a. Left out on purpose: `participant_ids` (only for ranks
that are started beforehand, and refused otherwise), the encoder's parameters, and what has no setting
in the spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engineroom.lanes.base import LaneRequest, RepositoryRequest, tensor_context
from engineroom.lanes.engine.build import XGRAMMAR_INFO
from engineroom.lanes.engine.choices import paged_context_fmha
from engineroom.lanes.engine.speculative import CHOICES_PARAMETER, DECODING_MODE
from engineroom.names import WeightFormat
from engineroom.spec.serving import Serving

# Placeholders that upstream's templates leave to the user; values by data type rules of the backend.
TYPES = {
    # What `--logits_dtype` of the build says; the backend compares the two.
    "logits_datatype": "TYPE_FP32",
    "encoder_input_features_data_type": "TYPE_FP16",
    "prompt_embedding_table_data_type": "TYPE_FP16",
}
WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"


def family(request: LaneRequest) -> Mapping[str, Any]:
    """The contract's models, with `lora_weights` of the type that this model needs.

    Upstream's template says TYPE_FP16; the runtime refuses weights of another type than the base
    model's (NVIDIA/TensorRT-LLM cpp/tensorrt_llm/runtime/loraUtils.cpp, loraValidateRequestTensors).
    """
    facts = request.contract.family("inflight_batcher_llm")
    kind = _lora_type(request)
    if kind is None:
        return facts
    return {
        name: model if not isinstance(model, Mapping) else {
            **model,
            **{
                side: [{**t, "data_type": kind} if t["name"] == "lora_weights" else t for t in model[side]]
                for side in ("inputs", "outputs") if side in model
            },
        }
        for name, model in facts.items()
    }  # fmt: skip


def _lora_type(request: LaneRequest) -> str | None:
    weights = request.spec.precision.weights
    if weights in (WeightFormat.BF16, WeightFormat.FP16):
        return "TYPE_BF16" if weights is WeightFormat.BF16 else "TYPE_FP16"
    return {"bfloat16": "TYPE_BF16", "float16": "TYPE_FP16"}.get(request.model_dtype or "")


def tensorrt_llm(request: RepositoryRequest, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors, parameters, batching and instances of `tensorrt_llm/config.pbtxt`."""
    known = {str(p["key"]): p for p in facts["parameters"]}
    wanted = {
        **_always(request),
        **_upstream_defaults(known),
        **_decoding(request.lane_request),
        **_placement(request.lane_request),
        **_lora(request.lane_request),
        **_guided(request),
    }
    parameters = {key: wanted[key] for key in known if key in wanted}
    parameters["engineroom_runtime"] = str(request.runtime)
    return {
        "inputs": tensor_context(facts["inputs"], **TYPES),
        "outputs": tensor_context(facts["outputs"], **TYPES),
        "parameters": parameters,
        "batching": batching(request.lane_request.spec.serving),
        "instances": request.lane_request.target.instances,
    }


def batching(serving: Serving) -> dict[str, int | None]:
    """Queue settings of `dynamic_batching`; None leaves a setting out.

    Without a limit the queue policy is left out: the backend takes the policy's `max_queue_size` as the
    executor's own limit as well, and there 0 is not said to mean none. A request without a priority
    gets the middle level; Triton wants a default as soon as there are levels.
    """
    levels = serving.priority_levels
    return {
        "max_queue_delay_microseconds": serving.max_queue_delay_microseconds,
        "max_queue_size": serving.max_queue_size or None,
        "priority_levels": levels or None,
        "default_priority_level": levels // 2 + 1 if levels else None,
    }


def _always(request: RepositoryRequest) -> dict[str, str]:
    lane_request = request.lane_request
    spec = lane_request.spec
    serving, paged = spec.serving, paged_context_fmha(lane_request)
    return {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": request.artefact_dir,
        "max_beam_width": str(lane_request.target.limits.max_beam_width),
        "batch_scheduler_policy": serving.scheduler_policy,
        "kv_cache_free_gpu_mem_fraction": f"{serving.kv_cache_free_gpu_mem_fraction:g}",
        "enable_kv_cache_reuse": "true" if paged and serving.kv_block_reuse else "false",
        "enable_chunked_context": "true" if paged and serving.chunked_context else "false",
        # Without it the answer repeats the prompt, and clients measure the prompt as output.
        "exclude_input_in_output": "true",
        "normalize_log_probs": "true",
        "num_nodes": "1",
        # The C++ backend reads these three unguarded since 0.19: absent, the model does not load.
        # Empty means no guided decoding. Of tokenizer_dir it says that it does not use it.
        "tokenizer_dir": request.tokenizer_dir,
        "guided_decoding_backend": "",
        "xgrammar_tokenizer_info_path": "",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "executor_worker_path": WORKER,
    }


def _upstream_defaults(known: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Periods whose value a reader of the config wants to see: they bound how late a cancelled request
    stops and how old a metric is."""
    names = ("cancellation_check_period_ms", "stats_check_period_ms")
    values = {name: known.get(name, {}).get("default") for name in names}
    return {name: str(value) for name, value in values.items() if value is not None}


def _decoding(request: LaneRequest) -> dict[str, str]:
    speculative = request.spec.serving.features.speculative
    if speculative is None:
        beams = request.target.limits.max_beam_width > 1
        return {"decoding_mode": "beam_search" if beams else "top_k_top_p"}
    found = {}
    if speculative.mode in DECODING_MODE:
        found["decoding_mode"] = DECODING_MODE[speculative.mode]
    if speculative.choices is not None and speculative.mode in CHOICES_PARAMETER:
        found[CHOICES_PARAMETER[speculative.mode]] = speculative.choices.strip()
    if speculative.mode == "lookahead":
        for name in ("window_size", "ngram_size", "verification_set_size"):
            value = getattr(speculative, f"lookahead_{name}")
            if value is not None:
                found[f"lookahead_{name}"] = str(value)
    return found


def _placement(request: LaneRequest) -> dict[str, str]:
    """GPUs of each instance: `0,1;2,3`."""
    sets = request.target.gpu_device_ids
    return {"gpu_device_ids": ";".join(",".join(map(str, s)) for s in sets)} if sets else {}


def _lora(request: LaneRequest) -> dict[str, str]:
    """The cache in adapter ranks; its sizes in bytes stay the backend's, as the spec counts adapters."""
    lora = request.spec.serving.features.lora
    if lora is None:
        return {}
    rank = str(lora.max_rank)
    return {"lora_cache_max_adapter_size": rank, "lora_cache_optimal_adapter_size": rank}


def _guided(request: RepositoryRequest) -> dict[str, str]:
    """XGrammar, the only library of the C++ backend; the file is made with the artefact."""
    if request.lane_request.spec.serving.features.guided_decoding != "xgrammar":
        return {}
    return {
        "guided_decoding_backend": "xgrammar",
        "xgrammar_tokenizer_info_path": f"{request.artefact_dir}/{XGRAMMAR_INFO}",
    }
