"""What export and import of artefacts share: where things come from and go to, and what is said of them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from os import getpid
from pathlib import Path
from typing import Any

REGISTRY, HUB = "oci://", "hf://"


@dataclass(frozen=True)
class Moved:
    """An artefact that was exported or imported.

    Attributes:
        digest: of its OCI manifest; of its files where it went through the hub.
        outcome: ``exported``, ``imported`` or ``already there``.
        sbom: whether an SBOM came or went with it.
    """

    name: str
    kind: str
    ref: str
    digest: str
    outcome: str
    sbom: bool

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "ref": self.ref,
            "digest": self.digest,
            "outcome": self.outcome,
            "sbom": self.sbom,
        }


@contextlib.contextmanager
def scratch(workspace: Path) -> Iterator[Path]:
    """A hidden folder in the workspace; `gc` knows it for a leftover when this process is gone."""
    workspace.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(dir=workspace, prefix=".transfer.", suffix=f".partial-{getpid()}")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
