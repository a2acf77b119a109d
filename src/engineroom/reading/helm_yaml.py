"""values.yaml as Helm reads it, with the text and the line of every scalar.

Helm decodes YAML with sigs.k8s.io/yaml: go-yaml v2 (YAML 1.1: `yes`, `on`, `n` are booleans, `0644` is
octal), then JSON, so that every number is a float64 (helm/helm pkg/chart/v2/loader/load.go @ e9b85e4;
kubernetes-sigs/yaml yaml.go @ aadfabb).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

from engineroom.reading import go_numbers
from engineroom.reading.go_yaml import ValuesError, resolve

MAX_TEXT = 2_000_000
MAX_EVENTS = 100_000
MAX_DEPTH = 100

Path = tuple[str | int, ...]

_STR_TAGS = ("tag:yaml.org,2002:str", "!", "tag:yaml.org,2002:binary")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Source:
    """How a scalar was written."""

    text: str
    plain: bool
    line: int


@dataclass
class Values:
    """Plain data: str, bool, None, float, list, dict with text keys.

    Attributes:
        sources: how the scalar at a path was written.
        bool_keys: keys such as `n` and `on`, which became `false` and `true`.
    """

    data: dict[str, Any] = field(default_factory=dict)
    sources: dict[Path, Source] = field(default_factory=dict)
    bool_keys: list[Source] = field(default_factory=list)

    def get(self, *path: str | int) -> Any:
        """The value at `path`; None when it is absent or null."""
        found: Any = self.data
        for step in path:
            if isinstance(found, dict) and isinstance(step, str):
                found = found.get(step)
            elif isinstance(found, list) and isinstance(step, int) and step < len(found):
                found = found[step]
            else:
                return None
        return found

    def mapping(self, *path: str | int) -> dict[str, Any]:
        found = self.get(*path)
        return found if isinstance(found, dict) else {}

    def sequence(self, *path: str | int) -> list[Any]:
        found = self.get(*path)
        return found if isinstance(found, list) else []

    def has(self, *path: str | int) -> bool:
        """Whether the key is written, with whatever value."""
        parent = self.get(*path[:-1]) if len(path) > 1 else self.data
        return isinstance(parent, dict) and path[-1] in parent

    def whole(self, *path: str | int) -> int | None:
        """A whole number at `path`, written bare or quoted."""
        return whole(self.get(*path))

    def text(self, *path: str | int) -> str | None:
        """A scalar as it was written."""
        source = self.sources.get(path)
        found = self.get(*path)
        if source is not None and found is not None:
            return source.text
        return found if isinstance(found, str) else None

    def line(self, *path: str | int) -> int | None:
        for end in range(len(path), 0, -1):
            if path[:end] in self.sources:
                return self.sources[path[:end]].line
        return None


def whole(value: Any) -> int | None:
    """A YAML scalar as a whole number; None when it is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**63 else None
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
        return int(value)
    return None


def dotted(path: Path) -> str:
    """``('modelSpec', 0, 'name')`` as ``modelSpec[0].name``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def walk(values: Values) -> Iterator[tuple[Path, Any]]:
    """Every scalar with its path, in order; bounded, since aliases may repeat a whole tree."""
    stack: list[tuple[Path, Any]] = [((), values.data)]
    for _ in range(MAX_EVENTS):
        if not stack:
            return
        path, found = stack.pop()
        if isinstance(found, dict):
            stack += [((*path, key), item) for key, item in reversed(list(found.items()))]
        elif isinstance(found, list):
            stack += [((*path, at), item) for at, item in reversed(list(enumerate(found)))]
        else:
            yield path, found


def load(text: str) -> Values:
    """Parse values; several documents are merged, later ones win.

    Raises:
        ValuesError: not YAML, not a mapping, or larger than we read.
    """
    found = _cached(text)
    if isinstance(found, ValuesError):
        raise found.with_traceback(None)
    return found


@lru_cache(maxsize=8)
def _cached(text: str) -> Values | ValuesError:
    """Every rule asks for the same text; a failure is kept too."""
    try:
        return _load(text)
    except ValuesError as error:
        return error


def _load(text: str) -> Values:
    if len(text) > MAX_TEXT:
        raise ValuesError(f"values of more than {MAX_TEXT} characters")
    values = Values()
    builder = _Builder(values)
    try:
        for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
            if count > MAX_EVENTS:
                raise ValuesError(f"values of more than {MAX_EVENTS} YAML events")
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        line = getattr(error.problem_mark, "line", None)
        raise ValuesError(str(error.problem), None if line is None else line + 1) from None
    except yaml.YAMLError as error:
        raise ValuesError(" ".join(str(error).split())[:200]) from None
    return values


def _line(event: yaml.Event) -> int:
    return getattr(event.start_mark, "line", 0) + 1


class _Builder:
    """Builds data from events without recursion, so that depth cannot hurt."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.stack: list[_Open] = []
        self.anchors: dict[str, Any] = {}

    def take(self, event: Any) -> None:
        if isinstance(event, yaml.MappingStartEvent):
            self._open(event, {})
        elif isinstance(event, yaml.SequenceStartEvent):
            self._open(event, [])
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            done = self.stack.pop()
            if isinstance(done.node, dict):
                for key, item in done.merged.items():
                    done.node.setdefault(key, item)
            if not self.stack:
                self._document(done.node)
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise ValuesError(f"unknown anchor `{event.anchor}`", _line(event))
            node = self.anchors[event.anchor]
            if any(item.node is node for item in self.stack):
                raise ValuesError(f"`{event.anchor}` contains itself", _line(event))
            self._put(node)

    def _open(self, event: Any, node: Any) -> None:
        if len(self.stack) >= MAX_DEPTH:
            raise ValuesError(f"nested more than {MAX_DEPTH} deep", _line(event))
        path = self._put(node)
        self.stack.append(_Open(node, path))
        if event.anchor:
            self.anchors[event.anchor] = node

    def _scalar(self, event: Any) -> None:
        line = _line(event)
        plain = not event.style and event.tag not in _STR_TAGS
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.node, dict) and top.key is None:
            key = resolve(event.value, line) if plain else event.value
            if event.value == "<<" and not event.style:
                top.key = _MERGE
            else:
                top.key = _key(key, line)
                if isinstance(key, bool) and event.value.lower() not in ("true", "false"):
                    self.values.bool_keys.append(Source(event.value, True, line))
            return
        value = resolve(event.value, line) if plain else event.value
        if event.anchor:
            self.anchors[event.anchor] = value
        path = self._put(value)
        if path is not None:
            self.values.sources[path] = Source(event.value, not event.style, line)
        if not self.stack:
            self._document(value)

    def _put(self, value: Any) -> Path | None:
        """Place a finished or opened node in its parent; its path, or None when it has none."""
        if not self.stack:
            return ()
        top = self.stack[-1]
        if isinstance(top.node, list):
            top.node.append(value)
            return None if top.path is None else (*top.path, len(top.node) - 1)
        if top.key is None:
            raise ValuesError("a key that is not a scalar")
        key, top.key = top.key, None
        if key is _MERGE:
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, dict):
                    for name, item in part.items():
                        top.merged.setdefault(name, item)
            return None
        top.node[key] = value
        return None if top.path is None else (*top.path, key)

    def _document(self, node: Any) -> None:
        if node is None:
            return
        if not isinstance(node, dict):
            raise ValuesError("values are a mapping")
        self.values.data = _merged(self.values.data, node)
        self.anchors = {}


class _Open:
    """A mapping or sequence that is being read."""

    def __init__(self, node: Any, path: Path | None) -> None:
        self.node = node
        self.path = path
        self.key: Any = None
        self.merged: dict[str, Any] = {}


_MERGE = object()


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    out = dict(first)
    for key, value in second.items():
        old = out.get(key)
        out[key] = (
            _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return out


def _key(value: Any, line: int) -> str:
    """A mapping key as text: Helm's JSON step turns numbers and booleans into it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else go_numbers.shortest(value)
    raise ValuesError("a key that is null", line)
