"""What the text of a command alone tells: the names it sets, whether it fails, what it feeds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from engineroom.reading import shell_syntax as syntax
from engineroom.reading.shell_tokens import ASSIGNED, Document, Token
from engineroom.reading.shell_values import ASSIGNS, Word

_SCRIPT_OPTION = re.compile(r"-[a-z]{0,3}c")
MAX_BODIES = 12
"""Definitions of one function in branches that are kept."""
SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh"})
DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
ITEM = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[[^\]]*\]\+?=")


def assigned(token: Token) -> re.Match[str] | None:
    first = token.parts[0] if token.parts else None
    if first is None or first.kind != "text" or first.quoted:
        return None
    return ASSIGNED.match(first.text)


def target(token: Token) -> str:
    """The name that a word of an assignment sets."""
    found = assigned(token) or ITEM.match(token.text)
    return found[1] if found else token.text


def sum_names(text: str) -> list[str]:
    return [name for found in ASSIGNS.findall(text) for name in found if name]


def simple_commands(block: syntax.Block) -> Iterator[syntax.Simple]:
    """Every simple command in a block, bodies of functions left out."""
    for item in block:
        for node in item.nodes:
            if isinstance(node, syntax.Simple):
                yield node
            elif isinstance(node, syntax.If):
                for head, body in node.arms:
                    yield from simple_commands((*head, *body))
                yield from simple_commands(node.other or ())
            elif isinstance(node, syntax.Loop):
                yield from simple_commands((*node.head, *node.body))
            elif isinstance(node, syntax.Case):
                for arm in node.arms:
                    yield from simple_commands(arm)
            elif isinstance(node, syntax.Group):
                yield from simple_commands(node.body)


def first_words(block: syntax.Block) -> Iterator[str]:
    for node in simple_commands(block):
        if node.words:
            yield node.words[0].text


def names_set(block: syntax.Block) -> Iterator[str]:
    """Names that a loop's body may set, so that they are not known when it starts again."""
    for node in simple_commands(block):
        told = bool(node.words) and node.words[0].text in DECLARES
        for token in node.words:
            if token.kind == "arith":
                yield from sum_names(token.text)
            elif assigned(token) or ITEM.match(token.text):
                yield target(token)
            elif not told:
                break


def exits(block: syntax.Block) -> bool:
    """Whether what ends the body ends the script as well: ``exit``, not ``return``."""
    return not any(word == "return" for word in first_words(block))


def word_of(head: syntax.Block) -> str:
    """The one word of a condition such as ``true``; empty for every other one."""
    if len(head) != 1 or len(head[0].nodes) != 1:
        return ""
    node = head[0].nodes[0]
    if not isinstance(node, syntax.Simple) or len(node.words) != 1:
        return ""
    return node.words[0].text


def joined(join: str, item: syntax.Item) -> str:
    """Whether what stands after ``&&`` or ``||`` of the item runs: "sure", "never" or "maybe"."""
    word = word_of((item,))
    good, bad = word in ("true", ":") or only_assigns(item), word == "false"
    if not (good or bad):
        return "maybe"
    return "sure" if good == (join == "&&") else "never"


def only_assigns(item: syntax.Item) -> bool:
    """Whether it always succeeds: plain assignments, without a command that may fail."""
    node = item.nodes[0]
    if len(item.nodes) != 1 or not isinstance(node, syntax.Simple):
        return False
    plain = all(assigned(t) for t in node.words)
    return plain and not any(p.kind == "sub" for t in node.words for p in t.parts)


def feeds_shell(words: Sequence[Word]) -> bool:
    """Whether the command's input is a script: ``bash``, ``docker run img bash``, ``ssh host``."""
    values = [v for word in words for v in word.values]
    at = next((i for i, v in enumerate(values) if v.rsplit("/", 1)[-1] in SHELLS), None)
    if at is None:
        return bool(values) and values[0] == "ssh" and len(values) <= 4
    after = values[at + 1 :]
    return "-s" in after[:3] or all(v.startswith("-") and v != "-c" for v in after)


def looks_like_script(words: Sequence[Word], option: Word, inner: Word) -> bool:
    """``-c`` of a shell; another program's ``-c`` takes a script only where it has several words."""
    if len(option.values) != 1 or len(inner.values) != 1:
        return False
    if not _SCRIPT_OPTION.fullmatch(option.values[0]):
        return False
    for word in words:
        if word is option:
            break
        if any(v.rsplit("/", 1)[-1] in SHELLS for v in word.values):
            return True
    return " " in inner.values[0] and option.values[0] in ("-c", "-lc", "-ec")


def fed(nodes: Sequence[syntax.Node]) -> list[Document]:
    """``cat <<X | bash``: the here-document is the next command's input."""
    if len(nodes) < 2:
        return []
    first, second = nodes[0], nodes[1]
    if not isinstance(first, syntax.Simple) or not isinstance(second, syntax.Simple):
        return []
    plain = [Word(t.text, (t.text,), (), t.line) for t in second.words]
    if [t.text for t in first.words] == ["cat"] and feeds_shell(plain):
        return list(first.documents)
    return []


def either(old: syntax.Block, new: syntax.Block) -> syntax.Block:
    """One body out of two: a case over both."""
    node = old[0].nodes[0]
    arms = node.arms if isinstance(node, syntax.Case) else (old,)
    if len(arms) < MAX_BODIES and not any(arm is new for arm in arms):
        arms = (*arms, new)
    return (syntax.Item((syntax.Case(arms, every=True),)),)


def folder_after(folder: str, path: str) -> str:
    """Where ``cd path`` leads from a folder; both may be relative to where the script started."""
    whole = path if path.startswith("/") or not folder else f"{folder}/{path}"
    steps: list[str] = []
    for step in whole.split("/"):
        if step == ".." and steps and steps[-1] != "..":
            steps.pop()
        elif step not in ("", "."):
            steps.append(step)
    return ("/" if whole.startswith("/") else "") + "/".join(steps)
