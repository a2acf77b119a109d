"""What a build's pod runs: one command, published whole or not at all.

Run as ``python3 -c THIS REQUEST`` in NVIDIA's stock container: standard library only, nothing of
engineroom, Python 3.10 or newer (every container of the catalog). REQUEST is JSON:

    workspace   folder where the claim is mounted; every other path is relative to it
    argv        words of the command, run from there
    output_at   index of the word that is replaced by the output's folder, or null
    publish     folder that the output becomes, by one rename
    outputs     files that must be in it, not empty
    files       further files of it, by name, with their text
    manifest    what its manifest.json says, without `created`, `digest`, `files` and `seal`, which are
                added here as engineroom's own manifests have them; `key` tells artefacts apart
    probe       null, or {"path", "text"}: a file that must be there with that text

Exit codes: the command's own (128 + n for a signal); 97 the claim is not the workspace that was meant,
98 an output is missing, or the output holds something that is neither a file nor a folder.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

WRONG_CLAIM = 97
NO_OUTPUT = 98
MANIFEST = "manifest.json"
IRREGULAR = "not a regular file"
"""In place of a digest, as in engineroom's own listings."""


def say(text: str) -> None:
    print("engineroom: " + text, flush=True)


def sha256_json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def digests(root: Path) -> dict[str, str]:
    """sha256 by POSIX path of every file but the manifest."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            found[name] = IRREGULAR
        elif path.is_file() and name != MANIFEST:
            found[name] = sha256_file(path)
    return found


def irregular(listing: Mapping[str, str]) -> list[str]:
    """Names of links, pipes and devices: no artefact has any."""
    return [name for name, digest in listing.items() if digest == IRREGULAR]


def seal(content: Mapping[str, Any]) -> str:
    return sha256_json({k: v for k, v in content.items() if k != "seal"})


def complete(root: Path, key: str) -> bool:
    """True when `root` holds the same key's output, every byte of it."""
    try:
        if not (root / MANIFEST).is_file():  # a pipe would keep us for ever
            return False
        content = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
        same = content["key"] == key and content["seal"] == seal(content)
        listing = digests(root) if same else {}
        return bool(same and content["files"] == listing and not irregular(listing))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def lock(path: Path) -> int:
    """Hold the lock until this process ends. Without locks in the file system, go on without."""
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    said = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if not said:
                say("another pod builds the same; waiting")
                said = True
            time.sleep(1)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            say("this file system has no locks: going on without")
            return handle


def run(argv: Sequence[str]) -> int:
    """The command's exit code as a shell counts it; a SIGTERM goes on to it and all its children."""
    try:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        say(f"`{argv[0]}` cannot be started: {error.strerror}")
        return 127
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    code = child.wait()
    if asked:
        return 128 + asked[0]
    return code if code >= 0 else 128 - code


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def finish(root: Path, request: Mapping[str, Any], listing: Mapping[str, str]) -> None:
    """Modes for other users, the manifest, and everything on the disk.

    `listing` has regular files only: the mode of what a link leads to is not ours to change.
    """
    content = dict(request["manifest"])
    now = datetime.datetime.now(datetime.timezone.utc)
    content["created"] = now.isoformat(timespec="seconds")
    content["digest"] = sha256_json(listing)
    content["files"] = dict(listing)
    content["seal"] = seal(content)
    text = json.dumps(content, indent=2, ensure_ascii=True, allow_nan=False)
    (root / MANIFEST).write_text(text + "\n", encoding="utf-8")
    for path in [root, *root.rglob("*")]:
        path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o644))
        sync(path)


def publish(partial: Path, final: Path) -> None:
    """`partial` becomes `final`; a damaged one that is there is moved out of the way first."""
    if final.exists():
        old = final.parent / f".{final.name}.old-{time.time_ns()}"
        final.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    partial.rename(final)
    sync(final.parent)


def build(request: Mapping[str, Any]) -> int:
    probe = request["probe"]
    if probe is not None:
        path = Path(probe["path"])
        if not path.is_file() or path.read_text(encoding="utf-8") != probe["text"]:
            say(f"the claim of this pod is not the workspace: {path} is not there, or differs")
            return WRONG_CLAIM
    final = Path(request["publish"])
    final.parent.mkdir(parents=True, exist_ok=True)
    lock(final.parent / f".{final.name}.lock")
    if complete(final, request["manifest"]["key"]):
        say(f"already built and verified: {final}")
        return 0
    prefix = f".{final.name}.partial-"
    for left in final.parent.iterdir():
        if left.name.startswith(prefix):
            shutil.rmtree(left, ignore_errors=True)  # of a pod that was taken away
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
    try:
        for name, text in request["files"].items():
            (partial / name).write_text(text, encoding="utf-8")
        argv = list(request["argv"])
        if request["output_at"] is not None:
            argv[request["output_at"]] = str(partial.resolve())
        code = run(argv)
        if code:
            return code
        for name in request["outputs"]:
            path = partial / name
            if not path.is_file() or not path.stat().st_size:
                say(f"`{argv[0]}` ended well but left no {name}")
                return NO_OUTPUT
        listing = digests(partial)
        if odd := irregular(listing):
            say(f"`{argv[0]}` left something that is no regular file: {', '.join(odd)}")
            return NO_OUTPUT
        finish(partial, request, listing)
        publish(partial, final)
        say(f"published {final}")
        return 0
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def main() -> int:
    # As the first process of a container it would ignore the signal without a handler.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    request = json.loads(sys.argv[1])
    os.chdir(request["workspace"])
    try:
        return build(request)
    except OSError as error:
        say(f"{error.filename or 'the output'}: {error.strerror}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
