"""Several targets at once: memory, order, failures, interruption."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from engineroom.cli.main import run
from engineroom.errors import ExternalToolError, MissingError, UsageError
from engineroom.names import ExitCode
from engineroom.pipeline import build
from engineroom.pipeline.build_jobs import TargetErrors, Task, run_all
from engineroom.pipeline.job import Reporter
from engineroom.runner import memory
from engineroom.runner.executors import LocalExecutor
from tests.build.common import Workspace, data

GIB = 1 << 30


def most_at_once(needs, places, free):
    """(most tasks that ran at the same time, names in the order of their start)."""
    lock, now, most, order = threading.Lock(), [0], [0], []

    def task(i, need):
        def work():
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
                order.append(str(i))
            time.sleep(0.05)
            with lock:
                now[0] -= 1

        return Task(str(i), need, work)

    failed = run_all([task(*pair) for pair in enumerate(needs)], places, free, threading.Event())
    assert failed == []
    assert order == [str(i) for i in range(len(needs))]
    return most[0]


@pytest.mark.parametrize(
    ("needs", "places", "free", "most"),
    [
        ([1, 1, 1, 1], 4, 4, 4),
        ([1, 1, 1, 1], 2, 4, 2),
        ([2, 2, 2, 2], 4, 4, 2),
        ([3, 3, 3], 3, 4, 1),
        ([9, 9], 2, 4, 1),  # too large for the machine: tried alone, nobody else could do better
        ([None, None], 2, 100, 1),  # not known: never assumed to fit
        ([1, None, 1], 3, 100, 1),
        ([1, 1], 2, None, 1),  # the machine's memory is not known
        ([0, 0, 0], 3, None, 3),  # packages compile nothing
        ([None, 0, 0], 3, None, 3),
        ([1, 1, 1], 1, 100, 1),
    ],
)
def test_memory_bounds_what_runs_at_once(needs, places, free, most):
    assert most_at_once(needs, places, free) == most


def test_failures_do_not_stop_the_others():
    done = []

    def fail(error):
        def work():
            raise error

        return work

    tasks = [
        Task("a", 0, fail(ExternalToolError("broke"))),
        Task("b", 0, lambda: done.append("b")),
        Task("c", 0, fail(OSError(28, "No space left on device", "/disk/x"))),
        Task("d", 0, lambda: done.append("d")),
    ]
    for places in (1, 2, 4):
        done.clear()
        failed = run_all(tasks, places, None, threading.Event())
        assert [name for name, _ in failed] == ["a", "c"]
        assert isinstance(failed[1][1], UsageError)
        assert failed[1][1].where.file == "/disk/x"
        assert sorted(done) == ["b", "d"]


def test_a_fault_of_ours_ends_everything_and_is_told():
    stop = threading.Event()

    def work():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_all([Task("a", 0, work), Task("b", 0, lambda: stop.wait(30))], 2, None, stop)
    assert stop.is_set()


def test_the_error_of_several_names_all_of_them():
    one = ExternalToolError("`trtllm-build` ended with exit code 9", hint="read the log")
    two = MissingError("no GPU")
    error = TargetErrors([("t1", one), ("t2", two)], 3)
    assert error.exit_code is ExitCode.EXTERNAL
    assert error.render().splitlines() == [
        "error: 2 of 3 targets failed: t1, t2",
        "error: t1: `trtllm-build` ended with exit code 9",
        "  fix: read the log",
        "error: t2: no GPU",
    ]
    assert error.problems == [one, two]


def test_memory_that_is_left_is_a_number_here():
    figure = memory.available_bytes()
    assert figure is not None
    assert 64 << 20 < figure < 1 << 50


# ---- through `build`
def two_engines(**changes):
    spec = data(**changes)
    spec["targets"] = [
        {**target, "profile": name, "limits": {"max_batch_size": size}}
        for target in spec["targets"]
        if target["lane"] == "engine"
        for name, size in (("latency", 2), ("throughput", 16))
    ]
    return spec


class Recording(Reporter):
    def __init__(self):
        self.notes, self.phases, self.lines = [], [], []

    def note(self, text):
        self.notes.append(text)

    def progress(self, phase, done, total):
        self.phases.append(phase)

    def line(self, text):
        self.lines.append(text)


@pytest.mark.slow
def test_profiles_are_built_side_by_side(workspace, monkeypatch):
    reporter = Recording()
    job = dataclasses.replace(workspace.job(two_engines()), reporter=reporter)
    found = build(job, jobs=2)
    assert [a.target.target.profile for a in found] == ["latency", "throughput"]
    assert [a.manifest["limits"]["max_batch_size"] for a in found] == [2, 16]
    assert workspace.starts == 2
    # Each line says whose it is, and each target has a log of its own.
    names = [a.target.target.id for a in found]
    assert {line.split(": ")[0] for line in reporter.lines} == set(names)
    assert any(phase.endswith(" compiling") for phase in reporter.phases)
    logs = sorted(p.name for p in (workspace.out / "logs").iterdir())
    assert len(logs) == 2
    assert all(name in log for name, log in zip(names, logs, strict=True))


@pytest.mark.slow
def test_two_profiles_with_the_same_limits_are_one_artefact(workspace):
    spec = two_engines()
    for target in spec["targets"]:
        target["limits"] = {"max_batch_size": 4}
    found = build(workspace.job(spec), jobs=2)
    assert found[0].path == found[1].path
    assert sorted(a.reused for a in found) == [False, True]
    assert workspace.starts == 1


@pytest.mark.slow
def test_one_failing_target_leaves_the_others_built(quantized, tmp_path):
    workspace = Workspace(tmp_path, quantized("fp8"), mode="fail")
    spec = two_engines()
    spec["targets"].append(data()["targets"][0])
    workspace.write(spec)
    done = subprocess.run(
        [sys.executable, "-m", "engineroom", *workspace.argv("--jobs", "3")],
        capture_output=True, text=True, env={**os.environ, **workspace.env}, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    engines = [f"engine-h100-sxm-tp1pp1-26-07-{name}" for name in ("latency", "throughput")]
    assert f"error: 2 of 3 targets failed: {', '.join(engines)}" in done.stderr
    assert done.stderr.count("ended with exit code 9") == 2
    assert "Traceback" not in done.stderr
    assert list(workspace.out.glob("artifacts/*/llmapi/*/*/*/*/manifest.json"))
    assert not list(workspace.out.glob("artifacts/*/engine/*/*/*/*"))


@pytest.mark.slow
def test_ctrl_c_ends_all_of_them(quantized, tmp_path):
    workspace = Workspace(tmp_path, quantized("fp8"), mode="hang")
    workspace.write(two_engines())
    child = subprocess.Popen(
        [sys.executable, "-m", "engineroom", *workspace.argv("--jobs", "2")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **workspace.env},
    )  # fmt: skip
    end = time.monotonic() + 60
    # Their memory may not be known: then they run one after the other.
    while workspace.starts < 1 and child.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "Traceback" not in err
    assert not list(workspace.out.glob("artifacts/*/engine/*/*/*/*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--executor", "nowhere"), "no executor `nowhere`"),
        (("--executor-option", "retries"), "`retries` is no KEY=VALUE"),
        (("--executor-option", "retries=1", "--executor-option", "retries=2"), "given twice"),
        (("--executor-option", "colour=red"), "has no option `colour`"),
        (("--executor-option", "retries=many"), "does not fit the option `retries`"),
        (("--jobs", "0"), "--jobs"),
        (("--timeout", "0"), "--timeout"),
    ],
)
def test_options_that_do_not_fit_are_usage_errors(tmp_path, capsys, words, message):
    assert run(["build", "-f", str(tmp_path / "no.yaml"), *words]) == 2
    assert message in capsys.readouterr().err


@dataclasses.dataclass
class Elsewhere:
    """An executor of the test's own: local tools, said to run on other machines, in an image."""

    digest: str | None = None
    name = "elsewhere"
    elsewhere = True

    def missing(self, step):
        return None

    def image_digest(self, step):
        return self.digest

    def run(self, run):
        LocalExecutor().run(run)


@pytest.mark.slow
def test_an_executor_elsewhere_takes_all_targets_at_once(quantized, tmp_path, monkeypatch):
    workspace = Workspace(tmp_path, quantized("fp8"), seconds=1)
    monkeypatch.setenv("PATH", workspace.env["PATH"])
    monkeypatch.setattr(memory, "available_bytes", lambda: 1)
    found = build(workspace.job(two_engines()), executor=Elsewhere())
    starts = sorted(int(path.name.split("-")[0]) for path in workspace.record.iterdir())
    assert len(starts) == 2
    assert starts[1] - starts[0] < 1_000_000_000  # ns: the second began while the first ran
    assert [a.manifest["executor"] for a in found] == ["elsewhere"] * 2


@pytest.mark.slow
def test_a_tag_that_moved_is_built_again(workspace):
    """Where the executor knows the image's digest. Not known is no difference."""
    one, two = "sha256:" + "1" * 64, "sha256:" + "2" * 64
    spec = data(targets=[data()["targets"][1]])
    table = [(one, False), (one, True), (None, True), (two, False)]
    for digest, reused in table:
        [found] = build(workspace.job(spec), executor=Elsewhere(digest))
        assert found.reused is reused, digest
        if not reused:
            assert found.manifest["image_digest"] == digest
