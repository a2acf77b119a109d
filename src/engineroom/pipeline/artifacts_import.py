"""`artifacts import`: artefacts from anywhere, verified before they appear in the workspace.

Blob by blob against the layout's digests, then by the artefact's own manifest; a place that is not its
own is refused.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engineroom import __version__
from engineroom.errors import artefact_error
from engineroom.pipeline.artifacts import (
    CHECKPOINTS,
    KEY,
    RELEASES,
    REPOSITORIES,
    Entry,
    entries,
    lock_of,
)
from engineroom.pipeline.artifacts_transfer import HUB, REGISTRY, Moved, scratch
from engineroom.pipeline.artifacts_verify import damage_of
from engineroom.pipeline.build import ARTIFACTS
from engineroom.pipeline.job import Reporter
from engineroom.runner import files, hub, locks, manifest, oci, oci_read, oci_registry

_PLACES = {"checkpoint": CHECKPOINTS, "repository": REPOSITORIES, "helm-release": RELEASES}
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")


def import_(
    workspace: Path,
    source: str,
    *,
    only: Sequence[str] = (),
    digest: str | None = None,
    reporter: Reporter | None = None,
) -> list[Moved]:
    """Take artefacts into a workspace.

    Args:
        source: a layout folder or ``.tar`` file, ``oci://HOST/NAME[:TAG|@DIGEST]``, or
            ``hf://OWNER/NAME[@REVISION]``.
        only: references or names of the artefacts to take; empty means all.
        digest: the OCI manifest that it must be; whoever made the file said it on another way.

    Raises:
        UsageError: anything that is not what its digest or manifest says. What was taken before stays.
    """
    say = (reporter or Reporter()).note
    if source.startswith(HUB):
        return _from_hub(workspace, source, only)
    if source.startswith(REGISTRY):
        with scratch(workspace) as folder:
            oci_registry.pull(oci_registry.target(source), folder)
            with oci_read.opened(folder) as layout:
                return _from_layout(workspace, layout, only, digest, say)
    with oci_read.opened(Path(source).absolute()) as layout:
        return _from_layout(workspace, layout, only, digest, say)


def _from_layout(
    workspace: Path,
    layout: oci_read.Layout,
    only: Sequence[str],
    digest: str | None,
    say: Callable[[str], None],
) -> list[Moved]:
    found: list[tuple[oci.Descriptor, dict[str, Any]]] = []
    attached: dict[str, dict[str, Any]] = {}
    for row in oci_read.manifests(layout):
        if row.media_type != oci.MANIFEST:
            continue  # an index, or something newer: none of ours
        value = oci_read.as_object(oci_read.read_blob(layout, row), layout.name, "a manifest")
        subject = value.get("subject")
        if isinstance(subject, Mapping) and value.get("artifactType") == oci.SBOM:
            attached[str(subject.get("digest"))] = value
        elif value.get("artifactType") == oci.ARTEFACT:
            found.append((row, value))
    wanted = [(row, value) for row, value in found if _wanted(row, value, only, digest)]
    if not wanted:
        named = f" {', '.join(only) or digest}" if only or digest else ""
        there = ", ".join(row.annotations.get(oci.REF_NAME, row.digest[:19]) for row, _ in found)
        raise artefact_error(
            layout.name, f"no artefact{named} in it", hint=f"it has: {there}" if there else None
        )
    moved = []
    for row, value in wanted:
        bom = attached.get(row.digest)
        if bom is not None:  # an SBOM that is damaged is damage like any other
            for blob in oci_read.descriptors(bom, "layers", layout.name):
                oci_read.read_blob(layout, blob)
        one = _take(workspace, layout, row, value, bom is not None)
        say(f"{one.name}: {one.outcome}")
        moved.append(one)
    return moved


def _wanted(
    row: oci.Descriptor, value: Mapping[str, Any], only: Sequence[str], digest: str | None
) -> bool:
    if digest is not None and row.digest != digest:
        return False
    names = {row.annotations.get(oci.REF_NAME), row.digest, _annotation(value, oci.PATH)}
    return not only or bool(names & set(only))


def _annotation(value: Mapping[str, Any], key: str) -> str:
    notes = value.get("annotations")
    return str(notes.get(key, "")) if isinstance(notes, Mapping) else ""


def _take(
    workspace: Path,
    layout: oci_read.Layout,
    row: oci.Descriptor,
    value: Mapping[str, Any],
    has_sbom: bool,
) -> Moved:
    blob = oci.descriptor(value.get("config"), layout.name)
    if blob.media_type != oci.CONFIG:
        raise artefact_error(layout.name, f"its config is {blob.media_type[:90]}, not {oci.CONFIG}")
    raw = oci_read.read_blob(layout, blob)
    content = oci_read.as_object(raw, layout.name, "the artefact's manifest")
    name = _annotation(value, oci.PATH)
    final = place(workspace, name, content, layout.name)
    kind, key = str(content.get("kind")), str(content.get("key"))
    ref = row.annotations.get(oci.REF_NAME, "")
    with _published(workspace, final, kind, key) as staging:
        if staging is None:
            return Moved(name, kind, ref, row.digest, "already there", has_sbom)
        names = oci_read.listed(content, layout.name)
        layers = value.get("layers")
        for item in layers if isinstance(layers, list) else ():
            oci_read.unpack(layout, oci.descriptor(item, layout.name), staging, names)
        missing = sorted(n for n, came in names.items() if not came)
        if missing:
            raise artefact_error(layout.name, f"{name}: `{missing[0][:200]}` is in no layer")
        if (staging / manifest.NAME).read_bytes() != raw:
            raise artefact_error(layout.name, f"{name}: its manifest and its config differ")
        manifest.load(staging, kind)
    return Moved(name, kind, ref, row.digest, "imported", has_sbom)


@contextlib.contextmanager
def _published(workspace: Path, final: Path, kind: str, key: str) -> Iterator[Path | None]:
    """A staged folder for an artefact, under the lock that its builder takes; None: it is there."""

    def waiting(who: str) -> None:
        pass  # a builder of the same artefact: what it makes is as good

    lock = lock_of(workspace, final.relative_to(workspace).as_posix(), key)
    with locks.exclusive(lock, waiting) as held:
        if manifest.reuse(final, kind, key) is not None:
            yield None
            return
        with files.staged(final, alone=held) as staging:
            yield staging


def place(workspace: Path, name: str, content: Mapping[str, Any], where: str) -> Path:
    """Where an artefact goes; its name comes from outside and must be one that we would give it.

    Of an artefact of `build`, the name of the service is the only part that its manifest does not decide.

    Raises:
        UsageError: another folder than its kind's, a name that leaves it, or one that is not of its key,
            lane, runtime version, SKU and layout; or it is of a newer engineroom.
    """
    if manifest.newer(content):
        maker = str(content.get("engineroom_version"))[:40]
        raise artefact_error(
            where, f"`{name[:200]}` was made by engineroom {maker}, whose manifests are newer than those "
            f"that this one ({__version__}) reads", hint=f"import it with engineroom {maker} or a newer one",
        )  # fmt: skip
    kind, key = str(content.get("kind")), str(content.get("key"))
    folder = _PLACES.get(kind, ARTIFACTS)
    parts = name.split("/")
    depth = 7 if folder == ARTIFACTS else 2
    known = kind in _PLACES or kind in ("engine", "build-plan") or kind.endswith("-package")
    shaped = len(parts) == depth and parts[0] == folder and all(map(_PART.fullmatch, parts[1:]))
    if folder == ARTIFACTS:
        keyed = parts[2:] == [*_below_service(content), key[:16]]
    else:
        keyed = kind != "checkpoint" or parts[-1].endswith(f"-{key[:12]}")
    if not (known and shaped and keyed and KEY.fullmatch(key)):
        raise artefact_error(
            where, f"it wants to be placed at `{name[:200]}`, which is no place of a {kind[:40]}",
            hint="do not use this file; ask who made it",
        )  # fmt: skip
    final = workspace / name
    if not final.resolve().is_relative_to(workspace.resolve()):
        raise artefact_error(
            final, "a link in the workspace leads out of it", hint="remove the link"
        )
    return final


def _below_service(content: Mapping[str, Any]) -> list[str]:
    """Lane, runtime version, SKU and layout of an artefact, as its manifest says and `build` places it."""
    entry = Entry(Path(), "", None, content, 0)
    lane, kind = str(entry.text("lane")), str(content.get("kind"))
    if kind.endswith("-package") and kind != f"{lane}-package":
        lane = ""  # no place at all
    layout = f"{entry.text('tensor_parallel')}x{entry.text('pipeline_parallel')}"
    return [lane, str(entry.text("stack", "runtime_version")), str(entry.text("sku", "id")), layout]


def _from_hub(workspace: Path, source: str, only: Sequence[str]) -> list[Moved]:
    repository, revision = hub.target(source)
    moved = []
    with scratch(workspace) as folder:
        hub.download(repository, revision, folder)
        found = [entry for entry in entries(folder) if not only or entry.name in only]
        if not found:
            raise artefact_error(
                source, "no artefact in it", hint="`artifacts export --to hf://…` makes one"
            )
        for entry in found:
            damage = damage_of(entry)
            if damage is not None:
                raise artefact_error(source, f"{entry.name}: {damage}", hint="export it again")
            final = place(workspace, entry.name, entry.manifest, source)
            kind, key = str(entry.kind), str(entry.text("key"))
            with _published(workspace, final, kind, key) as staging:
                outcome = "already there" if staging is None else "imported"
                if staging is not None:
                    shutil.copytree(entry.path, staging, dirs_exist_ok=True)
                    manifest.load(staging, kind)
            bom = (folder / f"{entry.name}.cdx.json").is_file()
            digest = f"sha256:{entry.text('digest')}"
            moved.append(Moved(entry.name, kind, repository, digest, outcome, bom))
    return moved
