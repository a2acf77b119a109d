"""What each input tensor means: name -> function(wanted, name, array) that checks and keeps it.

`wanted` is `inputs.Wanted`; errors are `RequestError` or `request_fields.FieldError` and name the
tensor.
"""

import math

from request_fields import MAX_WORD_BYTES, MAX_WORDS, MAX_WORDS_BYTES, text_of
from runtime_api import RequestError

PREFIX = "sampling_param_"
MAX_GUIDE_BYTES, MAX_MESSAGES_BYTES = 1 << 20, 16 << 20
MAX_IMAGES = 16
INT32 = 2**31 - 1
GUIDES = ("json", "json_schema", "regex", "ebnf_grammar", "structural_tag")
PERF = (
    ("kv_cache_reused_block", "kv_reused_blocks"),
    ("kv_cache_missed_block", "kv_missed_blocks"),
    ("kv_cache_alloc_new_blocks", "kv_new_blocks"),
    ("kv_cache_alloc_total_blocks", "kv_total_blocks"),
    ("kv_cache_hit_rate", "kv_hit_rate"),
    ("arrival_time_ns", "arrival_ns"),
    ("first_scheduled_time_ns", "first_scheduled_ns"),
    ("first_token_time_ns", "first_token_ns"),
    ("last_token_time_ns", "last_token_ns"),
    ("acceptance_rate", "acceptance_rate"),
    ("total_accepted_draft_tokens", "accepted_draft_tokens"),
    ("total_draft_tokens", "draft_tokens"),
)
"""Performance outputs: (tensor, attribute of runtime_api.Perf)."""


# ---- the tables: name -> function(wanted, name, array)
def plain(limits):
    """Tensors of the contract that no feature switches."""
    most = limits.tokens or INT32
    why = f"max_seq_len {most}" if limits.tokens else str(INT32)
    return {
        "text_input": _prompt(limits),
        "streaming": _set("streaming"),
        "stream_cumulative": _set("cumulative"),
        "stop": _set("stop"),
        PREFIX + "exclude_input_from_output": _echo,
        PREFIX + "max_tokens": _number("max_tokens", 1, most, above=why),
        PREFIX + "min_tokens": _number("min_tokens", 0, most, above=why),
        PREFIX + "temperature": _number("temperature", 0),
        PREFIX + "top_k": _number("top_k", 0),
        PREFIX + "top_p": _number("top_p", 0, 1),
        PREFIX + "top_p_min": _number("top_p_min", 0, 1),
        PREFIX + "repetition_penalty": _number("repetition_penalty", 0, exclusive=True),
        PREFIX + "frequency_penalty": _number("frequency_penalty"),
        PREFIX + "presence_penalty": _number("presence_penalty"),
        PREFIX + "seed": _number("seed"),
        PREFIX + "stop": _words("stop"),
        PREFIX + "end_id": _end_ids,
        "request_priority": _number("priority", 0, 1),
        "return_finish_reason": _return("finish_reason"),
        "return_stop_reason": _return("stop_reason"),
        "return_cumulative_logprob": _return("cumulative_logprob", "log_probs"),
        PREFIX + "logits_post_processor_name": _processor,
    }


def gated(limits, features):
    """Tensors behind a switch; one that is off is answered with the switch's name."""
    most = limits.sequences
    above = f"max_batch_size {most}"
    tables = {
        "sequences": {
            PREFIX + "n": _number("n", 1, most, above=above),
            PREFIX + "best_of": _number("best_of", 1, most, above=above),
            PREFIX + "use_beam_search": _beams,
            PREFIX + "length_penalty": _number("length_penalty"),
        },
        "chat": {"messages": _messages},
        "bad_words": {PREFIX + "bad": _words("bad")},
        "log_probs": {"return_log_probs": _return("output_log_probs", "log_probs")},
        "usage": {
            "return_num_input_tokens": _return("num_input_tokens"),
            "return_num_output_tokens": _return("num_output_tokens"),
        },
        "perf_metrics": {PREFIX + "return_perf_metrics": _perf},
        "context_logits": {"return_context_logits": _return("context_logits", "context_logits")},
        "generation_logits": {
            "return_generation_logits": _return("generation_logits", "generation_logits")
        },
        "guided_decoding": {
            "guided_decoding_guide_type": _part("guide", "kind", _guide_kind),
            "guided_decoding_guide": _part("guide", "text", _guide_text),
        },
        "lora": {
            "lora_id": _part("lora", "lora_id", _lora_id),
            "lora_name": _part("lora", "lora_name", _one_text),
            "lora_path": _part("lora", "lora_path", _one_text),
            "lora_ckpt_source": _part("lora", "lora_ckpt_source", _ckpt_source),
        },
        "multimodal": {"image_url": _images},
    }
    out = {}
    for feature, table in tables.items():
        for name, take in table.items():
            # One sequence is what a model without `sequences` gives, so it may be asked for.
            neutral = 1 if name in (PREFIX + "n", PREFIX + "best_of") else None
            out[name] = take if features.get(feature) else _off(feature, neutral)
    return out


FEATURES = (
    "sequences", "chat", "bad_words", "log_probs", "usage", "perf_metrics", "context_logits",
    "generation_logits", "guided_decoding", "lora", "multimodal",
)  # fmt: skip
"""Switches of `serving.features` that a request of this lane can meet."""


def _off(feature, neutral):
    def refuse(_, name, array):
        if any(value not in (b"", "", False, neutral) for value in array.reshape(-1).tolist()):
            raise RequestError(
                f"{name}: this server was rendered with serving.features.{feature} off"
            )

    return refuse


# ---- values
def _item(name, array):
    if array.size != 1:
        raise RequestError(f"{name} must have one value, got {array.size}")
    return array.item()


def _one_text(name, array):
    return text_of(name, _item(name, array))


def _number(field, low=None, high=None, exclusive=False, above=None):
    def take(wanted, name, array):
        value = array.item() if array.size == 1 else _item(name, array)
        if value.__class__ is float and not math.isfinite(value):
            raise RequestError(f"{name} must be a finite number, got {value}")
        if low is not None and (value < low or (exclusive and value == low)):
            what = "above" if exclusive else "at least"
            raise RequestError(f"{name} must be {what} {low}, got {value}")
        if high is not None and value > high:
            if above is None:
                raise RequestError(f"{name} must be at most {high}, got {value}")
            raise RequestError(f"{name} {value} is above {above}")
        wanted.fields[field] = value

    return take


def _set(attribute):
    def take(wanted, name, array):
        if _item(name, array):
            setattr(wanted, attribute, True)

    return take


def _echo(wanted, name, array):
    wanted.echo = not _item(name, array)


def _beams(wanted, name, array):
    if _item(name, array):
        wanted.fields["beams"] = True


def _return(output, field=None):
    """A flag that asks for an output, and for what the runtime must collect for it."""

    def take(wanted, name, array):
        if _item(name, array):
            wanted.returns += (output,)
            if field is not None:
                wanted.fields[field] = True

    return take


def _perf(wanted, name, array):
    if _item(name, array):
        wanted.returns += tuple(output for output, _ in PERF)
        wanted.fields["perf"] = True


def _prompt(limits):
    most = limits.prompt_bytes

    def take(wanted, name, array):
        if array.size != 1:
            raise RequestError(f"{name} must have one prompt, got {array.size}")
        value = array.item()
        if most is not None and len(value) > most:
            raise RequestError(
                f"{name} has {len(value)} bytes, which cannot fit into max_seq_len {limits.tokens}"
            )
        wanted.prompt = text_of(name, value)

    return take


def _words(field):
    def take(wanted, name, array):
        if array.size > MAX_WORDS:
            raise RequestError(f"{name} has {array.size} words, at most {MAX_WORDS} are allowed")
        words = [text_of(name, value, MAX_WORD_BYTES) for value in array.reshape(-1).tolist()]
        if sum(map(len, words)) > MAX_WORDS_BYTES:
            raise RequestError(f"{name} is longer than {MAX_WORDS_BYTES} characters in all")
        wanted.fields[field] = [word for word in words if word]

    return take


def _end_ids(wanted, name, array):
    """Token ids that end the text instead of the model's own; -1 alone: none does."""
    ids = array.reshape(-1).tolist()
    if len(ids) > MAX_WORDS:
        raise RequestError(f"{name} has {len(ids)} ids, at most {MAX_WORDS} are allowed")
    if ids == [-1]:
        ids = []
    elif not ids or min(ids) < 0:
        raise RequestError(f"{name} must be token ids, or -1 alone for none")
    wanted.fields["end_ids"] = ids


def _processor(wanted, name, array):
    text = _one_text(name, array)
    if text:
        wanted.fields["logits_post_processor"] = text


def _part(attribute, key, convert):
    """One of several tensors that make one value: collected, and made at the end."""

    def take(wanted, name, array):
        value = convert(name, array)
        if value:
            parts = getattr(wanted, attribute) or {}
            setattr(wanted, attribute, {**parts, key: value})

    return take


def _guide_kind(name, array):
    kind = _one_text(name, array)
    if kind and kind not in GUIDES:
        raise RequestError(f"{name} must be one of {', '.join(GUIDES)}, got {kind[:40]!r}")
    return kind


def _guide_text(name, array):
    text = _one_text(name, array)
    if len(text) > MAX_GUIDE_BYTES:
        raise RequestError(f"{name} has {len(text)} characters, at most {MAX_GUIDE_BYTES}")
    return text


def _lora_id(name, array):
    return int(_item(name, array))


def _ckpt_source(name, array):
    source = _one_text(name, array)
    if source not in ("", "hf", "nemo"):
        raise RequestError(f"{name} must be hf or nemo, got {source[:40]!r}")
    return source


def _messages(wanted, name, array):
    value = _item(name, array)
    if len(value) > MAX_MESSAGES_BYTES:
        raise RequestError(f"{name} has {len(value)} bytes, at most {MAX_MESSAGES_BYTES}")
    wanted.messages = text_of(name, value) or None


def _images(wanted, name, array):
    urls = [text_of(name, value) for value in array.reshape(-1).tolist()]
    if len(urls) > MAX_IMAGES:
        raise RequestError(f"{name} has {len(urls)} addresses, at most {MAX_IMAGES} are allowed")
    wanted.images = [url for url in urls if url]
