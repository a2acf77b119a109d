"""Fixtures of the chart's tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.chart.common import (
    CHART,
    by_kind,
    call,
    scenario,
)


@pytest.fixture(scope="module")
def llmapi() -> dict[str, Any]:
    return by_kind(call(scenario("llmapi")))


@pytest.fixture
def chart_copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHART, tmp_path / "engineroom"))


# Scenarios
