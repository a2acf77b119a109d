"""Template variables of the engine lane's four models, from the contract's tensors.

Text only: multimodal and encoder-decoder tensors of pre- and postprocessing are left out. The
`tensorrt_llm` config itself carries every tensor of the version, because the backend looks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engineroom.lanes.base import RepositoryRequest, stop_ids_text, tensor_context
from engineroom.lanes.engine.build import paged_context_fmha

# Placeholders that upstream's templates leave to the user; values by data type rules of the backend.
_TYPES = {
    "logits_datatype": "TYPE_FP32",
    "encoder_input_features_data_type": "TYPE_FP16",
    "prompt_embedding_table_data_type": "TYPE_FP16",
}
_PRE_INPUTS = (
    "QUERY", "REQUEST_OUTPUT_LEN", "BAD_WORDS_DICT", "STOP_WORDS_DICT", "END_ID", "PAD_ID",
)  # fmt: skip
_PRE_OUTPUTS = (
    "INPUT_ID", "REQUEST_INPUT_LEN", "BAD_WORDS_IDS", "STOP_WORDS_IDS", "REQUEST_OUTPUT_LEN",
    "OUT_END_ID", "OUT_PAD_ID",
)  # fmt: skip
# Ensemble inputs whose tensors our preprocessing does not make.
_NOT_WIRED = (
    "decoder_text_input", "embedding_bias_words", "embedding_bias_weights", "prompt_table_extra_id",
    "prompt_embedding_table", "prompt_vocab_size",
)  # fmt: skip
_EXTRA_POST_INPUTS = [
    {"name": "BATCH_INDEX", "data_type": "TYPE_INT32", "dims": [1], "optional": True},
    {"name": "SEQUENCE_INDEX", "data_type": "TYPE_INT32", "dims": [1], "optional": True},
]


def variables(request: RepositoryRequest) -> dict[str, Any]:
    """Variables of the templates in `model_repo_templates/engine/`."""
    lane_request = request.lane_request
    spec, limits = lane_request.spec, lane_request.target.limits
    family = lane_request.contract.family("inflight_batcher_llm")
    serving = spec.serving
    stop_ids = stop_ids_text(serving.stop_ids)
    engine = _tensorrt_llm(request, family["tensorrt_llm"])
    return {
        "trtllm_version": lane_request.contract.version,
        "max_batch_size": limits.max_batch_size,
        "decoupled": serving.streaming,
        "preprocessing": {
            "inputs": _chosen(family["preprocessing"]["inputs"], _PRE_INPUTS),
            "outputs": _chosen(family["preprocessing"]["outputs"], _PRE_OUTPUTS),
            "parameters": {
                "tokenizer_dir": request.tokenizer_dir,
                "add_special_tokens": "true",
                "stop_ids": stop_ids,
            },
        },
        "tensorrt_llm": engine,
        "postprocessing": {
            "inputs": tensor_context([*family["postprocessing"]["inputs"], *_EXTRA_POST_INPUTS]),
            "outputs": tensor_context(family["postprocessing"]["outputs"]),
            "parameters": {
                "tokenizer_dir": request.tokenizer_dir,
                "skip_special_tokens": "true",
                "streaming": "true" if serving.streaming else "false",
            },
        },
        "ensemble": _ensemble(family["ensemble"], engine),
    }


def _chosen(tensors: list[Mapping[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return tensor_context([t for t in tensors if t["name"] in names])


def _tensorrt_llm(request: RepositoryRequest, facts: Mapping[str, Any]) -> dict[str, Any]:
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
        "inputs": tensor_context(facts["inputs"], **_TYPES),
        "outputs": tensor_context(facts["outputs"], **_TYPES),
        "parameters": parameters,
    }


def _ensemble(facts: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs, outputs and steps; a tensor that no step uses would be refused by Triton."""
    inputs = [t for t in facts["inputs"] if t["name"] not in _NOT_WIRED]
    names = {str(t["name"]) for t in inputs}
    pre, llm, _ = facts["steps"]
    engine_in = {t["name"] for t in engine["inputs"]}
    engine_out = {t["name"] for t in engine["outputs"]}
    pre_in = {k: v for k, v in pre["inputs"].items() if k in _PRE_INPUTS and v in names}
    pre_out = {k: v for k, v in pre["outputs"].items() if k in _PRE_OUTPUTS}
    made = set(pre_out.values())
    llm_in = {k: v for k, v in llm["inputs"].items() if k in engine_in and v in made | names}
    taken = set(pre_in.values()) | set(llm_in.values())
    llm_in |= {name: name for name in sorted(names - taken) if name in engine_in}
    llm_out = {k: v for k, v in llm["outputs"].items() if k in engine_out}
    passed = [t for t in facts["outputs"] if t["name"] in engine_out]
    llm_out |= {str(t["name"]): str(t["name"]) for t in passed}
    used = set(pre_in.values()) | set(llm_in.values())
    outputs: dict[str, Mapping[str, Any]] = {"text_output": facts["outputs"][0]}
    outputs |= {str(t["name"]): t for t in passed}
    return {
        "inputs": tensor_context([t for t in inputs if t["name"] in used], **_TYPES),
        "outputs": tensor_context(list(outputs.values()), **_TYPES),
        "steps": [
            {"model": "preprocessing", "inputs": pre_in, "outputs": pre_out},
            {"model": "tensorrt_llm", "inputs": llm_in, "outputs": llm_out},
            {
                "model": "postprocessing",
                "inputs": {
                    "TOKENS_BATCH": "_TOKENS_BATCH",
                    "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH",
                    "BATCH_INDEX": "batch_index",
                    "SEQUENCE_INDEX": "sequence_index",
                },
                "outputs": {"OUTPUT": "text_output"},
            },
        ],
    }
