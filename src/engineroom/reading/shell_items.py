"""What reading a shell script gives: commands and assignments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engineroom.reading.shell_tokens import Budget, Document
from engineroom.reading.shell_values import SOURCED, Value, Word


@dataclass(frozen=True)
class Assignment:
    """`value` is None where it cannot be known without running the script.

    `certain`: it holds for what follows: not one of a branch, a subshell or of one command.
    """

    name: str
    written: str
    value: str | None
    unresolved: tuple[str, ...]
    line: int
    certain: bool = True


@dataclass(frozen=True)
class Command:
    """A simple command.

    Attributes:
        branch: it stands in an if, a loop, a case or a function.
        uncalled: why it never runs, in words; empty where it may.
        folder: where the script's ``cd`` went before it; empty for where it started, or not known.
    """

    words: tuple[Word, ...]
    line: int
    branch: bool = False
    uncalled: str = ""
    folder: str = ""


@dataclass(frozen=True)
class Script:
    """Commands and assignments in order; a text in ``bash -c '…'`` follows its command.

    Attributes:
        problems: (line, what), where the text ends inside a quote or a bracket.
        documents: here-documents that are written to a file, which are not read.
    """

    items: tuple[Command | Assignment, ...]
    problems: tuple[tuple[int, str], ...] = ()
    documents: tuple[Document, ...] = ()


Variables = dict[str, Value | None]


@dataclass
class Shared:
    """Of a script and the scripts inside it."""

    items: list[Command | Assignment] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    budget: Budget = field(default_factory=Budget)

    def doubt(self, at: int) -> None:
        """Assignments from there on are not certain for what follows."""
        for i in range(at, len(self.items)):
            item = self.items[i]
            if isinstance(item, Assignment) and item.certain:
                self.items[i] = replace(item, certain=False)


def agreed(ends: Sequence[Variables]) -> Variables:
    """Of the ways through a branch: a variable has a value where all of them give it the same."""
    if len(ends) == 1:
        return ends[0]
    names = dict.fromkeys(name for end in ends for name in end)
    merged: Variables = {}
    for name in names:
        values = [end.get(name) for end in ends]
        same = all(name in end for end in ends) and all(v == values[0] for v in values)
        merged[name] = values[0] if same else None
    if SOURCED in merged:
        merged[SOURCED] = Value()
    return merged
