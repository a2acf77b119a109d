"""Tensor and pipeline parallel sizes: the engine's, else the script's, else the launch line's."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from engineroom.migration.decisions import Draft, number
from engineroom.migration.draft_model import Chain
from engineroom.reading.cpp_values import device_sets
from engineroom.types import GpuSku
from engineroom.types.migration import BuildCall, BuildFlag, Fate, Leaf

_SIZES = {"tp_size": "tensor_parallel", "pp_size": "pipeline_parallel"}
_INTERPRETERS = ("python", "python3", "bash", "sh", "env")


@dataclass(frozen=True)
class World:
    """Ranks of one instance by the line that starts the server.

    Attributes:
        size: None when no line says it.
        leaves: the options that say it.
        why: what says it, for people.
        open: where a number stands that only running the script would tell.
    """

    size: int | None
    leaves: tuple[Leaf, ...] = ()
    why: str = ""
    open: tuple[str, ...] = ()


def parallel(draft: Draft, calls: Chain, sku: GpuSku | None) -> None:
    """`tensor_parallel` and `pipeline_parallel`; asks where no file tells one."""
    facts = draft.setup.engine or draft.setup.checkpoint
    leaves: dict[str, list[Leaf]] = {}
    given: dict[str, int | None] = {}
    unknown: dict[str, list[str]] = {}
    for name in _SIZES:
        made = [*draft.flags(calls.convert, f"--{name}"), *draft.flags(calls.build, f"--{name}")]
        leaves[name] = [
            *draft.engine(f"pretrained_config.mapping.{name}", f"mapping.{name}"), *made,
        ]  # fmt: skip
        given[name] = next((n for x in reversed(made) if (n := number(str(x.value)))), None)
        unknown[name] = [f"{x.file}:{x.line}" for x in made if not draft.known(x)]
    world = _world(draft, calls)
    if facts is not None:
        sizes = {name: int(getattr(facts, name)) for name in _SIZES}
    else:
        sizes = _sizes(draft, given, unknown, world)
    ranks = sizes["tp_size"] * sizes["pp_size"]
    most = sku.max_gpus_per_node if sku else 8
    if ranks > most:
        draft.missing.append(
            f"targets[0]: the old service runs on {ranks} GPUs (tensor parallel {sizes['tp_size']} x pipeline "
            f"parallel {sizes['pp_size']}), and a node of {sku.id if sku else 'this kind'} has {most} at most; the "
            "spec has targets of one node: choose a larger GPU with --sku, or fewer bits"
        )
    for name, key in _SIZES.items():
        if sizes[name] > 1:
            draft.target[key] = sizes[name]
        draft.carry(leaves[name], f"targets[0].{key}", sizes[name], "GPUs of one instance")
    more = "" if world.size in (None, ranks) else f"; this line says {world.size}"
    draft.decide(
        [*_launch(draft), *(world.leaves if facts is None else ())], Fate.MOVED, "targets[0].tensor_parallel", sizes["tp_size"],
        f"{ranks} rank{'s' if ranks > 1 else ''} of one instance; one server process: the LLM API starts a worker a "
        f"GPU itself{more}", source=("launch", "llmapi_docs"),
    )  # fmt: skip


def _sizes(
    draft: Draft, given: dict[str, int | None], unknown: dict[str, list[str]], world: World
) -> dict[str, int]:
    """By the script alone; a size that it leaves open comes from the launch line, or is asked for."""
    tensor, stages = given["tp_size"], given["pp_size"]
    lost = [name for name in _SIZES if given[name] is None and unknown[name]]
    if not lost and tensor is None and stages is None:
        size = world.size or _first_set(draft)
        if size is None and world.open:
            draft.missing.append(
                f"targets[0].tensor_parallel: only running the script would tell how many ranks it starts "
                f"({', '.join(world.open)}); set it, or give --engine DIR"
            )
        if size and size > 1:
            draft.notes.append(
                f"targets[0].tensor_parallel is {size} by {world.why or 'the first set of gpu_device_ids'} alone: set "
                "pipeline_parallel instead, if the engine was cut that way"
            )
        return {"tp_size": size or 1, "pp_size": 1}
    size = world.size or (_first_set(draft) if lost else None)
    why = world.why or "the first set of gpu_device_ids"
    if len(lost) == 1 and size is not None:
        other = (stages if lost == ["tp_size"] else tensor) or 1
        if size % other == 0:
            found = {"tp_size": tensor or 1, "pp_size": stages or 1, lost[0]: size // other}
            draft.notes.append(
                f"targets[0].{_SIZES[lost[0]]} is {size // other} by {why} ({size} ranks): the script leaves "
                f"--{lost[0]} open ({', '.join(unknown[lost[0]])})"
            )
            return found
    for name in lost:
        draft.missing.append(
            f"targets[0].{_SIZES[name]}: only running the script would tell --{name} ({', '.join(unknown[name])}); "
            "set it, or give --engine DIR"
        )
    found = {"tp_size": tensor or 1, "pp_size": stages or 1}
    if not lost and size not in (None, found["tp_size"] * found["pp_size"]):
        draft.missing.append(
            f"targets[0].tensor_parallel: {world.why} starts {size} ranks, and the calls before it make "
            f"{found['tp_size']} x {found['pp_size']} (tensor x pipeline parallel); set tensor_parallel and "
            "pipeline_parallel, or give --engine DIR"
        )
    return found


# ---- the line that starts the server
def _world(draft: Draft, calls: Chain) -> World:
    """In orchestrator mode the line says nothing: the server spawns the ranks."""
    setup = draft.setup
    if any(x.key.partition("#")[0] == "variable TRTLLM_ORCHESTRATOR" for x in setup.leaves):
        return World(None)
    if any(c.flag("--multi-model", "--disable-spawn-processes") for c in setup.calls):
        return World(None)
    stated = [
        *_launch(draft), *draft.flags(calls.convert, "--world_size", "--world-size"),
        *draft.flags(calls.build, "--world_size"),
    ]  # fmt: skip
    for leaf in stated:
        if size := number(str(leaf.value)):
            tool = leaf.key.partition("[")[0]
            option = leaf.key.rpartition(".")[2]
            return World(size, (), f"{tool} {option} ({leaf.file}:{leaf.line})")
    found = _mpirun(draft)
    lost = tuple(f"{x.file}:{x.line}" for x in stated if not draft.known(x))
    return replace(found, open=(*lost, *found.open))


def _launch(draft: Draft) -> list[Leaf]:
    return [
        leaf
        for call in draft.setup.calls
        if call.tool == "launch_triton_server.py"
        for leaf in draft.flags(call, "--world_size")
    ]


def _mpirun(draft: Draft) -> World:
    """Ranks of an mpirun whose programs are servers: `-n 2 tritonserver … : -n 2 tritonserver …`."""
    calls = draft.setup.calls
    leaves: list[Leaf] = []
    total, last, why = 0, -10, ""
    for launcher, server in itertools.pairwise(calls):
        if launcher.tool != "mpirun" or server.tool != "tritonserver":
            continue
        flag = launcher.flag("-n", "-np", "--np", "-c")
        size = _ranks(flag)
        if flag is None or not _starts(launcher, server):
            return World(None)
        if size is None:
            return World(None, open=(f"{launcher.file}:{launcher.line}",))
        if total and launcher.line - last > 1:
            return World(None)  # two servers: which of them is this service, nothing says
        total, last = total + size, max(server.line, *(f.line for f in server.flags), launcher.line)
        leaves += draft.flags(launcher, flag.name)
        why = why or f"mpirun {flag.name} ({launcher.file}:{launcher.line})"
    return World(total or None, tuple(leaves), why)


def _ranks(flag: BuildFlag | None) -> int | None:
    if flag is None or flag.unresolved or not flag.values:
        return None
    return number(flag.values[0])


def _starts(launcher: BuildCall, server: BuildCall) -> bool:
    """Whether the launcher's program is this server: nothing else stands between them."""
    flag = launcher.flag("-n", "-np", "--np", "-c")
    rest = [v.rpartition("/")[2] for v in flag.values[1:]] if flag else []
    ends = max((f.line for f in launcher.flags), default=launcher.line)
    return all(word in _INTERPRETERS for word in rest) and 0 <= server.line - ends <= 1


def _first_set(draft: Draft) -> int | None:
    """GPUs of the first instance, where nothing else says how many ranks there are."""
    text = draft.setup.parameter("gpu_device_ids", "engine")
    sets = device_sets(text) if text else None
    return len(sets[0]) if sets else None
