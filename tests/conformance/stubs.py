"""The Python stubs of a running server, by model, and killing one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def stubs(server_pid: int) -> dict[str, list[int]]:
    """{model: pids of its stubs}; a stub's first argument is MODEL/VERSION/model.py."""
    found: dict[str, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            argv = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == server_pid and b"triton_python_backend_stub" in argv[0]:
            model = Path(argv[1].decode()).parent.parent.name
            found.setdefault(model, []).append(int(folder.name))
    return found


def kill(pid: int) -> float:
    """kill -9; returns the time of the monotonic clock once the process is gone."""
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            break
        if state == "Z":
            break
        time.sleep(0.01)
    return time.monotonic()
