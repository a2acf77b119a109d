"""The kubernetes executor through doubles of kubectl and of trtllm-build: no cluster is here."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from engineroom.errors import ExternalToolError, MissingError, UsageError
from engineroom.runner.executors import KubernetesExecutor, StepFailed, StepStopped, make
from engineroom.runner.executors.kubernetes import JOBS, job_name
from tests.doubles import fake_kubectl, trtllm_build
from tests.executors.common import run_of, workspace
from tests.executors.test_local import alive

FAST = {"claim": "models", "poll": 0.1, "grace": 0.3}


class Cluster:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, monkeypatch
        self.claim, self.state, self.starts = folder / "claim", folder / "state", folder / "starts"
        self.starts.mkdir()
        workspace(self.claim / "team a/ws")

    def run(self, **changes: Any):
        return run_of(self.claim / "team a/ws", **changes)

    def put(self, kubectl: dict[str, Any] | None = None, **double: Any) -> KubernetesExecutor:
        bin_folder = self.folder / "bin"
        fake_kubectl.install(bin_folder, self.state, self.claim, **(kubectl or {}))
        env = trtllm_build.install(bin_folder, record=self.starts, **double)
        self.patch.setenv("PATH", env["PATH"])
        return KubernetesExecutor(**FAST, sub_path="team a/ws")

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.state / "calls.jsonl").read_text().splitlines()]

    def builds(self) -> int:
        return len(list(self.starts.iterdir()))


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    made = Cluster(tmp_path, monkeypatch)
    yield made
    if made.state.exists():
        for path in made.state.glob("*.pid"):
            fake_kubectl.state = lambda: made.state
            fake_kubectl.delete(path.stem)


def test_success(cluster):
    executor = cluster.put()
    lines, states = [], []
    run = cluster.run(on_line=lines.append, on_progress=states.append, timeout=30)
    (run.output / "mine.yaml").write_text("kept")
    executor.run(run)
    names = sorted(p.name for p in run.output.iterdir())
    assert names == ["config.json", "mine.yaml", "rank0.engine"]
    assert states[-1].done == states[-1].total == 5
    assert lines == run.log.read_text().splitlines()
    assert any("TEST DOUBLE" in line for line in lines)
    assert cluster.calls()[0][0] == "create"
    assert sorted(p.name for p in (run.workspace / JOBS).iterdir()) == [f".{job_name(run)}.lock"]
    job = json.loads((cluster.state / f"{job_name(run)}.job").read_text())
    assert job["spec"]["activeDeadlineSeconds"] == 30


def test_the_same_again_is_made_again(cluster):
    """The Job of the first run is still there, its result was taken over."""
    executor = cluster.put()
    run = cluster.run()
    executor.run(run)
    (run.output / "rank0.engine").unlink()
    executor.run(run)
    assert cluster.builds() == 2
    assert (run.output / "rank0.engine").is_file()


@pytest.mark.parametrize(
    ("double", "code", "words"),
    [
        ({"mode": "fail"}, 9, "CUDA error"),
        pytest.param({"mode": "oom"}, 137, "host ran out of memory", marks=pytest.mark.full),
        pytest.param({"mode": "incomplete"}, 98, "an output is missing", marks=pytest.mark.full),
    ],
)
def test_a_build_that_fails_is_not_tried_again(cluster, double, code, words):
    executor = cluster.put(**double)
    run = cluster.run()
    with pytest.raises(StepFailed) as caught:
        executor.run(run)
    assert caught.value.code == code
    assert words in caught.value.message
    assert cluster.builds() == 1
    assert list(run.output.iterdir()) == []
    # The failed Job is no obstacle.
    cluster.put().run(run)
    assert (run.output / "rank0.engine").is_file()


def test_pods_that_are_taken_away_are_replaced(cluster):
    executor = cluster.put({"preempt": 1}, seconds=0.6)
    lines: list[str] = []
    run = cluster.run(on_line=lines.append)
    executor.run(run)
    assert cluster.builds() == 2
    assert (run.output / "rank0.engine").is_file()
    assert any("was taken away: PreemptionByScheduler" in line for line in lines)


@pytest.mark.full
def test_pods_are_replaced_only_so_often(cluster):
    executor = cluster.put({"preempt": 9}, seconds=0.6)
    with pytest.raises(StepFailed, match="taken away 2 times"):
        KubernetesExecutor(**{**FAST, "retries": 1}, sub_path=executor.sub_path).run(cluster.run())
    assert cluster.builds() == 2


def test_no_node_fits(cluster):
    executor = cluster.put({"pending": "yes"})
    lines: list[str] = []
    with pytest.raises(StepFailed, match="did not end within 1 s"):
        executor.run(cluster.run(timeout=1, on_line=lines.append))
    assert [line for line in lines if "waits for a node" in line and "affinity" in line]
    assert len(lines) == 1


def test_a_hang_ends_at_the_timeout_and_the_job_is_gone(cluster):
    executor = cluster.put(mode="hang")
    run = cluster.run(timeout=1)
    with pytest.raises(StepFailed, match="did not end within 1 s"):
        executor.run(run)
    assert list(cluster.state.glob("*.job")) == []
    assert alive(str(cluster.claim)) == []


def test_stop_removes_the_job(cluster):
    executor = cluster.put(mode="hang")
    stop = threading.Event()
    run = cluster.run(
        stop=stop, on_line=lambda line: stop.set() if "Build TensorRT" in line else None
    )
    with pytest.raises(StepStopped):
        executor.run(run)
    assert list(cluster.state.glob("*.job")) == []


def test_a_claim_that_is_another_workspace(cluster):
    cluster.put()
    (cluster.claim / "elsewhere").mkdir()
    with pytest.raises(StepFailed, match="the claim of the pod is not this workspace"):
        KubernetesExecutor(**FAST, sub_path="elsewhere").run(cluster.run())
    assert cluster.builds() == 0


def test_a_killed_run_is_taken_up(cluster):
    """kill -9 on engineroom: the Job goes on, and the next run uses what it made."""
    cluster.put(seconds=1.5)
    run = cluster.run()
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from engineroom.runner.executors import make\n"
        "from tests.executors.common import run_of\n"
        "run = run_of(Path(sys.argv[1]), on_line=lambda line: print(line, flush=True))\n"
        "make('kubernetes', claim='models', poll='0.1', sub_path='team a/ws').run(run)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run.workspace), str(Path(__file__).parents[2])],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    while "Build TensorRT" not in process.stdout.readline():
        pass
    process.kill()
    process.communicate()
    lines: list[str] = []
    KubernetesExecutor(**FAST, sub_path="team a/ws").run(cluster.run(on_line=lines.append))
    assert (run.output / "rank0.engine").is_file()
    assert cluster.builds() == 1
    assert any("of an earlier run" in line for line in lines)


def test_a_result_that_is_damaged_is_not_taken(cluster):
    cluster.put()
    run = cluster.run()
    folder = run.workspace / JOBS / job_name(run)
    folder.mkdir(parents=True)
    (folder / "rank0.engine").write_text("half")
    (folder / "manifest.json").write_text(json.dumps({"key": run.key}))
    KubernetesExecutor(**FAST, sub_path="team a/ws").run(run)
    assert cluster.builds() == 1
    assert (run.output / "rank0.engine").read_bytes().startswith(trtllm_build.MARK)


def test_refusals(cluster, tmp_path, monkeypatch):
    executor = cluster.put({"forbid": "yes"})
    with pytest.raises(ExternalToolError, match="did not take the Job: Error from server"):
        executor.run(cluster.run())
    with pytest.raises(UsageError, match="needs the claim"):
        make("kubernetes").run(cluster.run())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match="`kubectl` is not on PATH"):
        executor.run(cluster.run())


@pytest.mark.full
def test_context_and_namespace_are_passed_on(cluster):
    cluster.put()
    executor = make(
        "kubernetes", claim="models", sub_path="team a/ws", poll="0.1", context="c", namespace="n"
    )
    executor.run(cluster.run())
    assert {tuple(words[:4]) for words in cluster.calls()} == {
        ("--context", "c", "--namespace", "n")
    }
    (path,) = cluster.state.glob("*.job")
    assert json.loads(path.read_text())["metadata"]["namespace"] == "n"
