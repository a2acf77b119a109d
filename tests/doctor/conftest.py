from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.machines import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A host with plenty of memory, disk and /dev/shm, and no GPU."""
    return Machine(tmp_path / "machine")
