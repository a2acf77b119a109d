"""TERM, HUP and Ctrl-C: children stop, staged files go, the exit code says which signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engineroom.pipeline import Job, build
from tests.conftest import spec_data, write_spec

pytestmark = [pytest.mark.slow]


def start(*argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "engineroom", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_default_signals,
    )


def serving(job: Job) -> subprocess.Popen[str]:
    """`engineroom serve` on a free port, once it says that it is ready."""
    build(job, allow_plan=True)
    argv = ("-f", str(job.loaded.file), "--out", str(job.out), "--port", "0", "--format", "json")
    process = start("serve", *argv)
    assert process.stdout is not None
    assert '"runtime": "reference"' in process.stdout.readline()
    return process


def _default_signals() -> None:
    """Under nohup the tests themselves ignore HUP, and a child would inherit that."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def children(pid: int) -> set[int]:
    """Every descendant of a process."""
    parents = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parents[int(path.name)] = int(
                    (path / "stat").read_text().rsplit(")", 1)[1].split()[1]
                )
            except OSError:
                continue
    found = {pid}
    while more := {p for p, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def gone(pids: set[int], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(Path(f"/proc/{p}").exists() and "Z" not in state(p) for p in pids):
            return True
        time.sleep(0.1)
    return False


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_quantize_stops_with_its_child(tmp_path, number, code):
    path = write_spec(tmp_path, spec_data())
    process = start("quantize", "-f", str(path), "--out", str(tmp_path / "out"))
    family = _wait_for_children(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert gone(family)
    assert list((tmp_path / "out/checkpoints").iterdir()) == []


def _wait_for_children(process: subprocess.Popen[str]) -> set[int]:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        family = children(process.pid)
        if family:
            time.sleep(0.5)
            return children(process.pid)
        time.sleep(0.05)
    raise AssertionError("no child was started")


@pytest.mark.server
@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ([signal.SIGTERM], 0),
        pytest.param([signal.SIGINT, signal.SIGINT], 0, marks=pytest.mark.full),
        pytest.param([signal.SIGINT], 0, marks=pytest.mark.full),
        pytest.param([signal.SIGHUP], 129, marks=pytest.mark.full),
    ],
)  # fmt: skip
def test_serve_stops_the_server(quantized, numbers, code):
    process = serving(quantized("fp8"))
    family = children(process.pid)
    assert len(family) >= 2  # tritonserver and a stub
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.3)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert gone(family)


@pytest.mark.server
def test_a_killed_parent_takes_the_server_along(quantized):
    process = serving(quantized("fp8"))
    family = children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    assert gone(family, 40)


def test_interrupt_at_the_start_is_no_traceback(tmp_path):
    for delay in (0.02, 0.05, 0.1):
        process = start("schema")
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        if process.returncode == 1:
            # Python itself was still starting (site, runpy): none of our code was there to answer.
            assert "/engineroom/" not in err.replace(".venv", "")
            continue
        # Before Python has installed its handler at all, the signal itself ends the process.
        assert process.returncode in (0, 130, -signal.SIGINT)
        if process.returncode != -signal.SIGINT:
            assert "Traceback" not in err


def test_an_interrupt_inside_a_callback_is_not_lost():
    """Python prints an exception of a weakref callback and goes on; imports have such callbacks."""
    code = (
        "import os, signal, sys, time, weakref\n"
        "import engineroom.__main__ as entry\n"
        "sys.unraisablehook = entry._repeat\n"
        "class Thing: pass\n"
        "def callback(_):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    for _ in range(1000): pass\n"
        "try:\n"
        "    thing = Thing(); kept = weakref.ref(thing, callback); del thing\n"
        "    time.sleep(2)\n"
        "    print('lost')\n"
        "except KeyboardInterrupt:\n"
        "    print('seen')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("seen\n", "")
