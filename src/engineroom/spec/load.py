"""From a file to a `DeploymentSpec`, with errors that say file, line and key."""

from __future__ import annotations

import difflib
import re
import types as pytypes
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from engineroom.errors import SpecError, UsageError, Where
from engineroom.spec import yaml_lines
from engineroom.spec.model import SCHEMA_VERSION, DeploymentSpec

MAX_BYTES = 1_000_000


def read_text(path: Path, what: str) -> str:
    """The text of a small UTF-8 file.

    Raises:
        UsageError: missing, a directory, unreadable, too large, or not UTF-8.
    """
    place = Where(path.as_posix())
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"the {what} is not a regular file", where=place)
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"the {what} is larger than {MAX_BYTES} bytes", where=place)
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(
            f"the {what} does not exist",
            where=place,
            hint="check the path, or write one with `engineroom init --model … --sku …`",
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the {what} is not UTF-8 (byte {error.start})", where=place, hint="save it as UTF-8"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read the {what}: {error.strerror}", where=place) from None


@dataclass(frozen=True)
class LoadedSpec:
    """A spec with the file it came from, so that later errors still name file and line."""

    spec: DeploymentSpec
    file: Path
    document: yaml_lines.Document

    @property
    def folder(self) -> Path:
        """Relative paths in a spec are relative to it."""
        return self.file.resolve().parent

    def where(self, key: str) -> Where:
        """File, line and key of a dotted path such as ``targets[0].sku``."""
        parts: list[str | int] = []
        for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", key):
            parts.append(name or int(index))
        return self.document.where(tuple(parts))


def load_spec(path: Path) -> LoadedSpec:
    """Read and validate a spec file.

    Raises:
        SpecError: every problem found, each with file, line and key path.
    """
    try:
        text = read_text(path, "spec file")
    except UsageError as error:
        raise SpecError([error]) from None
    return parse_spec(text, path)


def parse_spec(text: str, path: Path = Path("engineroom.yaml")) -> LoadedSpec:
    """Validate spec text; `path` is used in messages and for relative paths."""
    file = path.as_posix()
    try:
        document = yaml_lines.parse(text, file)
    except UsageError as error:
        raise SpecError([error]) from None
    if not isinstance(document.data, dict):
        raise SpecError(
            [
                UsageError(
                    "the spec must be a mapping of keys", where=Where(file, 1), hint="key: value"
                )
            ]
        )
    version = document.data.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise SpecError(
            [
                UsageError(
                    f"schema_version {version} is newer than this engineroom understands "
                    f"({SCHEMA_VERSION})",
                    where=document.where(("schema_version",)),
                    hint="upgrade engineroom",
                )
            ]
        )
    try:
        return LoadedSpec(DeploymentSpec.model_validate(document.data), path, document)
    except ValidationError as error:
        # An item that is wrong is dropped before the list is counted: "too short" is then an echo.
        problems = [
            _problem(document, item)
            for item in error.errors(include_url=False)
            if not (item["type"] == "too_short" and item.get("input"))
        ]
        unique = {str(p.where) + p.message: p for p in problems}
        raise SpecError(list(unique.values())) from None


def _problem(document: yaml_lines.Document, item: ErrorDetails) -> UsageError:
    path = _real_path(document.data, item["loc"])
    kind, message = item["type"], item["msg"]
    hint: str | None = None
    if kind == "extra_forbidden":
        key = str(path[-1])
        known = _known_keys(path[:-1])
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        message = f"unknown key `{key}`"
        hint = f"did you mean `{near[0]}`?" if near else f"known keys here: {', '.join(known)}"
    elif kind == "missing":
        message = f"the key `{path[-1]}` is missing"
        hint = "add it; `engineroom init` writes a commented example"
    elif kind == "string_pattern_mismatch" and path and path[-1] == "name":
        message = "a name has lower case letters, digits and dashes only, at most 53 characters"
        hint = "it becomes a Kubernetes object name; write e.g. `llama-3-8b`"
    elif kind == "string_pattern_mismatch":
        message = f"`{_short(str(item.get('input')))}` has characters that are not allowed here"
        hint = f"it must match {item['ctx']['pattern']}"
    elif kind == "value_error":
        message = message.removeprefix("Value error, ")
        near_value = item.get("input")
        if isinstance(near_value, str) and " is not one of " in message:
            options = message.split(" is not one of ", 1)[1].split(", ")
            near = difflib.get_close_matches(near_value, options, n=1, cutoff=0.4)
            hint = f"did you mean `{near[0]}`?" if near else "use one of them"
    else:
        got = item.get("input")
        shown = type(got).__name__ if isinstance(got, (dict, list)) else repr(got)
        message = f"{message[:1].lower()}{message[1:]}; found {_short(shown)}"
        hint = _type_hint(kind)
    return UsageError(message, where=document.where(path), hint=hint or "see `engineroom schema`")


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _type_hint(kind: str) -> str | None:
    return {
        "int_type": "write a whole number without quotes",
        "float_type": "write a number without quotes",
        "bool_type": "write true or false without quotes",
        "string_type": "write text; quote it if it looks like a number",
        "model_type": "write a mapping (indented `key: value` lines)",
        "model_attributes_type": "write a mapping (indented `key: value` lines)",
        "tuple_type": "write a list (`- item` lines)",
        "dict_type": "write a mapping (indented `key: value` lines)",
    }.get(kind)


def _real_path(data: Any, loc: tuple[int | str, ...]) -> yaml_lines.Path:
    """Drop the union-branch names that pydantic puts into `loc`: keep what the data has."""
    path: list[str | int] = []
    here = data
    for i, part in enumerate(loc):
        last = i == len(loc) - 1
        if isinstance(here, dict) and (part in here or (last and isinstance(part, str))):
            path.append(part)
            here = here.get(str(part))
        elif isinstance(here, (list, tuple)) and isinstance(part, int) and part < len(here):
            path.append(part)
            here = here[part]
    return tuple(path)


def _known_keys(path: yaml_lines.Path) -> list[str]:
    """Field names at `path`, walked through the pydantic models."""
    model: Any = DeploymentSpec
    for part in path:
        if isinstance(part, int):
            continue
        if isinstance(model, type) and issubclass(model, BaseModel) and part in model.model_fields:
            model = _inner_model(model.model_fields[str(part)].annotation)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return sorted(model.model_fields)
    return []


def _inner_model(annotation: Any) -> Any:
    """The first pydantic model inside `X | None`, `tuple[X, ...]`, `dict[str, X]`, `Annotated`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    origin = typing.get_origin(annotation)
    if origin is not None or isinstance(annotation, pytypes.UnionType):
        for argument in typing.get_args(annotation):
            found = _inner_model(argument)
            if found is not None:
                return found
    return None


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the spec."""
    schema = DeploymentSpec.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"engineroom-spec-v{SCHEMA_VERSION}.json",
        **schema,
    }
