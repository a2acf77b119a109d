"""Folders that a verb writes whole and may write again: what the user changed in them is not lost.

The folder's `report.json` has the digest of every file that was written, its own without that list. A second
run replaces the folder only where each file is as it was written; with `force` it replaces the changed ones
and keeps the others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engineroom.errors import UsageError, Where
from engineroom.runner import files

REPORT = "report.json"
WRITTEN = "written"
_KINDS = {"migrate": "migration-report", "upgrade": "upgrade-report"}
_SHOWN = 8


def may_write(out: Path, verb: str, *, force: bool = False, given: Path | None = None) -> None:
    """Whether `out` can be written: new, empty, or as `verb` left it.

    Args:
        given: what the user named, where `out` is a folder below it.

    Raises:
        UsageError: it is something else than a folder, another's folder, or holds changed or foreign files
            and `force` is off.
    """
    _parents(out, given or out)
    place = Where((given or out).as_posix(), key="--out")
    if out.is_symlink() and not out.exists():
        raise UsageError(
            f"{_named(out, given)} is a link to {out.readlink()}, which does not exist",
            where=place, hint="make the folder that it leads to, remove the link, or name another folder",
        )  # fmt: skip
    if not out.exists():
        return
    if not out.is_dir():
        raise UsageError(
            f"{_named(out, given)} is no folder that `{verb}` wrote, so it is not replaced",
            where=place, hint="name a new folder",
        )  # fmt: skip
    if not any(out.iterdir()):
        return
    listed = _listing(out, verb)
    if listed is None:
        raise UsageError(
            f"{_named(out, given)} is no folder that `{verb}` wrote, so it is not replaced",
            where=place, hint="name a new folder",
        )  # fmt: skip
    changed, foreign = _edits(out, listed)
    if (changed or foreign) and not force:
        told = [f"{name} was changed" for name in changed] + [
            f"{name} is not of it" for name in foreign
        ]
        more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
        raise UsageError(
            f"{_named(out, given)} is not as `{verb}` wrote it: {', '.join(told[:_SHOWN])}{more}; writing it "
            "again would lose that",
            where=place,
            hint="name another folder with --out, or add --force: it writes the changed files anew and keeps "
            "the others",
        )  # fmt: skip


@contextlib.contextmanager
def replaced(
    out: Path, verb: str, *, force: bool = False, given: Path | None = None
) -> Iterator[Path]:
    """A staging folder that becomes `out`; its report gets the list of digests.

    Raises:
        UsageError: see `may_write`, which is asked again before the folder is replaced.
    """
    may_write(out, verb, force=force, given=given)
    # A link to a folder stays a link: the folder that it leads to is replaced.
    final = Path(os.path.realpath(out))
    with files.staged(final) as folder:
        yield folder
        may_write(out, verb, force=force, given=given)
        report = files.read_json(folder / REPORT)
        written = files.tree_digests(folder, (REPORT,)) | {REPORT: files.sha256_json(report)}
        files.write_json(folder / REPORT, {**report, WRITTEN: dict(sorted(written.items()))})
        if force and final.is_dir():
            changed, foreign = _edits(final, _listing(final, verb) or {})
            _keep(final, folder, changed + foreign)


def _parents(out: Path, given: Path) -> None:
    """Raises UsageError where something above `out` is a file or a link to nothing."""
    for path in out.absolute().parents:
        if path.is_dir():
            return
        if path.is_symlink() or path.exists():
            what = (
                "a file" if path.exists() else f"a link to {path.readlink()}, which does not exist"
            )
            raise UsageError(
                f"{path.as_posix()} is {what}, and a folder is to be written there",
                where=Where(given.as_posix(), key="--out"), hint="name a folder, or a new name",
            )  # fmt: skip


def _named(out: Path, given: Path | None) -> str:
    return "this" if given is None or given == out else out.as_posix()


def _listing(out: Path, verb: str) -> Mapping[str, str] | None:
    """Name to digest of what was written; None: the folder is not of this verb.

    Of a report without the list, as older releases wrote it, every file counts as foreign.
    """
    data = _report(out)
    if data.get("kind") != _KINDS[verb]:
        return None
    found = data.get(WRITTEN)
    return {str(n): str(d) for n, d in found.items()} if isinstance(found, dict) else {}


def _report(out: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        data = files.read_json(out / REPORT)
        if isinstance(data, dict):
            return data
    return {}


def _edits(out: Path, listed: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """(files that are no longer what was written, files and empty folders that were not written)."""
    here = files.tree_digests(out, (REPORT,))
    report = {name: value for name, value in _report(out).items() if name != WRITTEN}
    try:
        here[REPORT] = files.sha256_json(report)
    except ValueError:  # NaN: nothing that we write
        here[REPORT] = ""
    changed = [name for name in listed if name in here and here[name] != listed[name]]
    foreign = [name for name in here if name not in listed]
    folders = [
        path.relative_to(out).as_posix()
        for path in sorted(out.rglob("*"))
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir())
    ]
    return changed, foreign + folders


def _keep(final: Path, folder: Path, names: list[str]) -> None:
    """The user's files into the new folder; a name that is written now is the new file's."""
    for name in names:
        source, goal = final / name, folder / name
        if os.path.lexists(goal) or any(p.is_file() for p in goal.parents if p != folder.parent):
            continue
        goal.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir() and not source.is_symlink():
            goal.mkdir()
        else:
            shutil.copy2(source, goal, follow_symlinks=False)
