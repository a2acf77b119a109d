"""`artifacts gc`: removes what nothing uses any more, and says first what that is.

Used is what a target of a spec would build or reuse now, what a model repository or a release was made
from, and what those were made from. Repositories and releases themselves are never removed: they are
what a server may be running from, and they are replaced in place.

Nothing outside the workspace is touched, links are not followed, and what a live builder holds stays: its
lock (`runner.locks`) is taken for each removal, and staged folders go only when their process is gone.
What Jobs of the kubernetes executor left in the workspace has no process here: it goes by its age.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engineroom.errors import UsageError
from engineroom.pipeline.artifacts import (
    CHECKPOINTS,
    FOLDERS,
    Entry,
    entries,
    lock_of,
)
from engineroom.pipeline.artifacts_usage import Usage, usage
from engineroom.pipeline.build import ARTIFACTS
from engineroom.pipeline.job import Job
from engineroom.runner import files, locks
from engineroom.runner.executors.kubernetes import JOBS

_LEFT = re.compile(r"\..+\.(?:partial|old)-\d{1,10}(?:-[0-9a-f]{8}-[0-9a-f]{8})?")
FOREIGN_DAYS = 7.0
"""A staged folder of another machine goes when nobody has written to it for so long."""
REMOVED = "removed"


@dataclass(frozen=True)
class Inode:
    """A file's bytes: `links` names in all, `here` of them below one item."""

    size: int
    links: int
    here: int


@dataclass(frozen=True)
class Item:
    """Something to remove.

    Attributes:
        size_bytes: as a listing shows it; links share bytes.
        seal: of its manifest when it was planned; None for leftovers.
        left: it is no artefact but a leftover of a run.
    """

    path: Path
    name: str
    reason: str
    size_bytes: int
    inodes: Mapping[tuple[int, int], Inode]
    seal: str | None = None
    key: str | None = None
    left: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": self.path.as_posix(),
            "name": self.name,
            "reason": self.reason,
            "size_bytes": self.size_bytes,
        }


@dataclass(frozen=True)
class Plan:
    """What would go, and how many entries stay."""

    items: tuple[Item, ...]
    kept: int
    notes: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)

    @property
    def freed_bytes(self) -> int:
        return _freed(self.items)

    def freed_by(self, outcome: Mapping[str, str]) -> int:
        """Bytes that a removal with these outcomes freed."""
        return _freed([item for item in self.items if outcome.get(item.name) == REMOVED])


def _freed(items: Sequence[Item]) -> int:
    """Bytes of the files whose every name is among `items`: a package links its checkpoint's files."""
    seen: dict[tuple[int, int], int] = {}
    for item in items:
        for key, inode in item.inodes.items():
            seen[key] = seen.get(key, 0) + inode.here
    known = {key: inode for item in items for key, inode in item.inodes.items()}
    return sum(known[key].size for key, count in seen.items() if count >= known[key].links)


def plan(
    workspace: Path, jobs: Sequence[Job], *, keep: int = 0, older_than_days: float | None = None
) -> Plan:
    """What nothing uses.

    Args:
        jobs: every spec of the workspace; what only another spec needs looks unused.
        keep: this many of the newest unused artefacts of a place (target and layout) stay.
        older_than_days: only what is older goes.

    Raises:
        UsageError: there is no workspace.
    """
    workspace = workspace.absolute()
    found = entries(workspace)
    used = usage(found, jobs)
    inside = workspace.resolve()
    notes = list(used.notes)
    going: dict[str, Entry] = {}
    for group in _grouped(found, used):
        for entry in group[keep:]:
            if older_than_days is None or _age_days(entry) > older_than_days:
                going[entry.name] = entry
    _release(going, found, used)
    items = []
    for name, entry in sorted(going.items()):
        reason = "nothing uses it" if entry.kind else f"nothing uses it; {entry.problem}"
        if entry.path.resolve().is_relative_to(inside):
            items.append(_item(entry.path, name, reason, entry.text("seal"), entry.text("key")))
        else:
            notes.append(f"{name} is a link to outside the workspace and stays")
    for path, reason in _leftovers(workspace):
        item = _item(path, path.relative_to(workspace).as_posix(), reason)
        items.append(replace(item, left=True))
    return Plan(tuple(items), len(found) - len(going), tuple(notes))


def _grouped(found: Sequence[Entry], used: Usage) -> list[list[Entry]]:
    """Removable entries by place, newest first. What only unused ones use is settled later."""
    groups: dict[str, list[Entry]] = {}
    for entry in found:
        removable = entry.name.startswith((f"{ARTIFACTS}/", f"{CHECKPOINTS}/"))
        by_others = [user for user in used.of(entry) if not user.startswith(f"{ARTIFACTS}/")]
        if removable and not by_others:
            groups.setdefault(entry.group, []).append(entry)
    old = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
    for group in groups.values():
        group.sort(key=lambda entry: entry.created or old, reverse=True)
    return list(groups.values())


def _release(going: dict[str, Entry], found: Sequence[Entry], used: Usage) -> None:
    """Take back what an entry that stays was made from."""
    staying = {entry.name for entry in found if entry.name not in going}
    for entry in list(going.values()):
        if any(user in staying for user in used.of(entry)):
            del going[entry.name]


def _age_days(entry: Entry) -> float:
    """Since it was made; since its folder was changed, where no manifest says so."""
    made = entry.created
    seconds = time.time() - (made.timestamp() if made else entry.path.stat().st_mtime)
    return seconds / 86400


def _item(
    path: Path, name: str, reason: str, seal: str | None = None, key: str | None = None
) -> Item:
    inodes: dict[tuple[int, int], Inode] = {}
    total = 0
    found = [(path.parent, [path.name])] if path.is_file() else os.walk(path)
    for folder, *_, names in found:
        for file in names:
            try:
                st = Path(folder, file).lstat()
            except OSError:  # it may not be looked at, or goes just now
                continue
            at = (st.st_dev, st.st_ino)
            here = inodes[at].here + 1 if at in inodes else 1
            inodes[at] = Inode(st.st_size, st.st_nlink, here)
            total += st.st_size
    return Item(path, name, reason, total, inodes, seal, key)


def _leftovers(workspace: Path) -> Iterator[tuple[Path, str]]:
    """Staged folders whose process is gone, and what old Jobs left."""
    for path in sorted(_hidden(workspace)):
        if not _LEFT.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        lives = files.owner_lives(path)
        days = _idle_days(path)
        if lives is False:
            yield path, "left by a process that is gone"
        elif lives is None and days > FOREIGN_DAYS:
            yield path, f"left by another machine, {days:.0f} days untouched"
    jobs = workspace / JOBS
    for path in [] if jobs.is_symlink() else sorted(jobs.glob("*")):  # dot names, too
        days = _idle_days(path)
        if not path.is_symlink() and days > FOREIGN_DAYS:
            yield path, f"left by a Job, {days:.0f} days untouched"


def _hidden(workspace: Path) -> Iterator[Path]:
    """Hidden folders beside artefacts; artefacts themselves are not searched."""
    yield from (path for path in workspace.glob(".*"))
    for name in FOLDERS:
        top = workspace / name
        if top.is_symlink():
            continue
        depth = 6 if name == ARTIFACTS else 1
        for folder, names, _ in os.walk(top):
            at = len(Path(folder).relative_to(top).parts)
            yield from (Path(folder, n) for n in names if n.startswith("."))
            names[:] = [n for n in names if not n.startswith(".") and at + 1 < depth]


def _idle_days(path: Path) -> float:
    """Since the last write to a file or below a folder."""
    try:
        last = max(p.lstat().st_mtime for p in (path, *path.rglob("*")))
    except FileNotFoundError:  # something goes just now: it is at work
        return 0.0
    return (time.time() - last) / 86400


def collect(workspace: Path, planned: Plan) -> dict[str, str]:
    """Remove what was planned; the outcome by name: ``removed``, or why it stays.

    An artefact is moved aside by one rename before its files go, so no half of it looks like one.
    """
    outcome = {}
    for item in planned.items:
        try:
            outcome[item.name] = _remove(workspace.absolute(), item)
        except OSError as error:
            outcome[item.name] = f"failed: {error.strerror or error}"
        except UsageError as error:  # a lock of another user
            outcome[item.name] = f"failed: {error.message}"
    return outcome


def _remove(workspace: Path, item: Item) -> str:
    if item.left:
        if item.path.parent.name == JOBS and _idle_days(item.path) <= FOREIGN_DAYS:
            return "kept: a Job wrote to it meanwhile"
        if item.path.is_dir():
            shutil.rmtree(item.path)
        else:
            item.path.unlink()
        return REMOVED
    now = threading.Event()
    now.set()  # do not wait for a builder: it is at work on this very artefact
    holder: list[str] = []
    try:
        with locks.exclusive(lock_of(workspace, item.name, item.key), holder.append, stop=now):
            return _remove_locked(workspace, item)
    except locks.Stopped:
        return f"kept: {holder[0] if holder else 'a builder'} is at work on it"


def _remove_locked(workspace: Path, item: Item) -> str:
    try:
        seal = files.read_json(item.path / "manifest.json").get("seal")
    except FileNotFoundError:
        seal = None
    except (OSError, ValueError, AttributeError, RecursionError):
        seal = item.seal
    if seal != item.seal:
        return "kept: it was made anew meanwhile"
    files.remove_tree(item.path)
    parent = item.path.parent
    while parent != workspace and parent.parent != workspace and not any(parent.iterdir()):
        parent.rmdir()
        parent = parent.parent
    return REMOVED
