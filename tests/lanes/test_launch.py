"""Launch lines: golden argv, what the real server says of them, and the rules of `lint` about them."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from pathlib import Path

import pytest

from engineroom.checks.evidence import Context, judge
from engineroom.errors import MissingError
from engineroom.lanes import LANES
from engineroom.lanes.launch import LaunchPlan, LaunchRequest
from engineroom.names import LaneName, Severity
from engineroom.reading import Evidence
from engineroom.runner.triton import find_wheel, free_ports
from tests.lanes.test_commands import request
from tests.render.test_repositories import files

FIRST = [
    "tritonserver", "--model-repository=/r", "--http-port=8000", "--grpc-port=8001",
    "--metrics-port=8002",
]  # fmt: skip
# A batch of 64 in the engine, as many more whose responses are sent, and some to spare.
BLS_FIRST = [*FIRST, "--backend-config=python,thread-pool-size=144"]


KILL = {"OMPI_MCA_odls_base_sigkill_timeout": "35"}


def plan(
    catalog, lane="engine", *, as_root=False, mode=None, version="1.2.1", **target
) -> LaunchPlan:
    serving = {"process_mode": mode} if mode else {}
    lane_request = request(catalog, version, lane, serving=serving, **target)
    return LANES[LaneName(lane)].launch(
        LaunchRequest(lane_request.spec, lane_request.target, "/r", as_root=as_root)
    )


def region(rank: int) -> str:
    return f"--backend-config=python,shm-region-prefix-name=prefix{rank}_"


def other(rank: int) -> list[str]:
    return [
        "tritonserver", "--model-repository=/r", "--model-control-mode=explicit",
        "--load-model=tensorrt_llm", "--allow-http=false", "--allow-grpc=false",
        "--allow-metrics=false", region(rank),
    ]  # fmt: skip


@pytest.mark.parametrize("as_root", [False, True])
@pytest.mark.parametrize("lane", ["engine", "llmapi"])
def test_one_gpu_needs_no_launcher(catalog, lane, as_root):
    found = plan(catalog, lane, as_root=as_root)
    assert list(found.argv) == (BLS_FIRST if lane == "engine" else FIRST)
    assert found.env == {}


def test_python_threads_follow_the_batch_and_the_front(catalog):
    """No BLS model, no threads that wait in it; small batches keep a floor of 64."""

    def options(**changes):
        lane_request = request(catalog, "1.2.1", "engine", **changes)
        launch = LaunchRequest(lane_request.spec, lane_request.target, "/r")
        words = LANES[LaneName.ENGINE].launch(launch).argv
        return [word.split("=")[-1] for word in words if "thread-pool-size" in word]

    assert options(serving={"fronts": ["ensemble"]}) == []
    assert options(limits={"max_batch_size": 8}) == ["64"]
    assert options(limits={"max_batch_size": 256}) == ["528"]


def test_leader_mode_of_two_ranks(catalog):
    found = plan(catalog, tensor_parallel=2)
    assert list(found.argv) == [
        "mpirun", "--bind-to", "none", "-n", "1", *BLS_FIRST, region(0), ":", "-n", "1", *other(1),
    ]  # fmt: skip
    # Triton's default exit timeout of 30 s, and a margin.
    assert found.env == KILL


def test_leader_mode_as_root(catalog):
    argv = list(plan(catalog, tensor_parallel=2, as_root=True).argv)
    assert argv[:4] == ["mpirun", "--allow-run-as-root", "--bind-to", "none"]
    assert argv.count("--allow-run-as-root") == 1
    assert argv[4:] == list(plan(catalog, tensor_parallel=2).argv)[3:]


def test_leader_mode_of_eight_ranks(catalog):
    found = plan(catalog, tensor_parallel=4, pipeline_parallel=2)
    argv = list(found.argv)
    assert argv.count(":") == 7
    assert argv.count("-n") == 8
    assert [list(p) for p in found.processes[1:]] == [other(rank) for rank in range(1, 8)]


def orchestrated(gpus: list[int]) -> list[str]:
    pools = [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in gpus]
    return ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false", *pools]


def test_orchestrator_mode(catalog):
    found = plan(catalog, mode="orchestrator", tensor_parallel=2)
    assert list(found.argv) == [
        "mpirun", "--bind-to", "none", "-n", "1", *BLS_FIRST, *orchestrated([0, 1]),
    ]  # fmt: skip
    assert found.env == {
        **KILL, "TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1",
    }  # fmt: skip


def test_orchestrator_mode_with_two_instances(catalog):
    found = plan(
        catalog,
        mode="orchestrator",
        tensor_parallel=2,
        gpu_device_ids=[[0, 1], [2, 3]],
        as_root=True,
    )
    assert list(found.argv) == [
        "mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", "1", *BLS_FIRST,
        *orchestrated([0, 1, 2, 3]),
    ]  # fmt: skip


def test_two_instances_of_one_gpu_are_orchestrated(catalog):
    found = plan(catalog, mode="orchestrator", gpu_device_ids=[[0], [1]])
    assert len(found.processes) == 1
    assert found.env["TRTLLM_ORCHESTRATOR"] == "1"


@pytest.mark.parametrize("target", [{"tensor_parallel": 8}, {"gpu_device_ids": [[0], [1]]}])
def test_llmapi_spawns_its_own_workers(catalog, target):
    found = plan(catalog, "llmapi", **target)
    assert list(found.argv) == FIRST


def test_every_departure_from_a_plain_server_has_a_reason(catalog):
    for found in (plan(catalog, tensor_parallel=2, as_root=True),
                  plan(catalog, tensor_parallel=2, mode="orchestrator", as_root=True)):  # fmt: skip
        told = " ".join(found.why)
        options = {w.split("=")[0] for w in found.wrapper if w.startswith("--")} | set(found.env)
        assert all(option in told for option in options)
        assert json.loads(json.dumps(found.as_dict()))["argv"] == list(found.argv)


@pytest.mark.parametrize(
    ("mode", "sizes", "sets"),
    [
        ("leader", (2, 1), None), ("leader", (4, 2), None), ("orchestrator", (2, 1), None),
        ("orchestrator", (2, 1), [[0, 1], [2, 3]]),
    ],
)  # fmt: skip
def test_the_rules_of_lint_find_nothing(catalog, mode, sizes, sets):
    """The rendered repository with an engine of that size, started like that, on a node with eight GPUs."""
    tp, pp = sizes
    extra = {"gpu_device_ids": sets} if sets else {}
    target = {"tensor_parallel": tp, "pipeline_parallel": pp, **extra}
    found = plan(catalog, mode=mode, **target)
    rendered = files(catalog, "engine", serving={"process_mode": mode}, **target)
    configs = [
        {"path": path, "text": text} for path, text in rendered.items() if path.endswith(".pbtxt")
    ]
    mapping = {"tp_size": tp, "pp_size": pp, "world_size": tp * pp}
    evidence = Evidence.model_validate(
        {
            "launch": {"argv": list(found.argv)}, "env": dict(found.env), "node": {"gpu_count": 8},
            "engine_config": {"pretrained_config": {"mapping": mapping}},
            "triton_configs": configs, "model_repository": sorted(rendered),
            "stack": {"tensorrt_llm_version": "1.2.1"},
        }
    )  # fmt: skip
    findings, figures = judge(Context(evidence, catalog))
    assert [f.code for f in findings if f.severity is not Severity.INFO] == []
    assert figures["world_size"] == tp * pp
    assert figures["mpi_ranks"] == (1 if mode == "orchestrator" else tp * pp)


# ---- the real server
def _server() -> tuple[Path, dict[str, str]]:
    try:
        folder, libraries = find_wheel()
    except MissingError:
        pytest.skip("needs engineroom[serve]")
    paths = [str(libraries), sysconfig.get_config_var("LIBDIR") or ""]
    return folder / "bin/tritonserver", {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(filter(None, paths)),
    }


@pytest.mark.skipif(sys.platform != "linux", reason="tritonserver runs on Linux only")
def test_tritonserver_knows_each_option(catalog):
    program, env = _server()
    told = subprocess.run(
        [program, "--help"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    known = set(re.findall(r"--[a-z][a-z0-9-]+", told.stdout + told.stderr))
    assert len(known) > 50
    used = set()
    for found in (
        plan(catalog, tensor_parallel=2),
        plan(catalog, mode="orchestrator", tensor_parallel=2),
    ):
        for process in found.processes:
            used |= {word.split("=")[0] for word in process if word.startswith("--")}
    assert used - known == set()
    assert "--load-model" in used


MODEL = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        return config

    def execute(self, requests):
        return []
"""


def _repository(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1/model.py").write_text(MODEL)
        (folder / name / "config.pbtxt").write_text(
            f'name: "{name}"\nbackend: "python"\nmax_batch_size: 0\n'
            'input { name: "i" data_type: TYPE_INT32 dims: [ 1 ] }\n'
            'output { name: "o" data_type: TYPE_INT32 dims: [ 1 ] }\n'
            "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
        )
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="tritonserver runs on Linux only")
@pytest.mark.server
@pytest.mark.xdist_group("server")
@pytest.mark.parametrize("rank", [0, 1])
def test_tritonserver_starts_each_process_of_a_plan(catalog, tmp_path, rank):
    """Without mpirun: rank 0 loads both models and answers, rank 1 loads the engine model and listens
    nowhere. A Python model stands where the engine would be."""
    program, env = _server()
    wheel = program.parents[1]
    backends = tmp_path / "backends"
    shutil.copytree(wheel / "backends/python", backends / "python")
    stub = f"python_backend_stubs/{sys.version_info[0]}.{sys.version_info[1]}/triton_python_backend_stub"
    shutil.copy2(wheel / stub, backends / "python")
    env = {**env, "PATH": f"{Path(sys.executable).parent}:{env.get('PATH', '')}"}
    repository = _repository(tmp_path / "models", ["tensorrt_llm", "preprocessing"])
    target = request(catalog, "1.2.1", "engine", tensor_parallel=2)
    ports = free_ports(3)
    found = LANES[LaneName.ENGINE].launch(
        LaunchRequest(
            target.spec,
            target.target,
            str(repository),
            tritonserver=str(program),
            ports=tuple(ports),
        )
    )
    log = tmp_path / "log"
    argv = [*found.processes[rank], f"--backend-directory={backends}"]
    with log.open("wb") as sink:
        server = subprocess.Popen(argv, env=env, stdout=sink, stderr=sink, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 60
        text, answered = "", False
        while time.monotonic() < deadline and server.poll() is None:
            text = log.read_text(errors="replace")
            answered = _answers(ports[0])
            if answered if rank == 0 else "successfully loaded 'tensorrt_llm'" in text:
                break
            time.sleep(0.1)
        assert server.poll() is None, text[-2000:]
        text = log.read_text(errors="replace")
        loaded = {
            name
            for name in ("tensorrt_llm", "preprocessing")
            if f"successfully loaded '{name}'" in text
        }
        assert loaded == ({"tensorrt_llm", "preprocessing"} if rank == 0 else {"tensorrt_llm"})
        assert answered is (rank == 0)
        # Metrics come up a little after HTTP; a server without ports gets a moment to open one.
        expected, until = (ports if rank == 0 else []), time.monotonic() + (20 if rank == 0 else 1)
        while time.monotonic() < until and (rank or not all(map(_listens, ports))):
            time.sleep(0.1)
        assert [port for port in ports if _listens(port)] == expected
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(10)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/v2/health/ready", timeout=2
        ) as answer:
            return answer.status == 200
    except OSError:
        return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
