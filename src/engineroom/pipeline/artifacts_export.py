"""`artifacts export`: verified artefacts as an OCI layout, in a registry, or on the hub.

Each goes out with the SBOM of what went into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engineroom.errors import UsageError, Where, artefact_error
from engineroom.pipeline.artifacts import (
    CHECKPOINTS,
    Entry,
    entries,
)
from engineroom.pipeline.artifacts_transfer import HUB, REGISTRY, Moved, scratch
from engineroom.pipeline.artifacts_usage import current_artefact, current_checkpoint, with_needs
from engineroom.pipeline.artifacts_verify import damage_of
from engineroom.pipeline.build import ARTIFACTS
from engineroom.pipeline.job import Job, Reporter
from engineroom.runner import files, hub, manifest, oci, oci_read, oci_registry, oci_write, sbom


def chosen(
    workspace: Path, words: Sequence[str], job: Job | None = None, *, needs: bool = False
) -> list[Entry]:
    """Entries by name, path, target id or the beginning of a key.

    Args:
        needs: with what they were made from: the checkpoint of a package, the package of a repository.

    Raises:
        UsageError: none or several of that name, or one outside the workspace.
    """
    found = entries(workspace)
    picked = [_one(workspace, found, word, job) for word in words]
    return with_needs(found, picked) if needs else list({e.name: e for e in picked}.values())


def _one(workspace: Path, found: Sequence[Entry], word: str, job: Job | None) -> Entry:
    by_name = {entry.name: entry for entry in found}
    path = Path(word).absolute()
    for name in (word.rstrip("/"), _relative(path, workspace)):
        if name in by_name:
            return by_name[name]
    if job is not None:
        item = next((item for item in job.targets if item.target.id == word), None)
        checkpoint = current_checkpoint(job) if item else None
        place = current_artefact(job, item, checkpoint) if item and checkpoint else None
        name = _relative(place, workspace) if place else ""
        if name in by_name:
            return by_name[name]
    alike = [
        entry
        for entry in found
        if entry.name.startswith((f"{ARTIFACTS}/", f"{CHECKPOINTS}/"))
        and (
            entry.text("target") == word
            or (len(word) >= 8 and str(entry.text("key")).startswith(word))
        )
    ]
    if len(alike) == 1:
        return alike[0]
    names = ", ".join(entry.name for entry in alike[:4])
    raise UsageError(
        f"several artefacts are `{word}`: {names}" if alike else f"no artefact `{word}` in the workspace",
        where=Where(workspace.as_posix()), hint="name one of `engineroom artifacts list`",
    )  # fmt: skip


def _relative(path: Path, workspace: Path) -> str:
    return path.relative_to(workspace).as_posix() if path.is_relative_to(workspace) else ""


def export(
    workspace: Path,
    picked: Sequence[Entry],
    to: str,
    *,
    reporter: Reporter | None = None,
    big: int = oci.BIG,
) -> list[Moved]:
    """Write artefacts with their SBOMs.

    Args:
        to: a layout folder (made, or added to), a ``.tar`` file (new), ``oci://HOST/NAME[:TAG]`` or
            ``hf://OWNER/NAME[@REVISION]``.

    Raises:
        UsageError: a damaged artefact, or a place that holds something else.
        MissingError: the extra of a registry or the hub. ExternalToolError: it refused.
    """
    say = (reporter or Reporter()).note
    for entry in picked:
        damage = damage_of(entry)
        if damage is not None:
            raise artefact_error(
                entry.path, f"damaged, so it is not exported: {damage}", hint="make it again"
            )
        say(f"{entry.name}: verified")
    if to.startswith(HUB):
        return _to_hub(workspace, picked, to)
    if to.startswith(REGISTRY):
        target = oci_registry.target(to)
        with scratch(workspace) as folder:
            moved = _to_layout(workspace, picked, oci_write.FolderSink(folder), big, say)
            oci_registry.push(folder, target, [(one.digest, one.ref) for one in moved])
        return moved
    if to.endswith(".tar"):
        with oci_write.archive(Path(to).absolute()) as sink:
            return _to_layout(workspace, picked, sink, big, say)
    layout = oci_write.FolderSink(
        Path(to).absolute(), lambda who: say(f"waiting for the folder, held by {who}")
    )
    return _to_layout(workspace, picked, layout, big, say)


def _to_layout(
    workspace: Path,
    picked: Sequence[Entry],
    sink: oci_write.Sink,
    big: int,
    say: Callable[[str], None],
) -> list[Moved]:
    rows: list[oci.Descriptor] = []
    moved = []
    for entry in picked:
        ref = _ref(entry)
        made = oci_write.add_artefact(
            sink, entry.path, entry.manifest, _annotations(entry), _sbom(workspace, entry), ref, big
        )
        rows += made
        moved.append(Moved(entry.name, str(entry.kind), ref, made[0].digest, "exported", True))
        say(f"{entry.name}: {made[0].digest}")
    sink.finish(rows)
    return moved


def _ref(entry: Entry) -> str:
    """Unique in a layout, and a tag that a registry takes."""
    parts = entry.name.split("/")
    ours = parts[0] == ARTIFACTS
    which = (parts[1], entry.text("target") or "") if ours else (str(entry.kind), parts[-1])
    return oci.ref_name(*which, str(entry.text("key"))[:16])


def _annotations(entry: Entry) -> dict[str, str]:
    facts = {
        oci.TITLE: entry.name,
        oci.CREATED: entry.text("created"),
        oci.PATH: entry.name,
        "engineroom/kind": entry.kind,
        "engineroom/key": entry.text("key"),
        "engineroom/digest": entry.text("digest"),
        "engineroom/target": entry.text("target"),
        "engineroom/sku": entry.text("sku", "id"),
        "engineroom/runtime-version": entry.text("stack", "runtime_version"),
    }
    return {key: value for key, value in facts.items() if value is not None}


def _sbom(workspace: Path, entry: Entry) -> bytes:
    made_from, folder = _checkpoint_of(workspace, entry)
    names = (made_from or {}).get("model", {})
    licences = names.get("licences") if isinstance(names, Mapping) else None
    texts = sbom.licence_texts(folder, licences) if folder else {}
    return oci.json_bytes(sbom.document(entry.manifest, made_from, texts)) + b"\n"


def _checkpoint_of(workspace: Path, entry: Entry) -> tuple[Mapping[str, Any] | None, Path | None]:
    """(manifest of the checkpoint that an artefact was made from, its folder of files)."""
    if entry.kind == "checkpoint":
        return entry.manifest, entry.path / "hf"
    path, digest = entry.text("checkpoint", "path"), entry.text("checkpoint", "digest")
    if path is None or not oci_read.is_plain(path):
        return None, None
    try:
        content = files.read_json(workspace / path / manifest.NAME)
    except (OSError, ValueError, RecursionError):
        return None, None
    if not isinstance(content, dict) or content.get("digest") != digest:
        return None, None
    return content, workspace / path / "hf"


def _to_hub(workspace: Path, picked: Sequence[Entry], to: str) -> list[Moved]:
    repository, revision = hub.target(to)
    moved = []
    for entry in picked:
        beside = {f"{entry.name}.cdx.json": _sbom(workspace, entry)}
        hub.upload(repository, revision, entry.path, entry.name, beside)
        digest = f"sha256:{entry.text('digest')}"
        moved.append(Moved(entry.name, str(entry.kind), repository, digest, "exported", True))
    return moved
