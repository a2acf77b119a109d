"""Every code a rule may answer with: what it says, why, and where the fact was read.

A code is declared once, beside its rule; declaring it enters it in the register that
``check --explain`` and the tests read.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Protocol

from engineroom.catalog import Catalog
from engineroom.errors import InternalError, UsageError, Where
from engineroom.names import Severity, Topic
from engineroom.types import Finding


class Located(Protocol):
    """What knows the file and the key under which a user wrote something, and the target."""

    @property
    def target_id(self) -> str | None: ...

    def place(self, key: str) -> tuple[str | None, str]: ...


@dataclass(frozen=True)
class Code:
    """A kind of finding.

    Attributes:
        severity: the usual one; a rule may answer milder or harder and says why.
        says: the rule in one sentence.
        why: what happens when it is broken.
        source: upstream file and commit, issue number or document; never engineroom.
    """

    id: str
    topic: Topic
    severity: Severity
    says: str
    why: str
    source: str

    def found(
        self,
        at: Located,
        key: str,
        reason: str,
        fix: str,
        *,
        severity: Severity | None = None,
        source: str | None = None,
        line: int | None = None,
    ) -> Finding:
        """A finding of this code at `key`, in the terms of what the user wrote."""
        file, shown = at.place(key)
        return Finding(
            self.id, severity or self.severity, shown, reason, fix, source or self.source,
            at.target_id, file, line,
        )  # fmt: skip


_REGISTER: dict[str, Code] = {}


def declare(id: str, topic: Topic, severity: Severity, *, says: str, why: str, source: str) -> Code:
    """Enter a code in the register."""
    if id in _REGISTER:
        raise InternalError(f"the code `{id}` is declared twice")
    code = Code(id, topic, severity, says, why, source)
    _REGISTER[id] = code
    return code


def register() -> dict[str, Code]:
    """All codes by id. Rule modules must be imported first (`engineroom.checks` does)."""
    return dict(sorted(_REGISTER.items()))


def explained(id: str, catalog: Catalog) -> dict[str, str]:
    """A code as text: of a rule, or of a row of `deploy/support/constraints.yaml`.

    Raises:
        UsageError: no such code; the hint has the nearest names.
    """
    if id in _REGISTER:
        code = _REGISTER[id]
        return {
            "code": code.id, "topic": str(code.topic), "severity": str(code.severity),
            "rule": code.says, "reason": code.why, "source": code.source,
        }  # fmt: skip
    if id in catalog.constraints:
        row = catalog.constraints[id]
        return {
            "code": id, "topic": row.applies_to, "severity": row.effect, "rule": row.rule,
            "reason": f"holds for the {row.lane} lane, versions {row.versions or 'all'}",
            "source": "; ".join(row.source),
        }  # fmt: skip
    near = difflib.get_close_matches(id, [*_REGISTER, *catalog.constraints], n=3, cutoff=0.5)
    raise UsageError(
        f"there is no finding code `{id}`",
        where=Where(key="--explain"),
        hint="did you mean " + " or ".join(f"`{n}`" for n in near) + "?"
        if near
        else "`engineroom check --format json` prints the codes it finds",
    )
