"""What the server's log says of its MPI processes: the world each is in, and what each loads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.triton_launch import LOADS, engine_name
from engineroom.checks.evidence.triton_mpi import launch_of, log_sizes, world_of
from engineroom.names import Severity, Topic

LOG_SIZE = declare(
    "mpi-size-in-log", Topic.MPI_LAUNCH, Severity.ERROR,
    says="in leader mode each process of the log is in an MPI world of tp x pp ranks",
    why="a process that finds itself alone was not started by the MPI of the image, e.g. by srun without "
    "--mpi=pmix; the engine does not load",
    source="NVIDIA/TensorRT-LLM#1047, #2021; triton-inference-server/tensorrtllm_backend#398, docs/llmapi.md "
    "(srun --mpi=pmix)",
)  # fmt: skip

_LOG_LOADING = re.compile(
    r"^.{0,60}?[IWE]\d{4} [\d:.]{8,20} (\d{1,9}) .{0,80}?loading: ([\w.-]{1,100}):\d", re.MULTILINE
)


@about(Topic.MPI_LAUNCH)
def size_in_log(c: Context) -> Iterator[Answer]:
    """What was started against what the processes found; a stated count may both be right and not hold."""
    launch, world = launch_of(c), world_of(c)
    sizes = log_sizes(c)
    if world is None or not sizes or (launch is not None and launch.mode == "orchestrator"):
        return
    if launch is not None and launch.mode is not None and launch.ranks not in (None, world):
        return  # `ranks` tells it
    if max(sizes) < world:
        yield LOG_SIZE.found(
            c, "log", f"the log shows MPI size: {max(sizes)} ({len(sizes)} times), and the engine needs {world} "
            "ranks (tp x pp)",
            f"start the {world} ranks with the image's own mpirun, or with srun --mpi=pmix",
        )  # fmt: skip


@about(Topic.MPI_LAUNCH)
def loads_in_log(c: Context) -> Iterator[Answer]:
    """Processes of a log that load the same model: only engines are loaded by each rank."""
    processes: dict[str, set[str]] = {}
    for found in _LOG_LOADING.finditer(c.evidence.log or ""):
        processes.setdefault(found[2], set()).add(found[1])
    known = {m.name for m in repo.engines(c)}
    many = sorted(
        name for name, pids in processes.items()
        if len(pids) > 1 and name not in known and not (not known and engine_name(name))
    )  # fmt: skip
    if many:
        yield LOADS.found(
            c, "log", f"{len(processes[many[0]])} processes load {', '.join(many[:6])}; these belong on rank 0",
            "start each further rank with --model-control-mode=explicit --load-model=tensorrt_llm, as "
            "launch_triton_server.py does",
        )  # fmt: skip


RULES = (size_in_log, loads_in_log)
