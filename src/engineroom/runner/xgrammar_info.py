"""The tokenizer file of guided decoding on the engine lane, from `tokenizer.json`.

The C++ backend wants the vocabulary in the order of its ids, the tokenizer as text (XGrammar reads from
its decoder how tokens are spelt) and the ids that may end an answer. Upstream makes the file with
NVIDIA/TensorRT-LLM examples/generate_xgrammar_tokenizer_info.py, inside its container; nothing of that
needs TensorRT-LLM. Upstream drops ids that no token has, which shifts all later ones: here they are
empty texts. Upstream knows one end id, here are all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from engineroom.errors import UsageError, Where
from engineroom.runner import files

_LARGEST = 10_000_000
"""Ids: a generous ceiling, so that a broken file does not fill the memory."""


def write(tokenizer_dir: Path, target: Path, stop_ids: str | tuple[int, ...]) -> None:
    """Write the file.

    Args:
        stop_ids: `serving.stop_ids`.

    Raises:
        UsageError: no `tokenizer.json`, one without a vocabulary, or no id that ends an answer.
    """
    source = tokenizer_dir / "tokenizer.json"
    if not source.is_file():
        raise UsageError(
            "guided decoding on the engine lane needs a tokenizer.json: other tokenizer files are not "
            "implemented",
            where=Where(tokenizer_dir.as_posix()),
            hint="save the tokenizer with transformers as a fast tokenizer, or set guided_decoding: off",
        )
    text = source.read_text(encoding="utf-8")
    try:
        vocabulary = ordered_vocabulary(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"no vocabulary can be read: {error}", where=Where(source.as_posix())
        ) from None
    ends = _end_ids(tokenizer_dir) if isinstance(stop_ids, str) else list(stop_ids)
    if not ends:
        raise UsageError(
            "no id ends an answer: neither generation_config.json nor config.json has eos_token_id",
            where=Where(tokenizer_dir.as_posix()),
            hint="set serving.stop_ids",
        )
    info = {"encoded_vocab": vocabulary, "tokenizer_str": text, "stop_token_ids": ends}
    files.write_text(target, json.dumps(info, ensure_ascii=True))


def ordered_vocabulary(tokenizer: Mapping[str, Any]) -> list[str]:
    """Token texts by id; an id without a token is an empty text.

    Raises:
        ValueError: no token at all, or an id that is none.
    """
    vocabulary = tokenizer["model"].get("vocab") or {}
    pairs: list[tuple[str, Any]] = (
        list(vocabulary.items())
        if isinstance(vocabulary, Mapping)
        # Unigram: a list of [token, score], in the order of the ids.
        else [(token, i) for i, (token, _) in enumerate(vocabulary)]
    )
    pairs += [(added["content"], added["id"]) for added in tokenizer.get("added_tokens") or ()]
    if not pairs:
        raise ValueError("the vocabulary is empty")
    texts: dict[int, str] = {}
    for token, number in pairs:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < _LARGEST:
            raise ValueError(f"`{token}` has the id {number!r}")
        texts[number] = str(token)
    return [texts.get(number, "") for number in range(max(texts) + 1)]


def _end_ids(folder: Path) -> list[int]:
    """`eos_token_id` of generation_config.json, else of config.json: a number or a list."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        value = files.read_json(path).get("eos_token_id") if path.is_file() else None
        numbers: Iterable[Any] = value if isinstance(value, list) else [value]
        found = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool)]
        if found:
            return found
    return []
