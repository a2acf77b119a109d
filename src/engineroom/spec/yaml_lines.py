"""YAML with line numbers, by the YAML 1.2 core schema.

PyYAML's own loader reads YAML 1.1, where ``no`` is a boolean and ``26.10`` the number 26.1. A
stack called 26.10 must stay 26.10, so scalars are resolved here from their source text and floats
keep it (:class:`SourceFloat`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from engineroom.errors import UsageError, Where

_INT = re.compile(r"[-+]?[0-9]{1,30}\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}
MAX_NODES = 20_000
"""Above this a spec is not a spec; it also stops alias bombs, which expand exponentially."""

MAX_DEPTH = 50

Path = tuple[str | int, ...]


class SourceFloat(float):
    """A float that remembers how it was written, so that 26.10 can be a version."""

    text: str

    def __new__(cls, text: str) -> SourceFloat:
        self = super().__new__(cls, text)
        self.text = text
        return self


@dataclass
class Document:
    """Plain data plus the 1-based line of every key path."""

    file: str
    data: Any
    lines: dict[Path, int] = field(default_factory=dict)

    def where(self, path: Path) -> Where:
        """The place of `path`, or of its nearest ancestor that is in the file."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return Where(self.file, self.lines[path[:end]], dotted(path) or None)
        return Where(self.file, None, dotted(path) or None)


def dotted(path: Path) -> str:
    """``('targets', 0, 'sku')`` as ``targets[0].sku``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def parse(text: str, file: str) -> Document:
    """Parse one YAML document.

    Raises:
        UsageError: syntax error, duplicate key, non-string key, several documents, or a tag.
    """
    try:
        nodes = list(yaml.compose_all(text, Loader=_Loader))
    except _TooMany as error:
        raise _too_many(file, error.line) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UsageError(
            f"YAML syntax: {error.problem or error.context or 'unreadable'}",
            where=Where(file, mark.line + 1 if mark else None),
            hint="mend the line above; indent with spaces and quote strings with special characters",
        ) from None
    except RecursionError:
        raise _too_deep(file) from None
    except yaml.YAMLError as error:  # the reader refuses control characters without a mark
        raise UsageError(
            f"YAML syntax: {' '.join(str(error).split())}", where=Where(file)
        ) from None
    if len(nodes) != 1 or nodes[0] is None:
        raise UsageError(
            "the file is empty" if not nodes else f"expected one YAML document, found {len(nodes)}",
            where=Where(file, 1),
            hint="start from `engineroom init`",
        )
    document = Document(file, None)
    document.data = _Builder(document).build(nodes[0], ())
    return document


def _too_deep(file: str) -> UsageError:
    return UsageError(
        "nested too deeply",
        where=Where(file),
        hint="no key of a spec is more than five levels down",
    )


def _too_many(file: str, line: int, path: Path = ()) -> UsageError:
    return UsageError(
        f"more than {MAX_NODES} values, or an alias that contains itself",
        where=Where(file, line, dotted(path) or None),
        hint="write the values out instead of repeating aliases",
    )


class _TooMany(Exception):
    def __init__(self, line: int) -> None:
        self.line = line


class _Loader(yaml.BaseLoader):
    """Stops at a file with far too many nodes, before PyYAML has spent seconds on it."""

    count = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.count += 1
        if self.count > 2 * MAX_NODES:  # keys are nodes too
            raise _TooMany(self.peek_event().start_mark.line + 1)  # type: ignore[no-untyped-call]
        return super().compose_node(parent, index)


class _Builder:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.count = 0
        self.active: set[int] = set()

    def build(self, node: yaml.Node, path: Path) -> Any:
        self.count += 1
        line = node.start_mark.line + 1
        if self.count > MAX_NODES or id(node) in self.active:
            raise _too_many(self.document.file, line, path)
        if len(path) > MAX_DEPTH:
            raise _too_deep(self.document.file)
        self.document.lines.setdefault(path, line)
        self.active.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
            return self._scalar(node)
        finally:
            self.active.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise UsageError(
                    "keys must be plain words",
                    where=Where(self.document.file, line, dotted(path)),
                    hint="write `key: value`",
                )
            key = key_node.value
            here = (*path, key)
            if key in result:
                raise UsageError(
                    f"the key `{key}` is written twice",
                    where=Where(self.document.file, line, dotted(here)),
                    hint="remove one of the two",
                )
            self.document.lines[here] = line
            result[key] = self.build(value_node, here)
        return result

    @staticmethod
    def _scalar(node: yaml.Node) -> Any:
        text: str = node.value
        if getattr(node, "style", None) is not None:  # quoted or block: always a string
            return text
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if _INT.match(text):
            return int(text)
        if _FLOAT.match(text):
            return SourceFloat(text)
        return text
