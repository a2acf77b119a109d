"""Host memory that is left for more work."""

from __future__ import annotations

import re
from pathlib import Path

from engineroom.runner.machine.facts import Roots, cgroup_facts, read


def available_bytes() -> int | None:
    """Bytes that new processes may take: `MemAvailable`, and not more than the cgroup's limit.

    None where neither can be read (not Linux).
    """
    roots = Roots()
    text = read(Path(roots.proc, "meminfo")) or ""
    match = re.search(r"^MemAvailable:\s+([0-9]{1,15}) kB", text, re.MULTILINE)
    figures = [int(match[1]) * 1024 if match else None, cgroup_facts(roots)["memory_limit_bytes"]]
    return min((figure for figure in figures if figure is not None), default=None)
