"""What a rule says: one fact about one key, with its reason, remedy and source."""

from __future__ import annotations

from dataclasses import dataclass

from engineroom.names import Severity


@dataclass(frozen=True)
class Finding:
    """A verdict of one rule.

    Attributes:
        code: stable kebab-case name; tests and users filter on it.
        severity: error (must not go on), warn (works at a cost, or unknown), info.
        key: dotted path in the spec, e.g. ``targets[0].sku``.
        reason: what is wrong and why, with the numbers.
        fix: what to change; never empty for error and warn.
        source: where the fact was read.
        target: id of the target it is about, or None for the whole spec.
    """

    code: str
    severity: Severity
    key: str
    reason: str
    fix: str
    source: str
    target: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        return {
            "code": self.code,
            "severity": str(self.severity),
            "key": self.key,
            "reason": self.reason,
            "fix": self.fix,
            "source": self.source,
            "target": self.target,
        }
