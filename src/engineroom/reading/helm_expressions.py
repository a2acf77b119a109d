"""Pipelines of Go's text/template: literals, names, calls and parentheses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from engineroom.reading import go_numbers

MAX_DEPTH = 60

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<raw>`[^`]*`)
    |(?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|\.?[0-9][0-9_.]*(?:[eE][+-]?[0-9]+)?))
    |(?P<path>\$?[A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)+|\$[A-Za-z0-9_]*|\.)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<op>:=|=|\||\(|\)|,)""",
    re.VERBOSE,
)
_UNQUOTE = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "'": "'"}


class TemplateError(ValueError):
    """Text that is no template, or a part of the language that is not read here."""


class GoInt(int):
    """Go's `int`: a literal, or what `int` answers."""


class GoInt64(int):
    """Go's `int64`: what `int64` and the arithmetic functions answer."""


@dataclass(frozen=True)
class Literal:
    value: Any


@dataclass(frozen=True)
class Name:
    """`.a.b`, `$.a`, `$x.a`: the root (`.`, `$` or `$x`) and the fields."""

    root: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """A function and its arguments."""

    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Pipe:
    """Commands joined by `|`: each takes the answer before it as its last argument."""

    commands: tuple[Node, ...]


Node = Literal | Name | Call | Pipe


def pipeline(source: str) -> Node | None:
    """A pipeline; None when it holds something that is not read here."""
    try:
        tokens = _tokens(source)
        node, rest = _parse_pipe(tokens, 0, 0)
        return node if rest == len(tokens) else None
    except TemplateError:
        return None


def _tokens(source: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    if len(source) > 20_000:
        raise TemplateError("a long pipeline")
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise TemplateError("an unknown token")
        kind = str(match.lastgroup)
        if kind != "space":
            tokens.append((kind, match[0]))
        elif tokens:
            tokens.append((kind, " "))
        at = match.end()
    while tokens and tokens[-1][0] == "space":
        tokens.pop()
    return tokens


def _parse_pipe(tokens: list[tuple[str, str]], at: int, depth: int) -> tuple[Node, int]:
    if depth > MAX_DEPTH:
        raise TemplateError("deep parentheses")
    commands: list[Node] = []
    while True:
        words: list[Node] = []
        glued = False
        while at < len(tokens) and tokens[at][1] not in ("|", ")"):
            kind, text = tokens[at]
            if kind == "space":
                glued, at = False, at + 1
                continue
            if glued:
                raise TemplateError("a field of an expression")
            if text == "(":
                node, at = _parse_pipe(tokens, at + 1, depth + 1)
                if at >= len(tokens) or tokens[at][1] != ")":
                    raise TemplateError("a parenthesis that is not closed")
                words.append(node)
            else:
                words.append(_operand(kind, text, first=not words))
            at, glued = at + 1, True
        commands.append(_command(words))
        if at < len(tokens) and tokens[at][1] == "|":
            at += 1
            continue
        break
    return (commands[0] if len(commands) == 1 else Pipe(tuple(commands))), at


def _command(words: list[Node]) -> Node:
    if not words:
        raise TemplateError("an empty command")
    head, rest = words[0], tuple(words[1:])
    if isinstance(head, Call) and not head.arguments:
        return Call(head.function, rest)
    if rest:
        raise TemplateError("arguments to something that is no function")
    return head


def _operand(kind: str, text: str, *, first: bool) -> Node:
    if kind == "string":
        return Literal(_unquoted(text))
    if kind == "raw":
        return Literal(text[1:-1])
    if kind == "number":
        whole = go_numbers.parse_int(text)
        if whole is not None:
            return Literal(GoInt(whole))
        value = go_numbers.parse_float(text)
        if value is None:
            raise TemplateError("a number that is not read here")
        return Literal(value)
    if kind == "path":
        root, *fields = text.split(".")
        if root and not root.startswith("$"):
            raise TemplateError("a field of a function")
        return Name(root or ".", tuple(name for name in fields if name))
    if kind == "name":
        if text in ("true", "false"):
            return Literal(text == "true")
        if text == "nil":
            return Literal(None)
        return Call(text, ())
    raise TemplateError(f"`{text}` here")


def _unquoted(text: str) -> str:
    out, at = [], 1
    while at < len(text) - 1:
        char = text[at]
        if char == "\\":
            at += 1
            if text[at] not in _UNQUOTE:
                raise TemplateError("an escape that is not read here")
            char = _UNQUOTE[text[at]]
        out.append(char)
        at += 1
    return "".join(out)
