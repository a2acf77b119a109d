"""Tools that print without end, that leave links, and options out of range.

The tools are shell commands, and doubles of `docker` and `kubectl`; nothing here is TensorRT-LLM.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from engineroom.cli.main import run as main
from engineroom.errors import ExternalToolError, MissingError, UsageError
from engineroom.runner import tool
from engineroom.runner.executors import DockerExecutor, gpus, kube_job, make, pod_build
from engineroom.runner.executors.kube_run import JobRun, Kubectl
from tests.executors.common import run_of, step, workspace

LOUD = (sys.executable, "-I", "-S", "-c", "import os\nwhile True: os.write(1, b'y\\n' * 4096)")
DEAF = (*LOUD[:-1], f"import signal\nsignal.signal(15, signal.SIG_IGN)\n{LOUD[-1]}")


@pytest.fixture
def follow(tmp_path):
    def run(argv: Any, **facts: Any) -> tool.Ended:
        facts = {"on_line": lambda line: None, **facts}
        return tool.follow(argv, cwd=tmp_path, log=tmp_path / "log", **facts)

    return run


def test_a_tool_that_prints_without_end_is_stopped_in_time(follow, tmp_path):
    count = 0

    def line(text: str) -> None:
        nonlocal count
        count += 1

    started = time.monotonic()
    ended = follow(LOUD, seconds=0.3, on_line=line)
    assert time.monotonic() - started < 3
    assert (ended.timed_out, ended.code) == (True, -signal.SIGTERM)
    # What came is in the log, in order and to the last byte that was handed on.
    assert (tmp_path / "log").stat().st_size == 2 * count > 0
    assert ended.tail == ("y",) * tool.TAIL_LINES


def test_one_that_ignores_sigterm_as_well_is_killed_after_the_grace(follow):
    started = time.monotonic()
    ended = follow(DEAF, seconds=0.3, grace=0.2)
    assert 0.5 <= time.monotonic() - started < 4
    assert (ended.timed_out, ended.code) == (True, -signal.SIGKILL)


def test_its_run_can_be_given_up_from_another_thread_or_by_a_signal(follow):
    stop, seen = threading.Event(), threading.Event()
    threading.Thread(target=lambda: (seen.wait(5), stop.set()), daemon=True).start()
    started = time.monotonic()
    assert follow(LOUD, stop=stop, on_line=lambda line: seen.set()).stopped

    def interrupted(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            follow(LOUD)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started < 4


def test_the_last_words_of_a_killed_tool_are_not_lost(follow, tmp_path):
    """More than the queue holds is under way when the tool ends by itself."""
    script = "import os\nos.write(1, b'x' * 600_000 + b'\\nlast')"
    ended = follow((*LOUD[:-1], script), on_line=lambda line: time.sleep(0.01))
    assert ended.tail[-1] == "last"
    assert (tmp_path / "log").stat().st_size == 600_005


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="there the tool is reaped first")
def test_no_signal_goes_to_a_number_that_may_be_somebody_elses(follow, monkeypatch):
    """While the group is signalled its leader is not reaped: its number is not given away."""
    real, seen = os.killpg, []

    def killpg(group: int, number: int) -> None:
        seen.append(Path(f"/proc/{group}").exists())
        real(group, number)

    monkeypatch.setattr(os, "killpg", killpg)
    assert follow(("true",)).code == 0
    assert seen
    assert all(seen)


BAD = [
    ("local", "retries", -1), ("local", "retries", "1000000000"), ("local", "retries", 1.5),
    ("local", "grace", "nan"), ("local", "grace", "inf"), ("local", "grace", -1),
    ("docker", "retries", 10**9), ("docker", "grace", "-inf"), ("docker", "grace", 10**400),
    ("docker", "user", "-1"), ("docker", "user", "0:0 --privileged"),
    ("kubernetes", "retries", "-1"), ("kubernetes", "grace", "1e400"), ("kubernetes", "poll", "0"),
    ("kubernetes", "poll", "nan"), ("kubernetes", "poll", -1), ("kubernetes", "user", "-1"),
    ("kubernetes", "user", 1 << 31), ("kubernetes", "sub_path", "../.."),
    ("kubernetes", "sub_path", "/abs"), ("kubernetes", "sub_path", "a/../b"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "option", "value"), BAD, ids=lambda value: str(value)[:12])
def test_an_option_out_of_range_is_refused_by_name(name, option, value):
    with pytest.raises(UsageError, match=f"option `{option}` of the executor `{name}`: it is"):
        make(name, **{option: value})


def test_options_at_the_ends_of_their_ranges_are_taken():
    make("local", retries="0", grace="0")
    make("docker", retries=100, grace=86400, user="me:1000")
    make("kubernetes", poll="0.05", user=(1 << 31) - 1, sub_path="team a/..ws/x")


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300, -1.0])
def test_a_time_limit_that_no_job_takes(tmp_path, seconds):
    run = run_of(workspace(tmp_path), timeout=seconds)
    with pytest.raises(UsageError, match="none that a Job takes") as caught:
        make("kubernetes", claim="c").manifest(run)
    assert caught.value.where.key == "--timeout"
    limit = kube_job.MAX_DEADLINE
    job = make("kubernetes", claim="c").manifest(run_of(tmp_path, timeout=limit))
    assert job["spec"]["activeDeadlineSeconds"] == limit


@pytest.mark.parametrize("text", ["inf", "1e400", "nan"])
@pytest.mark.parametrize("words", [("build",), ("generate", "hello")])
def test_a_time_limit_is_finite(words, text, capsys):
    assert main([*words, "--timeout", text]) == 2
    err = capsys.readouterr().err
    assert "--timeout" in err
    assert text == "nan" or "finite number of seconds" in err  # Typer's own words for NaN, or ours


def client(folder: Path, script: str) -> str:
    path = folder / "client"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("answer", ["[1]", "5", "null", '"x"'])
def test_kubectl_answers_with_something_else_than_an_object(tmp_path, answer):
    kubectl = Kubectl(client(tmp_path, f"echo '{answer}'"), "", "")
    with pytest.raises(ExternalToolError, match="no object"):
        kubectl.get("job", "x")


@pytest.mark.parametrize(
    "answer",
    [
        '{"items": 5, "status": 5}',
        '{"items": [1, {}, {"metadata": 5}], "status": {"conditions": [1, {"type": 1}]}}',
        '{"items": [{"metadata": {"name": "p"}, "status": {"conditions": 5, "containerStatuses":'
        ' [3, {"state": 5}, {"state": {"waiting": []}}]}}], "status": {"conditions": 7}}',
    ],
)
def test_objects_of_another_form_than_kubernetes_has(tmp_path, answer):
    program = client(tmp_path, f"test \"$1\" = create || echo '{answer}'")
    stop = threading.Event()
    run = run_of(workspace(tmp_path / "w"), timeout=0.01, stop=stop)
    request = make("kubernetes", claim="c").request(run, "a-job")
    job = JobRun(Kubectl(program, "", ""), run, request, poll=0.05, grace=0.3)
    with pytest.raises(ExternalToolError, match="did not end within"):
        job.to_its_end()


def test_clients_that_print_bytes_that_are_no_utf8(tmp_path, monkeypatch):
    program = client(tmp_path, "printf '\\377\\376 sorry\\n' >&2; printf '\\377\\n'; exit $CODE")
    monkeypatch.setenv("CODE", "1")
    with pytest.raises(ExternalToolError, match=r"does not answer: .. sorry"):
        Kubectl(program, "", "").get("job", "x")
    monkeypatch.setenv("CODE", "0")
    with pytest.raises(ExternalToolError, match="no JSON"):
        Kubectl(program, "", "").get("job", "x")
    assert DockerExecutor(program=program).image_digest(step()) is None
    (tmp_path / "nvidia-smi").symlink_to(program)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpus.names() == ["�"]
    with pytest.raises(MissingError):
        gpus.require_sku(run_of(tmp_path))


def pod_request(**facts: Any) -> dict[str, Any]:
    return {
        "argv": ["true"], "output_at": None, "publish": "published/x", "outputs": ["e"],
        "files": {}, "manifest": {"key": "k"}, "probe": None, **facts,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["output", "beside"])
def test_a_pod_publishes_no_links(tmp_path, monkeypatch, capfd, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text("not ours")
    (tmp_path / "secret").chmod(0o600)
    link = (
        "ln -s ../../secret $0/e" if kind == "output" else "echo x > $0/e; ln -s ../../secret $0/l"
    )
    request = pod_request(argv=["sh", "-c", link, "OUT"], output_at=3)
    # In a process of its own: the lock is held until it ends.
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = pod_build.build(request)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == pod_build.NO_OUTPUT
    assert not (tmp_path / "published/x").exists()
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    said = capfd.readouterr().out
    assert f"no regular file: {'l' if kind == 'beside' else 'e'}" in said


def test_a_pods_result_with_a_link_or_a_pipe_is_not_complete(tmp_path):
    root = tmp_path / "r"
    root.mkdir()
    (root / "e").symlink_to("/etc/hostname")
    content: dict[str, Any] = {"key": "k", "files": pod_build.digests(root)}
    content["seal"] = pod_build.seal(content)
    (root / "manifest.json").write_text(json.dumps(content))
    assert not pod_build.complete(root, "k")
    (root / "manifest.json").unlink()
    os.mkfifo(root / "manifest.json")
    assert not pod_build.complete(root, "k")


def test_lines_reach_a_slow_reader_without_holding_the_clock(follow, monkeypatch):
    """A terminal that takes its time: the limit holds, however many lines are waiting."""
    monkeypatch.setattr(tool, "_LINGER", 0.1)
    started = time.monotonic()
    assert follow(LOUD, seconds=0.2, grace=0.2, on_line=lambda line: time.sleep(1e-5)).timed_out
    assert time.monotonic() - started < 4


FOLLOW = """
import sys
from pathlib import Path
from engineroom.runner import tool
folder = Path(sys.argv[1])
script = "trap '' TERM; sleep 3600 & echo $$; wait"
tool.follow(
    ["sh", "-c", script], cwd=folder, log=folder / "log", grace=0.5,
    on_line=lambda line: print(line, flush=True),
)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_a_killed_parent_takes_deaf_children_along(tmp_path):
    """Only the tool itself gets a signal from the kernel; the guard ends what ignores it, and children."""
    process = subprocess.Popen(
        [sys.executable, "-c", FOLLOW, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        group = int(process.stdout.readline())
        assert tool._has_members(group)
    finally:
        process.kill()
        process.communicate(timeout=10)
    end = time.monotonic() + 8
    while time.monotonic() < end and tool._has_members(group):
        time.sleep(0.05)
    assert not tool._has_members(group)


def test_the_guard_ends_with_the_tool(follow):
    """By its word, so that it never signals a number that was given away."""
    seen = []

    def line(text: str) -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if f"engineroom-guard\0{text}\0".encode() in path.read_bytes():
                    seen.append(path.parent)

    # Echoed until it is there: it starts after the tool.
    script = "for i in 1 2 3 4 5 6 7 8; do echo $$; sleep 0.05; done"
    assert follow(("sh", "-c", script), on_line=line).code == 0
    assert len(set(seen)) == 1
    assert not seen[0].exists()
