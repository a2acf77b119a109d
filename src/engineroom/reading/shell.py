"""A shell script as data: commands and assignments, with variables put in as far as the text says.

Nothing is run. What only running would tell (command substitution, arguments, what a loop or a read
sets) stays as ``${NAME}`` and is named in `unresolved`. Facts of the syntax: POSIX Shell Command
Language (quoting, parameter expansion, here-documents), and the Bash manual for arrays and ``+=``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from engineroom.reading.shell_tokens import ASSIGNED, REDIRECT, Lexer, Part, Token
from engineroom.reading.shell_values import MAX_VALUE, Expander, Value, Word

MAX_NESTED = 2
MAX_ITEMS = 5_000
"""Commands: functions that call each other twice over would double them at each level."""

_OPEN = {"if", "for", "while", "until", "case", "select", "{", "function"}
_CLOSE = {"fi", "done", "esac", "}"}
_SKIP = {"then", "do", "else", "elif", "!", "time"} | _OPEN | _CLOSE
_DECLARES = {"export", "declare", "local", "readonly", "typeset"}


@dataclass(frozen=True)
class Assignment:
    """`value` is None where it cannot be known without running the script."""

    name: str
    written: str
    value: str | None
    unresolved: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Command:
    """A simple command. `branch`: it stands in an if, a loop, a case or a function."""

    words: tuple[Word, ...]
    line: int
    branch: bool = False


@dataclass(frozen=True)
class Script:
    """Commands and assignments in order; a text in ``bash -c '…'`` follows its command.

    Attributes:
        problems: (line, what), where the text ends inside a quote or a bracket.
    """

    items: tuple[Command | Assignment, ...]
    problems: tuple[tuple[int, str], ...] = ()


@dataclass
class _Reader:
    variables: dict[str, Value | None]
    items: list[Command | Assignment] = field(default_factory=list)
    depth: int = 0
    brackets: int = 0
    functions: dict[str, list[Token]] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    defining: str | None = None

    @property
    def _expander(self) -> Expander:
        return Expander(self.variables)

    def run(self, tokens: Iterator[Token], nested: int) -> None:
        line: list[Token] = []
        skip_next = False
        for token in tokens:
            if token.kind == "word" and token.text == "{" and self._defines(line):
                self._body(tokens)
                line = []
            elif token.kind == "word":
                if skip_next:
                    skip_next = False  # the target of a redirection
                else:
                    line.append(token)
            elif token.kind == "op" and REDIRECT.fullmatch(token.text):
                if line and line[-1].text.isdigit() and line[-1].text in ("1", "2"):
                    line.pop()
                skip_next = True
            else:
                skip_next = False
                if not self._names_a_branch(token, line) and line:
                    self._command(line, nested)
                line = []
        if line:
            self._command(line, nested)

    def _names_a_branch(self, token: Token, line: list[Token]) -> bool:
        """``fp8)`` of a case, and ``build ()`` before a function's body, are no commands."""
        self.brackets += token.text == "("
        if token.text == ")":
            self.brackets -= 1
            if self.brackets < 0:
                self.brackets = 0
                return True
        if token.text == "(" and len(line) == 1:
            self.defining = line[0].text
        return token.text == "(" and bool(line)

    def _defines(self, line: list[Token]) -> bool:
        """Whether the brace after these words opens the body of a function."""
        if len(line) == 2 and line[0].text == "function":
            self.defining = line[1].text
            return True
        return not line and self.defining is not None

    def _body(self, tokens: Iterator[Token]) -> None:
        body: list[Token] = []
        open_ = 1
        for token in tokens:
            if token.kind == "word":
                open_ += (token.text == "{") - (token.text == "}")
            if not open_:
                break
            body.append(token)
        self.functions[self.defining or ""] = body
        self.defining = None

    def _call(self, name: str, arguments: tuple[Word, ...], nested: int) -> None:
        """The body with the arguments of a call; a function that calls itself is read once."""
        self.called.add(name)
        values = tuple(v for word in arguments for v in word.values)
        unknown = tuple(n for word in arguments for n in word.unresolved)
        given: dict[str, Value | None] = {
            str(i): Value((value,), unknown) for i, value in enumerate(values, 1)
        }
        given |= {"@": Value(values, unknown), "*": Value(values, unknown)}
        before = {key: self.variables.get(key) for key in (*map(str, range(1, 10)), "@", "*")}
        body = self.functions.pop(name)
        self.variables |= dict.fromkeys(before, Value()) | given
        self.run(iter(body), nested)
        self.functions[name] = body
        for key, value in before.items():
            if value is None:
                self.variables.pop(key, None)
            else:
                self.variables[key] = value

    def rest(self) -> None:
        """Bodies that nothing calls."""
        self.depth += 1
        for name in [n for n in self.functions if n not in self.called]:
            self.run(iter(self.functions[name]), MAX_NESTED)
        self.depth -= 1

    def _command(self, tokens: list[Token], nested: int) -> None:
        while tokens and tokens[0].text in _SKIP:
            word = tokens[0].text
            self.depth += (word in _OPEN) - (word in _CLOSE)
            self.depth = max(self.depth, 0)
            if word in ("for", "select") and len(tokens) > 1:
                self.variables[tokens[1].text] = None
                return
            if word in ("case", "function"):
                return
            tokens = tokens[1:]
        if tokens and tokens[0].text in _DECLARES:
            for token in tokens[1:]:
                self._assign(token)
            return
        while tokens and self._assign(tokens[0]):
            tokens = tokens[1:]
        if not tokens or len(self.items) > MAX_ITEMS:
            return
        self.defining = None
        if tokens[0].text in self.functions:
            self._call(tokens[0].text, tuple(self._expander.word(t) for t in tokens[1:]), nested)
            return
        if tokens[0].text == "unset":
            for token in tokens[1:]:
                self.variables[token.text] = Value()
            return
        if tokens[0].text in ("read", "getopts", "mapfile"):
            self.variables |= dict.fromkeys((t.text for t in tokens[1:]), None)
        words = tuple(self._expander.word(token) for token in tokens)
        self.items.append(Command(words, tokens[0].line, self.depth > 0))
        if nested < MAX_NESTED:
            for option, inner in itertools.pairwise(words):
                if option.values in (("-c",), ("-lc",), ("-ec",)) and len(inner.values) == 1:
                    self._inner(inner, nested)

    def _inner(self, inner: Word, nested: int) -> None:
        """The script in ``bash -c '…'``; its lines count from the word's own."""
        below = _Reader(dict(self.variables), depth=self.depth)
        below.run(Lexer(inner.values[0], line=inner.line).tokens(), nested + 1)
        self.items += below.items

    def _assign(self, token: Token) -> bool:
        first = token.parts[0] if token.parts else None
        found = (
            ASSIGNED.match(first.text)
            if first and first.kind == "text" and not first.quoted
            else None
        )
        if first is None or found is None:
            return False
        name, add = found[1], found[2] == "+="
        if len(token.parts) == 2 and token.parts[1].kind == "array":
            values, unresolved = self._expander.items(token.parts[1].text, token.line)
        else:
            rest = (Part("text", first.text[found.end() :], True), *token.parts[1:])
            text, unresolved = self._expander.join(rest)
            values = (text,)
        if add:
            before = self.variables.get(name, Value())
            is_array = len(token.parts) == 2 and token.parts[1].kind == "array"
            if before is None:
                unresolved = (*unresolved, name)
            else:
                values = (
                    (*before.items, *values) if is_array else (" ".join(before.items) + values[0],)
                )
                unresolved = (*before.unresolved, *unresolved)
        unresolved = tuple(dict.fromkeys(unresolved))
        known: Value | None = Value(values, unresolved)
        if sum(map(len, values)) > MAX_VALUE:
            known, unresolved = None, (name,)
        elif self.depth and name in self.variables and self.variables[name] != known:
            known, unresolved = None, (name,)  # which branch runs is not known
        self.variables[name] = known
        shown = None if known is None or unresolved else " ".join(known.items)
        written = token.text[found.end() :]
        self.items.append(Assignment(name, written, shown, unresolved, token.line))
        return True


def read(text: str, variables: Mapping[str, str] | None = None) -> Script:
    """Read a script.

    Args:
        variables: values from outside, such as the environment that the user names.
    """
    start: dict[str, Value | None] = {
        name: Value((value,)) for name, value in (variables or {}).items()
    }
    reader = _Reader(start)
    lexer = Lexer(text.replace("\r\n", "\n"))
    reader.run(lexer.tokens(), 0)
    reader.rest()
    return Script(tuple(reader.items), tuple(lexer.problems))
