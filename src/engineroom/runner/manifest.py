"""Manifests: what an artefact is, under which conditions it was made, and its files' digests.

`schema_version` 2. A reader accepts its own version and those before it; a change that old readers would
misunderstand is a new version.

* 1: kind, key, run, catalog, facts by kind, `files`, `seal`.
* 2: an artefact of `build` also says its profile, the executor, the image that its steps ran in, what
  the key was made of (`inputs`), and the attachments with their digests. All of them are additions:
  what version 1 says means the same, and `facts_of` gives both in one form.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engineroom import __version__
from engineroom.errors import UsageError, artefact_error
from engineroom.runner import files
from engineroom.runner.verified import Verified

NAME = "manifest.json"
SCHEMA_VERSION = 2
READABLE = (1, SCHEMA_VERSION)


def write(
    root: Path,
    kind: str,
    *,
    run_id: str,
    catalog_digest: str,
    key: str,
    facts: Mapping[str, Any],
    verified: Verified | None = None,
) -> dict[str, Any]:
    """Write `manifest.json` into a finished, still staged directory; returns its content.

    Args:
        kind: ``checkpoint``, ``<lane>-package``, ``build-plan``, ``repository`` or ``helm-release``.
        key: digest of the inputs; equal keys mean the artefact need not be made again.
        facts: the conditions, by kind.
        verified: remembers the digests, so that a quick form of `load` need not take them again; large
            files are then left to settle first, for at most 2 s.
    """
    if verified is None:
        listing = files.tree_digests(root, exclude=(NAME,))
    else:
        files.make_readable(root)  # afterwards it would change the ctime of what was hashed
        verified.settle(root)
        listing = verified.tree_digests(root, exclude=(NAME,))
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "key": key,
        "run_id": run_id,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "engineroom_version": __version__,
        "catalog_digest": catalog_digest,
        **facts,
        "digest": files.digest_of(listing),
        "files": listing,
    }
    content["seal"] = _seal(content)
    files.write_json(root / NAME, content)
    return content


def _seal(content: Mapping[str, Any]) -> str:
    """Digest of everything else in the manifest: conditions count as much as bytes."""
    return files.sha256_json({k: v for k, v in content.items() if k != "seal"})


def load(root: Path, kind: str) -> dict[str, Any]:
    """Read and verify an artefact in full: kind, schema version, every file's digest, no extra files.

    Raises:
        UsageError: not an artefact of that kind, damaged, incomplete, or of a newer schema.
    """
    return _load(root, kind, files.tree_digests)


def load_quick(root: Path, kind: str, verified: Verified) -> dict[str, Any]:
    """`load`, without reading files again that have not changed since they were verified.

    Not detected, where `load` would: what `verified` says of itself.

    Raises:
        UsageError: as `load`.
    """
    return _load(root, kind, verified.tree_digests)


def _load(root: Path, kind: str, digests: Callable[..., dict[str, str]]) -> dict[str, Any]:
    path = root / NAME
    hint = "make it again; a killed or copied-in-part artefact is never used"
    try:
        content = files.read_json(path)
    except FileNotFoundError:
        raise artefact_error(root, f"no {kind} here: {NAME} is missing", hint=hint) from None
    except (OSError, ValueError, RecursionError):
        raise artefact_error(path, "the manifest is unreadable", hint=hint) from None
    if not isinstance(content, dict) or content.get("kind") != kind:
        found = content.get("kind") if isinstance(content, dict) else type(content).__name__
        raise artefact_error(path, f"expected a {kind}, found {found}")
    _assert_readable(path, content.get("schema_version"))
    expected = content.get("files")
    try:
        sealed = content.get("seal") == _seal(content)
    except ValueError:  # NaN, which we never write
        sealed = False
    if not sealed or not isinstance(expected, dict):
        raise artefact_error(path, "the manifest was changed: its seal does not match", hint=hint)
    try:
        actual = digests(root, exclude=(NAME,))
    except OSError as error:
        raise artefact_error(
            error.filename or root, f"cannot be read: {error.strerror}", hint=hint
        ) from None
    for name in sorted(set(expected) | set(actual)):
        if name not in actual:
            raise artefact_error(root / name, "a file of the artefact is missing", hint=hint)
        if name not in expected:
            raise artefact_error(root / name, "a file that the manifest does not list", hint=hint)
        if expected[name] != actual[name]:
            raise artefact_error(root / name, "the file differs from its digest", hint=hint)
    return content


def _assert_readable(path: Path, version: Any) -> None:
    known = isinstance(version, int) and not isinstance(version, bool)
    if known and version in READABLE:
        return
    if known and version > SCHEMA_VERSION:
        raise artefact_error(
            path,
            f"manifest schema_version {version} is newer than {SCHEMA_VERSION}, the newest that this "
            f"engineroom ({__version__}) reads",
            hint="use the engineroom that made it, or a newer one, or make the artefact again",
        )
    words = " or ".join(map(str, READABLE))
    raise artefact_error(path, f"manifest schema_version {version!r} is not {words}")


def facts_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest of any readable version with every key of the newest; what was not said is None.

    `attachments` is empty before version 2: artefacts had none.
    """
    added: dict[str, Any] = {"profile": None, "executor": None, "image": None, "inputs": None}
    return {**added, "attachments": [], **content}


def reuse(
    root: Path, kind: str, key: str, verified: Verified | None = None
) -> dict[str, Any] | None:
    """The verified manifest when the artefact was made from the same inputs, else None.

    Args:
        verified: makes it the quick form.
    """
    try:
        content = load(root, kind) if verified is None else load_quick(root, kind, verified)
    except UsageError:
        return None
    return content if content.get("key") == key else None
