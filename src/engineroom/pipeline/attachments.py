"""Draft models and LoRA adapters: found, digested and copied into an artefact."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from engineroom.errors import InternalError, UsageError, Where
from engineroom.lanes import LaneRequest
from engineroom.lanes.base import Attachment
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.runner import files, model_source


@dataclass(frozen=True)
class Attached:
    """An attachment that is on this machine.

    Attributes:
        folder: where it is.
        listing: sha256 of its files by POSIX path; hidden files are left out.
    """

    attachment: Attachment
    folder: Path
    listing: Mapping[str, str]

    @property
    def digest(self) -> str:
        return files.digest_of(self.listing)

    def as_dict(self) -> dict[str, Any]:
        """As a manifest names it: the source is as the spec says it."""
        a = self.attachment
        return {
            "kind": a.kind,
            "name": a.name,
            "source": a.source,
            "path": a.target,
            "digest": self.digest,
        }


def attached(job: Job, item: ResolvedTarget, request: LaneRequest) -> tuple[Attached, ...]:
    """What travels with a target's artefact, digested.

    Raises:
        UsageError: a source that is not here, or an empty folder; names the key of the spec.
    """
    with job.located():
        return tuple(_find(job, a) for a in item.lane.attachments(request))


def _find(job: Job, attachment: Attachment) -> Attached:
    folder = model_source.companion_folder(attachment.source, job.loaded.folder, attachment.key)
    listing = {name: job.verified.sha256(path) for name, path in _files(folder)}
    if not listing:
        raise UsageError(f"`{attachment.source}` has no files", where=Where(key=attachment.key))
    return Attached(attachment, folder, listing)


def _files(folder: Path) -> list[tuple[str, Path]]:
    """Files to take, sorted. The links of a hub cache are followed."""
    found = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            found.append((relative.as_posix(), path))
    return found


def copy_into(artefact: Path, items: tuple[Attached, ...]) -> None:
    """Copy every attachment to its place. Bytes, not links: the sources are the user's to edit.

    Raises:
        InternalError: a lane names a place outside the artefact, or one that is taken.
    """
    for item in items:
        place = PurePosixPath(item.attachment.target)
        target = artefact / place
        if place.is_absolute() or ".." in place.parts or target.exists():
            raise InternalError(f"{place} is no place for an attachment")
        for name in item.listing:
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(item.folder / name, copy)


def assert_copied(listing: Mapping[str, str], items: tuple[Attached, ...]) -> None:
    """What lies in the artefact is what the key was made of.

    Args:
        listing: digests of the artefact's files, as its manifest has them.

    Raises:
        UsageError: a source changed while it was copied.
    """
    for item in items:
        for name, digest in item.listing.items():
            if listing.get(f"{item.attachment.target}/{name}") != digest:
                raise UsageError(
                    "the file changed while it was copied",
                    where=Where((item.folder / name).as_posix(), key=item.attachment.key),
                    hint="build again when nothing writes to it",
                )
