from __future__ import annotations

import pytest

from tests.build.common import Workspace


@pytest.fixture
def workspace(quantized, tmp_path, monkeypatch):
    """A workspace whose double of `trtllm-build` is first on this process's PATH."""
    made = Workspace(tmp_path, quantized("fp8"))
    monkeypatch.setenv("PATH", made.env["PATH"])
    return made
