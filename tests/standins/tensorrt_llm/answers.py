"""What the double answers with, and the record of the calls it got.

Environment:
    STANDIN_TOKENS: tokens of an answer, at most the request's max_tokens (which is the default).
    STANDIN_STEP: tokens between two streamed outputs; default 1.
    STANDIN_STEP_MS: pause before each streamed output (a whole answer pauses as often); default 0.
        With it a request is still running when it is cancelled.
    STANDIN_TEXTS: JSON list of the texts of the tokens, from the start again when it ends; by default
        the prompt's words, each with a space after it. Sequence k starts at place k.
    STANDIN_TOKENIZER: a folder. The double then does with text what upstream's own Python does, with
        that tokenizer (`text.py`); an answer is the prompt's ids, or those of STANDIN_TEXTS, and ends
        early at an end id or the ids of a stop word.
    STANDIN_IDS: JSON list of token ids in the place of STANDIN_TEXTS, with a tokenizer.
    STANDIN_PRIORITY: if set, `generate_async` has a parameter `priority`.
    STANDIN_RECORD: a file that gets one JSON line a call.
"""

import dataclasses
import functools
import json
import os

STEP = int(os.environ.get("STANDIN_STEP", "1"))
PAUSE = float(os.environ.get("STANDIN_STEP_MS", "0")) / 1000
MOST = int(os.environ.get("STANDIN_TOKENS", str(2**31 - 1)))
TEXTS = json.loads(os.environ.get("STANDIN_TEXTS", "null"))
IDS = json.loads(os.environ.get("STANDIN_IDS", "null"))
TOKENIZER = os.environ.get("STANDIN_TOKENIZER")
RECORD = os.environ.get("STANDIN_RECORD")
FIRST_ID = 1000
"""Token ids count from here, in the order of the token texts."""


def record(call, **values):
    """Append one call to the record, if there is one."""
    if RECORD:
        with open(RECORD, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(json.dumps({"call": call, **values}, default=plain) + "\n")


def plain(value):
    """Something for JSON: arrays by dtype and shape, images by size and mode, objects by class."""
    if isinstance(value, bytes):
        return {"bytes": len(value)}
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return {"dtype": str(value.dtype), "shape": list(value.shape)}
    if hasattr(value, "mode") and hasattr(value, "size"):
        return {"image": list(value.size), "mode": value.mode}
    given = getattr(value, "given", None)
    if given is None and dataclasses.is_dataclass(value):
        given = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return {"class": type(value).__name__, **(given if given is not None else vars(value))}


def prompt_tokens(inputs):
    """(texts of the prompt's tokens, their ids) of what `generate_async` takes; not to be changed."""
    if isinstance(inputs, dict):
        inputs = inputs.get("prompt_token_ids") or inputs.get("prompt")
    return _tokens(inputs if isinstance(inputs, str) else tuple(inputs))


# The same prompt again costs nothing: the double's own time is part of what both sides are charged.
@functools.lru_cache(256)
def _tokens(inputs):
    if isinstance(inputs, str):
        texts = [word + " " for word in inputs.split()] or [""]
        return texts, [FIRST_ID + k for k in range(len(texts))]
    return [f"{token} " for token in inputs] or [""], list(inputs)


def answer(inputs, count, place):
    """(texts, ids) of the `count` tokens that sequence `place` answers with; not to be changed."""
    if isinstance(inputs, dict):
        inputs = inputs.get("prompt_token_ids") or inputs.get("prompt")
    return _answer(inputs if isinstance(inputs, str) else tuple(inputs), min(count, MOST), place)


@functools.lru_cache(256)
def _answer(inputs, count, place):
    texts, ids = _tokens(inputs)
    if TEXTS:
        texts, ids = TEXTS, [FIRST_ID + k for k in range(len(TEXTS))]
    at = [(place + k) % len(texts) for k in range(count)]
    return [texts[k] for k in at], [ids[k] for k in at]
