"""Go's text/template, parsed as far as charts use it: text, actions and blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from engineroom.reading.helm_expressions import Node, TemplateError, pipeline

MAX_TEXT = 1_000_000
MAX_ACTIONS = 20_000
MAX_DEPTH = 60

_SPACE = " \t\r\n"


@dataclass
class Text:
    text: str
    at: int


@dataclass
class Print:
    """An action that prints; None when it is not understood."""

    pipe: Node | None
    source: str
    at: int
    end: int


@dataclass
class Assign:
    """`$x := …` or `$x = …`."""

    name: str
    declares: bool
    source: str
    pipe: Node | None


@dataclass
class Block:
    """`if`, `with` or `range`; `otherwise` is the else branch."""

    kind: str
    source: str
    pipe: Node | None
    variables: tuple[str, ...]
    body: list[Item] = field(default_factory=list)
    otherwise: list[Item] = field(default_factory=list)


@dataclass
class Skipped:
    """`define` and `block`: not rendered in place."""

    body: list[Item] = field(default_factory=list)
    otherwise: list[Item] = field(default_factory=list)


Item = Text | Print | Assign | Block | Skipped


def parse(text: str) -> list[Item]:
    """The template as a tree.

    Raises:
        TemplateError: a block that is not closed, or more than we read.
    """
    if len(text) > MAX_TEXT:
        raise TemplateError(f"a template of more than {MAX_TEXT} characters")
    root: list[Item] = []
    stack: list[tuple[Any, list[Item]]] = [(None, root)]
    for count, piece in enumerate(_pieces(text)):
        if count > MAX_ACTIONS:
            raise TemplateError(f"a template of more than {MAX_ACTIONS} actions")
        into = stack[-1][1]
        if isinstance(piece, Text):
            into.append(piece)
            continue
        source, start, end = piece
        word = re.split(r"[\s(]", source, maxsplit=1)[0] if source else ""
        rest = source[len(word) :].strip()
        if not source or source.startswith("/*"):
            continue
        if word in ("if", "with", "range", "define", "block"):
            if len(stack) > MAX_DEPTH:
                raise TemplateError(f"blocks nested more than {MAX_DEPTH} deep")
            block = Skipped() if word in ("define", "block") else _block(word, rest)
            into.append(block)
            stack.append((block, block.body))
        elif word == "else":
            if len(stack) < 2:
                raise TemplateError("`else` without a block")
            block = stack[-1][0]
            stack[-1] = (block, block.otherwise)
            if rest:
                kind, _, condition = rest.partition(" ")
                if kind not in ("if", "with"):
                    raise TemplateError(f"`else {kind}`")
                inner = _block(kind, condition)
                block.otherwise.append(inner)
                stack[-1] = (inner, inner.body)
        elif word == "end":
            if len(stack) < 2:
                raise TemplateError("`end` without a block")
            stack.pop()
        elif word in ("break", "continue"):
            raise TemplateError(f"`{word}` is not read here")
        else:
            into.append(_print_or_assign(source, start, end))
    if len(stack) > 1:
        raise TemplateError("a block that has no `end`")
    return root


def _pieces(text: str) -> Any:
    """Text and actions, trimmed by their dashes; an action is (source, start, end)."""
    at, trim_left = 0, False
    while at <= len(text):
        start = text.find("{{", at)
        chunk = text[at : start if start >= 0 else len(text)]
        offset = at
        if trim_left:
            stripped = chunk.lstrip(_SPACE)
            offset += len(chunk) - len(stripped)
            chunk = stripped
        if start < 0:
            if chunk:
                yield Text(chunk, offset)
            return
        end = _action_end(text, start + 2)
        body = text[start + 2 : end]
        trims = body[:1] == "-" and body[1:2] in tuple(_SPACE)
        if trims:
            body = body[1:]
            chunk = chunk.rstrip(_SPACE)
        trim_left = body[-1:] == "-" and body[-2:-1] in tuple(_SPACE)
        if trim_left:
            body = body[:-1]
        if chunk:
            yield Text(chunk, offset)
        yield body.strip(_SPACE), start, end + 2
        at = end + 2


def _action_end(text: str, at: int) -> int:
    """Where the action's `}}` begins; quotes and comments may hold braces."""
    head = text[at : at + 4].lstrip("- \t")
    if head.startswith("/*"):
        closing = text.find("*/", at)
        found = text.find("}}", closing) if closing >= 0 else -1
        if found < 0:
            raise TemplateError("a comment that is not closed")
        return found
    quote = ""
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\" and quote == '"':
                at += 1
            elif char == quote:
                quote = ""
        elif char in '"`':
            quote = char
        elif char == "}" and text.startswith("}}", at):
            return at
        at += 1
    raise TemplateError("an action that is not closed")


def _print_or_assign(source: str, start: int, end: int) -> Item:
    match = re.match(r"(\$[A-Za-z0-9_]+)\s*(:?=)\s*", source)
    if match:
        return Assign(match[1], match[2] == ":=", source, pipeline(source[match.end() :]))
    return Print(pipeline(source), source, start, end)


def _block(kind: str, rest: str) -> Block:
    source = f"{kind} {rest}"
    variables: tuple[str, ...] = ()
    match = re.match(r"(\$[A-Za-z0-9_]+)(?:\s*,\s*(\$[A-Za-z0-9_]+))?\s*:=\s*", rest)
    if match:
        variables = tuple(name for name in match.groups() if name)
        rest = rest[match.end() :]
    return Block(kind, source, pipeline(rest), variables)
