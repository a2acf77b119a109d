"""Variables of a shell script, and words with them put in.

Facts of the syntax: POSIX Shell Command Language, parameter expansion, arithmetic and field splitting.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from engineroom.reading.shell_tokens import Budget, Lexer, Part, Token

MAX_VALUE = 65_536
"""Characters a variable may hold: ``A=$A$A`` in every line would grow without bound."""

MAX_DEPTH = 8
"""Of ``${A:-${B:-…}}``: what lies deeper is not known."""
TOO_LONG = "a value that is too long"
SOURCED = "(sourced)"
"""In the variables after ``source FILE``, which may have set any name."""

_BRACED = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])(\[[@*]\]|\[[0-9]{1,4}\])?(:?[-=+?]|)(.*)\Z", re.DOTALL
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
    budget: Budget = field(default_factory=Budget)
    depth: int = 0

    def items(self, text: str, line: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        words = [
            self.word(t)
            for t in Lexer(text, line=line, budget=self.budget).tokens()
            if t.kind == "word"
        ]
        return (
            tuple(v for w in words for v in w.values),
            tuple(n for w in words for n in w.unresolved),
        )

    def join(self, parts: tuple[Part, ...]) -> tuple[str, tuple[str, ...]]:
        text, unresolved = "", []
        for part in parts:
            values, unknown = self._expand(part)
            if len(text) + sum(map(len, values)) > MAX_VALUE:
                return "", (TOO_LONG,)
            text += " ".join(values)
            unresolved += unknown
        return text, tuple(unresolved)

    def word(self, token: Token) -> Word:
        """Split where an unquoted variable holds blanks, as the shell does."""
        if len(token.parts) == 2 and token.parts[0].text == "" and _is_list(token.parts[1]):
            values, unknown = self._expand(token.parts[1])  # "$@": as many words as it has
            return Word(token.text, values, tuple(dict.fromkeys(unknown)), token.line)
        done: list[str] = []
        current: str | None = None
        unresolved: list[str] = []
        length = 0
        for part in token.parts:
            values, unknown = self._expand(part)
            unresolved += unknown
            if part.kind == "var" and not (unknown or part.quoted or _QUOTED.search(part.text)):
                pieces = " ".join(values).split()
            elif _is_list(part):
                pieces = list(values)
            else:
                pieces = [" ".join(values)]
            length += sum(map(len, pieces))
            if length > MAX_VALUE or not self.budget.spend(32 * len(pieces)):
                return Word(token.text, (token.text[:80],), (TOO_LONG,), token.line)
            for i, piece in enumerate(pieces):
                if i:
                    done.append(current or "")
                    current = None
                current = (current or "") + piece
        if current is not None:
            done.append(current)
        return Word(token.text, tuple(done), tuple(dict.fromkeys(unresolved)), token.line)

    def _expand(self, part: Part) -> tuple[tuple[str, ...], list[str]]:
        if not self.budget.spend(len(part.text)):
            return (), [TOO_LONG]
        if part.kind in ("text", "array"):
            return (part.text,), []
        if part.kind == "sub":
            number = self._arithmetic(part.text)
            return ((part.text,), [part.text[:80]]) if number is None else ((str(number),), [])
        found = _BRACED.match(part.text)
        if found is None or (found[4] and not found[3]):
            return (f"${{{part.text}}}",), [part.text[:80]]  # ${NAME%…}, ${#NAME} …
        name, index, op, argument = found[1], found[2], found[3], found[4]
        known = name in self.variables or (SOURCED in self.variables and name not in "@*#?$!-")
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
        if not self.budget.spend(sum(map(len, value.items)) + 32 * len(value.items)):
            return (), [TOO_LONG]
        if index in ("[@]", "[*]") or name in ("@", "*"):
            return value.items, list(value.unresolved)
        at = int(index[1:-1]) if index else 0  # $NAME of an array is its first item
        return value.items[at : at + 1], _of(value.items[at : at + 1], value.unresolved)

    def _arithmetic(self, text: str) -> int | None:
        """``$((TP * PP))`` of whole numbers, with + - * / % and brackets."""
        if not text.startswith("$((") or not text.endswith("))") or len(text) > 200:
            return None

        for name in ASSIGNS.findall(text):
            self.variables[next(filter(None, name))] = None

        def number(found: re.Match[str]) -> str:
            value = self.variables.get(found[1] or found[2] or found[3])
            ok = value is not None and not value.unresolved and bool(value.items)
            first = value.items[0] if value is not None and ok else "?"
            return first if _WHOLE.fullmatch(first) else "?"

        sums = re.sub(r"\$\{(\w+)\}|\$(\w+)|\b([A-Za-z_]\w*)", number, text[3:-2])
        if "**" in sums or "//" in sums or not re.fullmatch(r"[0-9+\-*/%() \t]+", sums):
            return None
        try:
            number_ = _calculate(ast.parse(sums.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return None
        return number_ if -(2**63) <= number_ < 2**63 else None

    def _default(self, name: str, op: str, argument: str) -> tuple[tuple[str, ...], list[str]]:
        """``${NAME:-text}`` of a variable that the script does not set: the text, unless the caller
        of the script sets it."""
        text, unknown = self._argument(argument)
        if "=" in op and not unknown:
            self.variables[name] = Value((text,))
        return (text,), list(unknown)

    def _argument(self, text: str) -> tuple[str, tuple[str, ...]]:
        if self.depth >= MAX_DEPTH:
            return text[:80], ("a default inside many others",)
        below = Expander(self.variables, self.budget, self.depth + 1)
        tokens = [t for t in Lexer(text, budget=self.budget).tokens() if t.kind == "word"]
        words = [below.join(token.parts) for token in tokens]
        return " ".join(t for t, _ in words), tuple(n for _, u in words for n in u)


ASSIGNS = re.compile(
    r"([A-Za-z_]\w{0,80})\s{0,8}(?:[-+*/%&|^]|<<|>>)?=(?!=)|(?:\+\+|--)\s{0,8}([A-Za-z_]\w{0,80})"
    r"|([A-Za-z_]\w{0,80})(?:\+\+|--)"
)
"""Names that a sum sets: ``X = …``, ``++X`` and ``X--``."""
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")


def _calculate(node: ast.expr) -> int:
    """As the Bash manual says of shell arithmetic: C's division, which cuts towards zero."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        inner = _calculate(node.operand)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp):
        left, right = _calculate(node.left), _calculate(node.right)
        if isinstance(node.op, (ast.Add, ast.Sub)):
            return left + right if isinstance(node.op, ast.Add) else left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, (ast.Div, ast.Mod)):
            cut = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return cut if isinstance(node.op, ast.Div) else left - right * cut
    raise ValueError("no sum of whole numbers")


def _of(pieces: tuple[str, ...], unresolved: tuple[str, ...]) -> list[str]:
    """Those of the unknown names that stand in the pieces."""
    return [n for n in unresolved if any(holds(piece, n) for piece in pieces)]


def holds(piece: str, name: str) -> bool:
    """Whether a piece of text has the unknown name or substitution in it."""
    if name[:1] in ("$", "`"):
        return name in piece
    return f"${{{name}" in piece or " " in name  # the latter is a reason, and no name


def _is_list(part: Part) -> bool:
    """``$@`` and ``${NAME[@]}`` stay several words in quotes."""
    return part.kind == "var" and (part.text == "@" or part.text.endswith("[@]"))
