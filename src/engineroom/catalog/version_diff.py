"""What changes between two TensorRT-LLM versions, from their contracts alone. Pure.

Renames come from the contracts' change lists and aliases, never from names that look alike. Where
one contract cannot tell whether a name exists, the answer is ``unknown``, never ``removed``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import InvalidVersion, Version

from engineroom.catalog import renames
from engineroom.catalog.contract import Contract
from engineroom.catalog.contract_index import ContractIndex, Key, index
from engineroom.catalog.contract_parts import Area, Entry
from engineroom.catalog.renames import Rename, Statement
from engineroom.catalog.value_diff import value_changes
from engineroom.catalog.version_change import Change, ChangeKind

_USE = re.compile(r"use ([\w.\-]+)\Z")


@dataclass(frozen=True)
class VersionDiff:
    """Everything that differs, and what could not be compared.

    Attributes:
        statements: lines of the change lists that no change above expresses, word for word.
        unknown: parts that one of the two contracts does not describe.
        sources: where each area was read, by version.
    """

    old: str
    new: str
    changes: tuple[Change, ...] = ()
    statements: tuple[Statement, ...] = ()
    unknown: tuple[str, ...] = ()
    sources: Mapping[str, Mapping[str, tuple[str, ...]]] | None = None

    def mirrored(self) -> VersionDiff:
        """The same difference read from the other side."""
        return replace(
            self,
            old=self.new,
            new=self.old,
            changes=tuple(sorted((c.mirrored() for c in self.changes), key=Change.order)),
        )


def diff(old: Contract, new: Contract, between: Sequence[Contract] = ()) -> VersionDiff:
    """Compare two contracts.

    Args:
        between: contracts of the versions that lie between the two; their change lists carry renames.
    """
    if old.version == new.version:
        return VersionDiff(old.version, new.version)
    if Version(new.version) < Version(old.version):
        return diff(new, old, between).mirrored()
    chain = [old, *sorted(between, key=lambda c: Version(c.version)), new]
    lines = [line for contract in chain for line in renames.statements(contract)]
    a, b = index(old), index(new)
    comparison = _Comparison(a, b, lines)
    changes = comparison.run()
    missing = [
        f"the change list of {after.version} starts at {since}, not at {before.version}: renames "
        "in between may read as removed and added"
        for before, after in itertools.pairwise(chain)
        if (since := _since(after)) is not None and since > Version(before.version)
    ]
    return VersionDiff(
        old.version,
        new.version,
        tuple(sorted(changes, key=Change.order)),
        tuple(s for s in lines if s not in comparison.used and s.version != old.version),
        (*missing, *(f"{area}: {why}" for area, why in {**a.unknown, **b.unknown}.items())),
        {
            "changes": {c.version: renames.sources(c) for c in chain[1:]},
            **{str(area): _both(a, b, str(area)) for area in Area if str(area) in a.sources},
        },
    )


def _both(a: ContractIndex, b: ContractIndex, area: str) -> dict[str, tuple[str, ...]]:
    return {i.version: i.sources.get(area, ()) for i in (a, b)}


def _since(contract: Contract) -> Version | None:
    changes = contract.data.get("changes_since_previous")
    value = changes.get("previous") if isinstance(changes, Mapping) else None
    try:
        return Version(str(value)) if value else None
    except InvalidVersion:  # a list without a usable beginning; its lines still count
        return None


class _Comparison:
    """One run over two indexes; `used` collects the statements that became changes."""

    def __init__(self, a: ContractIndex, b: ContractIndex, lines: Sequence[Statement]) -> None:
        self.a, self.b = a, b
        self.lines = lines
        found, self.used = renames.resolve_renames(a, b, lines)
        self.renames = found + _aliases(a, b, {k for r in found for k in r.old})
        self.stated = self._stated("removed")
        self.deprecated = self._stated("deprecated")

    def _stated(self, kind: str) -> dict[Key, Statement]:
        """Keys that a change list names, by key; own lines of the old version are history."""
        return {
            key: line
            for line in self.lines
            if line.kind == kind and line.version != self.a.version
            for name in line.old
            for key in self.a.find(name.split(" on ", 1)[0])
        }

    def run(self) -> list[Change]:
        changes = [self._renamed(r) for r in self.renames]
        taken = {k for r in self.renames for k in r.old}
        made = {k for r in self.renames for k in r.new}
        for old, new in self._carried():
            taken.add(old)
            made.add(new)
        for key, entry in self.a.entries.items():
            if key not in taken:
                other = self.b.entries.get(key)
                changes += [self._gone(entry)] if other is None else self._kept(entry, other)
        for key, entry in self.b.entries.items():
            if key not in self.a.entries and key not in made:
                changes.append(self._came(entry))
        changes = [c for c in changes if c.kind is not ChangeKind.NONE]
        self._mark_used(changes)
        return changes

    def _carried(self) -> list[tuple[Key, Key]]:
        """Keys below a renamed object, which only move with it."""
        return [
            (key, (key[0], r.new[0][1] + key[1][len(r.old[0][1]) :]))
            for r in self.renames
            if len(r.old) == len(r.new) == 1
            for key in self.a.entries
            if key[0] is r.old[0][0]
            and key[1].startswith(r.old[0][1] + ".")
            and (key[0], r.new[0][1] + key[1][len(r.old[0][1]) :]) in self.b.entries
        ]

    def _renamed(self, rename: Rename) -> Change:
        old, new = rename.old[0], rename.new[0]
        a, b = self.a.entries[old], self.b.entries[new]
        moved = a.parent != b.parent and a.area in (Area.LLM_ARGS, Area.TRITON)
        notes = [rename.note] if rename.note else []
        if old in self.b.entries:
            notes.append(f"the contract of {self.b.version} has {old[1]} too")
        caveat = a.caveat or b.caveat
        return Change(
            ChangeKind.MOVED if moved else ChangeKind.RENAMED,
            a.area,
            tuple(k[1] for k in rename.old),
            tuple(k[1] for k in rename.new),
            a.default if a.default_known else None,
            b.default if b.default_known else None,
            caveat is None,
            "; ".join([*notes, *([caveat] if caveat else [])]) or None,
        )

    def _gone(self, a: Entry) -> Change:
        change = Change(
            ChangeKind.REMOVED, a.area, (a.path,), (), within=_within(a, self.a, self.b)
        )
        change = replace(change, old_value=a.default if a.default_known else None)
        pointer = _USE.match(a.note or "")
        if pointer and (a.area, pointer[1]) in self.b.entries:
            note = f"the contract of {self.a.version}: {a.note}"
            return replace(
                change, kind=ChangeKind.MOVED, new_names=(pointer[1],), note=note, within=None
            )
        line = self.stated.get((a.area, a.path))
        if line is not None:
            return replace(change, note=f"stated in the change list of {line.version}")
        doubt = _doubt(a, self.a, self.b)
        if doubt:
            return replace(change, kind=ChangeKind.UNKNOWN, note=doubt)
        return replace(change, certain=a.caveat is None, note=a.caveat)

    def _came(self, b: Entry) -> Change:
        change = Change(ChangeKind.ADDED, b.area, (), (b.path,), within=_within(b, self.b, self.a))
        change = replace(change, new_value=b.default if b.default_known else None)
        doubt = _doubt(b, self.b, self.a)
        if doubt:
            return replace(change, kind=ChangeKind.UNKNOWN, note=doubt)
        return replace(change, certain=b.caveat is None, note=b.caveat)

    def _kept(self, a: Entry, b: Entry) -> list[Change]:
        line = self.stated.get((a.area, a.path))
        if (b.early_only and not a.early_only) or (line is not None and b.caveat):
            # Two snapshots were merged: the one before this version has the name, the later not.
            why = f"{self.b.version}: {b.caveat}"
            if line is not None:
                why += f"; the change list of {line.version} says removed"
            return [
                Change(ChangeKind.UNKNOWN, a.area, (a.path,), (b.path,), certain=False, note=why)
            ]
        return value_changes(a, b, deprecated=(a.area, a.path) in self.deprecated)

    def _mark_used(self, changes: Sequence[Change]) -> None:
        """A statement is expressed when a change of its kind is about the key it begins with."""
        about: dict[str, set[str]] = {}
        for change in changes:
            for name in (*change.old_names, *change.new_names):
                about.setdefault(name.rpartition(" ")[2], set()).add(str(change.kind))
        kinds = {
            "removed": {"removed", "unknown", "values"},
            "deprecated": {"deprecated"},
            "added": {"added", "values"},
            "changed": {"redefaulted", "retyped", "values"},
        }
        for line in self.lines:
            heads = [n.split(" ", 1)[0] for n in line.old]
            wanted = kinds.get(line.kind, set())
            if heads and all(about.get(head, set()) & wanted for head in heads):
                self.used.add(line)


def _gone_above(entry: Entry, own: ContractIndex, other: ContractIndex) -> Entry | None:
    """The outermost part that comes or goes with the entry: a command, a family, an object."""
    gone = [e for e in own.ancestors(entry) if (e.area, e.path) not in other.entries]
    return gone[-1] if gone else None


def _within(entry: Entry, own: ContractIndex, other: ContractIndex) -> str | None:
    above = _gone_above(entry, own, other)
    return above.path if above else None


def _doubt(entry: Entry, own: ContractIndex, other: ContractIndex) -> str | None:
    """Why absence from the other contract proves nothing, or None when it does."""
    whole = _gone_above(entry, own, other)
    if whole is not None:
        return _doubt(whole, own, other)
    area = str(entry.area)
    for name in (area, f"{area} {entry.path.split(' ', 1)[0]}"):
        if name in other.unknown:
            return f"{other.version}: {other.unknown[name]}"
    if entry.area is Area.PINS:
        return f"the contract of {other.version} does not name this pin"
    above = next(other.ancestors(entry), None)
    if above is None or above.area is not Area.LLM_ARGS:
        return None
    if above.open:
        return f"the contract of {other.version} does not list what `{above.path}` holds in full"
    if other.leaves_out_free_text and entry.free_text:
        return f"the contract of {other.version} was read from a list without free-text fields"
    return None


def _aliases(a: ContractIndex, b: ContractIndex, taken: set[Key]) -> list[Rename]:
    """A name that the newer version keeps only as an alias of another."""
    found: list[Rename] = []
    for key, entry in b.entries.items():
        for alias in entry.aliases:
            command = key[1].rpartition(" ")[0]
            old = (key[0], f"{command} {alias}" if command else alias)
            if old in a.entries and old not in b.entries and old not in taken:
                note = f"{b.version} still accepts {alias} as an alias"
                found.append(Rename((old,), (key,), note, b.version))
    return found
