"""MPI modes of the TensorRT-LLM backend: how many ranks, which of them, and what each loads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.parallel import GPUS, RANKS
from engineroom.checks.evidence.triton_mpi import (
    Launch,
    launch_of,
    option,
    participant_faults,
    participant_sets,
    world_of,
)
from engineroom.names import Severity, Topic
from engineroom.types import Figure

_EXECUTOR = "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/executor/executorImpl.cpp (1.3.0rc3)"
_MULTI = "triton-inference-server/tensorrtllm_backend docs/llama_multi_instance.md @ v0.16.0"
_SCRIPT = "triton-inference-server/tensorrtllm_backend scripts/launch_triton_server.py @ v0.19.0"
RANK_ZERO = declare(
    "participant-rank-zero", Topic.MPI_LAUNCH, Severity.ERROR,
    says="rank 0 hosts no model when the orchestrator's ranks are pre-spawned",
    why="rank 0 is the orchestrator; the executor refuses it as a participant",
    source=f"{_MULTI}; {_EXECUTOR}, initializeWorkers; NVIDIA/TensorRT-LLM#1608",
)  # fmt: skip
PARTICIPANTS = declare(
    "participant-ids-wrong", Topic.MPI_LAUNCH, Severity.ERROR,
    says="participant_ids name tp x pp ranks of each instance, and no rank twice",
    why="the executor compares their number with tp x pp, and a rank runs one model",
    source=f"{_EXECUTOR}, setOrchLeaderComm and initializeWorkers; {_MULTI}",
)  # fmt: skip
PARTICIPANTS_MISSING = declare(
    "participant-ids-missing", Topic.MPI_LAUNCH, Severity.ERROR,
    says="pre-spawned orchestrator mode has participant_ids for each model",
    why="the backend stops: spawning is disabled and it is not told its ranks",
    source="NVIDIA/TensorRT-LLM triton_backend/inflight_batcher_llm/src/model_instance_state.cc "
    "(getParallelConfigFromParams, 1.3.0rc3)",
)  # fmt: skip
PARTICIPANTS_SPAWNED = declare(
    "participant-ids-with-spawning", Topic.MPI_LAUNCH, Severity.ERROR,
    says="participant_ids are not set where the orchestrator spawns its workers",
    why="the executor refuses the combination",
    source=f"{_EXECUTOR}, initializeWorkers",
)  # fmt: skip
RANK_COUNT = declare(
    "mpi-rank-count", Topic.MPI_LAUNCH, Severity.ERROR,
    says="as many MPI processes are started as the mode needs",
    why="leader mode needs tp x pp, an orchestrator that spawns needs 1, one that does not needs the "
    "ranks of all models and one more",
    source=f"NVIDIA/TensorRT-LLM#2021, #2058; {_MULTI}; {_SCRIPT}",
)  # fmt: skip
ONE_NODE = declare(
    "spawning-on-several-nodes", Topic.MPI_LAUNCH, Severity.ERROR,
    says="an orchestrator that spawns its workers stays on one node",
    why="MPI_Comm_spawn starts them locally",
    source=f"{_MULTI} (MPI_Comm_Spawn cannot distribute a model over nodes)",
)  # fmt: skip
TOO_FEW_GPUS = declare(
    "mpi-ranks-over-gpus", Topic.MPI_LAUNCH, Severity.ERROR,
    says="the nodes have a GPU for each rank",
    why="two ranks on one GPU run it out of memory, or NCCL refuses the duplicate device",
    source="NVIDIA/TensorRT-LLM#2058; NCCL documentation (duplicate GPU detected)",
)  # fmt: skip
LOADS = declare(
    "rank-loads-other-models", Topic.MPI_LAUNCH, Severity.ERROR,
    says="ranks above 0 load the engine models only",
    why="tokenizer models and ensembles start once per rank and fight over ports and shared memory; "
    "the launch script gives these ranks explicit model control",
    source=f"{_SCRIPT} (get_cmd); tensorrtllm_backend#455; NVIDIA/TensorRT-LLM#2813",
)  # fmt: skip
NO_MPI = declare(
    "no-mpi-with-ranks", Topic.MPI_LAUNCH, Severity.ERROR,
    says="a server started without MPI has a world of one rank",
    why="the script asserts it; the engine finds one process where it needs more",
    source=f"{_SCRIPT} (--no-mpi)",
)  # fmt: skip


@about(Topic.MPI_LAUNCH)
def ranks(c: Context) -> Iterator[Answer]:
    launch, world = launch_of(c), world_of(c)
    if world is not None:
        yield Figure("world_size", world)
    if launch is None or world is None:
        return
    engines = repo.engines(c)
    instances = sum(m.config.instances or 1 for m in engines) or 1
    needed = world
    if launch.mode == "orchestrator":
        needed = 1 if launch.spawn else 1 + world * instances
        stated = [i for m in engines for ids in participant_sets(m) or () for i in ids]
        if launch.pre_spawned and stated and not list(participant_faults(engines, world)):
            needed = 1 + max(stated)
    if launch.mode is not None:
        yield Figure("mpi_ranks", needed)
        if launch.ranks is not None and launch.ranks != needed:
            yield RANK_COUNT.found(
                c, "launch.mpi_ranks",
                f"{launch.ranks} MPI ranks are started; {launch.mode} mode "
                + ("with spawned workers needs 1" if needed == 1 and launch.mode == "orchestrator"
                   else f"needs {needed} for {instances} instance{'s' * (instances > 1)} of {world} ranks (tp x pp)"
                   + (" and rank 0, the orchestrator" if launch.pre_spawned else "")),
                f"start {needed} ranks (--world_size {needed}, or mpirun -n {needed})",
            )  # fmt: skip
    if launch.no_mpi and world > 1:
        yield NO_MPI.found(
            c, "launch.argv", f"--no-mpi starts one process, and the engine needs {world} ranks",
            f"leave --no-mpi out and start {world} ranks",
        )  # fmt: skip
    yield from _nodes(c, launch, world, instances)


def _nodes(c: Context, launch: Launch, world: int, instances: int) -> Iterator[Answer]:
    gpus = c.evidence.node.gpu_count if c.evidence.node else None
    nodes = launch.nodes or 1
    orchestrated = launch.mode == "orchestrator"
    if orchestrated and launch.spawn and nodes > 1:
        yield ONE_NODE.found(
            c, "launch.spawn_processes",
            f"the orchestrator spawns {world} workers for {nodes} nodes, and MPI_Comm_spawn starts all "
            "of them on its own node" + (f", which has {gpus} GPUs" if gpus is not None else ""),
            f"use leader mode with {world} ranks over the nodes, or --disable-spawn-processes with "
            "participant_ids",
        )  # fmt: skip
        return
    there = gpus * nodes if gpus is not None else None
    wanted = world * instances if orchestrated else world
    if there is not None and there < wanted:
        yield TOO_FEW_GPUS.found(
            c, "node.gpu_count", f"{wanted} ranks need a GPU each, and {nodes} node{'s' * (nodes > 1)} "
            f"of {gpus} GPUs have {there}",
            ("use leader mode over more nodes, or pre-spawned ranks (--disable-spawn-processes) with "
             "participant_ids" if orchestrated else "use more nodes, or an engine for fewer GPUs"),
        )  # fmt: skip


@about(Topic.MPI_LAUNCH)
def participants(c: Context) -> Iterator[Answer]:
    launch, world, engines = launch_of(c), world_of(c), repo.engines(c)
    if launch is None or world is None or not engines or launch.mode is None:
        return
    if launch.mode == "orchestrator" and launch.spawn:
        for model in engines:
            if participant_sets(model) is not None:
                yield PARTICIPANTS_SPAWNED.found(
                    c, model.parameter_key("participant_ids"),
                    f"participant_ids of {model.config.path} are set, and the orchestrator spawns its workers",
                    "take participant_ids out, or start with --disable-spawn-processes",
                    line=model.line("participant_ids"),
                )  # fmt: skip
        return
    if launch.mode == "leader":
        yield from _leader(c, engines, world)
        return
    right = _right(engines, world)
    listed = {m.index: ids for m, ids in zip(engines, right)}
    yield Figure("participant_ids", [listed.get(m.index, "") for m in repo.models(c)])
    faults = list(islice(participant_faults(engines, world), 32))
    for model in engines:
        key = model.parameter_key("participant_ids")
        fix = f"write participant_ids {listed[model.index]}"
        sets = participant_sets(model)
        if sets is None:
            yield PARTICIPANTS_MISSING.found(
                c,
                key,
                f"{model.config.path} has no participant_ids, and the ranks are pre-spawned",
                fix,
            )
            continue
        if any(rank == 0 for ids in sets for rank in ids):
            yield RANK_ZERO.found(
                c, key, f"participant_ids of {model.config.path} hold rank 0, which is the orchestrator's",
                fix, line=model.line("participant_ids"),
            )  # fmt: skip
        for other, told in faults:
            if other is model and told != "rank 0":
                yield PARTICIPANTS.found(
                    c, key, f"participant_ids of {model.config.path}: {told}", fix,
                    line=model.line("participant_ids"),
                )  # fmt: skip


def _right(engines: tuple[repo.Model, ...], world: int) -> list[str]:
    """Ids as given when all are sound, else counted up from 1."""
    if not list(participant_faults(engines, world)) and all(
        participant_sets(m) is not None for m in engines
    ):
        return [m.config.parameters["participant_ids"].text for m in engines]
    texts, following = [], 1
    for model in engines:
        sets = []
        for _ in range(min(model.config.instances or 1, 64)):
            sets.append(",".join(map(str, range(following, following + min(world, 1024)))))
            following += min(world, 1024)
        texts.append(";".join(sets))
    return texts


def _leader(c: Context, engines: tuple[repo.Model, ...], world: int) -> Iterator[Answer]:
    for model in engines:
        for ids in participant_sets(model) or ():
            if len(ids) != world or len(set(ids)) != len(ids):
                yield PARTICIPANTS.found(
                    c, model.parameter_key("participant_ids"),
                    f"participant_ids of {model.config.path} name {len(set(ids))} ranks where tp x pp is {world}",
                    "take participant_ids out: leader mode uses ranks 0 to tp x pp - 1",
                    line=model.line("participant_ids"),
                )  # fmt: skip


@about(Topic.MPI_LAUNCH)
def loaded_models(c: Context) -> Iterator[Answer]:
    """Ranks above 0 of an mpirun line, against the folders of the repository."""
    launch = launch_of(c)
    folders = c.evidence.model_repository
    if folders is None and c.evidence.triton_configs:
        folders = tuple(m.config.folder for m in repo.models(c))
    if launch is None or not folders:
        return
    known = {m.name for m in repo.engines(c)} | {m.config.folder for m in repo.engines(c)}
    others = [f for f in folders if f not in known and (known or not engine_name(f))]
    rank = 0
    for count, words in launch.blocks:
        later = count if rank else count - 1
        rank += count
        if later < 1 or not any(w.rsplit("/", 1)[-1] == "tritonserver" for w in words):
            continue
        if option(words, "--model-control-mode") == "explicit":
            loads = [w.split("=", 1)[1] for w in words if w.startswith("--load-model=")]
            loads += [words[i + 1] for i, w in enumerate(words[:-1]) if w == "--load-model"]
            bad = [name for name in others if name in loads or "*" in loads]
        else:
            bad = others
        if bad:
            yield LOADS.found(
                c, "launch.argv",
                f"{later} rank{'s' * (later > 1)} above 0 also load{'s' * (later == 1)} {', '.join(bad[:6])}; "
                "these belong on rank 0",
                "start each further rank with --model-control-mode=explicit --load-model=tensorrt_llm and "
                "a shm-region-prefix-name of its own, as launch_triton_server.py does",
            )  # fmt: skip
            return


def engine_name(folder: str) -> bool:
    return "tensorrt_llm" in folder and "bls" not in folder


@about(Topic.PARALLEL_LAYOUT)
def built_layout(c: Context) -> Iterator[Answer]:
    """An engine's ranks against the processes and GPUs of its launch."""
    launch, world, pod = launch_of(c), repo.world_size(c), c.evidence.pod
    if world is None or c.evidence.checkpoint_config is not None:
        return
    yield Figure("world_size", world)
    if launch is not None and launch.mode is not None:
        instances = sum(m.config.instances or 1 for m in repo.engines(c)) or 1
        needed = 1 if launch.mode == "orchestrator" else world
        if launch.pre_spawned:
            needed = 1 + world * instances
        yield Figure("mpi_ranks", needed)
        if launch.ranks is not None and launch.ranks != needed:
            yield RANKS.found(
                c, "launch.mpi_ranks",
                f"{launch.ranks} MPI ranks for an engine of {world} (tp x pp): {launch.mode} mode needs {needed}",
                f"start {needed} ranks (--world_size {needed}, or mpirun -n {needed})"
                + (", or use orchestrator mode with a world of 1" if launch.mode == "leader" else ""),
            )  # fmt: skip
    if pod is not None and pod.gpu_count is not None:
        pods = pod.lws_size_pods or (launch.nodes if launch else None) or 1
        if pod.gpu_count * pods < world:
            yield GPUS.found(
                c, "pod.gpu_count", f"{pod.gpu_count * pods} GPUs for an engine of {world} ranks (tp x pp)",
                f"give the pod {-(-world // pods)} GPUs, or build the engine for fewer",
            )  # fmt: skip


RULES = (ranks, participants, loaded_models, built_layout)
