"""`artifacts verify`: every byte hashed again, then each artefact against what is to use it.

The rules are those of `lint` (`checks/evidence`); `artifacts_evidence` fills their evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engineroom.catalog import Catalog
from engineroom.checks import order
from engineroom.checks.evidence import Context, judge
from engineroom.errors import UsageError
from engineroom.pipeline.artifacts import Entry, entries, entry_at
from engineroom.pipeline.artifacts_evidence import contexts, typed
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.runner import manifest
from engineroom.types import Finding
from engineroom.types.finding import verdict_of


@dataclass(frozen=True)
class Verdict:
    """What was found about one artefact; `targets` are those it was held against."""

    entry: Entry
    findings: tuple[Finding, ...]
    targets: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return verdict_of(self.findings)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.entry.name,
            "path": self.entry.path.as_posix(),
            "kind": self.entry.kind,
            "digest": self.entry.text("digest"),
            "verdict": self.verdict,
            "targets": list(self.targets),
        }


def verify(
    workspace: Path, catalog: Catalog, *, paths: Sequence[Path] = (), job: Job | None = None
) -> list[Verdict]:
    """Hash artefacts again and cross-check them.

    Args:
        paths: only these; by default everything in the workspace.
        job: the spec to hold them against; without it an artefact is held against its own manifest.

    Raises:
        UsageError: no such folder, or one that is no artefact.
    """
    everything = entries(workspace) if workspace.is_dir() or not paths else []
    chosen = [entry_at(workspace, path) for path in paths] if paths else everything
    damage = {entry.name: damage_of(entry) for entry in chosen}
    verdicts = []
    for entry in chosen:
        targets = _targets(entry, job)
        findings: list[Finding] = []
        why = damage[entry.name]
        if why is None:
            repositories = [e for e in everything if _serves(e, entry)]
            try:
                for context in contexts(entry, repositories, targets, job, catalog):
                    findings += judge(context)[0]
            except UsageError as error:  # whole, but a file is not what its name says
                why = _told(error, entry.path)
        if why is not None:
            findings += judge(_damaged(entry, why, catalog))[0]
        ids = tuple(item.target.id or "" for item in targets)
        verdicts.append(Verdict(entry, tuple(order(findings)), ids))
    return verdicts


def _damaged(entry: Entry, why: str, catalog: Catalog) -> Context:
    parts = {"artefact": {"kind": entry.kind or "artefact", "damage": why}}
    where = {"artefact": (entry.path / manifest.NAME).as_posix()}
    return Context(typed(parts, where), catalog, where)


def damage_of(entry: Entry) -> str | None:
    """Why an artefact is not what its manifest lists, after reading every byte; None when it is."""
    if entry.kind is None:
        return entry.problem or "its manifest is unreadable"
    try:
        manifest.load(entry.path, entry.kind)
    except UsageError as error:
        return _told(error, entry.path)
    return None


def _told(error: UsageError, root: Path) -> str:
    """An error about a file, named as the artefact knows it."""
    file = Path(error.where.file) if error.where and error.where.file else root
    name = file.relative_to(root).as_posix() if file.is_relative_to(root) else "."
    return error.message if name == "." else f"{name}: {error.message}"


def _targets(entry: Entry, job: Job | None) -> tuple[ResolvedTarget, ...]:
    """Targets of the spec that an artefact was made for; for a checkpoint, all that would use it."""
    if job is None:
        return ()
    if entry.kind == "checkpoint":
        try:
            prefix = job.checkpoint_prefix
        except UsageError:
            return ()
        return job.targets if entry.path.name.startswith(prefix) else ()
    spec = job.loaded.spec.name
    if not entry.name.startswith((f"artifacts/{spec}/", "repositories/", "releases/")):
        return ()
    return tuple(item for item in job.targets if item.target.id == entry.text("target"))


def _serves(repository: Entry, entry: Entry) -> bool:
    return repository.kind == "repository" and repository.text("artefact", "path") == entry.name
