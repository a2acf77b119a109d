"""Go's text/template, parsed as far as charts use it: text, actions, blocks, pipelines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from engineroom.reading import go_numbers

MAX_TEXT = 1_000_000
MAX_ACTIONS = 20_000
MAX_DEPTH = 60

_SPACE = " \t\r\n"
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
    pipe: Node | None


@dataclass
class Block:
    """`if`, `with` or `range`; `otherwise` is the else branch."""

    kind: str
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
        word, _, rest = source.partition(" ") if " " in source else (source, "", "")
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
        return Assign(match[1], match[2] == ":=", _pipeline(source[match.end() :]))
    return Print(_pipeline(source), source, start, end)


def _block(kind: str, rest: str) -> Block:
    variables: tuple[str, ...] = ()
    match = re.match(r"(\$[A-Za-z0-9_]+)(?:\s*,\s*(\$[A-Za-z0-9_]+))?\s*:=\s*", rest)
    if match:
        variables = tuple(name for name in match.groups() if name)
        rest = rest[match.end() :]
    return Block(kind, _pipeline(rest), variables)


def _pipeline(source: str) -> Node | None:
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
