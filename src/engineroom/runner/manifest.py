"""Manifests: what an artefact is, under which conditions it was made, and its files' digests.

`schema_version` 1. A reader accepts the same version only; a change that old readers would
misunderstand is a new version.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engineroom import __version__
from engineroom.errors import UsageError, artefact_error
from engineroom.runner import files

NAME = "manifest.json"
SCHEMA_VERSION = 1


def write(
    root: Path, kind: str, *, run_id: str, catalog_digest: str, key: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write `manifest.json` into a finished, still staged directory; returns its content.

    Args:
        kind: ``checkpoint``, ``<lane>-package``, ``build-plan``, ``repository`` or ``helm-release``.
        key: digest of the inputs; equal keys mean the artefact need not be made again.
        facts: the conditions, by kind.
    """
    listing = files.tree_digests(root, exclude=(NAME,))
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
    """Read and verify an artefact: kind, schema version, every file's digest, no extra files.

    Raises:
        UsageError: not an artefact of that kind, damaged, or incomplete.
    """
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
    if content.get("schema_version") != SCHEMA_VERSION:
        raise artefact_error(
            path, f"manifest schema_version {content.get('schema_version')} is not {SCHEMA_VERSION}"
        )
    expected = content.get("files")
    try:
        sealed = content.get("seal") == _seal(content)
    except ValueError:  # NaN, which we never write
        sealed = False
    if not sealed or not isinstance(expected, dict):
        raise artefact_error(path, "the manifest was changed: its seal does not match", hint=hint)
    actual = files.tree_digests(root, exclude=(NAME,))
    for name in sorted(set(expected) | set(actual)):
        if name not in actual:
            raise artefact_error(root / name, "a file of the artefact is missing", hint=hint)
        if name not in expected:
            raise artefact_error(root / name, "a file that the manifest does not list", hint=hint)
        if expected[name] != actual[name]:
            raise artefact_error(root / name, "the file differs from its digest", hint=hint)
    return content


def reuse(root: Path, kind: str, key: str) -> dict[str, Any] | None:
    """The verified manifest when the artefact was made from the same inputs, else None."""
    try:
        content = load(root, kind)
    except UsageError:
        return None
    return content if content.get("key") == key else None
