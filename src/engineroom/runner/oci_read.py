"""Reading an OCI image layout that may come from anywhere.

Nothing is believed: every blob is hashed and measured against its descriptor, names from a tar stream must
be names that the artefact's own manifest lists, and only regular files are taken. So a link, a device, an
absolute or climbing name, a second file of one name or a file too many ends the import, and what was
written until then lies in a staged folder that goes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from engineroom.errors import UsageError, Where, artefact_error
from engineroom.runner import oci

MAX_JSON = 64 << 20
"""Bytes of an index, a manifest or a config: a manifest of 100,000 files has 15 MB."""
_BLOCK = 1 << 20
_BAD_TAR = (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError)
"""What `tarfile` raises of a damaged file: numbers in a PAX header that are none or too large are
ValueError and OverflowError, a long row of such headers is RecursionError."""
_SHORT = "copy it again: it is not what its index says"


class Layout(Protocol):
    """An opened layout."""

    name: str

    def index(self) -> bytes:
        """`index.json` as it is."""

    def open(self, blob: oci.Descriptor) -> IO[bytes]:
        """A blob's bytes, not verified yet. Raises UsageError when it is not there."""


class _Folder:
    def __init__(self, root: Path) -> None:
        self.name = root.as_posix()
        self.root = root

    def _file(self, path: Path) -> Path:
        if path.is_symlink() or not path.is_file():
            raise artefact_error(path, "missing, or not a regular file", hint=_SHORT)
        return path

    def index(self) -> bytes:
        path = self._file(self.root / "index.json")
        if path.stat().st_size > MAX_JSON:
            raise artefact_error(path, f"larger than {MAX_JSON} bytes")
        self._file(self.root / "oci-layout")
        return path.read_bytes()

    def open(self, blob: oci.Descriptor) -> IO[bytes]:
        return self._file(self.root / "blobs/sha256" / blob.hex).open("rb")


class _Archive:
    def __init__(self, path: Path, tar: tarfile.TarFile) -> None:
        self.name = path.as_posix()
        self.tar = tar
        self.members: dict[str, tarfile.TarInfo] = {}
        for member in tar:
            name = member.name.removeprefix("./")
            if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
                continue  # folders; anything else is nothing that a layout has
            if name in self.members:
                raise artefact_error(path, f"two files `{name[:200]}` in one archive", hint=_SHORT)
            self.members[name] = member

    def _member(self, name: str) -> IO[bytes]:
        member = self.members.get(name)
        file = self.tar.extractfile(member) if member is not None else None
        if file is None:
            raise artefact_error(self.name, f"`{name}` is missing in the archive", hint=_SHORT)
        return file

    def index(self) -> bytes:
        self._member("oci-layout")
        data = self._member("index.json").read(MAX_JSON + 1)
        if len(data) > MAX_JSON:
            raise artefact_error(self.name, f"index.json is larger than {MAX_JSON} bytes")
        return data

    def open(self, blob: oci.Descriptor) -> IO[bytes]:
        return self._member(f"blobs/sha256/{blob.hex}")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Layout]:
    """A layout folder, or a tar file of one.

    Raises:
        UsageError: neither.
    """
    if path.is_dir():
        yield _Folder(path)
        return
    try:
        tar = tarfile.open(path, "r:")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        raise UsageError(
            "no such file or folder", where=Where(path.as_posix()), hint="check the path"
        ) from None
    except _BAD_TAR:
        raise artefact_error(
            path, "neither a layout folder nor an uncompressed tar file of one",
            hint="name what `engineroom artifacts export` wrote",
        ) from None  # fmt: skip
    with tar:
        try:
            layout = _Archive(path, tar)
        except _BAD_TAR as error:
            raise artefact_error(path, f"a damaged tar file: {error}", hint=_SHORT) from None
        yield layout


class Checked:
    """A stream that is hashed while it is read; `finish` says whether it was the blob."""

    def __init__(self, file: IO[bytes], blob: oci.Descriptor, where: str) -> None:
        self.file, self.blob, self.where = file, blob, where
        self.digest, self.size = hashlib.sha256(), 0

    def read(self, count: int = -1) -> bytes:
        # One byte more than there should be is enough to know.
        room = self.blob.size - self.size + 1
        data = self.file.read(room if count < 0 else min(count, room))
        self.digest.update(data)
        self.size += len(data)
        return data

    def finish(self) -> None:
        """Read what is left.

        Raises:
            UsageError: another size or digest than the descriptor's.
        """
        while self.read(_BLOCK):
            pass
        if self.size != self.blob.size:
            raise artefact_error(
                self.where, f"blob {self.blob.digest[:19]} has not its {self.blob.size} bytes", hint=_SHORT
            )  # fmt: skip
        if f"sha256:{self.digest.hexdigest()}" != self.blob.digest:
            raise artefact_error(
                self.where, f"blob {self.blob.digest[:19]} differs from its digest", hint=_SHORT
            )


def read_blob(layout: Layout, blob: oci.Descriptor) -> bytes:
    """A small blob, verified.

    Raises:
        UsageError: missing, damaged, or larger than `MAX_JSON`.
    """
    if blob.size > MAX_JSON:
        raise artefact_error(layout.name, f"{blob.digest[:19]} is larger than {MAX_JSON} bytes")
    with layout.open(blob) as file:
        checked = Checked(file, blob, layout.name)
        data = checked.read(blob.size)
        checked.finish()
    return data


def as_object(data: bytes, where: str, what: str) -> dict[str, Any]:
    """A JSON object. Raises UsageError."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise artefact_error(where, f"{what} is no JSON object", hint=_SHORT)
    return value


def manifests(layout: Layout) -> list[oci.Descriptor]:
    """The manifests of the index, in order.

    Raises:
        UsageError: no index, or a descriptor that is none.
    """
    value = as_object(layout.index(), layout.name, "index.json")
    if not isinstance(value.get("manifests"), list):
        raise artefact_error(layout.name, "index.json lists no manifests", hint=_SHORT)
    return descriptors(value, "manifests", layout.name)


def descriptors(value: Mapping[str, Any], key: str, where: str) -> list[oci.Descriptor]:
    """The descriptors in a list of a JSON object; none where the key is missing or null.

    Raises:
        UsageError: no list, or a descriptor that is none.
    """
    rows = value.get(key)
    if rows is None:
        return []
    if not isinstance(rows, list):
        raise artefact_error(where, f"`{key}` is no list: {str(rows)[:30]}", hint=_SHORT)
    return [oci.descriptor(row, where) for row in rows]


def unpack(layout: Layout, blob: oci.Descriptor, into: Path, wanted: dict[str, bool]) -> None:
    """Write a layer's files below `into`.

    Args:
        wanted: every name that may come, with False; set to True when it came.

    Raises:
        UsageError: a damaged layer, or an entry that is not one of these files.
    """
    with layout.open(blob) as file:
        checked = Checked(file, blob, layout.name)
        try:
            with tarfile.open(fileobj=checked, mode="r|") as tar:  # type: ignore[call-overload]
                for member in tar:
                    _take(tar, member, into, wanted, layout.name)
        except _BAD_TAR as error:
            raise artefact_error(
                layout.name, f"layer {blob.digest[:19]} is no tar file: {error}", hint=_SHORT
            ) from None
        checked.finish()


def _take(
    tar: tarfile.TarFile, member: tarfile.TarInfo, into: Path, wanted: dict[str, bool], where: str
) -> None:
    name = member.name
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        raise _refused(where, name, "it is not a regular file")
    if not is_plain(name):
        raise _refused(where, name, "the name leaves the artefact's folder")
    if name not in wanted:
        raise _refused(where, name, "the artefact's manifest does not list it")
    if wanted[name]:
        raise _refused(where, name, "it comes twice")
    wanted[name] = True
    source = tar.extractfile(member)
    if source is None:
        raise _refused(where, name, "it has no content")
    path = into / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as target:
        while block := source.read(_BLOCK):
            target.write(block)


def _refused(where: str, name: str, why: str) -> UsageError:
    return artefact_error(
        where, f"`{name[:200]}` of a layer is refused: {why}", hint="do not use this file; ask who made it"
    )  # fmt: skip


def is_plain(name: str) -> bool:
    """A relative POSIX path below its root, without `.`, `..`, drives or NUL."""
    if not name or "\0" in name or "\\" in name or len(name) > 4096:
        return False
    parts = name.split("/")
    return not PurePosixPath(name).is_absolute() and all(
        part not in ("", ".", "..") and not (len(part) == 2 and part[1] == ":") for part in parts
    )


def listed(config: Mapping[str, Any], where: str) -> dict[str, bool]:
    """Names that an artefact's manifest lists, and the manifest itself, none taken yet.

    Raises:
        UsageError: no list, or a name that leaves the artefact's folder.
    """
    names = config.get("files")
    if not isinstance(names, Mapping):
        raise artefact_error(where, "its manifest lists no files", hint=_SHORT)
    for name in names:
        if not is_plain(str(name)):
            raise _refused(where, str(name), "the name leaves the artefact's folder")
    return {**dict.fromkeys(map(str, names), False), "manifest.json": False}
