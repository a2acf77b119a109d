"""Writing an OCI image layout: into a folder that grows, or as one tar file.

In a folder each blob appears by one rename under the name of its digest, and `index.json` is written last:
an export that was killed leaves blobs that nothing points to, which the next run takes up again. Exports
into one folder at the same time take turns, for each blob and for the index, by a lock file in it. A tar
file is written beside its place and appears whole. No layer is copied to disk before: it is hashed once
and streamed once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from engineroom.errors import InternalError, UsageError, Where
from engineroom.runner import files, locks, oci

_LAYOUT = {"imageLayoutVersion": "1.0.0"}
_LOCK = ".engineroom.lock"
Chunks = Callable[[], Iterable[bytes]]


class Sink(Protocol):
    """Where blobs and, at the end, the index go."""

    def put(self, blob: oci.Descriptor, chunks: Chunks) -> None:
        """Take a blob; one that is there already is not taken again."""

    def finish(self, manifests: Sequence[oci.Descriptor]) -> None:
        """Write `index.json` over these manifests."""


def put_bytes(sink: Sink, data: bytes, media_type: str, **extra: Any) -> oci.Descriptor:
    blob = oci.described(data, media_type, **extra)
    sink.put(blob, lambda: [data])
    return blob


def add_artefact(
    sink: Sink,
    root: Path,
    content: Mapping[str, Any],
    annotations: Mapping[str, str],
    sbom: bytes,
    ref: str,
    big: int = oci.BIG,
) -> list[oci.Descriptor]:
    """Put a verified artefact and its SBOM; returns the two manifests for the index.

    Args:
        root: its folder. content: its `manifest.json`, verified.
        annotations: of the artefact's manifest; `oci.CREATED` is given to both.
    """
    raw = (root / "manifest.json").read_bytes()
    config = put_bytes(sink, raw, oci.CONFIG)
    layers = []
    for names in oci.groups(root, [*content["files"], "manifest.json"], big):
        blob = oci.measured(oci.layer(root, names), oci.LAYER)
        sink.put(blob, lambda names=names: oci.layer(root, names))  # type: ignore[misc]
        layers.append(blob)
    made = put_bytes(
        sink,
        oci.json_bytes(oci.manifest_of(config, layers, annotations)),
        oci.MANIFEST,
        artifact_type=oci.ARTEFACT,
        annotations={oci.REF_NAME: ref},
    )
    put_bytes(sink, b"{}", oci.EMPTY)
    bom = put_bytes(sink, sbom, oci.SBOM, annotations={oci.TITLE: "sbom.cdx.json"})
    created = {k: v for k, v in annotations.items() if k == oci.CREATED}
    attached = put_bytes(
        sink,
        oci.json_bytes(oci.referrer(made, bom, oci.SBOM, created)),
        oci.MANIFEST,
        artifact_type=oci.SBOM,
    )
    return [made, attached]


class FolderSink:
    """A layout folder; what it has already stays.

    Args:
        on_wait: gets a clause about who else exports into it, when that has to be waited for.

    Raises:
        UsageError: a folder with something else in it.
    """

    def __init__(self, root: Path, on_wait: Callable[[str], None] = lambda who: None) -> None:
        self.root, self.on_wait = root, on_wait
        self.written = 0
        if root.is_symlink() and not root.exists():
            raise _taken(root, f"a link to {root.readlink()}, which does not exist")
        if root.exists() and not root.is_dir():
            raise _taken(root, "a file, not a folder")
        _assert_ours(root)
        with self._alone():
            _assert_ours(root)
            (root / "blobs/sha256").mkdir(parents=True, exist_ok=True)
            files.write_text(root / "oci-layout", json.dumps(_LAYOUT))
            _index(root / "index.json")  # said now, not after an hour of copying

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other export writes into the folder in this block. Nothing of the lock stays in it."""
        with locks.exclusive(self.root / _LOCK, self.on_wait):
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    (self.root / _LOCK).unlink()

    def put(self, blob: oci.Descriptor, chunks: Chunks) -> None:
        path = self.root / "blobs/sha256" / blob.hex
        with self._alone():
            there = path.is_file() and path.stat().st_size == blob.size
            if there and files.sha256_file(path) == blob.hex:
                return
            # A name without the process in it: the next run writes over what a killed one left.
            partial = self.root / f".{blob.hex[:16]}.partial"
            with partial.open("wb") as file:
                _copy(file, blob, chunks)
                file.flush()
                os.fsync(file.fileno())
            partial.chmod(0o644)
            os.replace(partial, path)  # noqa: PTH105
            self.written += 1

    def finish(self, manifests: Sequence[oci.Descriptor]) -> None:
        with self._alone():
            self._finish(manifests)

    def _finish(self, manifests: Sequence[oci.Descriptor]) -> None:
        names = {item.annotations.get(oci.REF_NAME) for item in manifests} - {None}
        digests = {item.digest for item in manifests}
        kept = [
            item
            for item in _index(self.root / "index.json")
            if item.digest not in digests and item.annotations.get(oci.REF_NAME) not in names
        ]
        digests |= {item.digest for item in kept}
        kept = [item for item in kept if self._subject(item) in (None, *digests)]
        files.write_json(self.root / "index.json", oci.index_of([*kept, *manifests]))

    def _subject(self, item: oci.Descriptor) -> str | None:
        """What an SBOM's manifest hangs on; with an artefact that was replaced its SBOM goes as well."""
        if item.artifact_type != oci.SBOM:
            return None
        try:
            value = files.read_json(self.root / "blobs/sha256" / item.hex)
            return str(value["subject"]["digest"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return ""


def _assert_ours(root: Path) -> None:
    others = root.is_dir() and any(path.name != _LOCK for path in root.iterdir())
    if others and not (root / "oci-layout").is_file():
        raise _taken(root, "a folder with other things in it")


def _taken(path: Path, what: str) -> UsageError:
    return UsageError(
        f"{what}, so nothing is exported there", where=Where(path.as_posix()),
        hint="name a new folder, or one that an export made",
    )  # fmt: skip


def _index(path: Path) -> list[oci.Descriptor]:
    if not path.is_file():
        return []
    try:
        rows = files.read_json(path)["manifests"]
        if not isinstance(rows, list):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise _taken(path, "an index.json that is no OCI index") from None
    return [oci.descriptor(row, path.as_posix()) for row in rows]


class ArchiveSink:
    """A layout as one tar file, written in order; nobody sees it before it is whole."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.done: set[str] = set()
        self._bytes("oci-layout", json.dumps(_LAYOUT).encode())

    def _bytes(self, name: str, data: bytes) -> None:
        self.file.write(oci.header(name, len(data)) + data + oci.padding(len(data)))

    def put(self, blob: oci.Descriptor, chunks: Chunks) -> None:
        if blob.digest in self.done:
            return
        self.file.write(oci.header(f"blobs/sha256/{blob.hex}", blob.size))
        _copy(self.file, blob, chunks)
        self.file.write(oci.padding(blob.size))
        self.done.add(blob.digest)

    def finish(self, manifests: Sequence[oci.Descriptor]) -> None:
        self._bytes("index.json", oci.json_bytes(oci.index_of(manifests)))
        self.file.write(bytes(1024))


@contextlib.contextmanager
def archive(path: Path) -> Iterator[ArchiveSink]:
    """A tar file at `path`, which appears when the block ends well.

    Raises:
        UsageError: there is something already.
    """
    if os.path.lexists(path):  # a link that leads nowhere is something as well
        raise UsageError(
            "there is something already, and it is not replaced", where=Where(path.as_posix()),
            hint="name a new file",
        )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f".{path.name[:40]}.{os.getpid()}.partial"
    try:
        with partial.open("wb") as file:
            yield ArchiveSink(file)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(0o644)
        os.replace(partial, path)  # noqa: PTH105
    finally:
        partial.unlink(missing_ok=True)


def _copy(file: BinaryIO, blob: oci.Descriptor, chunks: Chunks) -> None:
    digest, size = hashlib.sha256(), 0
    for chunk in chunks():
        digest.update(chunk)
        size += len(chunk)
        file.write(chunk)
    if f"sha256:{digest.hexdigest()}" != blob.digest or size != blob.size:
        raise InternalError(
            f"a blob changed between hashing and writing ({blob.digest[:19]})",
            hint="something writes to the artefact; run it again when that has ended",
        )
