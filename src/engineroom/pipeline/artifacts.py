"""`artifacts list`: what lies in a workspace; what uses it is `artifacts_usage`.

Nothing here is verified: a listing reads manifests and sizes only. `artifacts_verify` hashes.
"""

from __future__ import annotations

import contextlib
import datetime
import glob
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engineroom.errors import UsageError, Where
from engineroom.pipeline.build_key import ARTIFACTS
from engineroom.runner import files, manifest

CHECKPOINTS, REPOSITORIES, RELEASES = "checkpoints", "repositories", "releases"
OWN_FILES = ".engineroom"
"""Folder of `Job.own_files` below the workspace."""
FOLDERS = (ARTIFACTS, CHECKPOINTS, REPOSITORIES, RELEASES)
"""Folders of a workspace that hold artefacts, by the layouts of `build`, `quantize`, `render`, `deploy`."""
KEY = re.compile(r"[0-9a-f]{64}")
_ABSENT = f"{manifest.NAME} is missing"
_DEPTH = 6
"""Folders from `artifacts/` down to an artefact: name, lane, version, sku, layout, digest."""


@dataclass(frozen=True)
class Entry:
    """One artefact as its manifest describes it.

    Attributes:
        path: absolute. name: POSIX path relative to the workspace.
        kind: of its manifest; None when there is none that can be read.
        manifest: its content; empty without one.
        problem: why the manifest, or the folder, cannot be read. Of a folder that cannot be listed, what
            lies below it is not known either (`unlisted`).
        size_bytes: of all files below `path`, as a listing shows them; links share bytes. Files that may
            not be looked at count nothing.
    """

    path: Path
    name: str
    kind: str | None
    manifest: Mapping[str, Any]
    size_bytes: int
    problem: str | None = None
    unlisted: bool = False

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
    found = [_entry(workspace, path, why) for path, why in _folders(workspace)]
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
    if entry.problem == _ABSENT:
        raise UsageError(
            f"no artefact: {manifest.NAME} is missing", where=Where(path.as_posix()),
            hint="name a folder that `engineroom artifacts list` shows",
        )  # fmt: skip
    return entry


def _folders(workspace: Path) -> Iterator[tuple[Path, str | None]]:
    """Folders of artefacts, and folders above them that cannot be listed, with the reason.

    Links are not followed, and staged folders (dot names) are none.
    """
    for name in FOLDERS:
        yield from _below(workspace / name, _DEPTH if name == ARTIFACTS else 1)


def _below(folder: Path, depth: int) -> Iterator[tuple[Path, str | None]]:
    """Folders so deep below one. The folders of artefacts are listed as well, to see whether they can be."""
    try:
        with os.scandir(folder) as found:
            names = sorted(
                e.name
                for e in found
                if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)
            )
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield folder, error.strerror or str(error)
        return
    if depth == 0:
        yield folder, None
        return
    for name in names:
        yield from _below(folder / name, depth - 1)


def _entry(workspace: Path, path: Path, unlisted: str | None = None) -> Entry:
    """Args: unlisted: why the folder cannot be listed."""
    name = (
        path.relative_to(workspace).as_posix()
        if path.is_relative_to(workspace)
        else path.as_posix()
    )
    if unlisted is not None:
        return Entry(path, name, None, {}, 0, f"it cannot be listed: {unlisted}", True)
    size = _size(path)
    problem, content = None, {}
    try:
        content = files.read_json(path / manifest.NAME)
        if not isinstance(content, dict) or not isinstance(content.get("kind"), str):
            problem, content = "its manifest is of no artefact", {}
    except FileNotFoundError:
        problem = _ABSENT
    except OSError as error:
        problem = f"its manifest is unreadable: {error.strerror or error}"
    except (ValueError, RecursionError):
        problem = "its manifest is unreadable"
    return Entry(path, name, content.get("kind"), content, size, problem)


def _size(root: Path) -> int:
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(OSError):  # one that goes just now, or in a folder without `x`
                st = Path(folder, name).lstat()
                total += st.st_size if stat.S_ISREG(st.st_mode) else 0
    return total


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
