"""Artefacts as OCI content: media types, descriptors, and tar layers that are the same bytes every time.

Source of every name and rule: opencontainers/image-spec @ 13cff549 (manifest.md "Guidelines for Artifact
Usage", descriptor.md, annotations.md, layer.md, image-layout.md).

One artefact is one image manifest: its config is our `manifest.json`, byte for byte; its layers are plain
tar files, the first with everything small and one more for each big file. A second manifest, whose
`subject` is the first, holds the SBOM.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engineroom.errors import artefact_error

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
EMPTY = "application/vnd.oci.empty.v1+json"
ARTEFACT = "application/vnd.engineroom.artefact.v1"
CONFIG = "application/vnd.engineroom.manifest.v1+json"
SBOM = "application/vnd.cyclonedx+json"
CREATED = "org.opencontainers.image.created"
TITLE = "org.opencontainers.image.title"
REF_NAME = "org.opencontainers.image.ref.name"
PATH = "engineroom/path"
"""Where an artefact lies below its workspace. Keys are ours as the chart's labels are: no domain."""

BIG = 64 << 20
"""Bytes from which a file is a layer of its own: equal weights are then stored and sent once."""
_BLOCK = 1 << 20
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Descriptor:
    """What points to a blob."""

    media_type: str
    digest: str
    size: int
    artifact_type: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def hex(self) -> str:
        return self.digest.partition(":")[2]

    def as_dict(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        if self.artifact_type:
            value["artifactType"] = self.artifact_type
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        return value


def descriptor(data: Any, where: str) -> Descriptor:
    """A descriptor from somebody else's JSON.

    Raises:
        UsageError: a part is missing, or its digest is no SHA-256.
    """
    value = data if isinstance(data, Mapping) else {}
    digest, size = value.get("digest"), value.get("size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise artefact_error(where, f"not a sha256 digest: {str(digest)[:90]}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise artefact_error(where, f"the size of {digest[:19]} is no size: {str(size)[:30]}")
    notes = value.get("annotations") or {}
    if not isinstance(notes, Mapping):
        raise artefact_error(where, f"the annotations of {digest[:19]} are no object")
    kind = value.get("artifactType")
    return Descriptor(
        str(value.get("mediaType")), digest, size, kind if isinstance(kind, str) else None,
        {str(k): str(v) for k, v in notes.items()},
    )  # fmt: skip


def json_bytes(value: Any) -> bytes:
    """The same value, the same bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def described(data: bytes, media_type: str, **extra: Any) -> Descriptor:
    """The descriptor of bytes in memory."""
    return Descriptor(media_type, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), **extra)


def measured(chunks: Iterable[bytes], media_type: str) -> Descriptor:
    """The descriptor of a stream, which is read to its end."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return Descriptor(media_type, f"sha256:{digest.hexdigest()}", size)


def groups(root: Path, names: Sequence[str], big: int = BIG) -> list[tuple[str, ...]]:
    """Names by layer: everything small in the first, each big file in one of its own."""
    sizes = {name: (root / name).stat().st_size for name in names}
    small = tuple(sorted(name for name in names if sizes[name] < big))
    return [*([small] if small else []), *((n,) for n in sorted(names) if sizes[n] >= big)]


def layer(root: Path, names: Sequence[str]) -> Iterator[bytes]:
    """A tar stream of regular files. Times, owners and modes are fixed, so equal files are equal bytes.

    Raises:
        UsageError: a file changed its size while it was read.
    """
    for name in names:
        path = root / name
        size = path.stat().st_size
        yield header(name, size)
        left = size
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                left -= len(block)
                yield block
        if left:
            raise artefact_error(path, "it changed while it was read", hint="run it again")
        yield padding(size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def header(name: str, size: int) -> bytes:
    """A tar header of a regular file: mode 0644, root, no time; long names and sizes in PAX form."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o644, 0
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def manifest_of(
    config: Descriptor, layers: Sequence[Descriptor], annotations: Mapping[str, str]
) -> dict[str, Any]:
    """The image manifest of an artefact."""
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ARTEFACT,
        "config": config.as_dict(),
        "layers": [item.as_dict() for item in layers],
        "annotations": dict(annotations),
    }


def referrer(
    subject: Descriptor, blob: Descriptor, artifact_type: str, annotations: Mapping[str, str]
) -> dict[str, Any]:
    """A manifest that hangs a blob on another manifest; it has no config of its own."""
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": artifact_type,
        "config": described(b"{}", EMPTY).as_dict(),
        "layers": [blob.as_dict()],
        "subject": {
            "mediaType": subject.media_type,
            "digest": subject.digest,
            "size": subject.size,
        },
        "annotations": dict(annotations),
    }


def index_of(manifests: Iterable[Descriptor]) -> dict[str, Any]:
    return {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [item.as_dict() for item in manifests],
    }


def ref_name(*words: str) -> str:
    """A reference that a layout and a registry both take as a tag: at most 128 characters."""
    text = ".".join(re.sub(r"[^A-Za-z0-9]+", "-", word).strip("-") for word in words if word)
    return text[:128].strip("-.") or "artefact"
