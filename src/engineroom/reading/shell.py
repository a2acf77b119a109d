"""A shell script as data: commands and assignments, with variables put in as far as the text says.

Nothing is run. What only running would tell (command substitution, arguments, what a read sets, which
branch is taken) stays as ``${NAME}`` and is named in `unresolved`. Facts of the syntax: POSIX Shell
Command Language; Bash manual for arrays, ``+=``, local and compound commands.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from engineroom.reading import shell_syntax as syntax
from engineroom.reading.shell_items import Assignment, Command, Script, Shared, Variables, agreed
from engineroom.reading.shell_text import (
    DECLARES,
    ITEM,
    assigned,
    either,
    exits,
    fed,
    feeds_shell,
    first_words,
    folder_after,
    joined,
    looks_like_script,
    names_set,
    sum_names,
    target,
    word_of,
)
from engineroom.reading.shell_tokens import Document, Part, Token
from engineroom.reading.shell_values import MAX_VALUE, SOURCED, TOO_LONG, Expander, Value, Word

__all__ = ["Assignment", "Command", "Script", "read"]

MAX_NESTED = 2
MAX_ITEMS = 5_000
"""Commands: functions that call each other twice over would double them at each level."""
MAX_ROUNDS = 64
"""Words of a for loop that its body is read with."""
MAX_LEVELS = 60
"""Of branches, functions and scripts inside each other while they are read."""
MAX_CALLS = 12
"""Functions that are called inside each other."""

FOLDER = "(folder)"
"""Where `cd` went, among the variables: absent at the start, None where it is not known."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_POSITIONAL = re.compile(r"[0-9]+|[@*]")
_NEVER = "in a branch that is never taken"
_ACTIVATE = re.compile(r"(?:.*/)?bin/activate")


@dataclass
class _Reader:
    variables: Variables
    shared: Shared
    functions: dict[str, syntax.Block] = field(default_factory=dict)
    nested: int = 0
    calls: int = 0
    level: int = 0
    depth: int = 0
    dead: str = ""
    ended: bool = False
    locals: list[dict[str, Value | str | None]] = field(default_factory=list)

    @property
    def _expander(self) -> Expander:
        return Expander(self.variables, self.shared.budget)

    # ---- lists and branches
    def run(self, block: syntax.Block) -> None:
        if self.level >= MAX_LEVELS:
            line = self.shared.items[-1].line if self.shared.items else 1
            self.shared.problems.append((line, f"more than {MAX_LEVELS} levels: not read on"))
            return
        self.level += 1
        self._run(block)
        self.level -= 1

    def _run(self, block: syntax.Block) -> None:
        before, sure, previous = self.dead, True, None
        for item in block:
            if self.ended and not self.dead:
                self.dead = "after an exit that is always reached"
            state = joined(item.join, previous) if previous and item.join else "sure"
            sure = state == "sure" and (sure or not item.join)
            if sure or self.dead:
                self._item(item)
            else:
                never = _NEVER if state == "never" else ""
                self._alternatives([partial(self._item, item)], True, never)
            previous = item
        if not before:
            self.dead = ""

    def _item(self, item: syntax.Item) -> None:
        apart = len(item.nodes) > 1 or item.background
        feeds = fed(item.nodes)
        for node in item.nodes:
            if apart:
                self._apart(partial(self._node, node))
            else:
                self._node(node)
        for document in feeds:
            self._document(document)

    def _node(self, node: syntax.Node) -> None:
        if not self.shared.budget.spend() or len(self.shared.items) > MAX_ITEMS:
            return
        if isinstance(node, syntax.Simple):
            self._simple(node)
        elif isinstance(node, syntax.Function):
            self._define(node)
        elif isinstance(node, syntax.Group):
            if node.subshell:
                self._apart(lambda: self.run(node.body))
            else:
                self.run(node.body)
        elif isinstance(node, syntax.If):
            self._if(node)
        elif isinstance(node, syntax.Case):
            arms = [partial(self.run, arm) for arm in node.arms]
            self._alternatives(arms, not node.every)
        else:
            self._loop(node)

    def _apart(self, run: Callable[[], None]) -> None:
        """A subshell: what it sets does not leave it."""
        before, ended, functions = dict(self.variables), self.ended, dict(self.functions)
        at = len(self.shared.items)
        run()
        self.shared.doubt(at)
        self.variables, self.ended = before, ended
        self.functions = {**self.functions, **functions}

    def _alternatives(
        self, arms: Sequence[Callable[[], None]], none: bool, never: str = ""
    ) -> None:
        """Of several one runs, or `none`: a variable keeps its value where all of them agree."""
        before = self.variables
        ends: list[Variables] = [dict(before)] if none or never else []
        at = len(self.shared.items)
        self.depth += 1
        dead, self.dead = self.dead, self.dead or never
        for arm in arms:
            self.variables = dict(before)
            self.ended = False
            arm()
            if not (self.ended or never):
                ends.append(self.variables)
        self.dead = dead
        self.depth -= 1
        self.shared.doubt(at)
        self.ended = not ends
        self.variables = agreed(ends) if ends else before

    def _if(self, node: syntax.If) -> None:
        arms: list[Callable[[], None]] = []
        for at, (head, body) in enumerate(node.arms):
            if at == 0:
                self.run(head)
            word = word_of(head)
            if word in ("true", ":") and not arms:
                self.run(body)
                for _, later in node.arms[at + 1 :]:
                    self._never(later)
                self._never(node.other or ())
                return
            if word == "false":
                self._never(body)
                continue

            def arm(head: syntax.Block = head, body: syntax.Block = body, at: int = at) -> None:
                if at:
                    self.run(head)
                self.run(body)

            arms.append(arm)
        if node.other is not None and not arms:
            self.run(node.other)
        elif arms:
            other = node.other
            if other is not None:
                arms.append(lambda: self.run(other))
            self._alternatives(arms, other is None)

    def _never(self, block: syntax.Block) -> None:
        if block:
            self._alternatives([lambda: self.run(block)], True, _NEVER)

    def _loop(self, node: syntax.Loop) -> None:
        over = None if node.over is None else [self._expander.word(t) for t in node.over]
        set_here = set(names_set((*node.head, *node.body)))
        if over is not None and over and not any(w.unresolved for w in over):
            values = [v for w in over for v in w.values]
            if len(values) <= MAX_ROUNDS:
                stops = any(w in ("break", "continue") for w in first_words(node.body))
                self.depth += stops
                for value in values:
                    if self.ended:
                        break
                    self.variables |= {name: Value((value,)) for name in node.names}
                    self.run(node.body)
                self.depth -= stops
                if stops:
                    self.ended = False
                    self.variables |= dict.fromkeys({*set_here, *node.names}, None)
                return
        self.run(node.head)
        never = _NEVER if word_of(node.head) == "false" else ""

        def body() -> None:
            self.variables |= dict.fromkeys({*set_here, *node.names}, None)
            self.run(node.body)

        self._alternatives([body], True, never)
        if not never:
            self.variables |= dict.fromkeys(node.names, None)

    # ---- functions
    def _define(self, node: syntax.Function) -> None:
        """In a branch both definitions may hold: a call then reads either."""
        old = self.functions.get(node.name)
        both = self.depth and old is not None and old is not node.body
        self.functions[node.name] = either(old, node.body) if both and old else node.body

    def _call(self, name: str, arguments: tuple[Word, ...]) -> None:
        """The body with the arguments of a call; a function that calls itself is read once."""
        self.shared.called.add(name)
        before = {k: v for k, v in self.variables.items() if _POSITIONAL.fullmatch(k)}
        self._positionals(arguments)
        body = self.functions.pop(name)
        self.locals.append({})
        self.calls += 1
        ended, self.ended = self.ended, False
        dead = self.dead
        self.run(body)
        self.ended = ended or (self.ended and exits(body))
        self.dead = dead
        self.calls -= 1
        for key, value in self.locals.pop().items():
            self._restore(key, value)
        self.functions.setdefault(name, body)
        for key in [k for k in self.variables if _POSITIONAL.fullmatch(k)]:
            self.variables.pop(key)
        self.variables |= before

    def _restore(self, name: str, value: Value | str | None) -> None:
        if isinstance(value, str):
            self.variables.pop(name, None)
        else:
            self.variables[name] = value

    def _positionals(self, words: Sequence[Word]) -> None:
        values = tuple(v for word in words for v in word.values)
        unknown = tuple(dict.fromkeys(n for word in words for n in word.unresolved))
        for key in [k for k in self.variables if _POSITIONAL.fullmatch(k)]:
            self.variables.pop(key)
        self.variables |= {str(i): Value() for i in range(1, 10)}
        self.variables |= {str(i): Value((v,), unknown) for i, v in enumerate(values[:200], 1)}
        self.variables |= {"@": Value(values, unknown), "*": Value(values, unknown)}

    def _shift(self, words: Sequence[Word]) -> None:
        given = self.variables.get("@")
        count = words[0].values[0] if words and len(words[0].values) == 1 else "1"
        if given is None:
            return  # the script's own arguments are not known, before and after
        if not count.isdigit() or len(count) > 4:
            self.variables |= dict.fromkeys([k for k in self.variables if _POSITIONAL.fullmatch(k)])
            return
        left = given.items[int(count) :]
        self._positionals([Word("", left, given.unresolved, 1)])

    def rest(self) -> None:
        """Bodies that nothing calls, those first that no other one calls."""
        inner = {w for name, body in self.functions.items() for w in first_words(body) if w != name}
        for name in sorted(self.functions, key=lambda n: n in inner):
            if name in self.shared.called:
                continue
            before, self.ended = dict(self.variables), False
            for key in [k for k in self.variables if _POSITIONAL.fullmatch(k)]:
                self.variables.pop(key)
            self.depth += 1
            self.dead = f"in function {name}, which nothing calls"
            at = len(self.shared.items)
            self._call(name, ())
            self.shared.doubt(at)
            self.depth -= 1
            self.variables = before

    # ---- commands
    def _simple(self, node: syntax.Simple) -> None:
        tokens = list(node.words)
        if node.to_file or (tokens and tokens[0].text in ("tee", "cat")):
            self.shared.documents += node.documents
        if tokens and tokens[0].kind == "arith":
            self._unknown(sum_names(tokens[0].text))
            return
        if tokens and tokens[0].text in DECLARES:
            self._declare(tokens)
            return
        prefixes: list[Token] = []
        while tokens and (assigned(tokens[0]) or ITEM.match(tokens[0].text)):
            prefixes.append(tokens.pop(0))
        if not tokens:
            for token in prefixes:
                self._assign(token)
            return
        words = tuple(self._expander.word(token) for token in tokens)
        if not prefixes:
            self._command(words, tokens[0].line, node)
            return
        before = dict(self.variables)
        at = len(self.shared.items)
        for token in prefixes:
            self._assign(token)
        self.shared.doubt(at)
        self._command(words, tokens[0].line, node)
        for token in prefixes:  # they hold for this command alone
            name = target(token)
            self._restore(name, before.get(name, ""))

    def _command(self, words: tuple[Word, ...], line: int, node: syntax.Simple) -> None:
        name = words[0].values[0] if words[0].values and not words[0].unresolved else ""
        if name in ("builtin", "command") and len(words) > 1 and words[1].written[:1] != "-":
            self._command(words[1:], line, node)
            return
        if name in self.functions and self.calls < MAX_CALLS:
            first = Word("", words[0].values[1:], (), line)
            self._call(name, (first, *words[1:]) if first.values else words[1:])
            return
        rest = words[1:]
        if not self._builtin(name, rest, line):
            folder = self.variables.get(FOLDER)
            self.shared.items.append(
                Command(
                    words, line, self.depth > 0, self.dead,
                    folder.items[0] if folder is not None and folder.items else "",
                )
            )  # fmt: skip
        if name == "exit" or (name == "return" and self.calls) or (name == "exec" and rest):
            self.ended = self.ended or not self.dead
        elif name == "eval" or (name == "trap" and len(rest) > 1):
            told = rest if name == "eval" else rest[:1]
            text = " ".join(v for word in told for v in word.values)
            self._inner(text, line, apart=name == "trap")
        for option, inner in itertools.pairwise(words):
            if looks_like_script(words, option, inner):
                self._inner(inner.values[0], inner.line)
        if feeds_shell(words):
            for document in node.documents:
                self._document(document)
            for token in node.strings:
                self._inner(" ".join(self._expander.word(token).values), token.line)

    def _builtin(self, name: str, rest: tuple[Word, ...], line: int) -> bool:
        """Whether it is one that only changes variables, which no report has to mention."""
        values = [v for word in rest for v in word.values]
        unsure = any(word.unresolved for word in rest)
        if name == "unset":
            self.variables |= dict.fromkeys([v for v in values if _NAME.match(v)], Value())
            return True
        if name == "shift":
            self._shift(rest)
        elif name == "set" and values and not values[0].startswith(("-e", "-u", "-x", "-o", "+")):
            if values[0] == "--" or not values[0].startswith("-"):
                self._positionals(rest[1:] if values[0] == "--" else rest)
        elif name in ("read", "mapfile", "readarray", "getopts"):
            self._unknown([*values, "REPLY", "OPTARG", "OPTIND"])
        elif name == "printf" and values[:1] == ["-v"]:
            self._unknown(values[1:2])
        elif name == "let":
            self._unknown([n for v in values for n in sum_names(v)])
        elif name in ("source", "."):
            file = rest[0].written if rest else ""
            if not _ACTIVATE.fullmatch(file.strip("\"'")):
                self.shared.problems.append(
                    (line, f"{name} {file[:80]}: that file is not read; variables may come from it")
                )
                self.variables |= dict.fromkeys([k for k in self.variables if _NAME.match(k)], None)
                self.variables[SOURCED] = Value()
        elif name in ("cd", "pushd", "popd"):
            self._cd(name, values, unsure)
        return False

    def _unknown(self, names: Sequence[str]) -> None:
        self.variables |= dict.fromkeys([n for n in names if _NAME.match(n)], None)

    def _cd(self, name: str, values: list[str], unsure: bool) -> None:
        """Where relative paths start from now; None after ``cd -``."""
        if unsure and FOLDER not in self.variables:
            return  # cd "$(dirname "$0")" at the head: that is the start
        folder = self.variables.get(FOLDER, Value(("",)))
        if name == "popd" or unsure or len(values) != 1 or values[0] == "-" or folder is None:
            known = len(values) == 1 and not unsure and values[0].startswith("/")
            self.variables[FOLDER] = Value((values[0],)) if known else None
            return
        self.variables[FOLDER] = Value((folder_after(folder.items[0], values[0]),))

    def _document(self, document: Document) -> None:
        text = document.text
        if not document.literal:
            text = re.sub(r"\\([$`\\])", r"\1", text)
        self._inner(text, document.line)

    def _inner(self, text: str, line: int, apart: bool = True) -> None:
        """The script in ``bash -c '…'``; its lines count from the word's own."""
        if self.nested >= MAX_NESTED:
            self.shared.problems.append((line, "a script inside others: not read"))
            return
        block, problems = syntax.parse(text, line, self.shared.budget)
        self.shared.problems += problems
        self.nested += 1
        if apart:
            self._apart(lambda: self.run(block))
        else:
            self.run(block)
        self.nested -= 1

    # ---- assignments
    def _declare(self, tokens: list[Token]) -> None:
        options = "".join(t.text for t in tokens[1:] if t.text.startswith("-"))
        own = tokens[0].text in ("local", "declare", "typeset") and "g" not in options
        for token in tokens[1:]:
            name = target(token)
            if not _NAME.match(name):
                continue
            if own and self.locals and name not in self.locals[-1]:
                self.locals[-1][name] = self.variables.get(name, "")
            if not self._assign(token) and own and self.locals:
                self.variables[name] = Value()
            if any(kind in options for kind in "Anilu"):
                self.variables[name] = None

    def _assign(self, token: Token) -> bool:
        item = ITEM.match(token.text)
        if item is not None:
            self.variables[item[1]] = None
            self._told(item[1], token.text[item.end() :], None, (item[1],), token.line)
            return True
        found = assigned(token)
        if found is None:
            return False
        first, name, add = token.parts[0], found[1], found[2] == "+="
        is_array = len(token.parts) == 2 and token.parts[1].kind == "array"
        if is_array:
            values, unresolved = self._expander.items(token.parts[1].text, token.line)
        else:
            rest = (Part("text", first.text[found.end() :], True), *token.parts[1:])
            text, unresolved = self._expander.join(rest)
            values = (text,)
        if add:
            before = self.variables.get(name, None if SOURCED in self.variables else Value())
            if before is None:
                unresolved = (*unresolved, name)
                values = (f"${{{name}}}", *values) if is_array else (f"${{{name}}}{values[0]}",)
            else:
                joined = "".join(before.items[:1]) + (values[0] if values else "")
                values = (*before.items, *values) if is_array else (joined, *before.items[1:])
                unresolved = (*before.unresolved, *unresolved)
        unresolved = tuple(dict.fromkeys(unresolved))
        known: Value | None = Value(values, unresolved)
        length = sum(map(len, values))
        if TOO_LONG in unresolved or length > MAX_VALUE or not self.shared.budget.spend(length):
            known, unresolved = None, (name,)
        self.variables[name] = known
        shown = None if known is None or unresolved else " ".join(known.items)
        self._told(name, token.text[found.end() :], shown, unresolved, token.line)
        return True

    def _told(
        self, name: str, written: str, value: str | None, unresolved: tuple[str, ...], line: int
    ) -> None:
        certain = not self.dead and not self.depth
        self.shared.items.append(Assignment(name, written, value, unresolved, line, certain))


def read(text: str, variables: Mapping[str, str] | None = None) -> Script:
    """Read a script.

    Args:
        variables: values from outside, such as the environment that the user names.
    """
    start: Variables = {name: Value((value,)) for name, value in (variables or {}).items()}
    shared = Shared()
    block, problems = syntax.parse(text.replace("\r\n", "\n"), 1, shared.budget)
    shared.problems += problems
    reader = _Reader(start, shared)
    reader.run(block)
    reader.rest()
    if shared.budget.left <= 0:
        shared.problems.append((1, "the script is too much to read: some of it was passed over"))
    return Script(
        tuple(shared.items), tuple(dict.fromkeys(shared.problems)), tuple(shared.documents)
    )
