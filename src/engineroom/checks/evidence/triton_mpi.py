"""How the server's MPI processes start: from stated facts, the command line, or the log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence.context import Context
from engineroom.reading import cpp_values


@dataclass(frozen=True)
class Launch:
    """How the processes start, from the stated facts and else from the command line.

    Attributes:
        blocks: of an mpirun line, (number of processes, the words of the program).
    """

    mode: str | None
    spawn: bool
    ranks: int | None
    nodes: int | None
    no_mpi: bool
    blocks: tuple[tuple[int, tuple[str, ...]], ...]

    @property
    def pre_spawned(self) -> bool:
        return self.mode == "orchestrator" and not self.spawn


_LOG_SIZE = re.compile(r"\bMPI size: (\d{1,6})\b")
_COUNT = ("-n", "-np", "--np", "-c", "--n")
MAX_RANKS = 100_000


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text[:9]) <= MAX_RANKS and len(text) < 9 else None


def option(argv: tuple[str, ...], name: str) -> str | None:
    for at, word in enumerate(argv):
        if word == name and at + 1 < len(argv):
            return argv[at + 1]
        if word.startswith(f"{name}="):
            return word.split("=", 1)[1]
    return None


def mpi_blocks(argv: tuple[str, ...]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """`mpirun -n 2 a : -n 1 b` as ((2, a), (1, b)); empty where there is no mpirun."""
    start = next(
        (i for i, w in enumerate(argv) if w.rsplit("/", 1)[-1] in ("mpirun", "mpiexec")), None
    )
    if start is None:
        return ()
    blocks: list[tuple[int, tuple[str, ...]]] = []
    words: list[str] = []
    for word in (*argv[start + 1 :], ":"):
        if word != ":":
            words.append(word)
        elif words:
            count = next((option(tuple(words), n) for n in _COUNT if option(tuple(words), n)), "1")
            blocks.append((_number(count or "1") or 1, tuple(words)))
            words = []
    return tuple(blocks)


def _unlaunched(argv: tuple[str, ...]) -> int | None:
    """Processes of a command line without mpirun: the server itself, NVIDIA's script, or srun."""
    words = [word.rsplit("/", 1)[-1] for word in argv]
    if words[:1] == ["tritonserver"] or "launch_triton_server.py" in words:
        return 1  # the script's own default of --world_size
    return _srun_tasks(argv)


def _srun_tasks(argv: tuple[str, ...]) -> int | None:
    if not argv or argv[0].rsplit("/", 1)[-1] != "srun":
        return None
    if not any(word.rsplit("/", 1)[-1] == "tritonserver" for word in argv):
        return None
    tasks = option(argv, "--ntasks") or option(argv, "-n")
    if tasks is not None:
        return _number(tasks)
    each, nodes = option(argv, "--ntasks-per-node"), option(argv, "--nodes") or option(argv, "-N")
    if each is None or nodes is None:
        return None
    return (_number(each) or 0) * (_number(nodes) or 0) or None


def log_sizes(c: Context) -> list[int]:
    """The MPI world that each process of the log says it has."""
    return [int(size) for size in _LOG_SIZE.findall(c.evidence.log or "")[:1000]]


def launch_of(c: Context) -> Launch | None:
    facts = c.evidence.launch
    if facts is None:
        return None
    argv = facts.argv or ()
    env = c.evidence.env or {}
    blocks = mpi_blocks(argv)
    if not blocks and (tasks := _srun_tasks(argv)) is not None:
        blocks = ((tasks, argv),)
    mode, spawn = facts.mode, facts.spawn_processes
    if mode is None:
        if "--multi-model" in argv or env.get("TRTLLM_ORCHESTRATOR") == "1":
            mode = "orchestrator"
        elif blocks or option(argv, "--world_size"):
            mode = "leader"
    if spawn is None:
        spawn = not (
            "--disable-spawn-processes" in argv
            or env.get("TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES") == "0"
        )
    ranks = facts.mpi_ranks
    if ranks is None and blocks:
        ranks = sum(count for count, _ in blocks)
    if ranks is None and (stated := option(argv, "--world_size")):
        ranks = _number(stated)
    if ranks is None and not blocks and (plain := _unlaunched(argv)) is not None:
        ranks, mode = plain, mode or "leader"
    if ranks is None and (logged := _LOG_SIZE.search(c.evidence.log or "")):
        ranks = int(logged[1])
    return Launch(mode, spawn, ranks, facts.nodes, "--no-mpi" in argv, blocks)


_LOG_WORLD = re.compile(r"mpiSize == tp ?\* ?pp(?: ?\* ?cp)?\s{0,4}\((\d{1,6}) != (\d{1,6})\)")


def world_of(c: Context) -> int | None:
    """tp x pp: from the engine, else from the assertion in the log that names it."""
    world = repo.world_size(c)
    if world is None and c.evidence.log and (found := _LOG_WORLD.search(c.evidence.log)):
        world = int(found[2])
    return world


def participant_sets(model: repo.Model) -> list[list[int]] | None:
    scalar = model.config.parameters.get("participant_ids")
    if scalar is None or scalar.placeholders or not scalar.text.strip():
        return None
    return cpp_values.device_sets(scalar.text)


def participant_faults(
    engines: tuple[repo.Model, ...], world: int
) -> Iterator[tuple[repo.Model, str]]:
    """What the executor refuses in participant_ids of pre-spawned mode, beside rank 0."""
    used: dict[int, str] = {}
    for model in engines:
        sets = participant_sets(model)
        if sets is None:
            continue
        count = model.config.instances or 1
        if len(sets) != count:
            yield model, f"{len(sets)} sets of ranks for {count} instance{'s' * (count > 1)}"
        for ids in sets:
            if len(ids) != world:
                yield model, f"{len(ids)} ranks where tp x pp is {world}"
            for rank in ids:
                if rank in used:
                    yield model, f"rank {rank} is already {used[rank]}'s"
                if rank == 0 or rank < 0:
                    yield model, f"rank {rank}"
                used[rank] = model.name
