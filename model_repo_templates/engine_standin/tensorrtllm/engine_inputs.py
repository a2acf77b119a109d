"""Tensors of the `tensorrt_llm` model to requests of the runtime, one for each row of a batch.

Names, shapes and rules are those of the C++ backend (NVIDIA/TensorRT-LLM triton_backend/
inflight_batcher_llm/src/utils.cc). What the reference runtime does not compute is refused by the
tensor's name; what that backend would pass over in silence is refused as well.
"""

import math

import numpy as np
from runtime_api import Guide, Request, RequestError

# Refused when given with any values.
NOT_COMPUTED = (
    "encoder_input_features", "encoder_output_lengths", "decoder_input_ids", "decoder_input_lengths",
    "draft_input_ids", "draft_logits", "draft_acceptance_threshold", "prompt_embedding_table",
    "prompt_table_extra_ids", "prompt_vocab_size", "cross_attention_mask", "skip_cross_attn_blocks",
    "mrope_rotary_cos_sin", "mrope_position_deltas", "lora_task_id", "lora_weights", "lora_config",
    "context_phase_params", "retention_token_range_starts", "retention_token_range_ends",
    "retention_token_range_priorities", "retention_token_range_durations_ms",
    "retention_decode_priority", "retention_decode_duration_ms", "lookahead_window_size",
    "lookahead_ngram_size", "lookahead_verification_set_size", "multimodal_embedding",
    "multimodal_hashes", "multimodal_item_runs",
)  # fmt: skip
# Refused when given with another value. Decay and reset change top_p from token to token.
NEUTRAL = {
    "beam_width": 1,
    "runtime_top_p_min": 1e-6,
    "runtime_top_p_decay": 1.0,
    "runtime_top_p_reset_ids": -1,
    "no_repeat_ngram_size": 0,
}
# Names of `runtime_api.Request` where the tensor has another one.
TENSORS = {
    "prompt_ids": "input_ids",
    "max_tokens": "request_output_len",
    "n": "num_return_sequences",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "end_ids": "end_id",
    "stop_token_sequences": "stop_words_list",
    "bad_token_sequences": "bad_words_list",
    "length_penalty": "len_penalty",
    "guide": "guided_decoding_guide",
}


def explain(error):
    """A runtime's error with the tensor's name in place of the field's."""
    text, field = str(error), getattr(error, "field", None)
    name = TENSORS.get(field)
    return f"{name}{text[len(field) :]}" if name and text.startswith(field) else text


class Inputs:
    """The tensors that a request gives, read once."""

    def __init__(self, request):
        self._given = {tensor.name(): tensor for tensor in request.inputs()}
        self._arrays = {}

    def array(self, name):
        """The tensor, or None when it is absent or empty."""
        if name not in self._given:
            return None
        if name not in self._arrays:
            self._arrays[name] = self._given[name].as_numpy()
        array = self._arrays[name]
        return array if array.size else None

    def value(self, name, row=0, default=None):
        """One number of a tensor of shape [batch] or [batch, 1]."""
        array = self.array(name)
        if array is None:
            return default
        flat = array.reshape(-1)
        if row >= flat.size:
            raise RequestError(f"{name} has {flat.size} values, the batch has more rows")
        value = flat[row].item()
        if isinstance(value, float) and not math.isfinite(value):
            raise RequestError(f"{name} must be a finite number, got {value}")
        return value

    def flag(self, name, default=False, row=0):
        return bool(self.value(name, row, default))

    def text(self, name, row):
        array = self.array(name)
        if array is None:
            return None
        flat = array.reshape(-1)
        if row >= flat.size:
            raise RequestError(f"{name} has {flat.size} values, the batch has more rows")
        raw = flat[row]
        if isinstance(raw, str):
            return raw
        try:
            return bytes(raw).decode("utf-8")
        except UnicodeDecodeError as error:
            raise RequestError(f"{name} is no valid UTF-8: {error}") from None

    def refuse(self):
        """Raises RequestError: a tensor that the reference runtime does not compute."""
        for name in self._given:
            if name in NOT_COMPUTED and self.array(name) is not None:
                raise RequestError(f"{name} is not computed by the reference stand-in")
            if name in NEUTRAL and self.array(name) is not None:
                values = self.array(name).reshape(-1)
                if not np.allclose(values, NEUTRAL[name]):
                    raise RequestError(
                        f"{name} = {values[0]} is not computed by the reference stand-in"
                    )


def words(array, row, name):
    """Token sequences of one row of a word list.

    Args:
        array: int32 [batch, 2, length]: ids of all words in a line, and the end offset of each
            word, then -1. None: no words.

    Raises:
        RequestError: another shape, or offsets that are out of bounds or do not increase.
    """
    if array is None:
        return []
    if array.ndim != 3 or array.shape[1] != 2 or row >= array.shape[0]:
        raise RequestError(f"{name} must have the shape [batch, 2, length], got {array.shape}")
    ids, offsets = array[row]
    found, start, ended = [], 0, False
    for end in offsets.tolist():
        if end == -1:
            ended = True
        elif ended or not start < end <= len(ids):
            raise RequestError(
                f"{name}: end offsets must increase up to {len(ids)}, with -1 only after the last"
            )
        else:
            found.append(ids[start:end].tolist())
            start = end
    return found


def prompts(inputs):
    """Token ids of each row; `input_lengths` says how much of a padded row is meant."""
    ids, lengths = inputs.array("input_ids"), inputs.array("input_lengths")
    if ids is None:
        raise RequestError("input_ids has no tokens")
    ids = ids.reshape(ids.shape[0], -1)
    if lengths is None or lengths.size != ids.shape[0]:
        raise RequestError(f"input_lengths must have one value for each of {ids.shape[0]} rows")
    found = []
    for row, length in zip(ids, lengths.reshape(-1).tolist()):
        if not 0 < length <= ids.shape[1]:
            raise RequestError(f"input_lengths must be in 1..{ids.shape[1]}, got {length}")
        found.append(row[:length].tolist())
    return found


def _guide(inputs, row, guided):
    kind = inputs.text("guided_decoding_guide_type", row)
    text = inputs.text("guided_decoding_guide", row)
    if kind is None:
        if text is not None:
            raise RequestError("guided_decoding_guide needs guided_decoding_guide_type")
        return None
    if not guided:
        raise RequestError(
            "guided_decoding_guide_type: the model's parameter guided_decoding_backend is empty"
        )
    return Guide(kind, text)


def to_requests(inputs, guided):
    """One `Request` a row.

    Args:
        guided: whether the model is configured for guided decoding.

    Raises:
        RequestError: names the tensor.
    """
    inputs.refuse()
    streaming = inputs.flag("streaming")
    stops, bads = inputs.array("stop_words_list"), inputs.array("bad_words_list")
    bias = inputs.array("embedding_bias")
    found = []
    for row, ids in enumerate(prompts(inputs)):
        end = inputs.value("end_id", row, -1)
        top_k = inputs.value("runtime_top_k", row)
        top_p = inputs.value("runtime_top_p", row)
        if top_p is not None and top_p <= 0:
            top_p = None  # the C++ backend drops it
        if not top_k and top_p is None:
            top_k = 1  # the C++ decoder's rule: a temperature alone does not make it sample
        found.append(
            Request(
                prompt_ids=ids,
                max_tokens=inputs.value("request_output_len", row),
                min_tokens=inputs.value("min_tokens", row),
                n=inputs.value("num_return_sequences", row, 1),
                length_penalty=inputs.value("len_penalty", row),
                beam_search_diversity_rate=inputs.value("beam_search_diversity_rate", row),
                temperature=inputs.value("temperature", row),
                top_k=top_k,
                top_p=top_p,
                repetition_penalty=inputs.value("repetition_penalty", row),
                presence_penalty=inputs.value("presence_penalty", row),
                frequency_penalty=inputs.value("frequency_penalty", row),
                seed=inputs.value("seed", row),
                end_ids=[end] if end >= 0 else [],
                stop_token_sequences=words(stops, row, "stop_words_list"),
                bad_token_sequences=words(bads, row, "bad_words_list"),
                embedding_bias=None if bias is None else bias.reshape(bias.shape[0], -1)[row],
                guide=_guide(inputs, row, guided),
                log_probs=inputs.flag("return_log_probs", row=row),
                context_logits=inputs.flag("return_context_logits", row=row),
                generation_logits=inputs.flag("return_generation_logits", row=row),
                perf=inputs.flag("return_perf_metrics", row=row),
                with_text=False,
                streaming=streaming,
            )
        )
    return found
