"""`report.md` of `upgrade`; the terminal shows the same without the settings that stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from engineroom.names import LaneName
from engineroom.types.migration import Fate, SettingReport
from engineroom.types.upgrade import Upgrade

_SHOWN = 60


def markdown(result: Upgrade, *, kept: bool = True) -> str:
    """The report as Markdown.

    Args:
        kept: list settings of fate `kept` too; else they are counted only.
    """
    return "\n".join(_lines(result, kept)) + "\n"


def _lines(result: Upgrade, kept: bool) -> Iterator[str]:
    yield f"# Upgrade from {result.old} to {result.new}"
    yield ""
    what = (
        f"Spec: `{result.spec}`." if result.spec else "No spec was given: what any spec would meet."
    )
    counts = ", ".join(f"{number} {fate}" for fate, number in result.counts().items())
    yield what + (f" Settings: {counts}." if counts else "")
    if result.comments_lost:
        yield ""
        yield "**The new spec is written anew: the comments of the old one are not in it.**"
    yield from _list("Notes", [*result.notes, *(f"unknown: {text}" for text in result.unknown)])
    yield from _table(
        "Lanes", ("lane", "from", "to", "support", "why"),
        [(r.lane, r.old_version, r.new_version, f"{r.before} -> {r.after}", f"{r.reason} ({r.source})")
         for r in result.lanes],
    )  # fmt: skip
    for target in result.targets:
        rows = [r for r in target.settings if kept or r.fate is not Fate.KEPT or r.todo]
        title = f"Settings of {target.old_id} ({target.new_id} after)"
        yield from _settings(title, rows)
        if target.added:
            names = ", ".join(f"`{n}` = {_text(v)}" for n, v in target.added.items())
            yield ""
            yield f"Written for the new version only: {names}"
    yield from _table(
        "Checks that are new on the new side", ("severity", "code", "key", "reason", "fix"),
        [tuple(f[k] for k in ("severity", "code", "key", "reason", "fix")) for f in result.findings],
    )  # fmt: skip
    yield from _table(
        "Clients", ("lane", "side", "field", "change", "source"),
        [(c.lane, c.side, f"`{c.name}`", c.change, c.source) for c in result.clients],
    )  # fmt: skip
    if not result.clients:
        yield from _list("Clients", ["no field of requests or answers comes or goes"])
    yield from _table(
        "What has to be built again", ("target", "what", "verdict", "why", "source"),
        [(r.target or "all", r.what, r.verdict, r.text, r.source) for r in result.rebuild],
    )  # fmt: skip
    yield from _table(
        "Hosts", ("lane", "fact", "from", "to", "meaning"),
        [(h.lane or "TensorRT-LLM", h.name, h.old, h.new, h.text) for h in result.host],
    )  # fmt: skip
    if result.changes:
        shown = ", ".join(f"{number} {kind}" for kind, number in result.changes.items())
        where = f"`{_diff_command(result)}` lists them"
        yield from _list("All differences of the two versions", [shown, where])
    yield from _details(result.details)
    yield from _list("Rollback", result.rollback)


def _diff_command(result: Upgrade) -> str:
    releases = all(side.replace(".", "").isdigit() for side in (result.old, result.new))
    row = next(r for r in result.lanes if r.lane is not LaneName.VLLM)
    sides = (result.old, result.new) if releases else ("--trtllm", row.old_version, row.new_version)
    return f"engineroom matrix diff {' '.join(sides)}"


def _settings(title: str, rows: Sequence[SettingReport]) -> Iterator[str]:
    yield from _table(
        title, ("setting", "was", "fate", "now", "why", "to do", "source"),
        [
            (
                f"{row.file}: `{row.key}`", _text(row.old_value), row.fate,
                f"`{row.new_key}` = {_text(row.new_value)}" if row.new_key else "-",
                row.what, row.todo or "nothing", row.source,
            )
            for row in rows
        ],
    )  # fmt: skip


def _details(rows: Sequence[Any]) -> Iterator[str]:
    """Without a spec: names that are removed, renamed, moved or re-defaulted, parts that go as a whole once."""
    for kind in (
        "removed",
        "renamed",
        "moved",
        "redefaulted",
        "retyped",
        "values",
        "deprecated",
        "unknown",
    ):
        found = [r for r in rows if r["kind"] == kind and not r["within"]]
        yield from _table(
            f"{kind} ({len(found)})", ("area", "name", "new name", "from", "to", "note"),
            [
                (r["area"], ", ".join(r["old_names"]), ", ".join(r["new_names"]),
                 _text(r["old_value"]), _text(r["new_value"]), r["note"] or "")
                for r in found[:_SHOWN]
            ],
        )  # fmt: skip
        if len(found) > _SHOWN:
            yield f"… and {len(found) - _SHOWN} more in report.json"


def _list(title: str, items: Iterable[str]) -> Iterator[str]:
    rows = list(items)
    if rows:
        yield ""
        yield f"## {title}"
        yield ""
        for item in rows:
            yield f"* {' '.join(item.split())}"


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield f"## {title}"
    yield ""
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(_cell(value) for value in row)} |"


def _cell(value: Any) -> str:
    return " ".join(_text(value).split()).replace("|", "\\|")


def _text(value: Any) -> str:
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)
