"""`report.md` and `report.json`: every setting of the old files and what became of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engineroom.types.migration import Fate, OldSetup, SettingReport

SCHEMA_VERSION = 1
_ORDER = (Fate.IMPOSSIBLE, Fate.REDEFAULTED, Fate.LEFTOVER, Fate.RENAMED, Fate.MOVED, Fate.KEPT)
_MEANING = {
    Fate.IMPOSSIBLE: "the new lane has nothing for it",
    Fate.REDEFAULTED: "not carried over: the new side's own value holds",
    Fate.LEFTOVER: "a placeholder nobody filled, an empty value, or something nobody reads",
    Fate.RENAMED: "the same under another name",
    Fate.MOVED: "said in another place, or follows from something else",
    Fate.KEPT: "the same name and meaning",
}
_CELL = 160


def as_json(
    setup: OldSetup,
    settings: Sequence[SettingReport],
    missing: Sequence[str],
    notes: Sequence[str],
    findings: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The report as data; `settings` in the order of the files."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "migration-report",
        "repository": setup.repo.as_posix(),
        "generation": setup.generation,
        "models": [
            {"file": m.file, "name": m.name, "kind": m.kind, "backend": m.backend} for m in setup.models
        ],
        "counts": {str(fate): sum(s.fate is fate for s in settings) for fate in _ORDER},
        "missing": list(missing),
        "notes": list(notes),
        "findings": [dict(f) for f in findings],
        "settings": [s.as_dict() for s in settings],
    }  # fmt: skip


def as_markdown(
    setup: OldSetup,
    settings: Sequence[SettingReport],
    missing: Sequence[str],
    notes: Sequence[str],
    findings: Sequence[Mapping[str, Any]],
) -> str:
    """The same for people: what needs a hand first, then every file."""
    sources: dict[str, int] = {}
    lines = list(_head(setup, settings, missing, notes, findings))
    for file in dict.fromkeys(s.file for s in settings):
        lines += ["", f"## {_plain(file)}", ""]
        lines += _table([s for s in settings if s.file == file], sources)
    lines += ["", "## Sources", ""]
    lines += [f"{number}. {_plain(text)}" for text, number in sources.items()]
    return "\n".join(lines) + "\n"


def _head(
    setup: OldSetup,
    settings: Sequence[SettingReport],
    missing: Sequence[str],
    notes: Sequence[str],
    findings: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    yield "# Migration report"
    yield ""
    yield f"Old setup: {_plain(setup.repo.as_posix())}. Generation: {_plain(setup.generation)}."
    yield "Nothing of it was run. The new spec is `engineroom.yaml`, what clients change is in `clients.md`, and"
    yield "`ab-plan.md` says how to put the new service beside the old one."
    yield ""
    yield "| fate | settings | means |"
    yield "| --- | --- | --- |"
    for fate in _ORDER:
        yield f"| {fate} | {sum(s.fate is fate for s in settings)} | {_MEANING[fate]} |"
    if missing:
        yield from ("", "## To fill in before `check` passes", "")
        yield from (f"* {_plain(text)}" for text in missing)
    told = [f for f in findings if f["severity"] in ("error", "warn")]
    if told:
        yield from ("", "## What `check` says about the new spec", "")
        for f in told:
            yield f"* {f['severity']} {f['code']}, `{f['key']}`: {_plain(f['reason'])}. To do: {_plain(f['fix'])}."
    if notes:
        yield from ("", "## To know", "")
        yield from (f"* {_plain(text)}" for text in notes)
    todo = [
        s
        for s in settings
        if s.todo and s.fate in (Fate.IMPOSSIBLE, Fate.REDEFAULTED, Fate.LEFTOVER)
    ]
    if todo:
        yield from ("", "## To do", "")
        grouped: dict[tuple[str, str], list[SettingReport]] = {}
        for s in todo:
            grouped.setdefault((s.what, s.todo), []).append(s)
        for (what, do), rows in grouped.items():
            names = list(dict.fromkeys(f"`{_code(r.key)}`" for r in rows))
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            yield f"* {', '.join(names[:6])}{more}: {_plain(what)}. {_plain(do[:1].upper() + do[1:])}."


def _table(rows: Sequence[SettingReport], sources: dict[str, int]) -> Iterator[str]:
    """A row a setting; neighbours that share everything but name and old value share one."""
    yield "| line | setting | was | fate | now | why, and what to do | source |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for _, group in itertools.groupby(rows, key=_shared):
        alike = list(group)
        first = alike[0]
        number = sources.setdefault(first.source, len(sources) + 1)
        now = f"`{_code(first.new_key)}`" if first.new_key else ""
        if first.new_value is not None:
            told = f"`{_code(_text(first.new_value))}`"
            now = f"{now} = {told}" if now else told
        why = _plain(first.what) + (f". To do: {_plain(first.todo)}" if first.todo else "")
        for part in (alike,) if len(alike) >= _TOGETHER else ([s] for s in alike):
            names = ", ".join(f"`{_code(s.key)}`" for s in part)
            was = ", ".join(f"`{_code(_text(s.old_value))}`" for s in part)
            lines = [s.line for s in part if s.line is not None]
            span = (
                ""
                if not lines
                else f"{lines[0]}"
                if len(part) == 1
                else f"{min(lines)}-{max(lines)}"
            )
            yield f"| {span} | {names} | {was} | {first.fate} | {now} | {why} | {number} |"


_TOGETHER = 4


def _shared(s: SettingReport) -> tuple[str, ...]:
    return (str(s.fate), str(s.new_key), str(s.new_value), s.what, s.todo, s.source)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def _code(text: str) -> str:
    """Inside backticks in a table: on one line, without what ends a cell or the backticks."""
    flat = " ".join(text.split()) or " "
    return flat.replace("`", "'").replace("|", "\\|")


def _plain(text: Any) -> str:
    """In running text: on one line, nothing that Markdown or HTML would take for markup."""
    flat = " ".join(str(text).split())
    return flat.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")
