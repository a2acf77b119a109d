"""A verb killed at any moment leaves nothing that a later stage accepts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engineroom.errors import UsageError
from engineroom.names import RuntimeName
from engineroom.pipeline import build, open_job, render
from engineroom.pipeline.quantize import find
from engineroom.runner import files
from tests.conftest import spec_data, write_spec

pytestmark = pytest.mark.slow


def start(*argv: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "engineroom", *argv],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_after(process: subprocess.Popen, seconds: float) -> bool:
    """True when it was still running and was killed, child and all."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        return True
    return False


def accepted(path: Path) -> bool:
    try:
        find(open_job(path, out=path.parent / "out"))
    except UsageError:
        return False
    return True


MOMENTS = (0.1, 0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Shares of a whole run; denser towards its end, where files are written."""


@pytest.mark.parametrize(
    ("moments", "least"),
    [((0.15, 0.4, 0.6), 2), pytest.param(MOMENTS, 6, marks=pytest.mark.full)],
    ids=["three", "ten"],
)
def test_quantize_killed_at_moments(tmp_path, moments, least):
    path = write_spec(tmp_path, spec_data())
    argv = ("quantize", "-f", str(path), "--out", str(tmp_path / "out"), "--no-evaluate")
    started = time.monotonic()
    assert start(*argv).wait(120) == 0
    whole = time.monotonic() - started
    assert accepted(path)
    if len(moments) > 3:
        # The first run reads cold files: the late moments need the length of a second one.
        (tmp_path / "out/checkpoints").rename(tmp_path / "done-first")
        started = time.monotonic()
        assert start(*argv).wait(120) == 0
        whole = time.monotonic() - started
    checkpoints = tmp_path / "out/checkpoints"
    killed = 0
    for i, share in enumerate(moments):
        checkpoints.rename(tmp_path / f"done-{i}")
        assert not accepted(path)
        started = time.monotonic()
        if kill_after(start(*argv), whole * share):
            killed += 1
            published = [p for p in checkpoints.glob("*") if not p.name.startswith(".")]
            # Nothing under its own name, or (killed after the rename) the whole checkpoint.
            assert accepted(path) is bool(published)
        else:
            assert accepted(path)
            whole = min(whole, time.monotonic() - started)  # a busy machine measured it too long
    assert killed >= least
    # The next run sweeps what killed ones left, and ends well.
    assert start(*argv).wait(120) == 0
    assert accepted(path)
    assert [p.name for p in checkpoints.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("moments", [4, pytest.param(10, marks=pytest.mark.full)])
def test_render_killed_at_moments(tmp_path, moments, quantized):
    """Deterministic: the process ends at the n-th file operation of publishing."""
    job = quantized("fp8")
    build(job, allow_plan=True)
    out = tmp_path / "workspace"
    files.link_tree(job.out, out)
    for folder in ("repositories",):
        for item in (out / folder).glob("*") if (out / folder).exists() else []:
            item.rename(tmp_path / f"gone-{item.name}")
    code = """
import os, sys
from pathlib import Path
n = int(sys.argv[1]); count = 0
real_write, real_replace, real_mkdir = Path.write_bytes, os.replace, Path.mkdir
def tick():
    global count
    count += 1
    if count == n:
        os._exit(137)
def write(self, data):
    tick(); self.open("wb").write(data[: len(data) // 2]); tick(); return real_write(self, data)
def replace(a, b):
    tick(); real_replace(a, b); tick()
Path.write_bytes, os.replace = write, replace
from engineroom.names import RuntimeName
from engineroom.pipeline import open_job, render
render(open_job(Path(sys.argv[2]), out=Path(sys.argv[3])), runtime=RuntimeName.REFERENCE)
print(count)
"""

    def run(n: int) -> subprocess.CompletedProcess:
        spec = job.loaded.file
        return subprocess.run(
            [sys.executable, "-c", code, str(n), str(spec), str(out)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    total = int(run(10**9).stdout)
    assert total >= 10
    from engineroom.runner import manifest

    for n in sorted({1 + i * (total - 1) // (moments - 1) for i in range(moments)}):
        for folder in (out / "repositories").iterdir():
            folder.rename(tmp_path / f"done-{n}-{folder.name}")
        assert run(n).returncode == 137
        for folder in (out / "repositories").iterdir():
            if folder.name.startswith("."):
                continue
            manifest.load(folder, "repository")  # published whole, or not at all
    assert run(10**9).returncode == 0
    leftovers = [p.name for p in (out / "repositories").iterdir() if p.name.startswith(".")]
    assert leftovers == []  # the next run sweeps what the killed ones left
    assert len(render(open_job(job.loaded.file, out=out), runtime=RuntimeName.REFERENCE)) == 2
