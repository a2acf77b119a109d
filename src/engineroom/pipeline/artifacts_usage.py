"""What uses which artefact of a workspace: targets of specs, repositories, and what was made from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engineroom.errors import EngineroomError
from engineroom.pipeline.artifacts import CHECKPOINTS, RELEASES, REPOSITORIES, Entry
from engineroom.pipeline.build import ARTIFACTS, location
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.pipeline.quantize import Checkpoint, find
from engineroom.runner import manifest


@dataclass(frozen=True)
class Usage:
    """Who uses an entry, by its name: ``target <id>``, or the name of another entry.

    `notes` say what could not be worked out.
    """

    uses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, entry: Entry) -> tuple[str, ...]:
        return self.uses.get(entry.name, ())


def usage(found: Sequence[Entry], jobs: Sequence[Job]) -> Usage:
    """What uses which artefact.

    A target uses the artefact that `build` would reuse now, and that its checkpoint; a repository uses
    the artefact it was rendered from; an artefact uses the checkpoint it was made from. Of a repository
    that cannot be read, or a folder that cannot be listed, nobody knows: it may use anything.
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
        if why := _unknown_needs(entry):
            notes.append(f"{entry.name}: {why}, so all artefacts and checkpoints count as used")
            for other in found:
                if other.name.startswith((f"{ARTIFACTS}/", f"{CHECKPOINTS}/")) or other is entry:
                    uses.setdefault(other.name, []).append(f"perhaps {entry.name}")
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


def _unknown_needs(entry: Entry) -> str | None:
    """Why it cannot be told what is made from, or lies below, an entry that is not removed; else None."""
    if entry.unlisted:
        return entry.problem
    if not entry.name.startswith((f"{REPOSITORIES}/", f"{RELEASES}/")):
        return None
    if entry.problem is not None:
        return entry.problem
    if manifest.newer(entry.manifest):
        return f"made by engineroom {entry.text('engineroom_version')}, which is newer"
    if entry.text("artefact", "path") is None and entry.text("artefact", "digest") is None:
        return "its manifest does not say what it was made from"
    return None


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
