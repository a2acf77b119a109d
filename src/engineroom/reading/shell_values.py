"""Variables of a shell script, and words with them put in.

Facts of the syntax: POSIX Shell Command Language, parameter expansion, arithmetic and field splitting.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from engineroom.reading.shell_tokens import Lexer, Part, Token

MAX_VALUE = 65_536
"""Characters a variable may hold: ``A=$A$A`` in every line would grow without bound."""

_BRACED = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])(\[[@*]\])?(:?[-=+?]|)(.*)\Z", re.DOTALL
)
_QUOTED = re.compile(r":?[-=+][\"']")
"""A default in quotes, which is not split."""


@dataclass(frozen=True)
class Word:
    """One word of a command.

    Attributes:
        written: as in the script, continuation lines joined.
        values: what it becomes: none for an empty variable, several where one is split.
        unresolved: variables and substitutions without a known value, as ``NAME`` or ``$(…)``.
        line: 1-based.
    """

    written: str
    values: tuple[str, ...]
    unresolved: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Value:
    """Of a variable: its items (one, unless it is an array), and what in them is not known."""

    items: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()


@dataclass
class Expander:
    """Puts variables in; a name that is absent is not set by the script, None is not known."""

    variables: dict[str, Value | None]

    def items(self, text: str, line: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        words = [self.word(t) for t in Lexer(text, line=line).tokens() if t.kind == "word"]
        return (
            tuple(v for w in words for v in w.values),
            tuple(n for w in words for n in w.unresolved),
        )

    def join(self, parts: tuple[Part, ...]) -> tuple[str, tuple[str, ...]]:
        text, unresolved = "", []
        for part in parts:
            values, unknown = self._expand(part)
            text += " ".join(values)
            unresolved += unknown
            if len(text) > MAX_VALUE:
                return "", ("a value that is too long",)
        return text, tuple(unresolved)

    def word(self, token: Token) -> Word:
        """Split where an unquoted variable holds blanks, as the shell does."""
        if len(token.parts) == 2 and token.parts[0].text == "" and _is_list(token.parts[1]):
            values, unknown = self._expand(token.parts[1])  # "$@": as many words as it has
            return Word(token.text, values, tuple(dict.fromkeys(unknown)), token.line)
        done: list[str] = []
        current: str | None = None
        unresolved: list[str] = []
        for part in token.parts:
            values, unknown = self._expand(part)
            unresolved += unknown
            if part.kind == "var" and not (unknown or part.quoted or _QUOTED.search(part.text)):
                pieces = " ".join(values).split()
            elif _is_list(part) and not unknown:
                pieces = list(values)
            else:
                pieces = [" ".join(values)]
            for i, piece in enumerate(pieces):
                if i:
                    done.append(current or "")
                    current = None
                current = (current or "") + piece
            if sum(map(len, done)) + len(current or "") > MAX_VALUE:
                return Word(
                    token.text, (token.text[:MAX_VALUE],), ("a value that is too long",), token.line
                )
        if current is not None:
            done.append(current)
        return Word(token.text, tuple(done), tuple(dict.fromkeys(unresolved)), token.line)

    def _expand(self, part: Part) -> tuple[tuple[str, ...], list[str]]:
        if part.kind in ("text", "array"):
            return (part.text,), []
        if part.kind == "sub":
            number = self._arithmetic(part.text)
            return ((part.text,), [part.text[:80]]) if number is None else ((str(number),), [])
        found = _BRACED.match(part.text)
        if found is None or (found[4] and not found[3]):
            return (f"${{{part.text}}}",), [part.text[:80]]  # ${NAME%…}, ${#NAME} …
        name, op, argument = found[1], found[3], found[4]
        known = name in self.variables
        value = self.variables.get(name)
        if value is None and (known or op not in (":-", "-", ":=", "=")):
            return (f"${{{part.text}}}",), [name]
        empty = value is None or (":" in op and not "".join(value.items))
        if op in (":-", "-", ":=", "=") and empty:
            return self._default(name, op, argument)
        if value is None or (op in (":+", "+") and empty):
            return (), []
        if op in (":+", "+"):
            text, unknown = self._argument(argument)
            return (text,), list(unknown)
        return value.items, list(value.unresolved)

    def _arithmetic(self, text: str) -> int | None:
        """``$((TP * PP))`` of whole numbers, with + - * / % and brackets."""
        if not text.startswith("$((") or not text.endswith("))") or len(text) > 200:
            return None

        def number(found: re.Match[str]) -> str:
            value = self.variables.get(found[1] or found[2] or found[3])
            ok = value is not None and not value.unresolved and len(value.items) == 1
            return value.items[0] if value is not None and ok else "?"

        sums = re.sub(r"\$\{(\w+)\}|\$(\w+)|\b([A-Za-z_]\w*)", number, text[3:-2])
        if "**" in sums or not re.fullmatch(r"[0-9+\-*/%() \t]+", sums):
            return None
        try:
            return _calculate(ast.parse(sums.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return None

    def _default(self, name: str, op: str, argument: str) -> tuple[tuple[str, ...], list[str]]:
        """``${NAME:-text}`` of a variable that the script does not set: the text, unless the caller
        of the script sets it."""
        text, unknown = self._argument(argument)
        if "=" in op and not unknown:
            self.variables[name] = Value((text,))
        return (text,), list(unknown)

    def _argument(self, text: str) -> tuple[str, tuple[str, ...]]:
        tokens = [t for t in Lexer(text).tokens() if t.kind == "word"]
        words = [self.join(token.parts) for token in tokens]
        return " ".join(t for t, _ in words), tuple(n for _, u in words for n in u)


_SUMS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def _calculate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_calculate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        return _SUMS[type(node.op)](_calculate(node.left), _calculate(node.right))
    raise ValueError("no sum of whole numbers")


def _is_list(part: Part) -> bool:
    """``$@`` and ``${NAME[@]}`` stay several words in quotes."""
    return part.kind == "var" and (part.text == "@" or part.text.endswith("[@]"))
