"""Words, operators and line ends of a shell script, with the pieces that each word is made of.

Facts of the syntax: POSIX Shell Command Language, token recognition and quoting; Bash manual, arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_WORDS = 20_000
MAX_WORK = 300_000
"""Steps of one script: tokens, pieces of words, and every 32 characters that are handled."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=)")
_OPERATOR = re.compile(r"&&|\|\||;;&?|;&|\|&|[;|&()]")
_BLANK = re.compile(r"[ \t\r]+")
_ROWS = re.compile(r"\n(?:[ \t\r]*\n)*")
_PLAIN = re.compile(r"[^ \t\n\r;|&<>()\\'\"$`]+")
_PLAIN_QUOTED = re.compile(r'[^"\\$`]+')
_NO_BRACKET = re.compile(r"[^\\'\"(){}\n]+")
_HEREDOC = re.compile(r"<<(-?)[ \t]{0,80}(['\"]?)([^\s'\";|&<>()]{1,200})\2")
REDIRECT = re.compile(r"[0-9]*(?:>>|>\||>&|<&|<>|>|<(?!<))|&>>?")


@dataclass
class Budget:
    """Work that is left; a hostile script would take minutes otherwise."""

    left: int = MAX_WORK

    def spend(self, characters: int = 0) -> bool:
        """Take one step and what so many characters cost; False when nothing is left."""
        self.left -= 1 + (characters >> 5)
        return self.left > 0


@dataclass
class Document:
    """A here-document. `literal`: its end mark is quoted, so nothing in it is put in."""

    end: str
    tabs: bool
    literal: bool
    line: int = 0
    text: str = ""


@dataclass(frozen=True)
class Part:
    """A piece of a word: text, or a parameter (`kind` "var"), or a substitution ("sub")."""

    kind: str
    text: str
    quoted: bool


@dataclass(frozen=True)
class Token:
    """A word, an operator ("op"), an end of line ("nl"), ``((…))`` ("arith") or ``<<X`` ("doc")."""

    kind: str
    line: int
    text: str = ""
    parts: tuple[Part, ...] = ()
    document: Document | None = None


@dataclass
class Lexer:
    text: str
    at: int = 0
    line: int = 1
    problems: list[tuple[int, str]] = field(default_factory=list)
    heredocs: list[Document] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)

    def tokens(self) -> Iterator[Token]:
        text, count = self.text, 0
        while self.at < len(text):
            if not self.budget.spend():
                self._stop(f"more than {MAX_WORK} pieces: not read on")
                return
            char = text[self.at]
            if (blank := _BLANK.match(text, self.at)) is not None:
                self.at = blank.end()
            elif text.startswith("\\\n", self.at):
                self.at += 2
                self.line += 1
            elif char == "\n":
                yield Token("nl", self.line)
                rows = _ROWS.match(text, self.at)
                end = rows.end() if rows is not None and not self.heredocs else self.at + 1
                self.line += text.count("\n", self.at, end)
                self.at = end
                self._read_heredocs()
            elif char == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            elif text.startswith("<<<", self.at):
                yield Token("op", self.line, "<<<")
                self.at += 3
            elif text.startswith("<<", self.at):
                document = self._heredoc()
                if document is not None:
                    yield Token("doc", self.line, document=document)
            elif (found := REDIRECT.match(text, self.at)) is not None:
                yield Token("op", self.line, found[0])
                self.at = found.end()
            elif text.startswith("((", self.at) and (sums := self._sums()) is not None:
                yield sums
            elif (op := _OPERATOR.match(text, self.at)) is not None:
                yield Token("op", self.line, op[0])
                self.at = op.end()
            else:
                count += 1
                if count > MAX_WORDS:
                    self._stop(f"more than {MAX_WORDS} words: not read on")
                    return
                yield self._word()

    def _stop(self, why: str) -> None:
        self.problems.append((self.line, why))
        self.at = len(self.text)

    def _sums(self) -> Token | None:
        """``((…))``; None where the two brackets open subshells."""
        start, line, told = self.at, self.line, len(self.problems)
        self._until(")")
        if self.text[self.at - 2 : self.at] == "))" and len(self.problems) == told:
            return Token("arith", line, self.text[start : self.at])
        self.at, self.line = start, line
        del self.problems[told:]
        self.budget.left -= 1000  # nested ones would be looked through again and again
        return None

    def _heredoc(self) -> Document | None:
        found = _HEREDOC.match(self.text, self.at)
        if found is None:
            self.at += 2
            return None
        literal = bool(found[2]) or "\\" in found[3]
        document = Document(found[3].replace("\\", ""), bool(found[1]), literal)
        self.heredocs.append(document)
        self.at = found.end()
        return document

    def _read_heredocs(self) -> None:
        """The lines of a here-document are input of a command, and no commands."""
        for document in self.heredocs:
            document.line, rows = self.line, []
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                row = self.text[self.at : stop]
                row = row.lstrip("\t") if document.tabs else row
                self.at = min(stop + 1, len(self.text))
                self.line += 1
                if row.rstrip("\r") == document.end:
                    break
                rows.append(row)
            document.text = "\n".join(rows)
        self.heredocs.clear()

    def _word(self) -> Token:
        text, start, line = self.text, self.at, self.line
        parts: list[Part] = []
        while self.at < len(text):
            if not self.budget.spend():
                self._stop(f"more than {MAX_WORK} pieces: not read on")
                break
            char = text[self.at]
            if char in " \t\n\r;|&<>)" or (char == "(" and not self._array(parts)):
                break
            if char == "(":
                self._until(")")  # an array's items are read from the text
                parts.append(Part("array", text[start : self.at].split("(", 1)[1][:-1], False))
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
                plain = _PLAIN.match(text, self.at)
                end = self.at + 1 if plain is None else plain.end()
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
            if not self.budget.spend():
                self._stop(f"more than {MAX_WORK} pieces: not read on")
                return parts
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
                plain = _PLAIN_QUOTED.match(text, self.at)
                end = self.at + 1 if plain is None else plain.end()
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
            if not self.budget.spend():
                self._stop(f"more than {MAX_WORK} pieces: not read on")
                return
            if (plain := _NO_BRACKET.match(self.text, self.at)) is not None:
                self.at = plain.end()
                continue
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
