"""Atomic writes, digests and staged directories.

An artefact is a directory that appears by one rename, with its manifest inside. Whatever is killed
before that leaves a `.partial` directory, which nothing reads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from engineroom.errors import UsageError, Where
from engineroom.types import RenderedFile


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


def tree_digests(root: Path, exclude: Iterable[str] = ()) -> dict[str, str]:
    """sha256 of every file below `root`, by POSIX path relative to it, sorted."""
    skip = set(exclude)
    digests = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            digests[name] = "not a regular file"
        elif path.is_file() and name not in skip:
            digests[name] = sha256_file(path)
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
def staged(final: Path) -> Iterator[Path]:
    """A temporary directory beside `final`; renamed to it when the block ends well.

    An existing `final` is replaced; it is moved aside first, so there is no moment with a mixture.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    _sweep(final)
    partial = final.parent / f".{final.name}.partial-{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        _readable(partial)
        old = final.parent / f".{final.name}.old-{os.getpid()}"
        if final.exists():
            os.replace(final, old)  # noqa: PTH105
        os.replace(partial, final)  # noqa: PTH105
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _readable(root: Path) -> None:
    """safetensors writes 0600; a pod runs as another user and must read what we publish."""
    if os.name == "posix":
        for path in root.rglob("*"):
            if path.is_file() and path.stat().st_nlink == 1:
                path.chmod(path.stat().st_mode | 0o644)


def _sweep(final: Path) -> None:
    """Remove what killed runs left of this artefact; a live process's directory stays."""
    if os.name != "posix":
        return
    for kind in ("partial", "old"):
        for path in final.parent.glob(f".{final.name}.{kind}-*"):
            pid = path.name.rsplit("-", 1)[1]
            if pid.isdigit() and not _alive(int(pid)):
                shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
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
    """Parsed JSON. Raises OSError or ValueError, for the caller to name."""
    return json.loads(path.read_text(encoding="utf-8"))


def digest_of(files: Mapping[str, str]) -> str:
    """One digest over a listing of file digests."""
    return sha256_json(dict(files))
