"""Template variables of the engine lane's four models, from the contract's tensors.

Text only: multimodal and encoder-decoder tensors of pre- and postprocessing are left out. The
`tensorrt_llm` config itself carries every tensor of the version, because the backend looks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engineroom.lanes.base import RepositoryRequest, stop_ids_text, tensor_context
from engineroom.lanes.engine.engine_config import TYPES, tensorrt_llm

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
    engine = tensorrt_llm(request, family["tensorrt_llm"])
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
        "inputs": tensor_context([t for t in inputs if t["name"] in used], **TYPES),
        "outputs": tensor_context(list(outputs.values()), **TYPES),
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
