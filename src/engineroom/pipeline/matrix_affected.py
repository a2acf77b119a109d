"""What `matrix diff --file` answers about a spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engineroom.errors import Where

FAILING = frozenset({"removed", "redefaulted", "support"})


@dataclass(frozen=True)
class Affected:
    """One setting that the change touches on one target.

    Attributes:
        setting: key path in the spec; `where` its file and line.
        emitted: the name engineroom writes for the old version, or None for a setting of its own.
        value: the value written there.
        kind: of the change; ``support`` where a format or lane loses support on the SKU.
        effect: what happens in the new version.
        emitted_in_new: what engineroom writes there for this setting, by name.
        rollback: key and value of the spec that bring the old behaviour back.
    """

    target: str
    setting: str
    where: Where
    area: str
    emitted: str | None
    value: Any
    kind: str
    certain: bool
    effect: str
    emitted_in_new: dict[str, Any]
    rollback: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "setting": self.setting,
            "file": self.where.file,
            "line": self.where.line,
            "area": self.area,
            "emitted": self.emitted,
            "value": self.value,
            "kind": self.kind,
            "certain": self.certain,
            "effect": self.effect,
            "emitted_in_new": self.emitted_in_new,
            "rollback": list(self.rollback),
        }


@dataclass(frozen=True)
class SpecDiff:
    """What the change does to a spec.

    Attributes:
        affected: settings that are touched.
        new_defaults: re-defaulted names in use that no setting of a spec reaches, as
            (lane, name, old default, new default, certain).
        unknown: targets about which nothing can be said, and why.
    """

    affected: tuple[Affected, ...]
    new_defaults: tuple[tuple[str, str, Any, Any, bool], ...]
    unknown: tuple[str, ...]

    @property
    def failing(self) -> bool:
        return any(item.kind in FAILING for item in self.affected)

    def as_dict(self) -> dict[str, Any]:
        """Its own keys beside those of the release diff."""
        return {
            "affected": [item.as_dict() for item in self.affected],
            "new_defaults": [
                {"lane": lane, "name": name, "old": old, "new": new, "certain": certain}
                for lane, name, old, new, certain in self.new_defaults
            ],
            "affected_unknown": list(self.unknown),
        }
