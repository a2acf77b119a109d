"""Tokens to text and back, for model files that a Triton server executes.

Imports nothing of engineroom: it must run in NVIDIA's stock container. `tokenizers` is used when
the folder has a tokenizer.json (it loads in milliseconds and needs no torch), else transformers.
"""

import json
import os


class TokenCodec:
    """One tokenizer with the two calls that serving needs.

    Args:
        folder: a directory with tokenizer.json, or anything AutoTokenizer can open.
    """

    def __init__(self, folder):
        self.folder = folder
        path = os.path.join(folder, "tokenizer.json")  # noqa: PTH118 - os is what a pod surely has
        self._fast = None
        if os.path.isfile(path):  # noqa: PTH113
            from tokenizers import Tokenizer

            self._fast = Tokenizer.from_file(path)
            self._fast.no_padding()
            self._fast.no_truncation()
        elif os.path.isdir(folder):  # noqa: PTH112
            from transformers import AutoTokenizer

            self._slow = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        else:
            raise FileNotFoundError(f"tokenizer folder {folder!r} does not exist in this container")
        self.config = _read_json(folder, "tokenizer_config.json")
        self.bos_token = _token_text(self.config.get("bos_token"))

    def encode(self, text, add_special_tokens=True):
        """Token ids of `text`. A prompt that already begins with BOS gets no second one."""
        if self.bos_token and text.startswith(self.bos_token):
            add_special_tokens = False
        if self._fast is not None:
            return self._fast.encode(text, add_special_tokens=add_special_tokens).ids
        return self._slow.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids, skip_special_tokens=True):
        """Text of `ids`; bytes that are no whole character become U+FFFD."""
        if self._fast is not None:
            return self._fast.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return self._slow.decode(
            list(ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )


class TextStream:
    """Incremental detokenization: the pieces concatenate to exactly `codec.decode(all ids)`.

    Text is emitted once it ends in a whole character. A short window of earlier tokens is decoded
    along with the new ones, because a token's text can depend on the one before it (leading spaces
    of SentencePiece, characters spread over several byte tokens).
    """

    def __init__(self, codec, skip_special_tokens=True):
        self._codec, self._skip = codec, skip_special_tokens
        self._ids, self._start, self._read = [], 0, 0

    def _window(self):
        before = self._codec.decode(self._ids[self._start : self._read], self._skip)
        after = self._codec.decode(self._ids[self._start :], self._skip)
        return before, after

    def push(self, ids):
        """Add tokens; return the text that they complete (may be empty)."""
        self._ids.extend(ids)
        before, after = self._window()
        if len(after) <= len(before) or after.endswith("\ufffd"):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return after[len(before) :]

    def finish(self):
        """What is left at the end of the stream: an unfinished character shows as U+FFFD."""
        before, after = self._window()
        self._start = self._read = len(self._ids)
        return after[len(before) :]


def end_ids(folder):
    """End-of-sequence ids of generation_config.json, else of config.json; may be empty."""
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder, name).get("eos_token_id")
        if isinstance(value, int):
            return [value]
        if isinstance(value, list):
            return [int(item) for item in value]
    return []


def _read_json(folder, name):
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            return json.load(file)
    except FileNotFoundError:
        return {}


def _token_text(value):
    """tokenizer_config.json writes special tokens as text or as an object."""
    return value.get("content") if isinstance(value, dict) else value
