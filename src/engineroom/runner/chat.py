"""Chat templates: they come with the model, so they are untrusted and run in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engineroom.errors import UsageError, Where


def _raise(message: str) -> None:
    raise TemplateError(message)


def template_of(folder: Path) -> str | None:
    """The chat template of a tokenizer folder, or None."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise UsageError("not UTF-8", where=Where(file.as_posix())) from None
    value = _config(folder).get("chat_template")
    if isinstance(value, list):  # several named templates
        named = [v for v in value if isinstance(v, dict) and v.get("name") == "default"]
        value = named[0].get("template") if named else None
    return value if isinstance(value, str) else None


def _config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, or nothing where there is none.

    Raises:
        UsageError: it is there and is no JSON object.
    """
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}", where=Where(path.as_posix())) from None
    if not isinstance(config, dict):
        raise UsageError("not an object", where=Where(path.as_posix()))
    return config


def apply(folder: Path, messages: Sequence[dict[str, str]]) -> str:
    """The prompt that the model's own template makes of chat messages, ready for its answer.

    Special tokens are part of the text; the server's tokenization adds no second BOS.

    Raises:
        UsageError: no template, or the template fails or reaches for something unsafe.
    """
    place = Where(folder.as_posix())
    if not folder.is_dir():
        raise UsageError("no such folder", where=place, hint="name the tokenizer's folder")
    text = template_of(folder)
    if text is None:
        raise UsageError(
            "the model has no chat template",
            where=place,
            hint="leave --chat out to send the prompt as it is",
        )
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    env.globals["raise_exception"] = _raise
    tokens = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in _config(folder).items()
        if name.endswith("_token")
    }
    try:
        return env.from_string(text).render(
            messages=list(messages), add_generation_prompt=True, **tokens
        )
    except SecurityError as error:
        raise UsageError(f"the chat template is unsafe: {error}", where=place) from None
    except Exception as error:  # foreign code: whatever it raises is its fault
        raise UsageError(f"the chat template failed: {error}", where=place) from None


def count_tokens(folder: Path, text: str) -> int | None:
    """Tokens of a text by the folder's tokenizer.json; None without it or without `tokenizers`."""
    if not (folder / "tokenizer.json").is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return len(tokenizer.encode(text, add_special_tokens=False).ids)
