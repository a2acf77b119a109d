"""`build` with a test double named trtllm-build, ended in every way: afterwards each artefact that
verifies is complete, nothing half-written is accepted, and the next run completes.

What is shown is our handling; nothing here is TensorRT-LLM.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engineroom.errors import EngineroomError
from engineroom.pipeline import build
from engineroom.runner import manifest
from engineroom.runner.executors import LocalExecutor, make
from tests.build.common import ENGINE, Workspace
from tests.doubles import fake_docker, fake_kubectl, trtllm_build
from tests.executors.test_local import alive

pytestmark = pytest.mark.slow
SIZE = 300_000


def engines(out: Path) -> list[Path]:
    """Published engines, each verified; a folder that does not verify fails the test."""
    found = [
        path.parent
        for path in out.glob("artifacts/*/engine/**/manifest.json")
        if not any(part.startswith(".") for part in path.relative_to(out).parts)
    ]
    for folder in found:
        content = manifest.load(folder, "engine")
        assert {"config.json", "rank0.engine"} <= set(content["files"])
        data = (folder / "rank0.engine").read_bytes()
        assert len(data) == SIZE
        assert data.startswith(trtllm_build.MARK)
    return found


def published(out: Path) -> list[str]:
    """Folders under their own name, verified or not."""
    return [p.name for p in out.glob("artifacts/*/engine/*/*/*/*") if not p.name.startswith(".")]


def leftovers(out: Path) -> list[str]:
    return [p.name for p in out.glob("artifacts/*/engine/*/*/*/.*")]


def completes(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run, with a tool that works, publishes the engine."""
    env = trtllm_build.install(work.folder / "bin", record=work.record, bytes=SIZE)
    monkeypatch.setenv("PATH", env["PATH"])
    results = build(work.job(), ENGINE)
    assert [r.kind for r in results] == ["engine"]
    assert engines(work.out) == [results[0].path]
    assert leftovers(work.out) == []


@pytest.fixture
def work(quantized, tmp_path, monkeypatch):
    def make(**double) -> Workspace:
        made = Workspace(tmp_path, quantized("fp8"), bytes=SIZE, **double)
        monkeypatch.setenv("PATH", made.env["PATH"])
        return made

    return make


BAD_ENDS = {
    "fail": "ended with exit code 9",
    "crash": "SIGSEGV",
    "oom": "host ran out of memory",
    "hang": "did not end within 1 s",
    "incomplete": "left no rank0.engine",
    "limited": "a limit on file sizes is reached",
}


def test_bad_ends(work, monkeypatch):
    """One after the other in one workspace: none leaves anything that is in the next one's way."""
    made = work()
    for mode, words in BAD_ENDS.items():
        trtllm_build.install(made.folder / "bin", record=made.record, mode=mode, bytes=SIZE)
        with pytest.raises(EngineroomError, match=words) as caught:
            build(made.job(), ENGINE, timeout=1 if mode == "hang" else None)
        assert caught.value.exit_code == 3
        assert published(made.out) == []
        assert leftovers(made.out) == []
        if mode == "fail":  # what the log says, by the rows of explain-log
            assert "(cuda-no-kernel-image)" in (caught.value.hint or "")
            assert "engineroom explain-log " in (caught.value.hint or "")
    assert made.starts == len(BAD_ENDS)
    completes(made, monkeypatch)


def test_preemption_is_retried_and_the_engine_is_whole(work):
    made = work(mode="preempted", times=1)
    build(made.job(), ENGINE, executor=LocalExecutor(retries=1))
    assert made.starts == 2
    assert len(engines(made.out)) == 1


def start(work: Workspace, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "engineroom", *work.argv("--target", ENGINE, *more)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def test_ctrl_c(work, monkeypatch):
    made = work(mode="hang")
    process = start(made)
    end = time.monotonic() + 30
    while not made.starts and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert alive(str(made.out)) == []
    assert published(made.out) == leftovers(made.out) == []
    completes(made, monkeypatch)


def test_a_full_disk(work, monkeypatch):
    """The artefacts' folder is a tmpfs of 200 KiB, then of 4 MiB; in a mount namespace of its own."""
    made = work()
    (made.out / "artifacts").mkdir()
    if subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=200k", "none", "artifacts"],
        cwd=made.out, capture_output=True, check=False,
    ).returncode:  # fmt: skip
        pytest.skip("no tmpfs can be mounted here; the case `limited` has a limit on file sizes")
    script = (
        "mount -t tmpfs -o size=200k none artifacts\n"
        '"$@"; echo "first $?"\n'
        "find artifacts -name 'rank*' -o -name manifest.json\n"
        "mount -o remount,size=4m artifacts\n"
        '"$@" >/dev/null; echo "second $?"\n'
        "mkdir ../saved && cp -a artifacts ../saved/\n"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh",
         sys.executable, "-m", "engineroom", *made.argv("--target", ENGINE)],
        cwd=made.out, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["first 3", "second 0"], done.stdout + done.stderr
    assert "is full" in done.stderr
    assert "No space left on device" in done.stderr
    assert "--out" in done.stderr
    assert len(engines(made.folder / "saved")) == 1


def builder(work: Workspace, how: str) -> int:
    """Pid of a process that builds: a fork of this one, which has everything imported, or the verb."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setsid()
            if how == "verb":
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                words = ["-m", "engineroom", *work.argv("--target", ENGINE)]
                os.execv(sys.executable, [sys.executable, *words])
            build(work.job(), ENGINE)
            code = 0
        finally:
            os._exit(code)
    return pid


def ended(pid: int, seconds: float) -> int | None:
    """Exit status of a child that ends within this time."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if time.monotonic() >= end:
            return None
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("moments", "how"), [(5, "fork"), pytest.param(20, "verb", marks=pytest.mark.full)]
)
def test_killed_at_random_moments(work, monkeypatch, moments, how):
    """kill -9 of the builder, by turns alone and with its whole session."""
    made = work(seconds=0.5)
    started = time.monotonic()
    assert ended(builder(made, how), 60) == 0
    whole = time.monotonic() - started
    seed = random.randrange(1 << 32)
    chance, killed = random.Random(seed), 0
    # A verb is half of its time on its way to the build; a fork is there at once.
    early = whole / 2 if how == "verb" else 0.0
    for number in range(moments):
        # What killed runs left stays: it must be in nobody's way.
        for folder in engines(made.out):
            folder.rename(made.folder / f"done-{number}")
        pid = builder(made, how)
        if ended(pid, chance.uniform(early, whole)) is None:
            killed += 1
            (os.kill if number % 2 else os.killpg)(pid, signal.SIGKILL)
            ended(pid, 10)
        # Nothing under its own name, or (killed after the rename) the whole engine.
        assert len(engines(made.out)) == len(published(made.out)) <= 1, f"seed {seed}"
    assert killed >= moments // 2, f"seed {seed}"
    assert made.starts > moments // 3, f"seed {seed}"  # kills that came while the tool ran
    for folder in engines(made.out):
        folder.rename(made.folder / "done-last")
    completes(made, monkeypatch)
    end = time.monotonic() + 10
    while alive(str(made.out)) and time.monotonic() < end:
        time.sleep(0.05)
    assert alive(str(made.out)) == []


@pytest.mark.parametrize("name", ["docker", "kubernetes"])
def test_the_other_executors_build_the_same_engine(work, name):
    """Through doubles of `docker` and `kubectl`; the artefact's key does not depend on the executor."""
    made = work()
    fake_docker.install(made.folder / "bin", made.folder / "docker")
    fake_kubectl.install(made.folder / "bin", made.folder / "cluster", made.folder)
    options = {"claim": "c", "sub_path": "out", "poll": 0.1} if name == "kubernetes" else {}
    (result,) = build(made.job(), ENGINE, executor=make(name, **options), timeout=60)
    assert engines(made.out) == [result.path]
    content = manifest.load(result.path, "engine")
    assert content["executor"] == name
    assert content["image_digest"] == ("sha256:" + "a" * 64 if name == "docker" else None)
    assert build(made.job(), ENGINE)[0].reused
    assert made.starts == 1


@pytest.mark.parametrize(
    ("link", "words"), [("rank0.engine", "of its own, but a link"), ("extra", "not a regular file")]
)
def test_links_in_an_output_are_not_published(work, link, words):
    """Neither in the place of an output nor beside it; what the link leads to keeps its mode."""
    made = work(mode="incomplete" if link == "rank0.engine" else "success")
    outside = made.folder / "outside"
    outside.write_bytes(trtllm_build.MARK)
    outside.chmod(0o600)
    script = made.folder / "bin/trtllm-build"
    script.rename(made.folder / "bin/double")
    script.write_text(
        'double=$0; "${double%/*}/double" "$@" || exit\nwhile [ "$1" != --output_dir ]; do shift; done\n'
        f'ln -s "{outside}" "$2/{link}"\n'
    )
    script.write_text("#!/bin/sh\n" + script.read_text())
    script.chmod(0o755)
    with pytest.raises(EngineroomError, match=words):
        build(made.job(), ENGINE)
    assert published(made.out) == leftovers(made.out) == []
    assert outside.stat().st_mode & 0o777 == 0o600
