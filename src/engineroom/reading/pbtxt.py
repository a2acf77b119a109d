"""A tolerant reader of protobuf text: `config.pbtxt` as found, placeholders left in it or not.

The server's own parser stops at the first fault and names a line and a column. This one goes on,
keeps the line of every value, and reports faults as data. Facts of the format: Protocol Buffers
Text Format Language Specification.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

MAX_DEPTH = 64
MAX_PROBLEMS = 50
MAX_TOKENS = 60_000
MAX_SHOWN = 60

PLACEHOLDER = re.compile(r"\$\{([_a-zA-Z][_a-zA-Z0-9]*)\}")
"""What `string.Template` leaves behind when it has no value (tools/fill_template.py)."""

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\f\v]+)
      | (?P<line>\n)
      | (?P<comment>\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<open>[{<])
      | (?P<close>[}>])
      | (?P<mark>[:,;\[\]])
      | (?P<word>(?:\$\{\w{1,100}\}|[A-Za-z0-9_.+\-$])+)
      | (?P<other>.)""",
    re.VERBOSE,
)
_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)


@dataclass(frozen=True)
class Problem:
    """A fault that makes the server's parser refuse the file."""

    line: int
    message: str


@dataclass(frozen=True)
class Scalar:
    """A value as written; `text` is without quotes and with escapes resolved.

    Attributes:
        line: 1-based.
        quoted: a string literal, or several that follow each other.
    """

    text: str
    line: int
    quoted: bool = False

    @property
    def placeholders(self) -> tuple[str, ...]:
        return tuple(PLACEHOLDER.findall(self.text))

    @property
    def shown(self) -> str:
        """For messages: never longer than MAX_SHOWN characters."""
        return self.text if len(self.text) <= MAX_SHOWN else self.text[:MAX_SHOWN] + "..."


@dataclass(frozen=True)
class Message:
    """Fields in the order of the file; a list's items are fields of the same name."""

    line: int
    fields: tuple[Field, ...] = ()

    def all(self, name: str) -> Iterator[Scalar | Message]:
        return (item.value for item in self.fields if item.name == name)

    def messages(self, name: str) -> Iterator[Message]:
        return (value for value in self.all(name) if isinstance(value, Message))

    def message(self, name: str) -> Message | None:
        """The last message of that name."""
        return next(iter([*self.messages(name)][-1:]), None)

    def scalars(self, name: str) -> Iterator[Scalar]:
        return (value for value in self.all(name) if isinstance(value, Scalar))

    def scalar(self, name: str) -> Scalar | None:
        """The last scalar of that name."""
        return next(iter([*self.scalars(name)][-1:]), None)


@dataclass(frozen=True)
class Field:
    """One field. `name` is empty for a message without one, as in an excerpt of a list.

    Attributes:
        listed: it stood in square brackets, which only repeated fields may.
    """

    name: str
    value: Scalar | Message
    line: int
    listed: bool = False


@dataclass(frozen=True)
class Document:
    root: Message
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int


@dataclass
class _Reader:
    tokens: list[_Token]
    at: int = 0
    problems: list[Problem] = field(default_factory=list)

    def peek(self) -> _Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self) -> _Token:
        token = self.tokens[self.at]
        self.at += 1
        return token

    def is_mark(self, mark: str) -> bool:
        token = self.peek()
        return token is not None and token.kind == "mark" and token.text == mark

    def problem(self, line: int, message: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(line, message))

    def message(self, line: int, depth: int, end: str | None) -> Message:
        """Fields up to the closing bracket `end`, or to the end of the text."""
        fields: list[Field] = []
        while (token := self.peek()) is not None:
            if token.kind == "close":
                self.take()
                if token.text == end:
                    return Message(line, tuple(fields))
                self.problem(token.line, f"unexpected `{token.text}`")
                if end is not None:
                    return Message(line, tuple(fields))
            elif token.kind == "mark" and token.text in ",;":
                self.take()
                if not fields:
                    self.problem(token.line, f"unexpected `{token.text}`")
            elif token.kind == "open":
                self.take()
                self.problem(token.line, f"a message without a field name before `{token.text}`")
                fields.append(Field("", self._nested(token, depth), token.line))
            elif token.kind == "word":
                fields += self._field(depth)
            else:
                self.take()
                self.problem(token.line, f"expected a field name, got `{token.text[:MAX_SHOWN]}`")
        if end is not None:
            self.problem(line, f"the message that begins here has no `{end}`")
        return Message(line, tuple(fields))

    def _nested(self, opening: _Token, depth: int) -> Message:
        close = "}" if opening.text == "{" else ">"
        if depth >= MAX_DEPTH:
            self.problem(opening.line, f"nested deeper than {MAX_DEPTH} messages")
            self._skip()
            return Message(opening.line)
        return self.message(opening.line, depth + 1, close)

    def _skip(self) -> None:
        """Past the bracket that closes the one just taken."""
        open_ = 1
        while self.at < len(self.tokens) and open_:
            kind = self.take().kind
            open_ += (kind == "open") - (kind == "close")

    def _field(self, depth: int) -> list[Field]:
        name = self.take()
        if not (name.text.isidentifier() and name.text.isascii()):
            self.problem(name.line, f"expected a field name, got `{name.text[:MAX_SHOWN]}`")
        colon = self.is_mark(":")
        if colon:
            self.take()
        if self.is_mark("["):
            return self._list(name, depth)
        token = self.peek()
        if token is None:
            self.problem(name.line, f"`{name.text[:MAX_SHOWN]}` has no value")
            return []
        if token.kind == "open":
            self.take()
            return [Field(name.text, self._nested(token, depth), name.line)]
        if token.kind not in ("word", "string"):
            self.problem(
                token.line, f"`{name.text[:MAX_SHOWN]}` has no value before `{token.text}`"
            )
            return []
        if not colon:
            self.problem(token.line, f"expected `:` or `{{` after `{name.text[:MAX_SHOWN]}`")
        return [Field(name.text, self._scalar(), name.line)]

    def _list(self, name: _Token, depth: int) -> list[Field]:
        """Items with one comma between two of them, and none after the last."""
        opening = self.take()
        items: list[Field] = []
        comma = False
        while (token := self.peek()) is not None and token.kind != "close":
            if token.kind == "mark" and token.text == "]":
                self.take()
                if comma:
                    self.problem(token.line, "a comma before `]`")
                return items
            if token.kind == "mark" and token.text == "," and items and not comma:
                self.take()
                comma = True
            elif token.kind == "mark":
                self.take()
                self.problem(token.line, f"unexpected `{token.text}` in a list")
            else:
                if items and not comma:
                    self.problem(token.line, "a comma is missing between two items of a list")
                comma = False
                if token.kind == "open":
                    self.take()
                    item: Scalar | Message = self._nested(token, depth)
                else:
                    item = self._scalar()
                items.append(Field(name.text, item, token.line, True))
        self.problem(opening.line, "the list that begins here has no `]`")
        return items

    def _scalar(self) -> Scalar:
        first = self.take()
        if first.kind == "string":
            parts = [_unquoted(first.text)]
            while (token := self.peek()) is not None and token.kind == "string":
                parts.append(_unquoted(self.take().text))
            return Scalar("".join(parts), first.line, True)
        text = first.text
        follower = self.peek()
        if text == "-" and follower is not None and follower.kind == "word":
            text += self.take().text
        return Scalar(text, first.line)


def _unquoted(literal: str) -> str:
    return _ESCAPE.sub(_resolve, literal[1:-1]) if "\\" in literal else literal[1:-1]


def _resolve(found: re.Match[str]) -> str:
    octal, hexed, four, eight, other = found.groups()
    if other is not None:
        return _ESCAPES.get(other, found[0])
    number = int(octal, 8) if octal else int(hexed or four or eight, 16)
    return chr(number) if number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF else "\ufffd"


def bad_escapes(literal: str) -> bool:
    """Whether a string literal has an escape that the text format does not know."""
    return any(m[5] is not None and m[5] not in _ESCAPES for m in _ESCAPE.finditer(literal))


def _tokens(text: str, problems: list[Problem]) -> list[_Token]:
    tokens: list[_Token] = []
    line = 1
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup or "other"
        if kind == "line":
            line += 1
        elif kind in ("space", "comment"):
            continue
        elif kind == "other":
            if len(problems) < MAX_PROBLEMS:
                told = "a string that does not end on its line" if found[0] in "\"'" else (
                    f"unexpected character {found[0]!r}"
                )  # fmt: skip
                problems.append(Problem(line, told))
        elif len(tokens) >= MAX_TOKENS:
            problems.append(Problem(line, f"more than {MAX_TOKENS} words: the rest was not read"))
            break
        else:
            if kind == "string" and "\\" in found[0] and bad_escapes(found[0]):
                problems.append(
                    Problem(line, "an escape in a string that the format does not know")
                )
            tokens.append(_Token(kind, found[0], line))
    return tokens


@lru_cache(maxsize=64)
def parse(text: str) -> Document:
    """Read a whole text in one pass; every fault is in `problems`, none is raised."""
    problems: list[Problem] = []
    reader = _Reader(_tokens(text, problems), problems=problems)
    root = reader.message(1, 0, None)
    return Document(root, tuple(sorted(problems, key=lambda p: p.line)))
