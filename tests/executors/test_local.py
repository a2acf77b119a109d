"""The local executor with a test double named trtllm-build: every way a step can end.

What is shown is our handling; nothing here is TensorRT-LLM.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engineroom.errors import ExternalToolError, MissingError, UsageError
from engineroom.runner import tool
from engineroom.runner.executors import EXECUTORS, LocalExecutor, StepFailed, StepStopped, make
from tests.doubles import trtllm_build
from tests.executors.common import run_of, workspace


@pytest.fixture
def double(tmp_path, monkeypatch):
    """Install the double in a mode; every start leaves a file in the folder that comes back."""

    def put(**settings):
        record = tmp_path / "starts"
        record.mkdir(exist_ok=True)
        env = trtllm_build.install(tmp_path / "bin $(x) 'q'", record=record, **settings)
        monkeypatch.setenv("PATH", env["PATH"])
        return record

    return put


def failed(run, **options) -> StepFailed:
    with pytest.raises(StepFailed) as caught:
        LocalExecutor(**options).run(run)
    return caught.value


def alive(words: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if words.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_success_is_followed_live(tmp_path, double):
    double(bytes=100)
    lines, states = [], []
    run = run_of(
        workspace(tmp_path / "w s", ranks=2), ranks=2, on_line=lines.append,
        on_progress=states.append,
    )  # fmt: skip
    LocalExecutor().run(run)
    names = sorted(path.name for path in run.output.iterdir())
    assert names == ["config.json", "rank0.engine", "rank1.engine"]
    assert run.log.read_text().splitlines() == lines[1:]
    assert lines[0].endswith("the product is not checked")
    assert "TEST DOUBLE" in lines[1]
    assert [s.done for s in states] == list(range(10))
    assert (states[0].total, states[-1].phase) == (9, "finishing")


def test_failure_has_the_code_the_tail_and_the_log(tmp_path, double):
    double(mode="fail")
    error = failed(run_of(workspace(tmp_path / "w")))
    assert error.code == 9
    assert error.exit_code == 3
    assert "ended with exit code 9" in error.message
    assert error.tail[-1].startswith("RuntimeError: CUDA error: no kernel image is available")
    assert error.tail[-1] in error.message
    assert error.log.read_text().splitlines()[-1] == error.tail[-1]


def test_arguments_that_the_version_does_not_have_are_refused(tmp_path, double):
    double()
    run = run_of(workspace(tmp_path / "w"))
    argv = (*run.step.argv, "--gpus_per_node", "8")
    error = failed(dataclasses.replace(run, step=dataclasses.replace(run.step, argv=argv)))
    assert error.code == 2
    assert "unrecognized arguments: --gpus_per_node" in error.message


def test_a_crash_is_named(tmp_path, double):
    double(mode="crash")
    error = failed(run_of(workspace(tmp_path / "w")))
    assert (error.code, "signal 11 (SIGSEGV)" in error.message) == (139, True)


def test_exit_137_is_host_memory(tmp_path, double):
    double(mode="oom")
    error = failed(run_of(workspace(tmp_path / "w")))
    assert error.code == 137
    assert "host ran out of memory" in error.message
    assert "not the GPU" in error.message
    assert "estimated to need 24.0 GiB" in (error.hint or "")


def test_a_hang_ends_at_the_timeout(tmp_path, double):
    double(mode="hang")
    started = time.monotonic()
    error = failed(run_of(workspace(tmp_path / "w"), timeout=0.5))
    assert time.monotonic() - started < 5
    assert error.code is None
    assert "did not end within 0.5 s" in error.message
    assert "Build TensorRT engine" in error.tail[-1]


def test_a_tool_that_ignores_sigterm_is_killed_with_its_children(tmp_path, double):
    double(mode="deaf")
    run = run_of(workspace(tmp_path / "w"), timeout=0.6)
    started = time.monotonic()
    failed(run, grace=0.3)
    assert time.monotonic() - started < 5
    assert alive(str(run.output)) == []
    assert alive("print('deaf'") == []


def test_preempted_steps_are_started_again(tmp_path, double):
    record = double(mode="preempted", times=2)
    run = run_of(workspace(tmp_path / "w"))
    (run.output / "mine.yaml").write_text("kept")
    LocalExecutor(retries=2).run(run)
    assert len(list(record.iterdir())) == 3
    assert (run.output / "rank0.engine").is_file()
    assert (run.output / "mine.yaml").read_text() == "kept"
    assert run.log.read_text().count("TEST DOUBLE") == 3


def test_preemption_is_retried_only_so_often(tmp_path, double):
    record = double(mode="preempted", times=99)
    error = failed(run_of(workspace(tmp_path / "w")), retries=1)
    assert len(list(record.iterdir())) == 2
    assert error.code == 143
    assert "2 times" in error.message


def test_a_limit_on_file_sizes_reads_like_a_full_disk(tmp_path, double):
    double(mode="limited")
    error = failed(run_of(workspace(tmp_path / "w")))
    assert "a disk is full, or a limit on file sizes is reached" in error.message
    assert "--out" in (error.hint or "")


def test_stop_from_another_thread(tmp_path, double):
    double(mode="hang")
    stop = threading.Event()
    seen = threading.Event()
    run = run_of(
        workspace(tmp_path / "w"), stop=stop,
        on_line=lambda line: seen.set() if "Build TensorRT" in line else None,
    )  # fmt: skip
    threading.Thread(target=lambda: (seen.wait(10), stop.set()), daemon=True).start()
    with pytest.raises(StepStopped):
        LocalExecutor().run(run)
    assert alive(str(run.output)) == []


def test_an_error_of_the_reader_of_lines_stops_the_tool(tmp_path, double):
    double(mode="hang")

    def broken(line: str) -> None:
        raise BrokenPipeError

    run = run_of(workspace(tmp_path / "w"), on_line=broken)
    with pytest.raises(BrokenPipeError):
        LocalExecutor().run(run)
    assert alive(str(run.output)) == []


RUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from engineroom.runner.executors import LocalExecutor
from tests.executors.common import run_of
run = run_of(Path(sys.argv[1]), on_line=lambda line: print(line, flush=True))
LocalExecutor(grace=float(sys.argv[3])).run(run)
"""


def started(folder: Path, grace: float) -> subprocess.Popen[str]:
    """An executor's run in a process of its own, once the double hangs."""
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), root, str(grace)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if "Build TensorRT" in line or line == "deaf\n":
            break
    return process


def test_ctrl_c_stops_the_whole_group(tmp_path, double):
    double(mode="hang")
    folder = workspace(tmp_path / "w")
    process = started(folder, 5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert "KeyboardInterrupt" in err
    assert alive(str(folder / "staged")) == []


def test_a_second_ctrl_c_does_not_wait(tmp_path, double):
    double(mode="deaf")
    folder = workspace(tmp_path / "w")
    process = started(folder, 60)
    time.sleep(0.3)
    before = time.monotonic()
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    process.communicate(timeout=10)
    assert time.monotonic() - before < 8
    assert alive(str(folder / "staged")) == []
    assert alive("print('deaf'") == []


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG")
def test_a_killed_parent_takes_the_tool_along(tmp_path, double):
    double(mode="hang")
    folder = workspace(tmp_path / "w")
    process = started(folder, 5)
    process.kill()
    process.wait(10)
    end = time.monotonic() + 5
    while alive(str(folder / "staged")) and time.monotonic() < end:
        time.sleep(0.05)
    assert alive(str(folder / "staged")) == []


@pytest.mark.parametrize("mode", ["full", "there"])
def test_a_full_disk_is_explained(tmp_path, double, mode):
    """On a tmpfs of 200 KiB, in a user and mount namespace; skipped where the kernel refuses one."""
    double(bytes=400_000 if mode == "full" else 1000)
    folder = workspace(tmp_path / "w")
    mount = "mount -t tmpfs -o size=200k none staged"
    if subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount], cwd=folder, capture_output=True, check=False
    ).returncode:
        pytest.skip("no tmpfs can be mounted here")
    code = f"{RUN}\nprint(sorted(p.name for p in run.output.iterdir()))"
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh",
         sys.executable, "-c", code, str(folder), root, "5"],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if mode == "there":
        assert "['config.json', 'rank0.engine']" in done.stdout, done.stderr
    else:
        assert done.returncode == 1
        assert "is full (0 MiB left)" in done.stderr
        assert "No space left on device" in done.stderr


def test_a_log_on_a_full_disk_does_not_stop_the_tool(tmp_path, double):
    if not os.path.exists("/dev/full"):  # noqa: PTH110 - a device
        pytest.skip("no /dev/full")
    double()
    folder = workspace(tmp_path / "w")
    (folder / "logs").mkdir()
    (folder / "logs/build.log").symlink_to("/dev/full")
    run = run_of(folder)
    LocalExecutor().run(run)
    assert (run.output / "rank0.engine").is_file()


@pytest.mark.parametrize(
    ("names", "fits"),
    [
        ("NVIDIA H100 80GB HBM3\n", True),
        ("NVIDIA L4\nNVIDIA H100 80GB HBM3\n", True),
        ("NVIDIA H100 PCIe\n", False),
        ("NVIDIA H200\nNVIDIA H200\n", False),
    ],
)
def test_the_machines_gpu(tmp_path, double, names, fits):
    record = double()
    smi = tmp_path / "bin $(x) 'q'/nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncat <<'E'\n{names}E\n")
    run = run_of(workspace(tmp_path / "w"))
    if fits:
        LocalExecutor().run(run)
    else:
        with pytest.raises(MissingError, match="needs a h100-sxm"):
            LocalExecutor().run(run)
    assert len(list(record.iterdir())) == int(fits)


def test_a_missing_tool(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    run = run_of(workspace(tmp_path / "w"))
    assert LocalExecutor().missing(run.step) == "trtllm-build"
    with pytest.raises(MissingError, match="not on PATH"):
        LocalExecutor().run(run)


def test_a_tool_that_cannot_be_started(tmp_path, monkeypatch):
    (tmp_path / "trtllm-build").write_text("#!/no/such/interpreter\n")
    (tmp_path / "trtllm-build").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExternalToolError, match="cannot be started"):
        LocalExecutor().run(run_of(workspace(tmp_path / "w")))


def test_output_of_any_kind(tmp_path):
    """Bars that are redrawn, bytes that are no UTF-8, a line without end, a child that lingers."""
    script = (
        "import os, subprocess, sys\n"
        "out = sys.stdout.buffer\n"
        "out.write(b'10%\\r20%\\r\\n\\xff\\xfe\\n' + b'x' * 200_000 + b'\\nlast'); out.flush()\n"
        "subprocess.Popen(['sleep', '30.125'])\n"
    )
    lines = []
    started = time.monotonic()
    ended = tool.follow(
        [sys.executable, "-c", script], cwd=tmp_path, log=tmp_path / "log", on_line=lines.append
    )
    assert time.monotonic() - started < 8
    assert ended.code == 0
    assert lines[:4] == ["10%", "20%", "", "��"]
    assert "".join(lines[4:-1]) == "x" * 200_000
    assert lines[-1] == "last"
    assert (tmp_path / "log").stat().st_size == 200_000 + len("10%\r20%\r\n??\n") + len("\nlast")
    assert alive("30.125") == []


def test_executors_by_name():
    assert EXECUTORS[0] == "local"
    assert make("local", retries="3", grace=1) == LocalExecutor(retries=3, grace=1)
    with pytest.raises(UsageError, match="no executor `lokal`"):
        make("lokal")
    with pytest.raises(UsageError, match="has no option `claim`"):
        make("local", claim="x")
    with pytest.raises(UsageError, match="`many` does not fit the option `retries`"):
        make("local", retries="many")
