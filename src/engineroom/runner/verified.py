"""Digests that need not be computed again: a file that has not changed since it was hashed.

"Not changed" is what the file system says: device, inode, size, mtime and ctime together are a file's
identity, and a digest is kept under that identity, whatever the path. Hard links share one entry, and a
rename of the folder above changes nothing. A write changes mtime and ctime; setting the mtime back changes
ctime.

A digest is kept only when the file had been left alone for `SETTLED_NS` before hashing began. Otherwise
a write within the same tick of the file system's clock, during or just after hashing, would not show.

What this cannot see: bytes that change below the file system (a failing disk), a clock that was set
back, a file system whose attributes are cached or not kept (some network and FUSE mounts), and somebody
who edits the store itself. `manifest.load` hashes everything and sees all of that.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from engineroom.errors import EngineroomError
from engineroom.runner import files

SETTLED_NS = 2_000_000_000
"""Coarsest timestamps of file systems in use are 2 s (FAT); others have 1 s down to 1 ns."""
LARGE = 256 << 20
"""Bytes from which hashing again costs more than waiting until the files have settled."""
MAX_ENTRIES = 50_000
_SCHEMA = 1


def identity(path: Path) -> str:
    """What decides whether a file is the one that was hashed. Raises OSError."""
    return _text(path.stat())


def _text(st: os.stat_result) -> str:
    return f"{st.st_dev}:{st.st_ino}:{st.st_size}:{st.st_mtime_ns}:{st.st_ctime_ns}"


class Verified:
    """A store of digests.

    Args:
        file: JSON file of the store; it is written by `save` alone, and ignored when it is not whole.
            None: nothing is kept.

    Attributes:
        hashed: files that were read in full, for reports and tests.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.hashed = 0
        self._known = {} if file is None else _read(file)
        self._new: dict[str, str] = {}
        self._linking = threading.RLock()

    def sha256(self, path: Path) -> str:
        """Hex digest of a file: a kept one, or of its bytes. Raises OSError."""
        before = path.stat()
        key = _text(before)
        kept = self._known.get(key)
        if kept is not None:
            return kept
        started = time.time_ns()
        digest = files.sha256_file(path)
        self.hashed += 1
        # On Windows ctime is the time of creation; elsewhere nobody can set it.
        changed = before.st_ctime_ns if os.name == "posix" else before.st_mtime_ns
        if started - changed >= SETTLED_NS and _text(path.stat()) == key:
            self._keep(key, digest)
        return digest

    def tree_digests(self, root: Path, exclude: Iterable[str] = ()) -> dict[str, str]:
        """`files.tree_digests`, without reading what was verified before."""
        return files.tree_digests(root, exclude, sha256=self.sha256)

    @contextlib.contextmanager
    def linking(self, root: Path) -> Iterator[None]:
        """Hard links to the files below `root` are made or removed in this block, and no more.

        That changes their ctime only. `root` itself may be another tree of the same links afterwards.
        """
        with self._linking:
            before = {p: p.stat() for p in root.rglob("*") if p.is_file()}
            yield
            for path, old in before.items():
                digest = self._known.get(_text(old))
                try:
                    new = path.stat()
                except OSError:
                    continue
                same = (old.st_ino, old.st_size, old.st_mtime_ns) == (
                    new.st_ino, new.st_size, new.st_mtime_ns,
                )  # fmt: skip
                if digest is not None and same:
                    self._keep(_text(new), digest)

    def settle(self, root: Path) -> None:
        """Wait until a large tree that was just written has settled, so that its digests can be kept.

        At most `SETTLED_NS`; a small tree is hashed again next time instead.
        """
        stats = [p.stat() for p in root.rglob("*") if p.is_file()]
        stats = [st for st in stats if _text(st) not in self._known]
        if sum(st.st_size for st in stats) < LARGE:
            return
        newest = max(st.st_ctime_ns for st in stats)
        left = newest + SETTLED_NS - time.time_ns()
        if 0 < left <= SETTLED_NS:
            time.sleep(left / 1e9)

    def _keep(self, key: str, digest: str) -> None:
        self._known[key] = self._new[key] = digest

    def save(self) -> None:
        """Write what is new. A store that cannot be written costs time, not an answer."""
        if self.file is None or not self._new:
            return
        # Another process may have saved since: its entries are as good as ours.
        merged = {**_read(self.file), **self._new}
        entries = dict(list(merged.items())[-MAX_ENTRIES:])
        with contextlib.suppress(OSError, EngineroomError):
            files.write_json(
                self.file,
                {"schema_version": _SCHEMA, "digests": entries, "seal": files.digest_of(entries)},
            )
            self._new.clear()


def _read(file: Path) -> dict[str, str]:
    """The entries of a whole store, else none."""
    try:
        content = files.read_json(file)
        entries = content["digests"]
        whole = content["schema_version"] == _SCHEMA
        whole = whole and content["seal"] == files.digest_of(entries)
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return {}
    return dict(entries) if whole else {}
