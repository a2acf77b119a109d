"""Atomic writes, digests and staged directories.

An artefact is a directory that appears by one rename, with its manifest inside. Whatever is killed
before that leaves a `.partial` directory, which nothing reads.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import shutil
import socket
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from engineroom.errors import UsageError, Where
from engineroom.types import RenderedFile

IRREGULAR = "not a regular file"
"""What a listing has in place of a digest for a link, a pipe or a device; no artefact has one."""


def sha256_file(path: Path) -> str:
    """Hex digest of a file, read in 1 MiB pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_json(value: Any) -> str:
    """Hex digest of a value's canonical JSON (sorted keys, no spaces, no NaN)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def tree_digests(
    root: Path, exclude: Iterable[str] = (), *, sha256: Callable[[Path], str] = sha256_file
) -> dict[str, str]:
    """sha256 of every file below `root`, by POSIX path relative to it, sorted.

    What is neither a regular file nor a folder is listed as `IRREGULAR`, whatever `exclude` says.

    Args:
        sha256: digest of one file; by default all its bytes are read.
    """
    skip = set(exclude)
    digests = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            digests[name] = IRREGULAR
        elif path.is_file() and name not in skip:
            digests[name] = sha256(path)
    return digests


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically: temporary file in the same folder, then rename. LF, UTF-8.

    Raises:
        UsageError: the path is something else than a file; a rename would put a device out of place.
    """
    if path.exists() and not path.is_file():
        raise UsageError(
            "not a regular file, so it is not replaced",
            where=Where(path.as_posix()),
            hint="name a file to write",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name[:40]}."  # the whole name may have no room for more
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=".partial")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        # mkstemp makes 0600; what a pod or another user reads needs the usual mode.
        Path(name).chmod(0o644)
        os.replace(name, path)  # noqa: PTH105 - replaces on Windows too
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        # Half a surrogate pair, as in a file name that is not UTF-8, can only be written escaped.
        text = json.dumps(value, indent=2, allow_nan=False)
    write_text(path, text + "\n")


class _Dumper(yaml.SafeDumper):
    """PyYAML, but text with odd line breaks or control characters is double-quoted: its plain and
    single-quoted styles do not bring U+0085, U+2028 and U+2029 back."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    odd = any(c != "\n" and (not c.isprintable() or c in "\u2028\u2029") for c in value)
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if odd else None)


_Dumper.add_representer(str, _text)


def dump_yaml(value: Any) -> str:
    """Block YAML that every YAML reader takes back as the same value."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return str(text)


@contextlib.contextmanager
def staged(final: Path, *, alone: bool = False) -> Iterator[Path]:
    """A temporary directory beside `final`; renamed to it when the block ends well.

    An existing `final` is replaced; it is moved aside first, so there is no moment with a mixture. Of
    two that end at the same time the later one stays; each is whole.

    Args:
        alone: the caller holds a lock on `final`, so whatever others left beside it is of dead runs,
            on this machine or another.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    _sweep(final, alone)
    partial = _beside(final, "partial")
    partial.mkdir()
    try:
        yield partial
        make_readable(partial)
        _publish(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _beside(final: Path, kind: str) -> Path:
    """A new hidden name that says whose it is; no two calls get the same one."""
    return final.parent / f".{final.name}.{kind}-{os.getpid()}-{_here()}-{uuid.uuid4().hex[:8]}"


@cache
def _here() -> str:
    """Where process ids mean what they mean to us: this host, this namespace of processes."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(
            f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}".encode()
        ).hexdigest()[:8]
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _publish(partial: Path, final: Path) -> None:
    for attempt in range(100):
        old = _beside(final, "old")
        try:
            if final.exists():
                os.replace(final, old)  # noqa: PTH105
            os.replace(partial, final)  # noqa: PTH105
        except OSError:
            if old.is_dir():
                with contextlib.suppress(OSError):
                    os.replace(old, final)  # noqa: PTH105
            # Another process published or moved `final` between our two steps; it may be free now.
            if not partial.is_dir() or attempt == 99:
                raise
        else:
            return
        finally:
            shutil.rmtree(old, ignore_errors=True)


def make_readable(root: Path) -> None:
    """safetensors writes 0600; a pod runs as another user and must read what we publish.

    Regular files only: the mode of what a link leads to is not ours to change.
    """
    if os.name == "posix":
        for path in root.rglob("*"):
            st = path.lstat()
            if stat.S_ISREG(st.st_mode) and st.st_mode & 0o444 != 0o444 and st.st_nlink == 1:
                path.chmod(stat.S_IMODE(st.st_mode) | 0o644)


def _sweep(final: Path, alone: bool) -> None:
    """Remove what killed runs left of this artefact; a live process's directory stays."""
    if os.name != "posix":
        return
    for kind in ("partial", "old"):
        for path in final.parent.glob(f".{glob.escape(final.name)}.{kind}-*"):
            _, rest = _owner(path.name, kind)
            if owner_lives(path) is False or (alone and rest):
                shutil.rmtree(path, ignore_errors=True)


def _owner(name: str, kind: str) -> tuple[str, str]:
    """(process id, the rest, which older engineroom did not write) of a name that `_beside` made."""
    pid, _, rest = name.rpartition(f".{kind}-")[2].partition("-")
    return pid, rest


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def write_tree(root: Path, files: Iterable[RenderedFile]) -> None:
    """Write rendered files below `root`, bytes as rendered.

    Raises:
        ValueError: a path that leaves the root; rendering made it, so it is our fault.
    """
    for file in files:
        path = root / file.path
        if not path.resolve().is_relative_to(root.resolve()):
            raise ValueError(f"{file.path} leaves {root}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)


def link_tree(source: Path, target: Path) -> None:
    """Copy a directory by hard links where the file system allows, else by bytes."""
    for path in sorted(source.rglob("*")):
        goal = target / path.relative_to(source)
        if path.is_dir():
            goal.mkdir(parents=True, exist_ok=True)
            continue
        goal.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, goal)
        except OSError:
            shutil.copy2(path, goal)


def read_json(path: Path) -> Any:
    """Parsed JSON of a regular file, or of a link to one: a pipe would keep us for ever.

    Raises OSError or ValueError, for the caller to name.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, IRREGULAR, str(path))
        return json.loads(file.read().decode("utf-8"))


def digest_of(files: Mapping[str, str]) -> str:
    """One digest over a listing of file digests."""
    return sha256_json(dict(files))


def owner_lives(path: Path) -> bool | None:
    """Of a hidden folder that `staged` made: whether its process is alive.

    Returns:
        None: it is no such folder, or of another machine, whose processes are not known here.
    """
    for kind in ("partial", "old"):
        pid, rest = _owner(path.name, kind)
        if path.name.startswith(".") and f".{kind}-" in path.name[1:] and pid.isdecimal():
            if rest and not rest.startswith(f"{_here()}-"):
                return None
            return _alive(int(pid))
    return None


def remove_tree(final: Path) -> None:
    """Remove a published folder: one rename takes it out of sight, so no half of it looks whole."""
    aside = _beside(final, "old")
    os.replace(final, aside)  # noqa: PTH105
    shutil.rmtree(aside)
