"""Requests as people keep them: JSON bodies in files, and curl calls in scripts. Nothing is sent."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

_PATH = re.compile(
    r"/v2/models/(?P<model>[^/\s?]+)(?:/versions/[^/\s?]+)?/(?P<endpoint>generate(?:_stream)?)\b"
)
_DATA = ("-d", "--data", "--data-raw", "--data-binary", "--data-ascii", "--json")


def is_body(data: Any) -> bool:
    """Whether a JSON object reads like the body of a generate call to a language model."""
    return isinstance(data, dict) and (
        isinstance(data.get("text_input"), str | list)
        or ("sampling_parameters" in data and isinstance(data["sampling_parameters"], str))
        or any(str(key).startswith("sampling_param_") for key in data)
    )


def curl_requests(text: str) -> list[dict[str, Any]]:
    """Generate calls of a shell text: {model, endpoint, body} each.

    Line continuations are joined. A call whose data is no JSON object (a file, a shell variable
    outside of a string) is left out: what it sends is not known.
    """
    found = []
    joined = text.replace("\\\r\n", " ").replace("\\\n", " ")
    for words in _commands(joined):
        url = next((m for word in words if (m := _PATH.search(word))), None)
        data = _data(words)
        if url is None or data is None:
            continue
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            continue
        if isinstance(body, dict):
            found.append({"model": url["model"], "endpoint": url["endpoint"], "body": body})
    return found


def _commands(text: str) -> list[list[str]]:
    """The words of each curl call. A quoted body may go over several lines."""
    found = []
    for start in re.finditer(r"(?:^|[\s;&|(])curl\s", text):
        rest = text[start.end() :]
        lexer = shlex.shlex(rest, posix=True, punctuation_chars=";&|()\n")
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
        words = []
        try:
            for word in lexer:
                if set(word) <= set(";&|()\n"):
                    break
                words.append(word)
        except ValueError:  # a quote that does not close
            continue
        found.append(words)
    return found


def _data(words: list[str]) -> str | None:
    for at, word in enumerate(words):
        if word in _DATA and at + 1 < len(words):
            return words[at + 1]
        option, equals, value = word.partition("=")
        if equals and option in _DATA and option.startswith("--"):
            return value
        if word.startswith("-d") and not word.startswith("--") and len(word) > 2:
            return word[2:]
    return None
