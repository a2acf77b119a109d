"""One difference between two versions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from engineroom.catalog.contract_parts import Area
from engineroom.names import StrEnum


class ChangeKind(StrEnum):
    """What happened to a name, read from the first version to the second."""

    REMOVED = "removed"
    RENAMED = "renamed"
    MOVED = "moved"
    """Renamed into another object."""
    REDEFAULTED = "redefaulted"
    RETYPED = "retyped"
    VALUES = "values"
    """The set of allowed values differs."""
    DEPRECATED = "deprecated"
    RESTORED = "restored"
    """No longer deprecated: what `deprecated` is from the other side."""
    CHANGED = "changed"
    """A fact of a pin or container."""
    ADDED = "added"
    UNKNOWN = "unknown"
    """One contract cannot tell whether the name exists."""
    NONE = "none"

    @property
    def mirrored(self) -> ChangeKind:
        pairs = {
            ChangeKind.REMOVED: ChangeKind.ADDED,
            ChangeKind.DEPRECATED: ChangeKind.RESTORED,
        }
        return {**pairs, **{b: a for a, b in pairs.items()}}.get(self, self)


_ORDER = list(ChangeKind)


@dataclass(frozen=True)
class Change:
    """A change of one name, or of a group of names that became another group.

    Attributes:
        old_names: names in the first version; empty for `added`.
        new_names: names in the second version; empty for `removed`.
        old_value, new_value: default, type, allowed values, status or fact, by kind; None is unset
            or not known.
        certain: False where a contract does not prove it for exactly this version (see `note`).
        within: the part that was removed or added as a whole, e.g. a command or a model family.
    """

    kind: ChangeKind
    area: Area
    old_names: tuple[str, ...]
    new_names: tuple[str, ...]
    old_value: Any = None
    new_value: Any = None
    certain: bool = True
    note: str | None = None
    within: str | None = None

    @property
    def name(self) -> str:
        return (self.old_names or self.new_names)[0]

    def order(self) -> tuple[int, str, str]:
        return (_ORDER.index(self.kind), str(self.area), self.name)

    def mirrored(self) -> Change:
        return replace(
            self,
            kind=self.kind.mirrored,
            old_names=self.new_names,
            new_names=self.old_names,
            old_value=self.new_value,
            new_value=self.old_value,
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": str(self.kind),
            "area": str(self.area),
            "old_names": list(self.old_names),
            "new_names": list(self.new_names),
            "old_value": _plain(self.old_value),
            "new_value": _plain(self.new_value),
            "certain": self.certain,
            "note": self.note,
            "within": self.within,
        }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
