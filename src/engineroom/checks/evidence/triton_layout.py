"""Where instances of an engine run: instance_group and gpu_device_ids of the TensorRT-LLM backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from engineroom.catalog.load import in_range
from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.reading import cpp_values
from engineroom.types import Figure

_MULTI = "triton-inference-server/tensorrtllm_backend docs/llama_multi_instance.md @ v0.16.0"
KIND_GPU = declare(
    "instance-group-places-nothing", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="engines are placed by gpu_device_ids, not by instance_group",
    why="the backend ignores the GPU that Triton chose for an instance: all copies load on the first one",
    source=f"triton-inference-server/tensorrtllm_backend#481 (maintainer); {_MULTI}",
)  # fmt: skip
SETS = declare(
    "gpu-sets-differ-from-instances", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="gpu_device_ids has one set of GPUs for each instance",
    why="sets are dealt out in turn: with too few of them instances share GPUs",
    source=f"{_MULTI}; triton-inference-server/tensorrtllm_backend#481",
)  # fmt: skip
SET_SIZE = declare(
    "gpu-set-size", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="each set of gpu_device_ids has tp x pp GPUs (of each node)",
    why="the executor compares the two and stops",
    source="NVIDIA/TensorRT-LLM cpp/tensorrt_llm/executor/executorImpl.cpp (initializeWorkers, 1.3.0rc3)",
)  # fmt: skip
NO_SUCH_GPU = declare(
    "gpu-id-not-there", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="gpu_device_ids name GPUs that the node has",
    why="setting the device fails when the model loads",
    source="CUDA Runtime API, cudaSetDevice (cudaErrorInvalidDevice); " + _MULTI,
)  # fmt: skip
SHARED = declare(
    "gpu-in-two-sets", Topic.PARALLEL_LAYOUT, Severity.WARN,
    says="instances of a model have GPUs of their own, or a KV cache that leaves room for the next one",
    why="each copy takes its share of the memory that is free when it loads, by default nine tenths; the "
    "next one has what is left, and they slow each other",
    source=_MULTI + " (multiple instances on a single GPU: generally not recommended)",
)  # fmt: skip
TOO_OLD = declare(
    "instances-need-24-08", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="several instances of one model with GPU sets need Triton 24.08 or later",
    why="before, one instance of a model was the only one that could be placed",
    source=_MULTI + " (24.08 note)",
)  # fmt: skip
NOT_ENOUGH = declare(
    "instances-over-gpus", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="the node has tp x pp GPUs for each instance",
    why="instances that share GPUs run out of memory",
    source=_MULTI,
)  # fmt: skip

LEADER = declare(
    "instances-in-leader-mode", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="several instances of an engine over several GPUs run in orchestrator mode",
    why="leader mode is one MPI world of tp x pp ranks for one instance; more need a server each",
    source=_MULTI + " (Leader Mode: a server for each instance; Orchestrator Mode)",
)  # fmt: skip

_DEFAULT_SHARE = 0.9


def sets_of(model: repo.Model) -> list[list[int]] | None:
    scalar = model.config.parameters.get("gpu_device_ids")
    if scalar is None or scalar.placeholders or not scalar.text.strip():
        return None
    return cpp_values.device_sets(scalar.text)


def text_of(sets: list[list[int]]) -> str:
    return ";".join(",".join(map(str, ids)) for ids in sets)


def _triton_before_2408(c: Context) -> bool:
    facts = c.evidence.stack
    release = facts.triton_release if facts else None
    if release and release.count(".") == 1 and all(p.isdecimal() for p in release.split(".")):
        year, month = (int(p[:6]) for p in release.split("."))
        return (year, month) < (24, 8)
    return c.trtllm is not None and in_range(c.trtllm, "<0.12.dev0")


@about(Topic.PARALLEL_LAYOUT)
def placement(c: Context) -> Iterator[Answer]:
    world = repo.world_size(c)
    gpus = c.evidence.node.gpu_count if c.evidence.node else None
    for model in repo.engines(c):
        if model.backend == repo.CPP and world is not None:
            yield from _placed(c, model, world, gpus)


def _placed(c: Context, model: repo.Model, world: int, gpus: int | None) -> Iterator[Answer]:
    groups = model.config.instance_groups
    wrong_kind = [
        g for g in groups if g.kind == "KIND_GPU" and (len(g.gpus) > 1 or (gpus or 1) > 1)
    ]
    count = model.config.instances or 1
    sets = sets_of(model)
    if wrong_kind and sets is None:
        seen = sorted({i for g in wrong_kind for i in g.gpus}) or list(range(min(gpus or 1, 64)))
        each = max((g.count or 1) for g in wrong_kind)
        count = max(1, len(seen) // world) * each
        right = _take(seen, world, count) if len(seen) >= world else _numbered(world, count)
    else:
        right = completed(sets or [], world, count, gpus)
    fits = gpus is None or len({i for ids in right for i in ids}) <= gpus
    wanted = min(count, max(1, gpus // world)) if gpus else count
    if gpus is not None and count * world > gpus and not _sharing(sets, world, count):
        right = _numbered(world, wanted)
    final = len(right)
    text = text_of(right)
    needs_ids = bool(wrong_kind) or (final > 1 or sets is not None)
    if needs_ids:
        yield Figure("gpu_device_ids", text)
        yield Figure("instance_group", [{"kind": "KIND_CPU", "count": final}])
    remedy = f'write instance_group KIND_CPU with count {final} and gpu_device_ids "{text}"'
    if wrong_kind:
        yield KIND_GPU.found(
            c, model.key("instance_group"),
            f"instance_group of {model.config.path} is KIND_GPU"
            + (f" with gpus {list(wrong_kind[0].gpus)[:16]}" if wrong_kind[0].gpus else "")
            + ": the TensorRT-LLM backend does not place instances by it, so every copy loads on the first GPU",
            remedy + " in orchestrator mode (24.08 or later), or make a model folder for each set",
            line=wrong_kind[0].line,
        )  # fmt: skip
        return
    key = model.parameter_key("gpu_device_ids")
    line = model.line("gpu_device_ids")
    if count > 1 and (sets is not None or world > 1) and _triton_before_2408(c):
        yield TOO_OLD.found(
            c, model.key("instance_group"), f"{count} instances of {model.config.path} with GPU sets, and "
            "the stack is older than Triton 24.08",
            "make a model folder for each instance, each with its own gpu_device_ids, or use 24.08 or later",
        )  # fmt: skip
    launch = c.evidence.launch
    if count > 1 and world > 1 and launch is not None and launch.mode == "leader":
        yield LEADER.found(
            c, model.key("instance_group"), f"{count} instances of {model.config.path} with {world} ranks each, "
            "and the server runs in leader mode", "use orchestrator mode (--multi-model), or a server for each "
            "instance with a proxy before them",
        )  # fmt: skip
    if sets is None:
        if count > 1 and (world > 1 or (gpus or 1) > 1):
            where = f"the same {world} GPUs" if world > 1 else f"the first of {gpus} GPUs"
            yield SETS.found(
                c, key, f"{count} instances of {model.config.path} and no gpu_device_ids: all of them use "
                + where, remedy, severity=Severity.WARN if world == 1 and _capped(model) else None,
            )  # fmt: skip
        return
    if len(sets) != count:
        yield SETS.found(
            c, key, f"gpu_device_ids \"{text_of(sets)}\" holds {len(sets)} set{'s' * (len(sets) > 1)} and "
            f"{model.config.path} has {count} instance{'s' * (count > 1)}", remedy, line=line,
        )  # fmt: skip
    nodes = _nodes(c, model)
    for ids in sets[:16]:
        if len(ids) * nodes != world or len(set(ids)) != len(ids):
            yield SET_SIZE.found(
                c, key, f"the set {text_of([ids])} of gpu_device_ids names {len(set(ids))} GPUs"
                + (f" of each of {nodes} nodes" if nodes > 1 else "") + f", and tp x pp is {world}",
                remedy, line=line,
            )  # fmt: skip
        missing = [i for i in ids if gpus is not None and not 0 <= i < gpus]
        if missing:
            yield NO_SUCH_GPU.found(
                c, key, f"gpu_device_ids names GPU {missing[0]}, and the node has {gpus} (0 to {(gpus or 1) - 1})",
                remedy, line=line,
            )  # fmt: skip
    flat = [i for ids in sets for i in set(ids)]
    if len(flat) != len(set(flat)) and len(sets) == count:
        twice = next(i for i, times in Counter(flat).items() if times > 1)
        same = all(set(ids) == set(sets[0]) for ids in sets)
        own = _numbered(world, count)
        room = gpus is not None and count * world <= gpus
        if room and not (same and _capped(model)):
            yield Figure("gpu_device_ids", text_of(own))
        yield SHARED.found(
            c, key, f'GPU {twice} is in more than one set of gpu_device_ids "{text_of(sets)}"'
            + ("" if _capped(model) else ", and no cap is set on the KV cache: the first instance takes nine "
               "tenths of what is free"),
            (f'write gpu_device_ids "{text_of(own)}", or ' if room else "")
            + "set max_tokens_in_paged_kv_cache or a smaller kv_cache_free_gpu_mem_fraction for each",
            severity=Severity.ERROR if not _capped(model) else Severity.INFO if same else None, line=line,
        )  # fmt: skip
    if gpus is not None and count * world > gpus and not fits:
        yield NOT_ENOUGH.found(
            c, model.key("instance_group"), f"{count} instances of {world} GPUs need {count * world}, and "
            f"the node has {gpus}", f"use count {wanted}",
        )  # fmt: skip


def _capped(model: repo.Model) -> bool:
    """Whether the KV cache was given less than the default share, so that copies may share a GPU."""
    if repo.int_parameter(model, "max_tokens_in_paged_kv_cache") is not None:
        return True
    scalar = model.config.parameters.get("kv_cache_free_gpu_mem_fraction")
    share = cpp_values.stof(scalar.text) if scalar and not scalar.placeholders else None
    return share is not None and share < _DEFAULT_SHARE


def _nodes(c: Context, model: repo.Model) -> int:
    launch = c.evidence.launch
    return (launch.nodes if launch else None) or repo.int_parameter(model, "num_nodes") or 1


def _sharing(sets: list[list[int]] | None, world: int, count: int) -> bool:
    """Sets that were written out in full may share GPUs on purpose."""
    return sets is not None and len(sets) == count and all(len(ids) == world for ids in sets)


def _take(ids: list[int], world: int, count: int) -> list[list[int]]:
    """`count` sets of `world` ids each, going round when there are not enough."""
    whole = len(ids) // world * world
    return [[ids[(n * world + i) % whole] for i in range(world)] for n in range(min(count, 64))]


def _numbered(world: int, count: int) -> list[list[int]]:
    world = min(world, 1024)
    return [list(range(n * world, (n + 1) * world)) for n in range(min(count, 64))]


def completed(sets: list[list[int]], world: int, count: int, gpus: int | None) -> list[list[int]]:
    """Good sets as they are, and new ones from ids that no other set has."""
    good: list[list[int]] = []
    used: set[int] = set()
    for ids in sets:
        sound = len(ids) == world == len(set(ids)) and (
            gpus is None or all(0 <= i < gpus for i in ids)
        )
        if sound and len(good) < count:
            good.append(ids)
            used |= set(ids)
    following = 0
    while len(good) < min(count, 64):
        new: list[int] = []
        while len(new) < min(world, 1024):
            if following not in used:
                new.append(following)
            following += 1
        good.append(new)
        used |= set(new)
    return good


RULES = (placement,)
