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
        return file.read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    if config.is_file():
        value = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
        if isinstance(value, list):  # several named templates
            value = next((v["template"] for v in value if v.get("name") == "default"), None)
        return value if isinstance(value, str) else None
    return None


def apply(folder: Path, messages: Sequence[dict[str, str]]) -> str:
    """The prompt that the model's own template makes of chat messages, ready for its answer.

    Special tokens are part of the text; the server's tokenization adds no second BOS.

    Raises:
        UsageError: no template, or the template fails or reaches for something unsafe.
    """
    text = template_of(folder)
    place = Where(folder.as_posix())
    if text is None:
        raise UsageError(
            "the model has no chat template", where=place, hint="send a raw prompt (--raw)"
        )
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    env.globals["raise_exception"] = _raise
    config_path = folder / "tokenizer_config.json"
    config: dict[str, Any] = (
        json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
    )
    tokens = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in config.items()
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
