"""Template variables of the `tensorrt_llm` model: what the C++ backend is configured with.

The config carries every tensor of the version, because the backend looks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engineroom.lanes.base import RepositoryRequest, tensor_context
from engineroom.lanes.engine.build import paged_context_fmha

# Placeholders that upstream's templates leave to the user; values by data type rules of the backend.
TYPES = {
    "logits_datatype": "TYPE_FP32",
    "encoder_input_features_data_type": "TYPE_FP16",
    "prompt_embedding_table_data_type": "TYPE_FP16",
}


def tensorrt_llm(request: RepositoryRequest, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors and parameters of `tensorrt_llm/config.pbtxt`."""
    spec, limits = request.lane_request.spec, request.lane_request.target.limits
    serving = spec.serving
    paged = paged_context_fmha(request.lane_request)
    wanted = {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": request.artefact_dir,
        "max_beam_width": str(limits.max_beam_width),
        "batch_scheduler_policy": serving.scheduler_policy,
        "kv_cache_free_gpu_mem_fraction": f"{serving.kv_cache_free_gpu_mem_fraction:g}",
        "enable_kv_cache_reuse": "true" if paged and serving.kv_block_reuse else "false",
        "enable_chunked_context": "true" if paged and serving.chunked_context else "false",
        # Without it the answer repeats the prompt, and clients measure the prompt as output.
        "exclude_input_in_output": "true",
        # The C++ backend reads these three unguarded since 0.19: absent, the model does not load
        # (tensorrtllm_backend inflight_batcher_llm/src/model_instance_state.cc @ v0.19.0). Empty
        # means no guided decoding.
        "tokenizer_dir": request.tokenizer_dir,
        "guided_decoding_backend": "",
        "xgrammar_tokenizer_info_path": "",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
    }
    known = {str(p["key"]) for p in facts["parameters"]}
    parameters = {key: value for key, value in wanted.items() if key in known}
    parameters["engineroom_runtime"] = str(request.runtime)
    return {
        "inputs": tensor_context(facts["inputs"], **TYPES),
        "outputs": tensor_context(facts["outputs"], **TYPES),
        "parameters": parameters,
    }
