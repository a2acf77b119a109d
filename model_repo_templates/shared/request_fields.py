"""Reading and validating a request's inputs: one pass, and errors that name the field.

Interface: `Fields(request)` reads all inputs once; `.text_rows(name)`, `.words(name)`,
`.flag(name)`, `.number(name, rule)`, `.numbers(name, rule, batch)`. `RULES` says what a sampling
field may hold (by the engine lane's names; other lanes map theirs to it). `refuse_switched_off`
answers inputs of features that the spec switches off. Nothing of Triton is imported; every error is
a `ValueError` (`FieldError`).
"""

import math

import numpy as np

MAX_WORDS = 256
MAX_WORD_BYTES = 4096
MAX_WORDS_BYTES = 65536
MAX_TEXT_BYTES = 64 << 20
MAX_SEQUENCES = 256
INT32 = 2**31 - 1


class FieldError(ValueError):
    """The request is wrong; the message names the field."""


class Rule:
    """What one number may be: kind `int` or `float`, lowest and highest value, both allowed."""

    __slots__ = ("high", "kind", "low")

    def __init__(self, kind, low, high):
        self.kind, self.low, self.high = kind, low, high

    def check(self, name, value):
        """The value, or an error that names the field."""
        if self.low <= value <= self.high:  # false for NaN
            return value
        if isinstance(value, float) and not math.isfinite(value):
            raise FieldError(f"{name} must be a finite number, got {value}")
        if value < self.low:
            raise FieldError(f"{name} must be at least {self.low}, got {value}")
        raise FieldError(f"{name} must be at most {self.high}, got {value}")


_FLOAT = 3.4e38
_SMALLEST = 1e-38
_ANY = Rule("float", -_FLOAT, _FLOAT)
_COUNT = Rule("int", 0, INT32)
RULES = {
    "max_tokens": Rule("int", 1, INT32),
    "min_tokens": _COUNT,
    "end_id": Rule("int", -1, INT32),
    "pad_id": Rule("int", -1, INT32),
    "top_k": _COUNT,
    "top_p": Rule("float", 0.0, 1.0),
    "temperature": Rule("float", 0.0, _FLOAT),
    "length_penalty": _ANY,
    "repetition_penalty": Rule("float", _SMALLEST, _FLOAT),
    "presence_penalty": _ANY,
    "frequency_penalty": _ANY,
    "seed": Rule("int", 0, 2**64 - 1),
    "beam_width": Rule("int", 1, MAX_SEQUENCES),
    "num_return_sequences": Rule("int", 1, MAX_SEQUENCES),
    "num_draft_tokens": _COUNT,
    "lora_task_id": Rule("int", 0, 2**64 - 1),
    "runtime_top_p_min": Rule("float", 0.0, 1.0),
    "runtime_top_p_decay": Rule("float", _SMALLEST, 1.0),
    "runtime_top_p_reset_ids": Rule("int", 0, INT32),
    "beam_search_diversity_rate": Rule("float", 0.0, _FLOAT),
    "lookahead_window_size": Rule("int", 1, INT32),
    "lookahead_ngram_size": Rule("int", 1, INT32),
    "lookahead_verification_set_size": Rule("int", 1, INT32),
    "retention_decode_priority": Rule("int", 0, 100),
    "retention_decode_duration_ms": _COUNT,
}
"""Ranges. temperature and top_p 0 mean "not set" to the engine; end_id -1: no end."""

# Input -> feature of the spec, and the value that asks for nothing.
SWITCHES = {
    "messages": ("chat", None),
    "bad_words": ("bad_words", None),
    "return_log_probs": ("log_probs", False),
    "num_return_sequences": ("sequences", 1),
    "beam_width": ("sequences", 1),
    "return_num_input_tokens": ("usage", False),
    "return_num_output_tokens": ("usage", False),
    "return_perf_metrics": ("perf_metrics", False),
    "return_context_logits": ("context_logits", False),
    "return_generation_logits": ("generation_logits", False),
    "guided_decoding_guide_type": ("guided_decoding", None),
    "guided_decoding_guide": ("guided_decoding", None),
    "lora_task_id": ("lora", None),
    "lora_weights": ("lora", None),
    "lora_config": ("lora", None),
    "num_draft_tokens": ("speculative", 0),
    "use_draft_logits": ("speculative", False),
    "lookahead_window_size": ("speculative", None),
    "lookahead_ngram_size": ("speculative", None),
    "lookahead_verification_set_size": ("speculative", None),
    "retention_token_range_starts": ("kv_retention", None),
    "retention_token_range_ends": ("kv_retention", None),
    "retention_token_range_priorities": ("kv_retention", None),
    "retention_token_range_durations_ms": ("kv_retention", None),
    "retention_decode_priority": ("kv_retention", None),
    "retention_decode_duration_ms": ("kv_retention", None),
}


def refuse_switched_off(fields, switched_off, switches=SWITCHES):
    """Refuse inputs of features that are off, unless they ask for nothing.

    Args:
        fields: the request's `Fields`.
        switched_off: names of the features that are off.

    Raises:
        FieldError: names the field and the switch.
    """
    for name in (*fields.arrays, *fields.opaque):
        found = switches.get(name)
        if found is None or found[0] not in switched_off:
            continue
        neutral, array = found[1], fields.arrays.get(name)
        if array is None or (
            array.size and (neutral is None or bool((array.reshape(-1) != neutral).any()))
        ):
            raise FieldError(
                f"{name}: this server was rendered with serving.features.{found[0]} off"
            )


class Fields:
    """Inputs of one request, read once.

    Args:
        names: other names for inputs, {the request's: ours}.

    Attributes:
        arrays: numpy arrays by input name. Numbers may be views of the server's shared memory.
        opaque: tensors of types that numpy does not have (BF16), by name.
    """

    __slots__ = ("arrays", "opaque")

    def __init__(self, request=None, names=None, arrays=None):
        self.opaque = {}
        if arrays is None:
            try:
                arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            except Exception:
                arrays = self._one_by_one(request)
        if names:
            arrays = {names.get(name, name): array for name, array in arrays.items()}
        self.arrays = arrays

    def _one_by_one(self, request):
        arrays = {}
        for tensor in request.inputs():
            try:
                arrays[tensor.name()] = tensor.as_numpy()
            except Exception:
                self.opaque[tensor.name()] = tensor
        return arrays

    def __contains__(self, name):
        return name in self.arrays or name in self.opaque

    def row(self, index):
        """The fields of one row alone."""
        return Fields(arrays={k: v[index : index + 1] for k, v in self.arrays.items()})

    def text_rows(self, name):
        """Rows [batch][n] of text, or None when the input was not sent.

        Raises:
            FieldError: not UTF-8, or above `MAX_TEXT_BYTES` a row.
        """
        array = self.arrays.get(name)
        if array is None:
            return None
        if array.ndim < 2:
            array = array.reshape(1, -1)
        return [[text_of(name, item) for item in row] for row in array.tolist()]

    def words(self, name):
        """As `text_rows`, without empty words, within the limits on word lists."""
        array = self.arrays.get(name)
        if array is None:
            return None
        rows = array.reshape(array.shape[0], -1) if array.ndim > 1 else array.reshape(1, -1)
        if rows.shape[1] > MAX_WORDS:
            raise FieldError(f"{name} has {rows.shape[1]} words; at most {MAX_WORDS} are taken")
        result = []
        for row in rows.tolist():
            words = [text_of(name, item, MAX_WORD_BYTES) for item in row]
            if sum(map(len, words)) > MAX_WORDS_BYTES:
                raise FieldError(f"{name} is longer than {MAX_WORDS_BYTES} characters in all")
            result.append([word for word in words if word])
        return result

    def flag(self, name):
        """A boolean: false when not sent. Rows must agree."""
        array = self.arrays.get(name)
        if array is None or not array.size:
            return False
        values = array.reshape(-1)
        value = bool(values[0])
        if values.size > 1 and bool((values != values[0]).any()):
            raise FieldError(f"{name} must be the same for all rows of a request")
        return value

    def number(self, name, rule=None, default=None):
        """One number that holds for all rows, or the default when not sent."""
        array = self.arrays.get(name)
        if array is None or not array.size:
            return default
        values = array.reshape(-1)
        if values.size > 1 and bool((values != values[0]).any()):
            raise FieldError(f"{name} must be the same for all rows of a request")
        return (rule or RULES[name]).check(name, values[0].item())

    def numbers(self, name, batch, rule=None):
        """One checked number a row, as a list; None when not sent.

        Raises:
            FieldError: not one value a row, or a value out of range.
        """
        array = self.arrays.get(name)
        if array is None:
            return None
        values = array.reshape(-1).tolist()
        if len(values) != batch:
            raise FieldError(f"{name} must have one value a row: {batch}, got {len(values)}")
        rule = rule or RULES[name]
        return [rule.check(name, value) for value in values]


def text_of(name, item, most=MAX_TEXT_BYTES):
    """Text of one STRING element.

    Raises:
        FieldError: not UTF-8, or longer than `most` bytes.
    """
    if isinstance(item, str):
        item = item.encode("utf-8", "surrogatepass")
    if len(item) > most:
        raise FieldError(f"{name} has {len(item)} bytes; at most {most} are taken")
    try:
        return item.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FieldError(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None


def one_prompt_a_row(fields):
    """(rows of text, whether they are chat messages) of `text_input` or `messages`.

    Raises:
        FieldError: both, none, or not one text a row.
    """
    texts, messages = fields.text_rows("text_input"), fields.text_rows("messages")
    if texts is not None and messages is not None:
        raise FieldError("send text_input or messages, not both")
    name, rows = ("text_input", texts) if texts is not None else ("messages", messages)
    if rows is None:
        raise FieldError("text_input is missing")
    for row in rows:
        if len(row) != 1:
            raise FieldError(f"{name} must have one text a row, got {len(row)}")
    return [row[0] for row in rows], name == "messages"


def finite_array(name, array):
    """The array, if it has no NaN and no infinity.

    Raises:
        FieldError: it has.
    """
    if not bool(np.isfinite(array).all()):
        raise FieldError(f"{name} must have finite numbers only")
    return array
