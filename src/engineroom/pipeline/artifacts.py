"""`artifacts list`: what lies in a workspace, and what uses it.

Nothing here is verified: a listing reads manifests and sizes only. `artifacts_verify` hashes.
"""

from __future__ import annotations

import datetime
import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engineroom.errors import EngineroomError, UsageError, Where
from engineroom.pipeline.build import ARTIFACTS, location
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.pipeline.quantize import Checkpoint, find
from engineroom.runner import files, manifest

CHECKPOINTS, REPOSITORIES, RELEASES = "checkpoints", "repositories", "releases"
OWN_FILES = ".engineroom"
"""Folder of `Job.own_files` below the workspace."""
FOLDERS = (ARTIFACTS, CHECKPOINTS, REPOSITORIES, RELEASES)
"""Folders of a workspace that hold artefacts, by the layouts of `build`, `quantize`, `render`, `deploy`."""
KEY = re.compile(r"[0-9a-f]{64}")
_DEPTH = 6
"""Folders from `artifacts/` down to an artefact: name, lane, version, sku, layout, digest."""


@dataclass(frozen=True)
class Entry:
    """One artefact as its manifest describes it.

    Attributes:
        path: absolute. name: POSIX path relative to the workspace.
        kind: of its manifest; None when there is none that can be read.
        manifest: its content; empty without one.
        problem: why the manifest cannot be read.
        size_bytes: of all files below `path`, as a listing shows them; links share bytes.
    """

    path: Path
    name: str
    kind: str | None
    manifest: Mapping[str, Any]
    size_bytes: int
    problem: str | None = None

    def fact(self, *keys: str) -> Any:
        """A value of the manifest by its keys; None where one is missing or no object."""
        value: Any = self.manifest
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def text(self, *keys: str) -> str | None:
        value = self.fact(*keys)
        return None if value is None else str(value)

    @property
    def created(self) -> datetime.datetime | None:
        try:
            made = datetime.datetime.fromisoformat(str(self.fact("created")))
        except ValueError:
            return None
        return made if made.tzinfo else made.replace(tzinfo=datetime.timezone.utc)

    @property
    def group(self) -> str:
        """Artefacts of one group are made one after the other: the newest replaces older ones."""
        return self.name.rpartition("/")[0] if self.kind != "checkpoint" else CHECKPOINTS

    def formats(self) -> tuple[str | None, str | None]:
        """(weights, KV cache) precision: of a checkpoint, or of the one that it was made from."""
        at = () if self.kind == "checkpoint" else ("checkpoint",)
        return self.text(*at, "weights", "format"), self.text(*at, "kv_cache", "format")

    def as_dict(self) -> dict[str, Any]:
        weights, kv_cache = self.formats()
        created = self.created
        return {
            "path": self.path.as_posix(),
            "name": self.name,
            "kind": self.kind,
            "problem": self.problem,
            "target": self.text("target"),
            "lane": self.text("lane"),
            "sku": self.text("sku", "id"),
            "runtime": self.text("stack", "runtime"),
            "runtime_version": self.text("stack", "runtime_version")
            or self.text("runtime_version"),
            "tensor_parallel": self.fact("tensor_parallel"),
            "pipeline_parallel": self.fact("pipeline_parallel"),
            "weights": weights,
            "kv_cache": kv_cache,
            "key": self.text("key"),
            "digest": self.text("digest"),
            "size_bytes": self.size_bytes,
            "created": created.isoformat() if created else None,
        }


@dataclass(frozen=True)
class Usage:
    """Who uses an entry, by its name: ``target <id>``, or the name of another entry.

    `notes` say what could not be worked out.
    """

    uses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, entry: Entry) -> tuple[str, ...]:
        return self.uses.get(entry.name, ())


def entries(workspace: Path) -> list[Entry]:
    """Every artefact of a workspace, by name.

    Raises:
        UsageError: there is no such folder.
    """
    if not workspace.is_dir():
        raise UsageError(
            "there is no workspace here", where=Where(workspace.as_posix()),
            hint="name it with --out, or run `engineroom build` first",
        )  # fmt: skip
    found = [_entry(workspace, path) for path in _folders(workspace)]
    return sorted(found, key=lambda entry: entry.name)


def entry_at(workspace: Path, path: Path) -> Entry:
    """The artefact in a folder, wherever that is.

    Raises:
        UsageError: no folder, or one without a manifest.
    """
    path = path.absolute()
    if not path.is_dir():
        raise UsageError("no such folder", where=Where(path.as_posix()), hint="`artifacts list`")
    entry = _entry(workspace, path)
    if not (path / manifest.NAME).is_file():
        raise UsageError(
            f"no artefact: {manifest.NAME} is missing", where=Where(path.as_posix()),
            hint="name a folder that `engineroom artifacts list` shows",
        )  # fmt: skip
    return entry


def _folders(workspace: Path) -> Iterator[Path]:
    """Folders of artefacts; links are not followed, and staged folders (dot names) are none."""
    for folder, _, _ in os.walk(workspace / ARTIFACTS):
        path = Path(folder)
        depth = len(path.relative_to(workspace / ARTIFACTS).parts)
        hidden = any(part.startswith(".") for part in path.relative_to(workspace).parts)
        if depth == _DEPTH and not hidden:
            yield path
    for name in (CHECKPOINTS, REPOSITORIES, RELEASES):
        for path in sorted((workspace / name).glob("*")):
            if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
                yield path


def _entry(workspace: Path, path: Path) -> Entry:
    name = (
        path.relative_to(workspace).as_posix()
        if path.is_relative_to(workspace)
        else path.as_posix()
    )
    size = sum(file.lstat().st_size for file in _regular(path))
    problem, content = None, {}
    try:
        content = files.read_json(path / manifest.NAME)
        if not isinstance(content, dict) or not isinstance(content.get("kind"), str):
            problem, content = "its manifest is of no artefact", {}
    except FileNotFoundError:
        problem = f"{manifest.NAME} is missing"
    except (OSError, ValueError, RecursionError):
        problem = "its manifest is unreadable"
    return Entry(path, name, content.get("kind"), content, size, problem)


def _regular(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path


def usage(found: Sequence[Entry], jobs: Sequence[Job]) -> Usage:
    """What uses which artefact.

    A target uses the artefact that `build` would reuse now, and that its checkpoint; a repository uses
    the artefact it was rendered from; an artefact uses the checkpoint it was made from.
    """
    uses: dict[str, list[str]] = {}
    notes: list[str] = []
    by_digest = {entry.text("digest"): entry for entry in found if entry.manifest}
    for job in jobs:
        for name, user in _of_spec(job, found, notes):
            uses.setdefault(name, []).append(user)
    for entry in found:
        for name in _needs(entry, by_digest):
            uses.setdefault(name, []).append(entry.name)
    return Usage({name: tuple(dict.fromkeys(items)) for name, items in uses.items()}, tuple(notes))


def _needs(entry: Entry, by_digest: Mapping[str | None, Entry]) -> Iterator[str]:
    """Names of the entries that an entry was made from."""
    for part in ("artefact", "checkpoint"):
        path = entry.text(part, "path")
        if path is not None:
            yield path
        else:
            made_from = by_digest.get(entry.text(part, "digest") or "")
            if made_from is not None:
                yield made_from.name


def with_needs(found: Sequence[Entry], picked: Sequence[Entry]) -> list[Entry]:
    """Entries, and those that they were made from, each once."""
    by_digest = {entry.text("digest"): entry for entry in found if entry.manifest}
    by_name = {entry.name: entry for entry in found}
    result: dict[str, Entry] = {}
    todo = list(picked)
    while todo:
        entry = todo.pop(0)
        if entry.name not in result:
            result[entry.name] = entry
            todo += [by_name[name] for name in _needs(entry, by_digest) if name in by_name]
    return list(result.values())


def _of_spec(job: Job, found: Sequence[Entry], notes: list[str]) -> Iterator[tuple[str, str]]:
    """(name of an entry, who uses it) of a spec's targets."""
    spec = job.loaded.spec.name
    checkpoint = current_checkpoint(job)
    if checkpoint is None:
        prefix = f"{CHECKPOINTS}/{job.checkpoint_prefix}"
        kept = [entry for entry in found if entry.name.startswith((f"{ARTIFACTS}/{spec}/", prefix))]
        if kept:
            notes.append(
                f"{spec}: its own checkpoint is not here or not readable, so all of its artefacts count as used"
            )
        for entry in kept:
            yield entry.name, f"spec {spec}"
        return
    for item in job.targets:
        yield checkpoint.relative(job), f"target {item.target.id}"
        path = current_artefact(job, item, checkpoint)
        if path is not None:
            if path.is_relative_to(job.out):
                yield path.relative_to(job.out).as_posix(), f"target {item.target.id}"
            continue
        notes.append(
            f"{item.target.id}: what it needs cannot be told, so all made for it count as used"
        )
        for entry in found:
            if (
                entry.name.startswith(f"{ARTIFACTS}/{spec}/")
                and entry.text("target") == item.target.id
            ):
                yield entry.name, f"target {item.target.id}"


def current_checkpoint(job: Job) -> Checkpoint | None:
    """The checkpoint that the spec's builds would use; None when it cannot be told."""
    try:
        return find(job)
    except EngineroomError:
        return None


def current_artefact(job: Job, item: ResolvedTarget, checkpoint: Checkpoint) -> Path | None:
    """Where `build` puts a target's artefact, there or not; None for one that it refuses."""
    try:
        return location(job, item, checkpoint)[0]
    except EngineroomError:
        return None


def lock_of(workspace: Path, name: str, key: str | None) -> Path:
    """The lock that `build` and `quantize` take for an artefact: by key, or a checkpoint's name.

    Args:
        name: of its entry. key: None where no manifest says it; the folder's name is how one begins.
    """
    folder, last = workspace / OWN_FILES / "locks", name.rpartition("/")[2]
    if not name.startswith(f"{ARTIFACTS}/"):
        return folder / f"{last}.lock"
    if key is not None and KEY.fullmatch(key):
        return folder / f"{key[:32]}.lock"
    known = sorted(folder.glob(f"{glob.escape(last)}*.lock"))
    return known[0] if known else folder / f"{last}.lock"
