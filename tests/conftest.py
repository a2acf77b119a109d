"""Shared fixtures. Nothing here touches the user's files or the network."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from engineroom.catalog import Catalog
from engineroom.pipeline import Job, open_job
from tests.models.documents import documents

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "tests/models/tiny-llama"
SMOLLM2_CONFIG = ROOT / "tests/data/smollm2-135m"


@pytest.fixture(autouse=True)
def _hermetic(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network look-ups, no user catalog, no stray output beside the tests."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("ENGINEROOM_CATALOG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return Catalog()


def calibration_file(folder: Path) -> Path:
    path = folder / "calibration.jsonl"
    if not path.exists():
        lines = [json.dumps({"text": text}) for text in documents(7, 120)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def spec_data(model: str | Path = TINY, **changes: Any) -> dict[str, Any]:
    """A small spec as data; `changes` replace top-level keys."""
    return {
        "schema_version": 1,
        "name": "tiny",
        "model": {"source": str(model)},
        "precision": {"weights": "fp8", "kv_cache": "fp8"},
        "calibration": {"dataset": "calibration.jsonl", "samples": 8, "seq_len": 128},
        "targets": [
            {"sku": "l4", "lane": "llmapi", "stack": "26.07", "limits": {"max_batch_size": 8}},
            {
                "sku": "h100-sxm",
                "lane": "engine",
                "stack": "26.07",
                "limits": {"max_batch_size": 8},
            },
        ],
        **changes,
    }


def write_spec(folder: Path, data: dict[str, Any]) -> Path:
    calibration_file(folder)
    path = folder / "engineroom.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., Job]:
    """A job on a small spec in the test's own folder."""

    def make(data: dict[str, Any] | None = None, *, out: Path | None = None) -> Job:
        return open_job(write_spec(tmp_path, data or spec_data()), out=out or tmp_path / "out")

    return make


@pytest.fixture(scope="session")
def shared(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, Callable[[Path], None]], Path]:
    """A folder made once for all workers: `shared("name", make)` runs `make` under a lock."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "shared"
    root.mkdir(exist_ok=True)

    def get(name: str, make: Callable[[Path], None]) -> Path:
        folder = root / name
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / ".made").exists():
                folder.mkdir(exist_ok=True)
                make(folder)
                (folder / ".made").touch()
        return folder

    return get


FORMATS: dict[str, dict[str, Any]] = {
    "fp8": {"weights": "fp8", "kv_cache": "fp8"},
    "awq": {"weights": "w4a16_awq", "kv_cache": "fp8", "group_size": 64},
    "awq128": {"weights": "w4a16_awq", "kv_cache": "fp8"},
    "nvfp4": {"weights": "nvfp4", "kv_cache": "fp8"},
    "bf16": {"weights": "bf16", "kv_cache": "auto"},
    "bf16-kv8": {"weights": "bf16", "kv_cache": "fp8"},
}
SKU_FOR = {"nvfp4": "b200-sxm"}


@pytest.fixture(scope="session")
def quantized(shared: Callable[[str, Callable[[Path], None]], Path]) -> Callable[[str], Job]:
    """A job whose checkpoint of the named format is made; one per session and format."""

    def get(name: str) -> Job:
        targets = [{"sku": SKU_FOR.get(name, "l4"), "lane": "llmapi", "stack": "26.07"}]
        if name in ("awq", "nvfp4", "bf16"):  # with a TensorRT-LLM checkpoint as well
            sku = SKU_FOR.get(name, "h100-sxm")
            targets.append({"sku": sku, "lane": "engine", "stack": "26.07"})
        elif name == "fp8":
            targets = spec_data()["targets"]
        data = spec_data(precision=FORMATS[name], targets=targets)

        def make(folder: Path) -> None:
            path = write_spec(folder, data)
            result = run_cli("quantize", "-f", str(path), "--out", str(folder / "out"))
            assert result.returncode == 0, result.stderr

        folder = shared(f"checkpoint-{name}", make)
        return open_job(folder / "engineroom.yaml", out=folder / "out")

    return get


def golden_tree(folder: Path, rendered: Mapping[str, str]) -> dict[str, str]:
    """The texts kept in `folder` by path; ENGINEROOM_UPDATE_GOLDEN=1 writes `rendered` there first."""
    if os.environ.get("ENGINEROOM_UPDATE_GOLDEN"):
        for path, text in rendered.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    return {
        p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8")
        for p in folder.rglob("*")
        if p.is_file()
    }


def stop_all(opened: Iterable[tuple[Any, Any]]) -> None:
    """End (context of `serve`, Serving) pairs, all servers at once: each takes seconds to unload."""
    opened = list(opened)
    for _, serving in opened:
        with contextlib.suppress(ProcessLookupError):
            os.kill(serving.server.pid, signal.SIGTERM)
    for context, _ in opened:
        context.__exit__(None, None, None)


def run_cli(*argv: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """`engineroom …` as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "engineroom", *argv],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **env},
        timeout=600,
        check=False,
    )
