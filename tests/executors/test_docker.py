"""The docker executor: golden command lines, runs through a double of the client, and (where Docker's
own client is installed) what that client makes of the command line."""

from __future__ import annotations

import dataclasses
import http.server
import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from engineroom.errors import MissingError, UsageError
from engineroom.runner.executors import DockerExecutor, StepFailed, make
from tests.doubles import fake_docker, trtllm_build
from tests.executors.common import IMAGE, run_of, step, workspace
from tests.executors.test_local import alive

GOLDEN = [
    "docker", "run", "--rm", "--init",
    "--name", "NAME",
    "--label", "engineroom.target=engine-h100-sxm-tp1pp1-26-07",
    "--label", "engineroom.key=" + "0123456789abcdef" * 4,
    "--gpus", "1",
    "--shm-size", "2g",
    "--ulimit", "memlock=-1",
    "--ulimit", "stack=67108864",
    "--network", "none",
    "--user", "1234:5678",
    "--env", "HOME=/tmp",
    "--env", "USER=engineroom",
    "--mount", "type=bind,source=WS,target=/workspace,readonly",
    "--mount", "type=bind,source=WS/staged,target=/output",
    "--workdir", "/workspace",
    IMAGE,
    "trtllm-build", "--checkpoint_dir", "checkpoints/fp8/trtllm", "--output_dir", "/output",
    "--max_batch_size", "8", "--workers", "1",
]  # fmt: skip
HOSTILE = """w s,x=1:2 "q" 'p' $(id) é\nline"""


def test_golden(tmp_path):
    run = run_of(workspace(tmp_path / "w"))
    argv = DockerExecutor(user="1234:5678").argv(run, "NAME")
    assert [word.replace(str(tmp_path / "w"), "WS") for word in argv] == GOLDEN


def test_golden_four_named_gpus_and_a_digest(tmp_path):
    image = "registry.example/trtllm@sha256:" + "0" * 64
    run = run_of(workspace(tmp_path / "w", 4), step=step(4, image=image))
    argv = DockerExecutor(user="0:0", gpus="GPU-1,GPU-2,3,4", shm_size="8g").argv(run, "NAME")
    # The client reads the value as CSV: without the quotes the second device is a field of its own.
    assert argv[argv.index("--gpus") + 1] == '"device=GPU-1,GPU-2,3,4"'
    assert argv[argv.index("--shm-size") + 1] == "8g"
    assert argv[argv.index("--workdir") + 2] == image
    assert argv[-2:] == ("--workers", "4")
    assert DockerExecutor().image_digest(run.step) == "sha256:" + "0" * 64


def test_a_step_without_gpus_asks_for_none(tmp_path):
    run = run_of(workspace(tmp_path / "w"), step=step(gpus=0))
    assert "--gpus" not in DockerExecutor().argv(run, "NAME")


def test_this_user_by_default(tmp_path):
    argv = DockerExecutor().argv(run_of(workspace(tmp_path / "w")), "NAME")
    assert argv[argv.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"


def test_an_input_that_is_a_link_is_mounted_too(tmp_path):
    folder = workspace(tmp_path / "w")
    (folder / "checkpoints/fp8").rename(tmp_path / "store")
    (folder / "checkpoints/fp8").symlink_to(tmp_path / "store")
    argv = DockerExecutor().argv(run_of(folder), "NAME")
    target = "/workspace/checkpoints/fp8/trtllm"
    assert f"type=bind,source={tmp_path}/store/trtllm,target={target},readonly" in argv


def test_names_that_need_quotes(tmp_path):
    argv = DockerExecutor().argv(run_of(workspace(tmp_path / "a,b")), "NAME")
    mounts = [word for word in argv if word.startswith("type=bind")]
    assert mounts[0] == f'type=bind,"source={tmp_path}/a,b",target=/workspace,readonly'
    run = run_of(workspace(tmp_path / 'c"d:e f'))
    mounts = [word for word in DockerExecutor().argv(run, "NAME") if word.startswith("type=bind")]
    assert mounts[1] == f'type=bind,"source={tmp_path}/c""d:e f/staged",target=/output'


@pytest.mark.parametrize("name", ["ends in a space ", "carriage\rreturn"])
def test_names_that_docker_does_not_take(tmp_path, name):
    run = run_of(workspace(tmp_path / name))
    run = dataclasses.replace(run, output=run.workspace)
    with pytest.raises(UsageError, match="Docker cannot mount"):
        DockerExecutor().argv(run, "NAME")


def test_no_image_is_said(tmp_path):
    run = run_of(workspace(tmp_path / "w"), step=step(image=None))
    with pytest.raises(UsageError, match="has no image to run in"):
        DockerExecutor().argv(run, "NAME")


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """The two doubles on PATH; returns the folder of the record."""

    def put(code: int | None = None, **settings: Any) -> Path:
        fake_docker.install(
            tmp_path / "bin", tmp_path / "record", **({} if code is None else {"code": code})
        )
        (tmp_path / "starts").mkdir(exist_ok=True)
        env = trtllm_build.install(tmp_path / "bin", record=tmp_path / "starts", **settings)
        monkeypatch.setenv("PATH", env["PATH"])
        monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
        return tmp_path / "record"

    return put


def test_a_run_through_the_double(tmp_path, docker):
    record = docker()
    run = run_of(workspace(tmp_path / HOSTILE))
    DockerExecutor().run(run)
    assert sorted(p.name for p in run.output.iterdir()) == ["config.json", "rank0.engine"]
    (call,) = fake_docker.calls(record)
    assert call["argv"][:3] == ["run", "--rm", "--init"]
    name = call["argv"][call["argv"].index("--name") + 1]
    assert name.startswith("engineroom-0123456789ab-")
    assert "hf_secret" not in json.dumps(call["argv"])
    assert not any(word.startswith(("HF_", "-e")) for word in call["argv"])
    assert "TEST DOUBLE" in run.log.read_text()
    assert DockerExecutor().image_digest(run.step) == "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"mode": "fail"}, 9, "ended with exit code 9"),
        ({"mode": "oom"}, 137, "host ran out of memory"),
        ({"code": 125}, 125, "Docker itself failed"),
        ({"code": 127}, 127, "the image does not have this command"),
    ],
)
def test_bad_ends(tmp_path, docker, settings, code, words):
    docker(**settings)
    with pytest.raises(StepFailed) as caught:
        DockerExecutor().run(run_of(workspace(tmp_path / "w")))
    assert caught.value.code == code
    assert words in caught.value.message


def test_preempted_containers_are_started_again_under_another_name(tmp_path, docker):
    record = docker(mode="preempted", times=1)
    run = run_of(workspace(tmp_path / "w"))
    DockerExecutor(retries=1).run(run)
    names = [c["argv"][c["argv"].index("--name") + 1] for c in fake_docker.calls(record)]
    assert [name.rsplit("-", 1)[1] for name in names] == ["0", "1"]
    assert (run.output / "rank0.engine").is_file()


def test_a_timeout_kills_the_container_by_its_name(tmp_path, docker):
    record = docker(mode="deaf")
    run = run_of(workspace(tmp_path / "w"), timeout=0.6)
    with pytest.raises(StepFailed, match="did not end within"):
        DockerExecutor(grace=0.2).run(run)
    started, killed = fake_docker.calls(record)
    name = started["argv"][started["argv"].index("--name") + 1]
    assert killed["argv"] == ["kill", name]
    assert alive(str(run.output)) == []


def test_ctrl_c_kills_the_container(tmp_path, docker):
    record = docker(mode="deaf")
    folder = workspace(tmp_path / "w")
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from engineroom.runner.executors import make\n"
        "from tests.executors.common import run_of\n"
        "run = run_of(Path(sys.argv[1]), on_line=lambda line: print(line, flush=True))\n"
        "make('docker', grace=0.2).run(run)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), str(Path(__file__).parents[2])],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    while process.stdout.readline() not in ("deaf\n", ""):
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=15)
    assert fake_docker.calls(record)[-1]["argv"][0] == "kill"
    assert alive(str(folder / "staged")) == []


def test_a_missing_client(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    run = run_of(workspace(tmp_path / "w"))
    assert make("docker").missing(run.step) == "docker"
    with pytest.raises(MissingError, match="not on PATH"):
        make("docker").run(run)


class _Daemon(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def _daemon(created: list[dict[str, Any]]) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Api-Version", "1.43")
            self.end_headers()

        do_GET = do_HEAD

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "/containers/create" in self.path:
                created.append({"path": self.path, **json.loads(body)})
            answer = b'{"message": "enough seen"}'
            self.send_response(500)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    return Handler


@pytest.mark.skipif(shutil.which("docker") is None, reason="Docker's client is not installed")
def test_what_dockers_own_client_makes_of_it(tmp_path):
    """Against a socket of ours in a daemon's place: the client parses, nothing is started."""
    run = run_of(workspace(tmp_path / HOSTILE, 2), ranks=2)
    argv = DockerExecutor(user="7:8", gpus="0,GPU-5").argv(run, "a-name")
    created: list[dict[str, Any]] = []
    socket = tmp_path / "d.sock"
    with _Daemon(str(socket), _daemon(created)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {**os.environ, "DOCKER_HOST": f"unix://{socket}", "DOCKER_CONFIG": str(tmp_path)}
        env.pop("DOCKER_CONTEXT", None)
        done = subprocess.run(
            argv, env=env, capture_output=True, text=True, timeout=30, check=False
        )
        server.shutdown()
    if not created and "enough seen" not in done.stderr:
        pytest.skip(f"not Docker's client: {done.stderr[:200]}")
    (config,) = created
    host = config["HostConfig"]
    assert "name=a-name" in config["path"]
    assert config["Cmd"] == list(run.step.argv_into("/output"))
    assert (config["Image"], config["User"], config["WorkingDir"]) == (IMAGE, "7:8", "/workspace")
    # Docker's client keeps the variables in a map, so their order is not ours.
    assert sorted(config["Env"]) == ["HOME=/tmp", "USER=engineroom"]
    assert not config.get("Entrypoint")
    assert [(m["Source"], m["Target"], m.get("ReadOnly", False)) for m in host["Mounts"]] == [
        (str(run.workspace), "/workspace", True),
        (str(run.output), "/output", False),
    ]
    (request,) = host["DeviceRequests"]
    assert request["DeviceIDs"] == ["0", "GPU-5"]
    assert request["Capabilities"] == [["gpu"]]
    assert (host["NetworkMode"], host["AutoRemove"], host["Init"]) == ("none", True, True)
    assert host["ShmSize"] == 2 << 30
    assert {u["Name"]: u["Hard"] for u in host["Ulimits"]} == {"memlock": -1, "stack": 67108864}
