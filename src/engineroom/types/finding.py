"""What a rule says: one fact about one key, with its reason, remedy and source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from engineroom.names import Severity


@dataclass(frozen=True)
class Finding:
    """A verdict of one rule.

    Attributes:
        code: stable kebab-case name; tests and users filter on it.
        severity: error (must not go on), warn (works at a cost, or unknown), info.
        key: dotted path in the spec or in `file`, e.g. ``targets[0].sku``.
        reason: what is wrong and why, with the numbers.
        fix: what to change; never empty for error and warn.
        source: where the fact was read.
        target: id of the target it is about, or None for the whole spec.
        file: the file that `key` is in, where that is not the spec.
        line: 1-based line in `file`, when known.
    """

    code: str
    severity: Severity
    key: str
    reason: str
    fix: str
    source: str
    target: str | None = None
    file: str | None = None
    line: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": str(self.severity),
            "key": self.key,
            "reason": self.reason,
            "fix": self.fix,
            "source": self.source,
            "target": self.target,
            "file": self.file,
            "line": self.line,
        }


def verdict_of(findings: Iterable[Finding]) -> str:
    """``error``, ``warn`` or ``ok``; information is no alarm."""
    worst = min((f.severity.rank for f in findings), default=Severity.INFO.rank)
    return {0: "error", 1: "warn"}.get(worst, "ok")


@dataclass(frozen=True)
class Figure:
    """A value a rule worked out, e.g. ``kv_tokens``; reports carry it beside the findings."""

    name: str
    value: Any
