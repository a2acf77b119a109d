"""What `generate` is given on its command line, in files and on standard input, as values."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engineroom.errors import UsageError, Where

if TYPE_CHECKING:
    from engineroom.runner.client_request import Guide

MAX_BYTES = 20_000_000
ROLES = ("system", "developer", "user", "assistant", "tool")


def prompt(argument: str | None, file: Path | None) -> str | None:
    """The prompt: the argument, a file, or standard input for ``-``; None when there is none."""
    if argument is not None and file is not None:
        raise UsageError("a prompt and --prompt-file: name one", where=Where(key="--prompt-file"))
    if argument == "-":
        return _text(None, "PROMPT")
    return _text(file, "--prompt-file") if file is not None else argument


def messages(written: Sequence[str] | None, file: Path | None) -> list[dict[str, str]] | None:
    """Chat messages of ``--messages FILE``, then of each ``--message ROLE=TEXT``; None for neither.

    Raises:
        UsageError: not a JSON list of {role, content}, an unknown role, or no `=`.
    """
    if not written and file is None:
        return None
    found = [] if file is None else _messages_file(file)
    for item in written or ():
        role, equals, text = item.partition("=")
        if not equals or role not in ROLES:
            raise UsageError(
                f"`{item[:60]}` is no message",
                where=Where(key="--message"),
                hint=f"write ROLE=TEXT with a role of {', '.join(ROLES)}",
            )
        found.append({"role": role, "content": text})
    return found


def _messages_file(file: Path) -> list[dict[str, str]]:
    stdin = str(file) == "-"
    place = Where(None if stdin else file.as_posix(), key="--messages")
    try:
        data = json.loads(_text(None if stdin else file, "--messages"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}", where=place) from None
    shaped = isinstance(data, list) and data
    if not shaped or not all(
        isinstance(m, dict)
        and set(m) == {"role", "content"}
        and all(isinstance(v, str) for v in m.values())
        for m in data
    ):
        raise UsageError(
            "not a list of messages", where=place, hint='write [{"role": "user", "content": "…"}]'
        )
    return [dict(message) for message in data]


def assignments(written: Sequence[str] | None) -> Mapping[str, str]:
    """``--set NAME=VALUE`` by name.

    Raises:
        UsageError: no name, no `=`, or a name twice.
    """
    found: dict[str, str] = {}
    for item in written or ():
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise UsageError(
                f"`{item[:60]}` sets nothing", where=Where(key="--set"), hint="write NAME=VALUE"
            )
        if name in found:
            raise UsageError(f"`{name}` is set twice", where=Where(key="--set"))
        found[name] = value
    return found


def guide(schema: Path | None, regex: str | None, grammar: Path | None) -> Guide | None:
    """The one guide of an answer.

    Raises:
        UsageError: two of them, or a schema that is no JSON object.
    """
    from engineroom.runner.client_request import Guide

    if sum(item is not None for item in (schema, regex, grammar)) > 1:
        raise UsageError("an answer follows one of --json-schema, --regex and --grammar")
    if schema is not None:
        text = _text(schema, "--json-schema")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"not JSON: {error}", where=Where(schema.as_posix())) from None
        if not isinstance(data, dict):
            raise UsageError("a JSON schema is an object", where=Where(schema.as_posix()))
        return Guide("json_schema", text)
    if regex is not None:
        return Guide("regex", regex)
    return None if grammar is None else Guide("ebnf_grammar", _text(grammar, "--grammar"))


def _text(file: Path | None, option: str) -> str:
    """A UTF-8 file, or standard input."""
    place = Where(file.as_posix() if file else None, key=option)
    if file is not None and not file.is_file():
        raise UsageError("no such file", where=place)
    raw = sys.stdin.buffer.read(MAX_BYTES + 1) if file is None else _bounded(file)
    if len(raw) > MAX_BYTES:
        raise UsageError(f"larger than {MAX_BYTES} bytes", where=place)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8 (byte {error.start})", where=place) from None


def _bounded(file: Path) -> bytes:
    with file.open("rb") as source:
        return source.read(MAX_BYTES + 1)
