"""CPU time of a server: its process tree, split by model, and what the rest of the machine used.

All figures come from /proc and have its resolution, a clock tick (10 ms): runs must be seconds long.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


def tree(pid: int) -> list[int]:
    """`pid` and all its descendants that run now."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                parent = int(_stat(int(entry.name))[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        item = todo.pop()
        found.append(item)
        todo += children.get(item, [])
    return found


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third one on (state, ppid, ...); the name may hold blanks."""
    return (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()


def cpu_seconds(pid: int) -> float:
    """User and system time of one process; 0 if it is gone."""
    try:
        fields = _stat(pid)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK


def busy_seconds() -> float:
    """CPU time that all of the machine has used."""
    fields = [int(x) for x in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICK


def model_of(pid: int) -> str:
    """`server`, or the model that a Python stub runs."""
    try:
        argv = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    if not argv or not argv[0].endswith(b"triton_python_backend_stub"):
        return "server"
    parts = Path(argv[1].decode()).parts  # .../models/<model>/<version>/model.py
    if "backends" in parts:  # a Python-based backend: the file is the backend's
        return parts[-2]
    return parts[-3]


@dataclass(frozen=True)
class Usage:
    """CPU seconds at one moment."""

    by_model: dict[str, float]
    busy: float
    own: float

    @property
    def total(self) -> float:
        return sum(self.by_model.values())


def usage(names: dict[int, str]) -> Usage:
    """`names`: process id -> model, from `watch`."""
    by_model: dict[str, float] = {}
    for pid, name in names.items():
        by_model[name] = by_model.get(name, 0.0) + cpu_seconds(pid)
    times = os.times()
    return Usage(by_model, busy_seconds(), times.user + times.system)


def watch(pid: int) -> dict[int, str]:
    """The processes of a server, by model."""
    return {item: model_of(item) for item in tree(pid)}
