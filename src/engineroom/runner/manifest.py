"""Manifests: what an artefact is, under which conditions it was made, and its files' digests.

`schema_version` 2. A reader accepts its own version and those before it; a change that old readers would
misunderstand is a new version. In every version `schema_version`, `engineroom_version` and `seal` mean what
they mean here: so an older reader can tell a newer manifest from a damaged one, and never replaces it.

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
from engineroom.errors import UsageError, Where, artefact_error
from engineroom.runner import files
from engineroom.runner.verified import Verified

NAME = "manifest.json"
SCHEMA_VERSION = 2
READABLE = (1, SCHEMA_VERSION)


class NewerError(UsageError):
    """A whole manifest of a newer schema than this engineroom reads: whoever made it knows better."""


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

    Raises:
        UsageError: something below `root` is neither a regular file nor a folder.
    """
    if verified is None:
        listing = files.tree_digests(root, exclude=(NAME,))
    else:
        files.make_readable(root)  # afterwards it would change the ctime of what was hashed
        verified.settle(root)
        listing = verified.tree_digests(root, exclude=(NAME,))
    _assert_regular(root, listing)
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
        NewerError: of a newer schema. UsageError: not an artefact of that kind, damaged or incomplete.
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
    if not isinstance(content, dict):
        raise artefact_error(path, f"expected a {kind}, found {type(content).__name__}")
    try:
        sealed = content.get("seal") == _seal(content)
    except ValueError:  # NaN, which we never write
        sealed = False
    changed = artefact_error(path, "the manifest was changed: its seal does not match", hint=hint)
    if newer(content):
        raise _too_new(path, content) if sealed else changed
    if content.get("kind") != kind:
        raise artefact_error(path, f"expected a {kind}, found {content.get('kind')}")
    _assert_readable(path, content.get("schema_version"))
    expected = content.get("files")
    if not sealed or not isinstance(expected, dict):
        raise changed
    try:
        actual = digests(root, exclude=(NAME,))
    except OSError as error:
        raise artefact_error(
            error.filename or root, f"cannot be read: {error.strerror}", hint=hint
        ) from None
    _assert_regular(root, actual)
    for name in sorted(set(expected) | set(actual)):
        if name not in actual:
            raise artefact_error(root / name, "a file of the artefact is missing", hint=hint)
        if name not in expected:
            raise artefact_error(root / name, "a file that the manifest does not list", hint=hint)
        if expected[name] != actual[name]:
            raise artefact_error(root / name, "the file differs from its digest", hint=hint)
    return content


def _assert_regular(root: Path, listing: Mapping[str, str]) -> None:
    """A link has no bytes of its own to vouch for."""
    for name, digest in listing.items():
        if digest == files.IRREGULAR:
            raise artefact_error(
                root / name, "not a regular file, which no artefact may hold",
                hint="put the file itself there, no link, pipe or device, and make it again",
            )  # fmt: skip


def newer(content: Mapping[str, Any]) -> bool:
    """Whether a manifest is of a newer schema than this engineroom reads."""
    version = content.get("schema_version")
    return isinstance(version, int) and not isinstance(version, bool) and version > SCHEMA_VERSION


def _too_new(path: Path, content: Mapping[str, Any]) -> NewerError:
    maker = str(content.get("engineroom_version"))[:40]
    return NewerError(
        f"made by engineroom {maker}: its manifest's schema_version {content['schema_version']} is newer "
        f"than {SCHEMA_VERSION}, the newest that this engineroom ({__version__}) reads",
        where=Where(str(path)),
        hint=f"use engineroom {maker} or a newer one, or remove {path.parent.as_posix()} to have it made "
        "again",
    )


def _assert_readable(path: Path, version: Any) -> None:
    if isinstance(version, int) and not isinstance(version, bool) and version in READABLE:
        return
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

    Raises:
        NewerError: a newer engineroom made what is there, and it is not ours to replace.
    """
    try:
        content = load(root, kind) if verified is None else load_quick(root, kind, verified)
    except NewerError:
        raise
    except UsageError:
        return None
    return content if content.get("key") == key else None
