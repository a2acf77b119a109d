"""A request of the engine lane's fronts, checked and turned into what the engine takes.

Used by preprocessing (for the ensemble) and by tensorrt_llm_bls, so that both answer alike. Nothing
of Triton is imported.
"""

import json

import numpy as np
from chat_template import ChatTemplate
from request_fields import RULES, FieldError, one_prompt_a_row, refuse_switched_off
from text_codec import TokenCodec, end_ids
from word_lists import WordLists, pack, vocabulary_size

# Declared by upstream's models and left out here: encoder-decoder, media, prompt tables.
NOT_IMPLEMENTED = frozenset((
    "decoder_text_input", "image_input", "image_bytes_input", "image_url_input",
    "video_bytes_input", "image_sizes_input", "prompt_embedding_table", "prompt_vocab_size",
    "prompt_table_extra_id",
))  # fmt: skip
RETENTION = (
    "retention_token_range_starts", "retention_token_range_ends",
    "retention_token_range_priorities",
)  # fmt: skip
# Those that the C++ backend reads; it takes any other type for "no guide" and says nothing. Source:
# NVIDIA/TensorRT-LLM triton_backend/inflight_batcher_llm/src/utils.cc,
# getGuidedDecodingParamsFromTensors.
GUIDES = ("json", "json_schema", "regex", "ebnf_grammar")


_NONE = [None]


class Prompt:
    """What the engine gets.

    Attributes:
        texts: prompts, one a row. `rows`: their token ids.
        max_tokens: one a row. `ends`: for each row the ids that end it, the engine's own first.
        stop_words: texts, one list a row. `stop_rows`, `bad_rows`: a WordRow or None a row.
        bias: float32 [batch, vocabulary] or None.
    """

    __slots__ = (
        "_end_column", "bad_rows", "bias", "ends", "max_tokens", "pads", "rows", "stop_rows",
        "stop_words", "texts",
    )  # fmt: skip

    def input_ids(self):
        """int32 [batch, longest], short rows filled up with the row's pad id."""
        rows = self.rows
        if len(rows) == 1:
            return np.array(rows, np.int32)
        out = np.zeros((len(rows), max(map(len, rows))), np.int32)
        for place, row, pad in zip(out, rows, self.pads):
            place[: len(row)] = row
            place[len(row) :] = pad
        return out

    def lengths(self):
        """int32 [batch, 1]."""
        return _column([len(row) for row in self.rows])

    def limits(self):
        """int32 [batch, 1]: max_tokens."""
        return _column(self.max_tokens)

    def end_column(self):
        """int32 [batch, 1] of the ids that end the rows, -1: none; None when no row has one."""
        return self._end_column

    def row(self, index):
        """The prompt of one row alone."""
        part = Prompt()
        for name in (
            "texts",
            "rows",
            "max_tokens",
            "ends",
            "pads",
            "stop_words",
            "stop_rows",
            "bad_rows",
        ):
            setattr(part, name, [getattr(self, name)[index]])
        part._end_column = _end_column(part.ends)
        part.bias = None if self.bias is None else self.bias[index : index + 1]
        return part

    def on(self, ids, max_tokens):
        """The same request on other token ids, for one row."""
        part = self.row(0)
        part.rows, part.max_tokens = [ids], [max_tokens]
        return part

    def stop_list(self):
        return pack(self.stop_rows)

    def bad_list(self):
        return pack(self.bad_rows)


def _column(values):
    return np.array([[value] for value in values], np.int32)


def _end_column(ends):
    return _column([row[0] if row else -1 for row in ends]) if any(ends) else None


class PromptMaker:
    """From a request's fields to a Prompt, by the parameters of the model's config.pbtxt."""

    def __init__(self, parameters):
        folder = parameters["tokenizer_dir"]
        self.codec = TokenCodec(folder)
        self.words = WordLists(self.codec)
        self._folder, self._chat, self._size = folder, ChatTemplate(folder), None
        self._add_special_tokens = parameters["add_special_tokens"] == "true"
        stop_ids = parameters["stop_ids"]
        self.ends = end_ids(folder) if stop_ids == "generation_config" else json.loads(stop_ids)
        # What a request without words and without end_id gets.
        self._more_ends = tuple((token,) for token in self.ends[1:])
        self._default = [self.ends], _end_column([self.ends])
        self._default_stops = [self.words.row((), self._more_ends)]
        features = json.loads(parameters["features"])
        self._off = frozenset(name for name, on in features.items() if not on)
        self._max_input = int(parameters["max_input_len"] or 0)
        self._max_seq = int(parameters["max_seq_len"] or 0)
        self._max_beams = int(parameters["max_beam_width"])

    def __call__(self, fields):
        """Check everything and tokenize.

        Raises:
            FieldError, ValueError: the message names the field.
        """
        arrays = fields.arrays
        refuse_switched_off(fields, self._off)
        texts, is_chat = one_prompt_a_row(fields)
        batch = len(texts)
        if batch > 1 and fields.flag("stream"):
            raise FieldError(f"stream takes one prompt a request, text_input has {batch} rows")
        for name, array in arrays.items():
            if array.ndim and array.shape[0] != batch:
                raise FieldError(f"{name} has {array.shape[0]} rows, the prompt has {batch}")
            if name in RULES:
                fields.numbers(name, batch)
            elif name in NOT_IMPLEMENTED and array.size:
                raise FieldError(f"{name} is not implemented by this model")
        self._check_together(fields)
        prompt = Prompt()
        if is_chat:
            texts = [self._chat.prompt(text) for text in texts]
        prompt.texts = texts
        special = self._add_special_tokens and not is_chat
        prompt.rows = [self._tokens(text, special, is_chat) for text in texts]
        prompt.max_tokens = fields.numbers("max_tokens", batch)
        if prompt.max_tokens is None:
            raise FieldError("max_tokens is missing")
        self._ends(prompt, fields, batch)
        self._word_rows(prompt, fields, batch)
        prompt.bias = None
        if "embedding_bias_words" in arrays or "embedding_bias_weights" in arrays:
            prompt.bias = self._bias(fields, batch)
        return prompt

    def _tokens(self, text, special, is_chat):
        name = "messages" if is_chat else "text_input"
        ids = self.codec.encode(text, special)
        if not ids:
            raise FieldError(f"{name} has no tokens")
        if self._max_input and len(ids) > self._max_input:
            raise FieldError(f"{name} has {len(ids)} tokens, above max_input_len {self._max_input}")
        if self._max_seq and len(ids) >= self._max_seq:
            raise FieldError(
                f"{name} has {len(ids)} tokens and leaves no room below max_seq_len {self._max_seq}"
            )
        return ids

    def _ends(self, prompt, fields, batch):
        """The engine ends on one id; a model's others (Llama 3, SmolLM) become stop words.

        An `end_id` that is none of the model's own replaces them all; -1: the text has no end.
        """
        given = fields.numbers("end_id", batch)
        prompt.pads = fields.numbers("pad_id", batch)
        if given is None and batch == 1:
            prompt.ends, prompt._end_column = self._default
        else:
            given = [None] * batch if given is None else given
            prompt.ends = [self._ends_for(end) for end in given]
            prompt._end_column = _end_column(prompt.ends)
        if prompt.pads is None:
            prompt.pads = [ends[0] if ends else 0 for ends in prompt.ends]

    def _ends_for(self, end):
        if end is None:
            return self.ends
        if end in self.ends:
            return [end, *(other for other in self.ends if other != end)]
        return [end] if end >= 0 else []

    def _word_rows(self, prompt, fields, batch):
        stops, bad = fields.words("stop_words"), fields.words("bad_words")
        prompt.stop_words = [()] * batch if stops is None else stops
        if stops is None and prompt.ends is self._default[0]:
            prompt.stop_rows = self._default_stops
        else:
            prompt.stop_rows = [
                self.words.row(words, [(token,) for token in ends[1:]])
                for words, ends in zip(prompt.stop_words, prompt.ends)
            ]
        prompt.bad_rows = _NONE * batch if bad is None else [self.words.row(row) for row in bad]

    def _bias(self, fields, batch):
        words = fields.text_rows("embedding_bias_words") or [[] for _ in range(batch)]
        weights = fields.arrays.get("embedding_bias_weights")
        weights = [[]] * batch if weights is None else weights.reshape(batch, -1).tolist()
        if self._size is None:
            self._size = vocabulary_size(self._folder)
        if not self._size:
            raise FieldError("embedding_bias_words: the size of the vocabulary is not known")
        return np.stack(
            [
                self.words.bias(row, row_weights, self._size)
                for row, row_weights in zip(words, weights)
            ]
        )

    def _check_together(self, fields):
        """Fields that only make sense together, or with this server."""
        arrays = fields.arrays
        beams = 1
        if "beam_width" in arrays:
            beams = fields.number("beam_width")
            if beams > self._max_beams:
                raise FieldError(
                    f"beam_width {beams} is above max_beam_width {self._max_beams} of this server"
                )
            if beams > 1 and fields.flag("stream"):
                raise FieldError(
                    "stream with beam_width above 1: beam search changes text that was sent; "
                    "use stream: false"
                )
        if "num_return_sequences" in arrays:
            count = fields.number("num_return_sequences")
            if beams > 1 and count > beams:
                raise FieldError(f"num_return_sequences {count} is above beam_width {beams}")
        if "guided_decoding_guide_type" in arrays or "guided_decoding_guide" in arrays:
            check_guide(fields)
        if any(name in arrays for name in RETENTION):
            _check_retention(arrays)
        if "lora_weights" in fields or "lora_config" in fields:
            for name in ("lora_task_id", "lora_weights", "lora_config"):
                if name not in fields:
                    raise FieldError(
                        f"{name} is missing: an adapter is sent as id, weights, config"
                    )


def check_guide(fields):
    """A guide type that exists, with a guide where it needs one; JSON guides must be JSON.

    Raises:
        FieldError: names the field.
    """
    kinds = fields.text_rows("guided_decoding_guide_type")
    guides = fields.text_rows("guided_decoding_guide")
    if kinds is None:
        raise FieldError("guided_decoding_guide needs guided_decoding_guide_type")
    for row, kinds_row in enumerate(kinds):
        kind = kinds_row[0] if kinds_row else ""
        if kind not in GUIDES:
            raise FieldError(
                f"guided_decoding_guide_type {kind[:40]!r} is none of {', '.join(GUIDES)}"
            )
        guide = guides[row][0] if guides and guides[row] else ""
        if kind == "json":
            continue
        if not guide:
            raise FieldError(f"guided_decoding_guide is missing for guide type {kind}")
        if kind == "json_schema":
            try:
                json.loads(guide)
            except (ValueError, RecursionError) as error:
                raise FieldError(f"guided_decoding_guide is not JSON: {error}") from None


def _check_retention(arrays):
    lengths = {}
    for name in RETENTION:
        if name not in arrays:
            raise FieldError(f"{name} is missing: retention ranges are starts, ends, priorities")
        lengths[name] = arrays[name].size
    if "retention_token_range_durations_ms" in arrays:
        lengths["retention_token_range_durations_ms"] = arrays[
            "retention_token_range_durations_ms"
        ].size
    if len(set(lengths.values())) > 1:
        raise FieldError(
            "retention inputs differ in length: "
            + ", ".join(f"{name} {length}" for name, length in lengths.items())
        )
    priorities = arrays["retention_token_range_priorities"]
    if priorities.size and not (int(priorities.min()) >= 0 and int(priorities.max()) <= 100):
        raise FieldError("retention_token_range_priorities must lie in 0..100")
    if bool((arrays["retention_token_range_starts"] < 0).any()):
        raise FieldError("retention_token_range_starts must be at least 0")
