"""Puts the files that a server executes on sys.path, as Triton does."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT

FOLDERS = ("shared", "reference", "llmapi/tensorrt_llm/1")


def template_folder(name: str) -> str:
    return str(ROOT / "model_repo_templates" / name)


@pytest.fixture(autouse=True)
def _template_path(monkeypatch):
    for name in FOLDERS:
        monkeypatch.syspath_prepend(template_folder(name))
