"""One at a time: locks between processes, and between threads of one.

A lock is `flock` on a small file. The kernel holds it for the open file, so it is gone when its holder
is, however that ended; nothing is ever left to clean up by hand. The tools that a holder starts do not
inherit it.

On NFS, Linux makes byte-range locks of `flock`, which hold between hosts when the server's locking works
(NFSv4, or lockd) and within one host only when mounted with `nolock` or `local_lock` (flock(2), nfs(5)).
Where the file system has no locks at all, the work is done without: two builders may then do the same
work twice, and each still publishes whole.

A lock file that another user made is opened for reading where it may not be written: a local `flock` needs
no right to write (NFS does, for an exclusive one). It then goes on naming whoever wrote into it last.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engineroom.errors import UsageError, Where

_POLL = 0.2
_EVERY = 60.0
"""Seconds between two words about the same wait."""
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Stopped(Exception):
    """The wait was given up because `stop` was set."""


@contextlib.contextmanager
def exclusive(
    path: Path,
    on_wait: Callable[[str], None],
    *,
    stop: threading.Event | None = None,
) -> Iterator[bool]:
    """Hold the lock of `path` in this block; yields False where the file system has no locks.

    Args:
        path: the lock file, made when it is not there. It stays, with the last holder's name inside.
        on_wait: gets a clause about who holds it: once, then every minute.
        stop: set from another thread to give up.

    Raises:
        Stopped: `stop` was set. UsageError: this user may neither make nor open the file.
        OSError: it cannot be made for another reason.
    """
    with _held(path, on_wait, stop, shared=False) as held:
        yield held


@contextlib.contextmanager
def shared(
    path: Path,
    on_wait: Callable[[str], None],
    *,
    stop: threading.Event | None = None,
) -> Iterator[bool]:
    """`exclusive`, but several hold it so at once: they read what an exclusive holder would change."""
    with _held(path, on_wait, stop, shared=True) as held:
        yield held


@contextlib.contextmanager
def _held(
    path: Path, on_wait: Callable[[str], None], stop: threading.Event | None, *, shared: bool
) -> Iterator[bool]:
    handle = _acquire(path, on_wait, stop, shared)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def _open(path: Path) -> int:
    more = getattr(os, "O_CLOEXEC", 0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Everybody whom the umask lets: the next builder may be another user.
        return os.open(path, os.O_RDWR | os.O_CREAT | more, 0o666)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        first = error
    try:
        return os.open(path, os.O_RDONLY | more)
    except OSError:
        raise _refused(path, first) from first


def _refused(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"the lock cannot be taken: {error.strerror or error}",
        where=Where(path.as_posix()),
        hint=f"give this user the right to write to {path.parent.as_posix()} and the files in it, or "
        "name a workspace of your own with --out",
    )


def _acquire(
    path: Path, on_wait: Callable[[str], None], stop: threading.Event | None, shared: bool
) -> int | None:
    said: float | None = None
    while True:
        handle = _open(path)
        try:
            try:
                taken = _try(handle, shared)
            except OSError as error:
                if error.errno == errno.EBADF:  # NFS: an exclusive lock of a file open for reading
                    raise _refused(path, error) from error
                raise
            if taken is None:
                os.close(handle)
                return None
            # Whoever tidies up may have removed the file between open and lock.
            if taken and _same_file(handle, path):
                _sign(handle)
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if taken:
            continue
        now = time.monotonic()
        if said is None or now - said >= _EVERY:
            on_wait(holder(path))
            said = now
        if stop is not None and stop.is_set():
            raise Stopped
        time.sleep(_POLL)


def _try(handle: int, shared: bool = False) -> bool | None:
    """True: locked now; False: somebody else has it; None: there are no locks here."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return True


def _same_file(handle: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _sign(handle: int) -> None:
    """Say in the file who holds it; only people read it."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now})
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)


def holder(path: Path) -> str:
    """Who holds a lock, as far as its file says: ``process 12 on gpu-3, since 2026-11-30T04:00:00Z``.

    Of several that share it, the last one to take it.
    """
    try:
        facts: Any = json.loads(path.read_text(encoding="utf-8")[:1000])
        return f"process {facts['pid']} on {facts['host']}, since {facts['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
