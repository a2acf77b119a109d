"""The tree of a shell script: simple commands, and the branches, loops and functions around them.

Facts of the syntax: POSIX Shell Command Language, shell grammar; Bash manual, compound commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engineroom.reading.shell_tokens import REDIRECT, Budget, Document, Lexer, Token

MAX_DEPTH = 40
"""Of compound commands in each other."""


@dataclass(frozen=True)
class Simple:
    """Words of a command, assignments included.

    Attributes:
        documents: here-documents that it reads.
        strings: words of here-strings.
        to_file: its output goes to a file.
    """

    words: tuple[Token, ...]
    documents: tuple[Document, ...] = ()
    strings: tuple[Token, ...] = ()
    to_file: bool = False


@dataclass(frozen=True)
class If:
    """`arms`: condition and body; `other`: the body of else, None without one."""

    arms: tuple[tuple[Block, Block], ...]
    other: Block | None


@dataclass(frozen=True)
class Loop:
    """`names`: what for or select sets; `over`: its words, None for any other loop."""

    names: tuple[str, ...]
    over: tuple[Token, ...] | None
    head: Block
    body: Block


@dataclass(frozen=True)
class Case:
    arms: tuple[Block, ...]
    every: bool
    """One of the patterns is ``*``."""


@dataclass(frozen=True)
class Group:
    body: Block
    subshell: bool


@dataclass(frozen=True)
class Function:
    name: str
    body: Block


Node: TypeAlias = "Simple | If | Loop | Case | Group | Function"


@dataclass(frozen=True)
class Item:
    """A pipeline.

    Attributes:
        join: ``&&`` or ``||`` before it; empty where it always runs.
    """

    nodes: tuple[Node, ...]
    join: str = ""
    background: bool = False


Block: TypeAlias = "tuple[Item, ...]"

_CLOSERS = frozenset({"then", "do", "done", "fi", "esac", "}", "elif", "else", "in"})
_CASE_ENDS = frozenset({";;", ";&", ";;&"})


class _TooDeepError(Exception):
    pass


@dataclass
class Parser:
    """Takes any text: what is out of place is passed over."""

    tokens_: Sequence[Token]
    at: int = 0
    depth: int = 0

    def script(self) -> tuple[Block, tuple[tuple[int, str], ...]]:
        """(the tree, problems)."""
        items: list[Item] = []
        try:
            self._list(frozenset(), items)
        except _TooDeepError:
            line = self.tokens_[min(self.at, len(self.tokens_) - 1)].line
            return tuple(items), ((line, f"more than {MAX_DEPTH} levels: not read on"),)
        return tuple(items), ()

    # ---- cursor
    def _peek(self, ahead: int = 0) -> Token:
        at = self.at + ahead
        return self.tokens_[at] if at < len(self.tokens_) else Token("end", 0)

    def _is(self, *texts: str) -> bool:
        token = self._peek()
        return token.kind in ("word", "op") and token.text in texts

    def _take(self, *texts: str) -> bool:
        found = self._is(*texts)
        self.at += found
        return found

    def _lines(self) -> None:
        while self._peek().kind == "nl" or self._is(";"):
            self.at += 1

    # ---- lists
    def _block(self, *stop: str) -> Block:
        items: list[Item] = []
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _TooDeepError
        self._list(frozenset(stop), items)
        self.depth -= 1
        return tuple(items)

    def _list(self, stop: frozenset[str], items: list[Item]) -> None:
        join = ""
        while (token := self._peek()).kind != "end":
            if token.kind in ("word", "op") and token.text in stop:
                return
            if token.kind == "nl" or token.text in (";", "&", ")", "|", "|&", *_CASE_ENDS):
                self.at += 1
                continue
            if token.kind == "op" and token.text in ("&&", "||"):
                join = token.text
                self.at += 1
                continue
            if token.kind == "word" and token.text in _CLOSERS:
                self.at += 1
                continue
            before = self.at
            nodes = self._pipeline()
            background = self._is("&")
            if nodes:
                items.append(Item(nodes, join, background))
            join = ""
            self.at += self.at == before

    def _pipeline(self) -> tuple[Node, ...]:
        while self._take("!", "time"):
            pass
        nodes = [self._command()]
        while self._take("|", "|&"):
            while self._peek().kind == "nl":
                self.at += 1
            nodes.append(self._command())
        return tuple(n for n in nodes if n is not None)

    # ---- commands
    def _command(self) -> Node | None:
        token = self._peek()
        if token.kind == "op" and token.text == "(":
            self.at += 1
            body = self._block(")")
            self._take(")")
            return self._redirected(Group(body, subshell=True))
        if token.kind == "word":
            if token.text == "if":
                return self._redirected(self._if())
            if token.text in ("while", "until"):
                self.at += 1
                head = self._block("do")
                return self._redirected(Loop((), None, head, self._do()))
            if token.text in ("for", "select"):
                return self._redirected(self._for())
            if token.text == "case":
                return self._redirected(self._case())
            if token.text == "{":
                return self._redirected(Group(self._braces(), subshell=False))
            if token.text == "function" and self._peek(1).kind == "word":
                self.at += 2
                return self._function(self._peek(-1).text)
            if self._peek(1).text == "(" and self._peek(1).kind == "op":
                self.at += 1
                return self._function(token.text)
        return self._simple()

    def _simple(self) -> Simple | None:
        words: list[Token] = []
        documents: list[Document] = []
        strings: list[Token] = []
        to_file = test = False
        while (token := self._peek()).kind not in ("nl", "end"):
            if token.kind == "doc" and token.document is not None:
                documents.append(token.document)
            elif token.kind == "op" and (token.text == "<<<" or REDIRECT.fullmatch(token.text)):
                if words and token.text != "<<<" and words[-1].text in ("1", "2"):
                    words.pop()
                if self._peek(1).kind == "word":
                    self.at += 1
                    if token.text == "<<<":
                        strings.append(self._peek())
                    elif ">" in token.text and not token.text.endswith("&"):
                        to_file = to_file or not self._peek().text.startswith("/dev/")
            elif token.kind == "op":
                if not test:
                    break
            else:
                words.append(token)
                test = (test or (len(words) == 1 and token.text == "[[")) and token.text != "]]"
            self.at += 1
        if not words and not documents:
            return None
        return Simple(tuple(words), tuple(documents), tuple(strings), to_file)

    def _redirected(self, node: Node) -> Node:
        """Past the redirections after a compound command."""
        while True:
            token = self._peek()
            if token.kind == "word" and token.text in ("1", "2"):
                token = self._peek(1)
                if not (token.kind == "op" and REDIRECT.fullmatch(token.text)):
                    return node
                self.at += 1
            if token.kind == "doc":
                self.at += 1
            elif token.kind == "op" and (token.text == "<<<" or REDIRECT.fullmatch(token.text)):
                self.at += 1
                self.at += self._peek().kind == "word"
            else:
                return node

    def _function(self, name: str) -> Node | None:
        if self._take("("):
            self._take(")")
        while self._peek().kind == "nl":
            self.at += 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _TooDeepError
        body = self._command()
        self.depth -= 1
        return None if body is None else Function(name, (Item((body,)),))

    def _braces(self) -> Block:
        self._take("{")
        body = self._block("}")
        self._take("}")
        return body

    def _do(self) -> Block:
        self._lines()
        if self._is("{"):
            return self._braces()
        self._take("do")
        body = self._block("done")
        self._take("done")
        return body

    def _if(self) -> If:
        self.at += 1
        arms: list[tuple[Block, Block]] = []
        other = None
        while True:
            head = self._block("then")
            self._take("then")
            arms.append((head, self._block("elif", "else", "fi")))
            if self._take("elif"):
                continue
            if self._take("else"):
                other = self._block("fi")
            self._take("fi")
            return If(tuple(arms), other)

    def _for(self) -> Loop:
        self.at += 1
        names: tuple[str, ...] = ()
        over: list[Token] | None = None
        if self._peek().kind in ("word", "arith"):
            names = (self._peek().text,) if self._peek().kind == "word" else ()
            self.at += 1
        self._lines()
        if self._take("in"):
            over = []
            while self._peek().kind == "word":
                over.append(self._peek())
                self.at += 1
        return Loop(names, None if over is None else tuple(over), (), self._do())

    def _case(self) -> Case:
        self.at += 1
        while self._peek().kind not in ("nl", "end") and not self._is("in"):
            self.at += 1
        self._take("in")
        arms: list[Block] = []
        every = False
        while self._peek().kind != "end":
            while self._peek().kind == "nl" or self._is(*_CASE_ENDS):
                self.at += 1
            if self._take("esac"):
                break
            self._take("(")
            while self._peek().kind != "end" and not self._is(")"):
                every = every or self._is("*")
                self.at += 1
            self._take(")")
            arms.append(self._block(*_CASE_ENDS, "esac"))
        return Case(tuple(arms), every)


def parse(text: str, line: int, budget: Budget) -> tuple[Block, tuple[tuple[int, str], ...]]:
    """(the tree, problems)."""
    lexer = Lexer(text, line=line, budget=budget)
    tokens = list(lexer.tokens())
    block, problems = Parser(tokens).script()
    return block, (*lexer.problems, *problems)
