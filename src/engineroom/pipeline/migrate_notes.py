"""Fields of the old fronts that need a word more than their new name: tables, by the field's name."""

from __future__ import annotations

from dataclasses import dataclass

from engineroom.types.migration import Fate

_OLD = "triton-inference-server/tensorrtllm_backend all_models/inflight_batcher_llm, tags v0.12.0 to v0.19.0"
_CORE_SOURCE = (
    "NVIDIA/TensorRT-LLM triton_backend/inflight_batcher_llm/src/utils.cc; "
    "model_repo_templates/llmapi/tensorrt_llm/1/input_table.py"
)
_NEW = "model_repo_templates/llmapi/tensorrt_llm/1/input_table.py"


@dataclass(frozen=True)
class Note:
    """A name that the table of synonyms does not settle."""

    fate: Fate
    what: str
    todo: str = ""
    new: tuple[str, ...] = ()
    source: str = _OLD


_S = "sampling_param_"
_BEAMS = (f"{_S}use_beam_search", f"{_S}best_of", f"{_S}n")
_P_TUNING = Note(
    Fate.IMPOSSIBLE,
    "prompt tables (p-tuning) exist only in the engine lane",
    "serve the tuned prompt as a LoRA adapter or as text before the prompt, or stay on the engine lane "
    "for this client",
)
_BIAS = Note(
    Fate.IMPOSSIBLE,
    "the new model takes no bias on single words",
    f"forbid words with {_S}bad; to demand a form, use guided_decoding_guide_type and guided_decoding_guide",
)
_DRAFT = Note(
    Fate.MOVED,
    "speculative decoding is a setting of the server now, not of a request",
    "set serving.features.speculative in the spec and leave the field out",
    source="src/engineroom/spec/serving.py (Speculative)",
)
_ADAPTER_TENSORS = Note(
    Fate.MOVED,
    "adapters are files that the server reads, and requests only name them",
    "list each adapter in serving.features.lora.adapters with its task id, and leave the field out",
    source="src/engineroom/spec/serving.py (Lora)",
)
_IMAGE = Note(
    Fate.RENAMED,
    "pixels travel as an address or inside one",
    "send a data: URI or an http(s) address of serving.features.multimodal.allowed_hosts, and switch "
    "serving.features.multimodal on",
    ("image_url",),
    _NEW,
)
_ENCODER = Note(
    Fate.IMPOSSIBLE,
    "encoder-decoder models are not served by the new lane",
    "leave it out for a decoder-only model",
)

INPUTS: dict[str, Note] = {
    "decoder_text_input": _ENCODER,
    "image_input": _IMAGE,
    "image_bytes_input": _IMAGE,
    "image_url_input": _IMAGE,
    "image_sizes_input": Note(Fate.IMPOSSIBLE, "sizes are read from the image", "leave it out"),
    "video_bytes_input": Note(
        Fate.IMPOSSIBLE, "the new model takes no videos", "send frames as image_url, or stay"
    ),
    "pad_id": Note(
        Fate.IMPOSSIBLE, "one prompt a request needs no padding", "leave it out", source=_NEW
    ),
    "prompt_embedding_table": _P_TUNING,
    "prompt_table_extra_id": _P_TUNING,
    "prompt_vocab_size": _P_TUNING,
    "embedding_bias_words": _BIAS,
    "embedding_bias_weights": _BIAS,
    "num_draft_tokens": _DRAFT,
    "use_draft_logits": _DRAFT,
    "lora_task_id": Note(
        Fate.RENAMED,
        "the same number, for an adapter that the spec names; lora_name works as well",
        "list the adapter in serving.features.lora.adapters with this task_id",
        ("lora_id",),
        "src/engineroom/spec/serving.py (LoraAdapter)",
    ),
    "lora_weights": _ADAPTER_TENSORS,
    "lora_config": _ADAPTER_TENSORS,
    "beam_width": Note(
        Fate.RENAMED,
        "beam_width B is use_beam_search with best_of B; n says how many of the beams come back",
        "targets[].limits.max_beam_width must allow it; beams are not streamed",
        _BEAMS,
        "src/engineroom/lanes/llmapi/tensors.py",
    ),
    "return_kv_cache_reuse_stats": Note(
        Fate.RENAMED,
        "0.16 to 0.18 call it so, later releases return_perf_metrics",
        "",
        (f"{_S}return_perf_metrics",),
    ),
    "end_id": Note(
        Fate.RENAMED,
        "a list now, and it replaces all end ids of the model; -1 alone: none",
        "",
        (f"{_S}end_id",),
        _NEW,
    ),
    "exclude_input_in_output": Note(
        Fate.RENAMED,
        "without it the new model never sends the prompt back",
        "",
        (f"{_S}exclude_input_from_output",),
        _NEW,
    ),
    "max_tokens": Note(
        Fate.RENAMED,
        "no longer mandatory, and the default is small",
        "always send it",
        (f"{_S}max_tokens",),
        _NEW,
    ),
    "return_log_probs": Note(
        Fate.KEPT,
        "asks for output_log_probs alone; the sum has a flag of its own",
        "add return_cumulative_logprob where cum_log_probs is read",
        ("return_log_probs",),
        "src/engineroom/lanes/llmapi/tensors.py",
    ),
    "length_penalty": Note(
        Fate.RENAMED, "counts with beam search alone", "", (f"{_S}length_penalty",), _NEW
    ),
}
"""Inputs of the old fronts that need a word more than their new name."""

_PERF = Note(
    Fate.KEPT,
    f"sent when {_S}return_perf_metrics asks for it",
    source="src/engineroom/lanes/llmapi/tensors.py",
)
OUTPUTS: dict[str, Note] = {
    "text_output": Note(
        Fate.KEPT,
        "one element a sequence; streamed: a delta",
        "",
        ("text_output",),
        "docs/serving.md",
    ),
    "batch_index": Note(
        Fate.IMPOSSIBLE, "one prompt a request", "send several requests in place of several rows"
    ),
    "sequence_index": Note(
        Fate.IMPOSSIBLE,
        "n sequences come together, one element of text_output each",
        "read the place in text_output instead",
        source="src/engineroom/lanes/llmapi/tensors.py",
    ),
    "cum_log_probs": Note(
        Fate.RENAMED,
        "sent when return_cumulative_logprob asks for it; the old fronts of 0.12 and 0.13 always sent it",
        "",
        ("cumulative_logprob",),
    ),
    **dict.fromkeys(
        (
            "arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns",
            "acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens",
        ),
        _PERF,
    ),
}  # fmt: skip
"""Outputs of the old fronts that need a word more than their new name."""

CORE: dict[str, Note] = {
    "input_ids": Note(
        Fate.IMPOSSIBLE,
        "the new model takes text, no token ids",
        "send the text as text_input; what was tokenized by the client, with a chat template say, is sent "
        "as text or as messages",
        source=_CORE_SOURCE,
    ),
    "input_lengths": Note(Fate.IMPOSSIBLE, "one prompt a request", "leave it out"),
    "embedding_bias": _BIAS,
    "output_ids": Note(
        Fate.IMPOSSIBLE,
        "the new model answers with text, no token ids",
        "read text_output; tokenize it where ids are needed",
        source=_CORE_SOURCE,
    ),
    "sequence_length": Note(
        Fate.RENAMED,
        "tokens of the answer alone, and only when return_num_output_tokens asks for it",
        "",
        ("num_output_tokens",),
        "src/engineroom/lanes/llmapi/tensors.py",
    ),
}
"""Tensors of the engine's own model, for clients that call it with token ids."""
