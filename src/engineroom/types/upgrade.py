"""What `upgrade` found between two stacks, and what it wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engineroom.names import LaneName, Support
from engineroom.types.migration import Fate, SettingReport


@dataclass(frozen=True)
class LaneEnd:
    """Support of a lane on both sides."""

    lane: LaneName
    old_version: str
    new_version: str
    before: Support
    after: Support
    reason: str
    source: str

    @property
    def ends(self) -> bool:
        """It was there, and is not, or is not known to be."""
        return self.before is Support.YES and self.after is not Support.YES


@dataclass(frozen=True)
class ClientChange:
    """A field of a lane's requests (`inputs`) or answers (`outputs`) that comes or goes."""

    lane: LaneName
    side: str
    name: str
    change: str
    text: str
    source: str


@dataclass(frozen=True)
class Rebuild:
    """What becomes of something that `build` or `quantize` made.

    Attributes:
        target: id of the target, or None for what all share.
        what: ``engine``, ``package``, ``checkpoint`` or ``repository``.
        verdict: ``rebuild``, ``write again`` (files only) or ``keep``.
    """

    target: str | None
    what: str
    verdict: str
    text: str
    source: str


@dataclass(frozen=True)
class HostChange:
    """A fact of the containers: CUDA, drivers, TensorRT, torch."""

    lane: LaneName | None
    name: str
    old: str | None
    new: str | None
    text: str


@dataclass(frozen=True)
class TargetUpgrade:
    """One target that moves, with every setting that is written for it.

    Attributes:
        added: names that are written for the new version only, with their values.
        unknown: why the settings are not all known, or None.
    """

    old_id: str
    new_id: str
    lane: LaneName
    settings: tuple[SettingReport, ...]
    added: Mapping[str, Any]
    unknown: str | None = None


@dataclass(frozen=True)
class Upgrade:
    """The result.

    Attributes:
        lanes: the lanes that the spec moves; without a spec, every lane.
        untouched: ids of targets whose stack is another than `old`, which stay as they are.
        findings: of `check` on the new spec that the old one does not have, as dictionaries.
        changes: differences of the two versions by kind, as `matrix diff` counts them.
        notes: what should be known and belongs to no one setting.
        unknown: what could not be compared, and why.
        rollback: steps back, in order.
        spec_text: text of the new spec; None without a spec.
        checked: False where `check` could not run on both specs; `unknown` says why.
        paths: name (``spec``, ``report_json``, ``report_md``) to file.
        comments_lost: the new spec could not be edited in place, so it is without the comments of the old.
    """

    old: str
    new: str
    spec: str | None
    lanes: tuple[LaneEnd, ...]
    targets: tuple[TargetUpgrade, ...]
    untouched: tuple[str, ...]
    clients: tuple[ClientChange, ...]
    rebuild: tuple[Rebuild, ...]
    host: tuple[HostChange, ...]
    findings: tuple[Mapping[str, Any], ...]
    changes: Mapping[str, int]
    details: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    unknown: tuple[str, ...]
    rollback: tuple[str, ...]
    spec_text: str | None
    out: Path
    paths: Mapping[str, Path]
    checked: bool = True
    comments_lost: bool = False

    @property
    def settings(self) -> tuple[SettingReport, ...]:
        return tuple(row for target in self.targets for row in target.settings)

    def counts(self) -> dict[str, int]:
        """Settings by fate, fates that occur only."""
        fates = [row.fate for row in self.settings]
        return {str(fate): fates.count(fate) for fate in Fate if fate in fates}

    @property
    def passes(self) -> bool:
        """Every setting is known, none is impossible, and `check` ran and finds no new error."""
        if not self.checked or any(target.unknown is not None for target in self.targets):
            return False
        return not any(row.fate is Fate.IMPOSSIBLE for row in self.settings) and not any(
            finding["severity"] == "error" for finding in self.findings
        )

    def as_dict(self) -> dict[str, Any]:
        """`report.json`, schema version 1."""
        return {
            "schema_version": 1, "kind": "upgrade-report", "from": self.old, "to": self.new,
            "spec": self.spec, "passes": self.passes, "checked": self.checked,
            "comments_lost": self.comments_lost, "counts": self.counts(),
            "lanes": [
                {
                    "lane": str(row.lane), "from": row.old_version, "to": row.new_version,
                    "before": str(row.before), "after": str(row.after), "ends": row.ends,
                    "reason": row.reason, "source": row.source,
                }
                for row in self.lanes
            ],
            "targets": [
                {
                    "old": t.old_id, "new": t.new_id, "lane": str(t.lane),
                    "settings": [row.as_dict() for row in t.settings], "added": dict(t.added),
                    "unknown": t.unknown,
                }
                for t in self.targets
            ],
            "untouched": list(self.untouched),
            "clients": [{**vars(row), "lane": str(row.lane)} for row in self.clients],
            "rebuild": [vars(row) for row in self.rebuild],
            "host": [{**vars(r), "lane": str(r.lane) if r.lane else None} for r in self.host],
            "findings": [dict(finding) for finding in self.findings],
            "changes": dict(self.changes), "details": [dict(row) for row in self.details],
            "notes": list(self.notes), "unknown": list(self.unknown), "rollback": list(self.rollback),
            "files": {name: path.name for name, path in self.paths.items()},
        }  # fmt: skip
