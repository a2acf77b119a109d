"""Two builders on one key: one builds, the other waits and takes what was built."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engineroom.pipeline import quantize
from engineroom.pipeline.build import find_artefact
from engineroom.pipeline.quantize import find
from engineroom.runner import files, locks, manifest, process
from tests.build.common import ENGINE, Workspace, data, rows
from tests.conftest import ROOT

pytestmark = pytest.mark.slow
SECONDS = 1.5
"""How long the double works: far longer than two processes need to meet."""


@pytest.fixture
def slow(quantized, tmp_path):
    """A workspace with one engine target, whose double takes its time."""
    made = Workspace(tmp_path, quantized("fp8"), seconds=SECONDS)
    made.write(data(targets=[t for t in data()["targets"] if t["lane"] == "engine"]))
    return made


def start(workspace: Workspace) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "engineroom", *workspace.argv()],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **workspace.env}, cwd=workspace.folder,
    )  # fmt: skip


def wait_for(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_two_processes_run_one_set_of_steps(slow):
    builders = [start(slow), start(slow)]
    ends = [(*b.communicate(timeout=120), b.returncode) for b in builders]
    assert [code for *_, code in ends] == [0, 0], ends
    assert slow.starts == 1
    found = [rows(out)[ENGINE] for out, *_ in ends]
    assert sorted(row["reused"] for row in found) == [False, True]
    assert found[0]["path"] == found[1]["path"]
    assert found[0]["digest"] == found[1]["digest"]
    manifest.load(Path(found[0]["path"]), "engine")
    first, second = sorted(zip(found, ends, strict=True), key=lambda pair: pair[0]["reused"])
    said = second[1][1]
    if "is building this artefact; waiting for it" in said:  # else it came when all was done
        assert f"{ENGINE}: process " in said
        assert said.count("waiting for it") == 1
    assert "reusing verified engine" in said
    assert "build-engine" in first[1][1]


def test_the_waiting_one_takes_over_from_a_killed_one(quantized, tmp_path):
    workspace = Workspace(tmp_path, quantized("fp8"), mode="hang")
    workspace.write(data(targets=[t for t in data()["targets"] if t["lane"] == "engine"]))
    one = start(workspace)
    wait_for(lambda: workspace.starts == 1 or one.poll() is not None)
    two = start(workspace)
    said = ""
    while "waiting for it" not in said and two.poll() is None:
        said += two.stderr.readline()
    workspace.install()  # what hung, works from now on
    os.kill(one.pid, signal.SIGKILL)
    one.communicate(timeout=10)
    out, err = two.communicate(timeout=120)
    assert two.returncode == 0, said + err
    assert f"process {one.pid} on " in said
    assert workspace.starts == 2
    assert rows(out)[ENGINE]["reused"] is False
    job = workspace.job()
    found = find_artefact(job, job.targets[0], find(job))
    manifest.load(found.path, "engine")
    # The killed one's staged folder is gone: whoever holds the lock knows that nobody uses it.
    assert [p.name for p in found.path.parent.iterdir()] == [found.path.name]


# ---- the lock
def test_a_lock_is_exclusive_between_threads_and_says_who(tmp_path):
    path, waits, order = tmp_path / "locks/k.lock", [], []

    def second():
        with locks.exclusive(path, waits.append) as held:
            order.append(("second", held))

    with locks.exclusive(path, waits.append) as held:
        order.append(("first", held))
        thread = threading.Thread(target=second)
        thread.start()
        wait_for(lambda: waits)
        time.sleep(0.1)
    thread.join(10)
    assert order == [("first", True), ("second", True)]
    assert len(waits) == 1
    assert waits[0].startswith(f"process {os.getpid()} on ")


def test_a_lock_survives_no_holder(tmp_path):
    """Killed without a word: the kernel lets go."""
    path = tmp_path / "k.lock"
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom engineroom.runner import locks\n"
        "with locks.exclusive(Path(sys.argv[1]), print):\n"
        "    print('held', flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as child:
        assert child.stdout.readline() == "held\n"
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)
    waits = []
    with locks.exclusive(path, waits.append):
        pass
    assert waits == []


def test_tools_that_a_holder_starts_do_not_hold_on(tmp_path):
    path, waits = tmp_path / "k.lock", []
    with locks.exclusive(path, waits.append):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with locks.exclusive(path, waits.append):
            pass
    finally:
        child.kill()
        child.wait(10)
    assert waits == []


def test_a_removed_lock_file_is_no_lock(tmp_path):
    """Tidying up must not let two in: who gets a removed file tries again."""
    path = tmp_path / "k.lock"
    real = locks._try

    def removing(handle, shared):
        taken = real(handle, shared)
        if path.exists() and not done:
            done.append(1)
            path.unlink()
        return taken

    done: list[int] = []
    locks._try = removing
    try:
        with locks.exclusive(path, print):
            assert path.exists()
            assert json.loads(path.read_text())["pid"] == os.getpid()
    finally:
        locks._try = real
    assert done == [1]


def test_stopping_a_wait(tmp_path):
    stop = threading.Event()
    stop.set()
    with (
        locks.exclusive(tmp_path / "k", print),
        pytest.raises(locks.Stopped),
        locks.exclusive(tmp_path / "k", lambda who: None, stop=stop),
    ):
        pytest.fail("got in")


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    import errno
    import fcntl

    def unsupported(handle, how):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with locks.exclusive(tmp_path / "k", print) as held:
        assert held is False


@pytest.mark.parametrize("content", ["", "[]", "{", '{"pid": 1}', "\x00" * 50])
def test_any_lock_file_gives_words(tmp_path, content):
    path = tmp_path / "k"
    path.write_text(content)
    assert locks.holder(path) == "another process"


# ---- publishing into one folder
def test_two_that_publish_into_one_folder_never_fail(tmp_path):
    """Without a lock (repositories, releases): the later one stays, and each is whole."""
    errors, rounds = [], 40

    def publish(name: str) -> None:
        try:
            for i in range(rounds):
                with files.staged(tmp_path / "a") as staging:
                    (staging / "one").write_text(f"{name} {i}")
                    (staging / "two").write_text(f"{name} {i}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=publish, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a/one").read_text() == (tmp_path / "a/two").read_text()


def test_a_publish_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_text("old")
    real = os.replace

    def refuse(source, target):
        if ".partial-" in Path(source).name:
            raise PermissionError(13, "Permission denied", str(target))
        real(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError), files.staged(tmp_path / "a") as staging:
        (staging / "x").write_text("new")
    assert (tmp_path / "a/x").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_leftovers_of_other_machines_go_when_nobody_else_can_be_there(tmp_path):
    far = tmp_path / f".a.partial-{os.getppid()}-ffffffff-00000000"
    far.mkdir()
    with files.staged(tmp_path / "a"):
        pass
    assert far.exists()  # another host's process: not ours to judge
    with files.staged(tmp_path / "a", alone=True):
        pass
    assert not far.exists()


# ---- the checkpoint
def test_two_that_quantize_make_one_checkpoint(slow, monkeypatch):
    """The child that computes is replaced by one that copies, slowly."""
    done = find(slow.job())
    source = slow.folder / "done"
    done.path.rename(source)
    calls = []

    def child(module, request, **more):
        calls.append(request["out"])
        time.sleep(0.4)
        shutil.copytree(source, request["out"], dirs_exist_ok=True)
        (Path(request["out"]) / "manifest.json").unlink()
        return {"event": "result", "licences": []}

    monkeypatch.setattr(process, "run_module", child)
    found = []
    threads = [threading.Thread(target=lambda: found.append(quantize(slow.job()))) for _ in "12"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(calls) == 1
    assert sorted(checkpoint.reused for checkpoint in found) == [False, True]
    assert find(slow.job()).manifest["files"] == done.manifest["files"]
