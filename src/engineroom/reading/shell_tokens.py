"""Words, operators and line ends of a shell script, with the pieces that each word is made of.

Facts of the syntax: POSIX Shell Command Language, token recognition and quoting; Bash manual, arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_WORDS = 20_000

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=)")
_OPERATORS = ("&&", "||", ";;", "|&", ";", "|", "&", "(", ")")
REDIRECT = re.compile(r"[0-9]*(?:>>|>\||>&|<&|<>|>|<(?!<))|&>>?")


@dataclass(frozen=True)
class Part:
    """A piece of a word: text, or a parameter (`kind` "var"), or a substitution ("sub")."""

    kind: str
    text: str
    quoted: bool


@dataclass(frozen=True)
class Token:
    """A word, an operator ("op") or an end of line ("nl")."""

    kind: str
    line: int
    text: str = ""
    parts: tuple[Part, ...] = ()


@dataclass
class Lexer:
    text: str
    at: int = 0
    line: int = 1
    problems: list[tuple[int, str]] = field(default_factory=list)
    heredocs: list[tuple[str, bool]] = field(default_factory=list)

    def tokens(self) -> Iterator[Token]:
        text, count = self.text, 0
        while self.at < len(text):
            char = text[self.at]
            if char in " \t\r":
                self.at += 1
            elif text.startswith("\\\n", self.at):
                self.at += 2
                self.line += 1
            elif char == "\n":
                yield Token("nl", self.line)
                self.at += 1
                self.line += 1
                self._skip_heredocs()
            elif char == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            elif text.startswith("<<<", self.at):
                self.at += 3
            elif text.startswith("<<", self.at):
                self._heredoc()
            elif (found := REDIRECT.match(text, self.at)) is not None:
                yield Token("op", self.line, found[0])
                self.at = found.end()
            elif (
                op := next((o for o in _OPERATORS if text.startswith(o, self.at)), None)
            ) is not None:
                yield Token("op", self.line, op)
                self.at += len(op)
            else:
                count += 1
                if count > MAX_WORDS:
                    self.problems.append((self.line, f"more than {MAX_WORDS} words: not read on"))
                    return
                yield self._word()

    def _heredoc(self) -> None:
        found = re.compile(r"<<(-?)[ \t]*(['\"]?)([^\s'\";|&<>]+)\2").match(self.text, self.at)
        if found is None:
            self.at += 2
            return
        self.heredocs.append((found[3].replace("\\", ""), bool(found[1])))
        self.at = found.end()

    def _skip_heredocs(self) -> None:
        """The lines of a here-document are input of a command, and no commands."""
        for end, tabs in self.heredocs:
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                row = self.text[self.at : stop]
                self.at = min(stop + 1, len(self.text))
                self.line += 1
                if (row.lstrip("\t") if tabs else row).rstrip("\r") == end:
                    break
        self.heredocs.clear()

    def _word(self) -> Token:
        text, start, line = self.text, self.at, self.line
        parts: list[Part] = []
        while self.at < len(text):
            char = text[self.at]
            if char in " \t\n\r;|&<>)" or (char == "(" and not self._array(parts)):
                break
            if char == "(":
                self._until(")")  # an array's items are read from the text
                parts.append(
                    Part("array", text[start:][: self.at - start].split("(", 1)[1][:-1], False)
                )
            elif char == "\\":
                if text.startswith("\n", self.at + 1):
                    self.line += 1
                else:
                    parts.append(Part("text", text[self.at + 1 : self.at + 2], True))
                self.at += 2
            elif char == "'":
                parts.append(Part("text", self._quoted("'"), True))
            elif char == '"':
                parts += self._double()
            elif char in "$`":
                parts.append(self._dollar(False))
            else:
                end = self.at + 1
                while end < len(text) and text[end] not in " \t\n\r;|&<>()\\'\"$`":
                    end += 1
                parts.append(Part("text", text[self.at : end], False))
                self.at = end
        written = text[start : self.at].replace("\\\n", " ")
        return Token("word", line, written, tuple(parts))

    def _array(self, parts: list[Part]) -> bool:
        """Whether the bracket here opens an array: ``NAME=(``."""
        return (
            len(parts) == 1
            and not parts[0].quoted
            and ASSIGNED.fullmatch(parts[0].text) is not None
        )

    def _quoted(self, mark: str) -> str:
        begin = self.line
        end = self.text.find(mark, self.at + 1)
        if end < 0:
            self.problems.append((begin, f"no closing {mark}"))
            end = len(self.text)
        inner = self.text[self.at + 1 : end]
        self.line += inner.count("\n")
        self.at = end + 1
        return inner

    def _double(self) -> list[Part]:
        text, begin = self.text, self.line
        self.at += 1
        parts = [Part("text", "", True)]  # "" is a word
        while self.at < len(text):
            char = text[self.at]
            if char == '"':
                self.at += 1
                return parts
            if char == "\\" and text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                follower = text[self.at + 1]
                if follower == "\n":
                    self.line += 1
                else:
                    parts.append(Part("text", follower, True))
                self.at += 2
            elif char in "$`":
                parts.append(self._dollar(True))
            else:
                end = self.at + 1
                while end < len(text) and text[end] not in '"\\$`':
                    end += 1
                piece = text[self.at : end]
                self.line += piece.count("\n")
                parts.append(Part("text", piece, True))
                self.at = end
        self.problems.append((begin, 'no closing "'))
        return parts

    def _dollar(self, quoted: bool) -> Part:
        text = self.text
        if text[self.at] == "`":
            return Part("sub", "`" + self._quoted("`") + "`", quoted)
        start = self.at
        follower = text[start + 1 : start + 2]
        if follower == "{":
            self.at += 1
            self._until("}")
            return Part("var", text[start + 2 : self.at - 1], quoted)
        if follower == "(":
            self.at += 1
            self._until(")")
            return Part("sub", text[start : self.at], quoted)
        if follower == "'" and not quoted:
            self.at += 1
            return Part("text", self._quoted("'"), True)
        found = _NAME.match(text, start + 1)
        if found is not None:
            self.at = found.end()
            return Part("var", found[0], quoted)
        if follower and follower in "0123456789@*#?$!-":
            self.at += 2
            return Part("var", follower, quoted)
        self.at += 1
        return Part("text", "$", quoted)

    def _until(self, close: str) -> None:
        """Past the bracket that closes the one at the cursor; quotes inside hide brackets."""
        open_ = "{" if close == "}" else "("
        begin, depth = self.line, 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\":
                self.line += self.text.startswith("\n", self.at + 1)
                self.at += 2
                continue
            if char in "'\"" and close == ")":
                self._quoted(char)
                continue
            self.line += char == "\n"
            depth += (char == open_) - (char == close)
            self.at += 1
            if depth == 0:
                return
        self.problems.append((begin, f"no closing {close}"))
