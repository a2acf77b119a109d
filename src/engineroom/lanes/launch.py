"""The command line that starts a repository's server, as data: which processes, with what environment.

Facts: NVIDIA/TensorRT-LLM triton_backend/scripts/launch_triton_server.py (1.2 line), and
triton-inference-server/tensorrtllm_backend README.md (leader and orchestrator mode) and
docs/llama_multi_instance.md @ v1.0.0. Departures from the script, each with its reason in the plan:
ranks above 0 open no ports, `mpirun` binds no rank to a core, leaves a server the time to finish its
requests, and is told to run as root only when it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engineroom.spec import DeploymentSpec, Target

ENGINE_MODEL = "tensorrt_llm"
KILL_AFTER = "OMPI_MCA_odls_base_sigkill_timeout"
KILL_MARGIN_SECONDS = 5
PORTS = (8000, 8001, 8002)


def python_threads(target: Target) -> int:
    """`--backend-config=python,thread-pool-size=N` for models that call other models (BLS).

    Such a call holds one of these threads until its first response (not streamed: for the whole answer),
    each response that is sent needs one for a moment, and so does a cancellation (python_backend
    src/python_be.cc). With Triton's default of 32, running streams stand still behind 32 waiting calls:
    64 streams at once with a first token after 1.5 s were measured at 3.3 s, and at 2.0 s with 128.
    """
    return max(64, 2 * target.limits.max_batch_size + 16)


@dataclass(frozen=True)
class LaunchRequest:
    """What a launch line depends on.

    Attributes:
        model_repository: absolute POSIX path of the repository as the server will see it.
        as_root: whether the processes run as root; `mpirun` refuses that unless told.
        ports: HTTP, gRPC and metrics.
        tritonserver: the program; by name, so that the image decides where it is.
        python_threads: `thread-pool-size` of the Python backend; 0 leaves Triton's default.
        exit_timeout_seconds: how long a server that was told to end may finish its requests; Triton's
            own default.
    """

    spec: DeploymentSpec
    target: Target
    model_repository: str
    as_root: bool = False
    ports: tuple[int, int, int] = PORTS
    tritonserver: str = "tritonserver"
    python_threads: int = 0
    exit_timeout_seconds: int = 30


@dataclass(frozen=True)
class LaunchPlan:
    """Processes of one server; argv words, never a shell string.

    Attributes:
        wrapper: words before the processes (`mpirun` and its options); empty for a plain server.
        processes: argv of each process; the first one serves.
        env: variables to add to the environment.
        why: reason of each choice, by option or variable.
    """

    wrapper: tuple[str, ...]
    processes: tuple[tuple[str, ...], ...]
    env: Mapping[str, str]
    why: Mapping[str, str]

    @property
    def argv(self) -> tuple[str, ...]:
        """One command: `mpirun OPTIONS -n 1 SERVER : -n 1 SERVER`, or the server itself."""
        if not self.wrapper:
            return self.processes[0]
        words = list(self.wrapper)
        for i, process in enumerate(self.processes):
            words += [*([":"] if i else []), "-n", "1", *process]
        return tuple(words)

    def as_dict(self) -> dict[str, Any]:
        return {
            "argv": list(self.argv),
            "env": dict(self.env),
            "wrapper": list(self.wrapper),
            "processes": [list(process) for process in self.processes],
            "why": dict(self.why),
        }


def serving_argv(request: LaunchRequest) -> tuple[str, ...]:
    """The process that clients talk to; loads every model of the repository."""
    http, grpc, metrics = request.ports
    return (
        request.tritonserver,
        f"--model-repository={request.model_repository}",
        f"--http-port={http}",
        f"--grpc-port={grpc}",
        f"--metrics-port={metrics}",
        *(
            [f"--backend-config=python,thread-pool-size={request.python_threads}"]
            if request.python_threads
            else []
        ),
    )


def single_server(request: LaunchRequest, why: Mapping[str, str] | None = None) -> LaunchPlan:
    """One plain process, without MPI."""
    reasons = why or {"tritonserver": "one process; nothing here needs a launcher"}
    return LaunchPlan((), (serving_argv(request),), {}, reasons)


def leader(request: LaunchRequest) -> LaunchPlan:
    """One process a rank: rank 0 serves, the others hold their shard of the engine model."""
    ranks = request.target.ranks
    first = (*serving_argv(request), _region(0))
    others = tuple(
        (
            request.tritonserver,
            f"--model-repository={request.model_repository}",
            "--model-control-mode=explicit",
            f"--load-model={ENGINE_MODEL}",
            "--allow-http=false",
            "--allow-grpc=false",
            "--allow-metrics=false",
            _region(rank),
        )
        for rank in range(1, ranks)
    )
    wrapper, env, why = _mpirun(request)
    why |= {
        "-n": f"{ranks} ranks: tensor_parallel x pipeline_parallel, one process each",
        "--load-model": "ranks above 0 compute only; tokenizer models and ensembles belong to rank 0",
        "--allow-http, --allow-grpc, --allow-metrics": "ranks above 0 take no requests, and the ports are "
        "rank 0's",
        "--backend-config": "Python models of two processes may not share a region of /dev/shm",
    }
    return LaunchPlan(wrapper, (first, *others), env, why)


def orchestrator(request: LaunchRequest) -> LaunchPlan:
    """One process, which spawns a worker a rank and instance (`executor_worker_path`)."""
    ids = request.target.gpu_device_ids
    gpus = sorted(gpu for group in ids for gpu in group) if ids else range(request.target.gpus)
    process = (
        *serving_argv(request),
        "--pinned-memory-pool-byte-size=0",
        "--enable-peer-access=false",
        *(f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in gpus),
    )
    wrapper, env, why = _mpirun(request)
    why |= {
        "-n": "one process: an MPI world of one, to which the workers are spawned",
        "TRTLLM_ORCHESTRATOR": "serving.process_mode: orchestrator",
        "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "the orchestrator starts its workers itself, on this node",
        "--pinned-memory-pool-byte-size": "the orchestrator computes nothing, and keeps no memory from its "
        "workers; peer access and CUDA pools likewise",
    }
    env |= {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    return LaunchPlan(wrapper, (process,), env, why)


def _region(rank: int) -> str:
    return f"--backend-config=python,shm-region-prefix-name=prefix{rank}_"


def _mpirun(request: LaunchRequest) -> tuple[tuple[str, ...], dict[str, str], dict[str, str]]:
    """(`mpirun` and its global options, environment, reasons).

    Open MPI binds a rank to one core by default when there are at most two, and to a socket or NUMA
    domain above that (mpirun(1), `--bind-to`); a server has many threads. Told to end, it waits
    `odls_base_sigkill_timeout` seconds (default 1), sends SIGTERM, waits as long again, and kills:
    measured with Open MPI 4.1.4, the line that NVIDIA's containers have.
    """
    seconds = request.exit_timeout_seconds + KILL_MARGIN_SECONDS
    why = {
        "--bind-to": "Open MPI binds each of two ranks to one core by default",
        KILL_AFTER: "Open MPI kills its processes a second after SIGTERM by default, and a server needs "
        "its exit timeout to finish requests",
    }
    env = {KILL_AFTER: str(seconds)}
    if not request.as_root:
        return ("mpirun", "--bind-to", "none"), env, why
    why["--allow-run-as-root"] = "mpirun refuses to run as root unless told"
    return ("mpirun", "--allow-run-as-root", "--bind-to", "none"), env, why
