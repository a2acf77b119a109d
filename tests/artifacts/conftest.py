"""One built workspace for the session, copied for each test that changes it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from engineroom.cli.main import run
from engineroom.pipeline import Job, open_job
from tests.artifacts.common import workspace

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    workspace(folder)
    return folder


@pytest.fixture
def made(_made: Path, tmp_path: Path) -> Job:
    """A spec with one llmapi target, quantized (16 bit), built and rendered."""
    shutil.copytree(_made, tmp_path, dirs_exist_ok=True)
    return open_job(tmp_path / "engineroom.yaml", out=tmp_path / "ws")


@pytest.fixture
def artifacts(capsys: pytest.CaptureFixture[str]) -> Run:
    """`engineroom artifacts …`: (exit code, stdout, stderr)."""

    def call(*words: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["artifacts", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return call
