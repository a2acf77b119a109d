"""Renders a tree of templates and verbatim files, and checks what it made.

Every ``config.pbtxt`` is parsed with Triton's own ``ModelConfig`` message before anyone sees it, so
that a stray quote fails here with the file's name and not in a pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from engineroom.errors import InternalError
from engineroom.render.filters import json_yaml, pbtxt
from engineroom.types import RenderedFile


@dataclass(frozen=True)
class TreeLayout:
    """What goes where; all paths POSIX.

    Attributes:
        templates: output path to template path (below the template root).
        verbatim: output path to source path (below the template root), copied byte for byte.
    """

    templates: Mapping[str, str]
    verbatim: Mapping[str, str]


def environment(roots: tuple[Path, ...]) -> Environment:
    """Strict Jinja: an undefined name is an error, output is text and never HTML-escaped."""
    env = Environment(
        loader=FileSystemLoader([str(root) for root in reversed(roots)]),
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        newline_sequence="\n",
    )
    env.filters["pbtxt"] = pbtxt
    env.filters["json_yaml"] = json_yaml
    return env


def render_tree(
    roots: tuple[Path, ...], layout: TreeLayout, variables: Mapping[str, Any]
) -> tuple[RenderedFile, ...]:
    """Render a layout; same input, same bytes.

    Args:
        roots: template roots; a later one overrides file by file.

    Raises:
        InternalError: a template names an undefined variable, or its output does not parse.
    """
    env = environment(roots)
    files = []
    for output, template in layout.templates.items():
        try:
            text = env.get_template(template).render(**variables)
        except TemplateError as error:
            raise InternalError(f"template {template}: {error.message}") from error
        if output.endswith("config.pbtxt"):
            parse_model_config(text, output)
        files.append(RenderedFile(output, text))
    for output, source in layout.verbatim.items():
        path = next(root / source for root in reversed(roots) if (root / source).is_file())
        text = path.read_text(encoding="utf-8")
        files.append(RenderedFile(output, text))
    return tuple(sorted(files, key=lambda file: file.path))


def parse_model_config(text: str, name: str) -> Any:
    """A ``ModelConfig`` message from text.

    Raises:
        InternalError: not valid protobuf text of that message; has the line.
    """
    # Imported here: tritonclient.grpc brings grpc, which no other pure verb needs.
    from google.protobuf import text_format  # noqa: PLC0415
    from tritonclient.grpc import model_config_pb2  # noqa: PLC0415

    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise InternalError(f"{name} is not a valid ModelConfig: {error}") from error
