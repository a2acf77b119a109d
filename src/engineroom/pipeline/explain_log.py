"""`explain-log`: what known lines of a log mean, root cause first; the rest is answered unknown.

The log is streamed in blocks. A block is searched for the fixed text of every row first, so that the
patterns run on the few lines that can match.
"""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from engineroom.catalog import log_lines
from engineroom.catalog.log_lines import LogLine
from engineroom.errors import UsageError, Where
from engineroom.names import Severity
from engineroom.pipeline import log_text

DISTINCT = 50
"""Kept per row and differing values; further ones are only counted."""

UNKNOWN = 200
SHOWN = 400
NEAR_LINES = 40
"""`kubectl describe` prints a state before its reason: a cause may stand this far below."""

Values = dict[str, int | str]


@dataclass(frozen=True)
class Known:
    """A recognised line.

    Attributes:
        line: 1-based number of its first appearance.
        count: appearances with the same values.
        consequence: id and line of the recognised line that explains this one.
    """

    row: LogLine
    line: int
    text: str
    values: Values
    severity: Severity
    count: int = 1
    consequence: tuple[str, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        row, of = self.row, self.consequence
        return {
            "line": self.line,
            "id": row.id,
            "origin": row.origin,
            "severity": str(self.severity),
            "text": self.text,
            "values": self.values,
            "subject": row.fill(row.subject, self.values),
            "cause": row.fill(row.cause, self.values),
            "next_step": row.fill(row.next_step, self.values),
            "keys": list(row.keys),
            "source": "; ".join(row.source),
            "confidence": row.confidence,
            "verified_on": row.verified_on,
            "consequence_of": {"id": of[0], "line": of[1]} if of else None,
            "count": self.count,
        }


@dataclass(frozen=True)
class Unknown:
    """A line that looks like an error and that no row knows."""

    line: int
    text: str
    count: int = 1


@dataclass(frozen=True)
class Explanation:
    """`omitted` counts recognised and unknown lines beyond what is kept."""

    lines: int
    known: tuple[Known, ...]
    unknown: tuple[Unknown, ...]
    omitted: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "lines": self.lines,
            "recognised": [item.as_dict() for item in self.known],
            "unknown_errors": [
                {"line": item.line, "text": item.text, "count": item.count} for item in self.unknown
            ],
            "omitted": self.omitted,
        }

    def fails(self, fail_on: str) -> bool:
        """True at an unknown or recognised error; with ``warn`` or ``unknown`` at a warning too.

        An unknown error is never taken for success, so ``unknown`` says the same as ``warn``.
        """
        limit = Severity.ERROR if fail_on == Severity.ERROR.value else Severity.WARN
        return bool(self.unknown) or any(k.severity.rank <= limit.rank for k in self.known)


def explain_log(file: str, *, catalog: Path | None = None) -> Explanation:
    """Explain the log `file`, or standard input for ``-``.

    Raises:
        UsageError: missing, unreadable, binary, or larger than `MAX_BYTES`.
        CatalogError: a row of the overlay breaks its schema.
    """
    rows = log_lines.load(catalog)
    if file == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed", hint="pipe the log, or name a file")
        return _Reading(rows, "standard input").run(sys.stdin.buffer)
    path = Path(file)
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise UsageError(
                "not a log file", where=Where(file), hint="name one file, or - for standard input"
            )
        with path.open("rb") as stream:
            return _Reading(rows, file).run(stream)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot read the log: {reason}",
            where=Where(file),
            hint="check the path, or pipe the log: kubectl logs POD | engineroom explain-log -",
        ) from None


class _Reading:
    """One pass over one log."""

    def __init__(self, rows: tuple[LogLine, ...], name: str) -> None:
        self.rows, self.name = rows, name
        self.needles = [(row, row.contains.encode()) for row in rows]
        self.lines = self.omitted = 0
        self.found: dict[tuple[str, Any], Known] = {}
        self.distinct: dict[str, int] = {}
        self.odd: dict[str, Unknown] = {}
        self.traceback: int | None = None
        self.previous = b""

    def run(self, stream: BinaryIO) -> Explanation:
        for block in log_text.blocks(stream, self.name):
            active = [(row, needle) for row, needle in self.needles if needle in block]
            may_be_error = log_text.hints(block)
            for raw in block.split(b"\n"):
                self.lines += 1
                self._line(raw, active, may_be_error)
        if self.traceback is not None:
            self._unknown(self.traceback, log_text.TRACEBACK)
        unknown = sorted(self.odd.values(), key=lambda item: item.line)
        known = _ordered(sorted(self.found.values(), key=lambda item: item.line))
        return Explanation(self.lines, tuple(known), tuple(unknown), self.omitted)

    def _line(
        self, raw: bytes, active: list[tuple[LogLine, bytes]], may_be_error: Callable[[bytes], bool]
    ) -> None:
        if b"\r" in raw:  # CRLF, or a progress bar that a message follows
            parts = [part for part in raw.rsplit(b"\r", 64) if part.strip()]
        else:
            parts = [raw]
        for part in parts:
            rows = [row for row, needle in active if needle in part]
            if rows or may_be_error(part):
                self._judge(part, rows)
            self.previous = part

    def _judge(self, raw: bytes, rows: list[LogLine]) -> None:
        number = self.lines
        level, text = log_text.plain(raw)
        before = ""
        hit = False
        for row in rows:
            if row.previous_line and not before:
                before = log_text.plain(self.previous)[1]
            values = row.match(text, before)
            if values is not None:
                hit = True
                self._known(row, number, text, values, level)
        if text.startswith(log_text.TRACEBACK):
            self.traceback = number
        elif self.traceback is not None and not hit and text[:1] == " ":
            pass  # a frame: its path or code may hold any word
        elif hit or log_text.is_error(level, text):
            self.traceback = None
            if not hit:
                self._unknown(number, text)

    def _known(self, row: LogLine, number: int, text: str, values: Values, level: str) -> None:
        # A writer that only warns is believed: the same text can be fatal elsewhere.
        warned = level == "W" and row.severity is Severity.ERROR
        severity = Severity.WARN if warned else row.severity
        key = (row.id, tuple(values.items()))
        if key in self.found:
            entry = self.found[key]
            worst = min(entry.severity, severity, key=lambda s: s.rank)
            self.found[key] = replace(entry, count=entry.count + 1, severity=worst)
        elif self.distinct.get(row.id, 0) >= DISTINCT:
            self.omitted += 1
        else:
            self.distinct[row.id] = self.distinct.get(row.id, 0) + 1
            self.found[key] = Known(row, number, _shown(text), values, severity)

    def _unknown(self, number: int, text: str) -> None:
        key = re.sub(r"0x[0-9a-fA-F]{1,16}|\d{1,20}", "#", text[:300])
        if key in self.odd:
            self.odd[key] = replace(self.odd[key], count=self.odd[key].count + 1)
        elif len(self.odd) >= UNKNOWN:
            self.omitted += 1
        else:
            self.odd[key] = Unknown(number, _shown(text))


def _shown(text: str) -> str:
    text = " ".join(text.split("\n\nAt:")[0].split())  # without the Python backend's stack
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _ordered(found: list[Known]) -> list[Known]:
    """Root causes by severity and line, each followed by its consequences; `found` is by line."""
    follow: dict[int, list[int]] = {}
    roots: list[int] = []
    by_id: dict[str, list[int]] = {}
    for i, entry in enumerate(found):
        by_id.setdefault(entry.row.id, []).append(i)
    for i, entry in enumerate(found):
        causes = [c for name in entry.row.consequence_of for c in by_id.get(name, ())]
        above = [c for c in causes if found[c].line <= entry.line]
        below = [c for c in causes if 0 < found[c].line - entry.line <= NEAR_LINES]
        if above or below:
            cause = max(above) if above else min(below)
            found[i] = replace(entry, consequence=(found[cause].row.id, found[cause].line))
            follow.setdefault(cause, []).append(i)
        else:
            roots.append(i)

    def group(i: int) -> list[Known]:
        return [found[i], *(item for child in follow.get(i, ()) for item in group(child))]

    groups = [group(i) for i in roots]
    groups.sort(key=lambda items: (min(item.severity.rank for item in items), items[0].line))
    return [item for items in groups for item in items]
