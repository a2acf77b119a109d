"""Tensors and wiring of the models that clients call: tensorrt_llm_bls and the ensemble.

Everything follows from the contract's tensors: a version differs by data. What a front carries beyond
upstream's own is `messages` and inputs of the engine that upstream's fronts leave out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engineroom.errors import UsageError, Where
from engineroom.lanes.base import LaneRequest, tensor_context
from engineroom.lanes.engine.engine_config import TYPES

Tensor = Mapping[str, Any]
BLS = "tensorrt_llm_bls"
PREPROCESSING = "preprocessing"
POSTPROCESSING = "postprocessing"
ENSEMBLE = "ensemble"

MESSAGES: Tensor = {
    "name": "messages", "data_type": "TYPE_STRING", "dims": [1], "optional": True,
}  # fmt: skip
# Engine inputs that the contract's fronts do not have, under the engine's names.
_FROM_ENGINE = (
    "runtime_top_p_min", "runtime_top_p_decay", "runtime_top_p_reset_ids",
    "beam_search_diversity_rate", "retention_token_range_starts", "retention_token_range_ends",
    "retention_token_range_priorities", "retention_token_range_durations_ms",
    "retention_decode_priority", "retention_decode_duration_ms", "lookahead_window_size",
    "lookahead_ngram_size", "lookahead_verification_set_size",
)  # fmt: skip
# preprocessing: its own names, and what a client calls them.
PRE_NAMES = {
    "QUERY": "text_input",
    "DECODER_QUERY": "decoder_text_input",
    "REQUEST_OUTPUT_LEN": "max_tokens",
    "BAD_WORDS_DICT": "bad_words",
    "STOP_WORDS_DICT": "stop_words",
    "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
    "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
    "END_ID": "end_id",
    "PAD_ID": "pad_id",
    "PROMPT_TABLE_EXTRA_ID": "prompt_table_extra_id",
}
# preprocessing's outputs, and the engine inputs that they become. pad_id goes to the engine as the
# client sent it.
_PRE_OUTPUTS = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
}
# Client's name of an engine input where the two differ.
_ENGINE_NAMES = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
}
# Checked by preprocessing and then used up: the engine gets what preprocessing makes of them, or they
# are refused.
_USED_UP = frozenset({*PRE_NAMES.values(), "messages", "prompt_embedding_table", "prompt_vocab_size"}) - {"pad_id"}  # fmt: skip
# An output that nobody can ask for is not declared: each costs time in the ensemble's scheduler for
# every response, whether it is set or not.
_OUTPUT_FEATURES = {
    "cum_log_probs": "log_probs",
    "output_log_probs": "log_probs",
    "context_logits": "context_logits",
    "generation_logits": "generation_logits",
    "sequence_index": "sequences",
    "num_input_tokens": "usage",
    "num_output_tokens": "usage",
    **dict.fromkeys(
        (
            "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks",
            "arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns",
            "last_token_time_ns", "acceptance_rate", "total_accepted_draft_tokens",
            "total_draft_tokens",
        ),
        "perf_metrics",
    ),
}  # fmt: skip
_CHECKED_BY_MODEL = ("text_input", "max_tokens")
_POST_EXTRA: tuple[Tensor, ...] = (
    {"name": "SEQUENCE_INDEX", "data_type": "TYPE_INT32", "dims": [1], "optional": True},
)


def bls(request: LaneRequest, family: Mapping[str, Any], on: Mapping[str, bool]) -> dict[str, Any]:
    """Inputs and outputs of tensorrt_llm_bls.

    Args:
        on: the spec's features, as `repository.features` has them.

    Raises:
        UsageError: the contract does not describe that model.
    """
    facts = family.get(BLS)
    if not isinstance(facts, Mapping) or not facts.get("inputs") or not facts.get("outputs"):
        raise UsageError(
            f"the contract of TensorRT-LLM {request.contract.version} does not describe {BLS}",
            where=Where(request.contract.file, key=f"triton.inflight_batcher_llm.{BLS}"),
            hint="use serving.fronts: [ensemble], or capture the contract with all models",
        )
    return {
        "inputs": tensor_context(_front_inputs(facts["inputs"], family), **TYPES),
        "outputs": tensor_context(_outputs(facts["outputs"], on), **TYPES),
    }


def preprocessing(family: Mapping[str, Any]) -> dict[str, Any]:
    """The contract's text inputs, and the ensemble's others under the client's names, to check them."""
    facts = family[PREPROCESSING]
    inputs = [_optional(t) for t in facts["inputs"] if t["name"] in PRE_NAMES]
    inputs += [
        _optional(t)
        for t in _front_inputs(family[ENSEMBLE]["inputs"], family)
        if t["name"] not in PRE_NAMES.values()
    ]
    outputs = [t for t in facts["outputs"] if t["name"] in _PRE_OUTPUTS]
    return {"inputs": tensor_context(inputs, **TYPES), "outputs": tensor_context(outputs, **TYPES)}


def postprocessing(family: Mapping[str, Any], on: Mapping[str, bool]) -> dict[str, Any]:
    """The contract's tensors, and which sequence a call is about where there may be several."""
    facts = family[POSTPROCESSING]
    extra = _POST_EXTRA if on["sequences"] else ()
    return {
        "inputs": tensor_context([*facts["inputs"], *extra]),
        "outputs": tensor_context(facts["outputs"]),
    }


def ensemble(
    family: Mapping[str, Any], engine: Mapping[str, Any], on: Mapping[str, bool]
) -> dict[str, Any]:
    """Inputs, outputs and steps; a tensor that no step uses would be refused by Triton."""
    inputs = _front_inputs(family[ENSEMBLE]["inputs"], family)
    names = [str(t["name"]) for t in inputs]
    engine_in = {t["name"] for t in engine["inputs"]}
    engine_out = {t["name"] for t in engine["outputs"]}
    own = {client: name for name, client in PRE_NAMES.items()}
    llm_in = {target: f"_{name}" for name, target in _PRE_OUTPUTS.items() if target in engine_in}
    for name in names:
        target = _ENGINE_NAMES.get(name, name)
        if name not in _USED_UP and target in engine_in:
            llm_in[target] = name
    outputs = _outputs(family[ENSEMBLE]["outputs"], on)
    passed = [str(t["name"]) for t in outputs if t["name"] in engine_out]
    llm_out = {"output_ids": "_TOKENS_BATCH", "sequence_length": "_SEQUENCE_LENGTH"}
    post_in = {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH"}
    if on["sequences"]:
        post_in["SEQUENCE_INDEX"] = "sequence_index"
    return {
        "inputs": tensor_context(inputs, **TYPES),
        "outputs": tensor_context(outputs, **TYPES),
        "steps": [
            {
                "model": PREPROCESSING,
                "inputs": {own.get(name, name): name for name in names},
                "outputs": {name: f"_{name}" for name in _PRE_OUTPUTS},
            },
            {
                "model": "tensorrt_llm",
                "inputs": llm_in,
                "outputs": llm_out | {name: name for name in passed},
            },
            {
                "model": POSTPROCESSING,
                "inputs": post_in,
                "outputs": {"OUTPUT": "text_output"},
            },
        ],
    }


def _front_inputs(tensors: Sequence[Tensor], family: Mapping[str, Any]) -> list[Tensor]:
    """A front's inputs: the contract's, `messages`, and the engine's that the front lacks."""
    # Either text_input or messages is sent. Triton counts the mandatory inputs and looks at no names:
    # the model says what is missing, so it must get the request.
    found = [_optional(t) if t["name"] in _CHECKED_BY_MODEL else t for t in _unique(tensors)]
    names = {t["name"] for t in found}
    engine = [t for t in family["tensorrt_llm"]["inputs"] if t["name"] in _FROM_ENGINE]
    # The reshape is the engine's own: a front takes the shape that clients send.
    extra = [{**t, "reshape": None, "allow_ragged_batch": False} for t in engine]
    return [*found, MESSAGES, *(t for t in extra if t["name"] not in names)]


def _outputs(tensors: Sequence[Tensor], on: Mapping[str, bool]) -> list[Tensor]:
    return [t for t in _unique(tensors) if on.get(_OUTPUT_FEATURES.get(t["name"], ""), True)]


def _optional(tensor: Tensor) -> Tensor:
    return {**tensor, "optional": True}


def _unique(tensors: Sequence[Tensor]) -> list[Tensor]:
    """One stored template lists an output twice."""
    return list({str(t["name"]): t for t in tensors}.values())
