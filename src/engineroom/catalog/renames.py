"""Renames, moves and removals as a contract's `changes_since_previous` states them.

The lists are for people: several names in one line, braces, remarks in brackets. Only what resolves
to names of the contracts becomes a rename; the rest stays a statement, word for word.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass

from engineroom.catalog.contract import Contract
from engineroom.catalog.contract_index import ContractIndex, Key
from engineroom.catalog.contract_parts import Area, mapping, texts

_BRACES = re.compile(r"\{([^{}]*)\}")
KINDS = ("removed", "renamed", "deprecated", "changed", "added")


@dataclass(frozen=True)
class Statement:
    """One line of a change list.

    Attributes:
        version: the version that has it; `since` the one before.
        kind: removed, renamed, deprecated, changed or added.
        text: the line; a rename reads ``old -> new``.
        old, new: names written in it, not yet resolved.
    """

    version: str
    since: str
    kind: str
    text: str
    old: tuple[str, ...]
    new: tuple[str, ...] = ()
    note: str | None = None


def statements(contract: Contract) -> list[Statement]:
    """Every line of the version's change list."""
    changes = mapping(contract.data.get("changes_since_previous"))
    since = str(changes.get("previous", "unknown"))
    found: list[Statement] = []
    for kind in KINDS:
        rows = changes.get(kind)
        for row in rows if isinstance(rows, list) else []:
            facts = mapping(row)
            if facts:
                old, new = str(facts.get("old", "")), str(facts.get("new", ""))
                note = facts.get("note")
                found.append(
                    Statement(
                        contract.version,
                        since,
                        kind,
                        f"{old} -> {new}",
                        names(old),
                        names(new),
                        str(note) if note else _remark(new),
                    )
                )
            else:
                text = str(row)
                found.append(Statement(contract.version, since, kind, text, names(text)))
    return found


def sources(contract: Contract) -> tuple[str, ...]:
    return texts(mapping(contract.data.get("changes_since_previous")).get("source"))


def names(text: str) -> tuple[str, ...]:
    """Names in a line: remarks dropped, commas split, braces expanded.

    ``moe_config.{backend,max_num_tokens}; null …`` gives two paths.
    """
    text = text.split(";", 1)[0].split(" (", 1)[0]
    result: list[str] = []
    for part in re.split(r",(?![^{]*\})", text):
        part = part.strip()
        braces = _BRACES.search(part)
        if braces:
            inner = braces[1].split(",")
            result += [part[: braces.start()] + i.strip() + part[braces.end() :] for i in inner]
        elif part:
            result.append(part)
    return tuple(result)


def _remark(text: str) -> str | None:
    found = re.search(r"\((.*)\)\s*$|;\s*(.*)$", text)
    return (found[1] or found[2]) if found else None


@dataclass(frozen=True)
class Rename:
    """Old keys of one version and the new keys of the other; more than one when not one to one."""

    old: tuple[Key, ...]
    new: tuple[Key, ...]
    note: str | None
    version: str


def resolve_renames(
    old: ContractIndex, new: ContractIndex, chain: Sequence[Statement]
) -> tuple[list[Rename], set[Statement]]:
    """(renames between two versions, statements that gave one).

    Args:
        chain: statements from the older version's own to the newer's, in order of version.

    A name is followed through the chain (mixed_sampler -> enable_mixed_sampler -> sampler_type).
    """
    lines = [s for s in chain if s.kind == "renamed"]
    used: set[Statement] = set()
    grouped: dict[tuple[Key, ...], tuple[list[Key], Statement]] = {}
    for start in [line for line in lines if line.old]:
        for position, pattern in enumerate(start.old):
            for key in _matches(old, pattern):
                path = _follow(key, start, position, lines)
                target = _targets(new, key, path)
                if not target or key in target:
                    continue
                gone = key not in new.entries
                fresh = any(t not in old.entries for t in target)
                if not (gone or (fresh and start.version != old.version)):
                    continue
                used.add(start)
                known = grouped.setdefault(target, ([], start))
                if key not in known[0]:
                    known[0].append(key)
    renames = [
        Rename(tuple(keys), target, line.note, line.version)
        for target, (keys, line) in grouped.items()
    ]
    return renames, used


def _matches(index: ContractIndex, pattern: str) -> list[Key]:
    if "*" in pattern:
        return [
            k for k in index.entries if k[0] is Area.LLM_ARGS and fnmatch.fnmatchcase(k[1], pattern)
        ]
    found = index.find(pattern)
    if found or pattern.startswith("-") or "." in pattern or " " in pattern:
        return found
    # A bare nested name: only where exactly one argument has it.
    nested = [k for k in index.entries if k[0] is Area.LLM_ARGS and k[1].endswith(f".{pattern}")]
    return nested if len(nested) == 1 else []


def _follow(key: Key, start: Statement, position: int, lines: Sequence[Statement]) -> list[str]:
    """Names that the key has after the chain, written as the last statement writes them."""
    current = _pair(start, position)
    for line in lines[lines.index(start) + 1 :]:
        for place, pattern in enumerate(line.old):
            if any(fnmatch.fnmatchcase(name, pattern) for name in current):
                rest = [n for n in current if not fnmatch.fnmatchcase(n, pattern)]
                current = list(dict.fromkeys([*rest, *_pair(line, place)]))
    return current


def _pair(line: Statement, position: int) -> list[str]:
    one_to_one = len(line.old) == len(line.new) and not any("*" in n for n in line.old)
    return [line.new[position]] if one_to_one else list(line.new)


def _targets(new: ContractIndex, key: Key, written: Sequence[str]) -> tuple[Key, ...]:
    """Keys in the new version; a bare name stays beside the old one's siblings."""
    parent = key[1].rpartition(".")[0]
    found: dict[Key, None] = {}
    for name in written:
        relative = (key[0], f"{parent}.{name}") if parent and "." not in name else None
        if relative and relative in new.entries:
            found[relative] = None
        else:
            found |= dict.fromkeys(new.find(name, key[0]))
    return tuple(found)
