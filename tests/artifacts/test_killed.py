"""Export, import and gc killed at any moment: what is there is whole, and the next run completes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engineroom.catalog import Catalog
from engineroom.pipeline.artifacts import entries
from engineroom.pipeline.artifacts_export import chosen, export
from engineroom.pipeline.artifacts_import import import_
from engineroom.pipeline.artifacts_verify import verify
from engineroom.runner import files, manifest
from tests.artifacts.common import engine
from tests.artifacts.oci_reader import read_layout

pytestmark = pytest.mark.full
SEED = 20261130


def large(out: Path) -> Path:
    """An engine double with 60 MB, so that there is something to kill."""
    path = engine(out)
    content = files.read_json(path / manifest.NAME)
    (path / "rank0.engine").write_bytes(random.Random(SEED).randbytes(60_000_000))
    (path / manifest.NAME).unlink()
    own = ("schema_version", "kind", "key", "run_id", "created", "engineroom_version",
           "catalog_digest", "digest", "files", "seal")  # fmt: skip
    facts = {k: v for k, v in content.items() if k not in own}
    manifest.write(path, "engine", run_id="r", catalog_digest="c", key="e" * 64, facts=facts)
    return path


def start(*words: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "engineroom", "artifacts", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def killed(seconds: float, *words: str | Path) -> bool:
    process = start(*words)
    time.sleep(seconds)
    if process.poll() is not None:
        return False
    process.send_signal(signal.SIGKILL)
    process.wait()
    return True


def test_export_and_import(tmp_path: Path, catalog: Catalog) -> None:
    out, goal, new = tmp_path / "ws", tmp_path / "lay", tmp_path / "new"
    path = large(out)
    whole = tmp_path / "whole"
    begun = time.monotonic()
    assert start("export", "e" * 8, "--out", out, "--to", whole).wait() == 0
    lasts = time.monotonic() - begun
    moments = random.Random(SEED)
    hits = 0
    for _ in range(10):
        hits += killed(
            lasts * moments.uniform(0.3, 1), "export", "e" * 8, "--out", out, "--to", goal
        )
        if (goal / "index.json").exists():
            assert read_layout(goal)
        hits += killed(lasts * moments.uniform(0.3, 1), "import", whole, "--out", new)
        for entry in entries(new) if new.is_dir() else ():
            assert verify(new, catalog, paths=[entry.path])[0].verdict == "ok"
    assert hits >= 6, "too few were hit"
    export(out, chosen(out, ["e" * 8]), str(goal))
    assert read_layout(goal)[0]["files"].keys() == {p.name for p in path.iterdir()}
    assert import_(new, str(goal))[0].outcome in ("imported", "already there")
    assert verify(new, catalog)[0].verdict == "ok"
    assert not list(new.rglob(".*.partial-*"))  # swept by the last import
