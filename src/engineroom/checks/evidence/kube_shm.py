"""The size of /dev/shm that a container really gets, and what it counts against.

Without a volume the container runtime mounts a tmpfs of 64 MiB. An emptyDir of medium Memory is a tmpfs
of sizeLimit, capped by the pod's memory limit; without sizeLimit it is as large as that limit, or as the
node's allocatable memory. What is written to it is charged to the container's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.kube_values import (
    VLLM_STACK,
    ModelSpec,
    chart_of,
    conventional,
    key,
    model_specs,
    values_of,
)
from engineroom.names import Severity, Topic
from engineroom.reading.helm_yaml import Values, whole
from engineroom.reading.quantities import amount
from engineroom.types import Figure

RUNTIME_DEFAULT = 64 << 20
_KUBELET = "kubernetes/kubernetes pkg/volume/emptydir/empty_dir.go (calculateEmptyDirMemorySize)"
_CHART = (
    "vllm-project/production-stack helm/templates/deployment-vllm-multi.yaml @ a6c01db; issue #276"
)
TOO_SMALL = declare(
    "shm-too-small-for-ranks", Topic.K8S_SHM, Severity.ERROR,
    says="a pod of several GPUs has a /dev/shm of more than the runtime's 64 MiB",
    why="NCCL makes its segments there and fails, or ranks die with a bus error",
    source="NVIDIA NCCL documentation, Troubleshooting (Sharing Data, Docker); " + _CHART,
)  # fmt: skip
UNUSED = declare(
    "shm-size-without-effect", Topic.K8S_SHM, Severity.ERROR,
    says="a size for /dev/shm that is set is one that the chart renders",
    why="the value is accepted and no volume is mounted; the container keeps 64 MiB",
    source=_CHART,
)  # fmt: skip
OVER_LIMIT = declare(
    "shm-over-memory-limit", Topic.K8S_SHM, Severity.ERROR,
    says="/dev/shm is smaller than the memory limit that it counts against",
    why="the kubelet caps it at the limit, and filling it gets the container killed for memory",
    source=_KUBELET + "; Kubernetes documentation, Volumes, emptyDir",
)  # fmt: skip
ON_DISK = declare(
    "shm-on-disk", Topic.K8S_SHM, Severity.WARN,
    says="an emptyDir for /dev/shm has medium: Memory",
    why="without it shared memory is a folder on the node's disk: slow, and counted as ephemeral storage",
    source="Kubernetes documentation, Volumes, emptyDir",
)  # fmt: skip
NO_SIZE = declare(
    "shm-without-size-limit", Topic.K8S_SHM, Severity.WARN,
    says="a memory volume has a sizeLimit",
    why="it may grow to the pod's whole memory limit, or the node's memory, and take the server with it",
    source=_KUBELET,
)  # fmt: skip
BAD_SIZE = declare(
    "shm-size-not-a-quantity", Topic.K8S_SHM, Severity.ERROR,
    says="a size is a Kubernetes quantity",
    why="the API server refuses the pod",
    source="kubernetes/apimachinery pkg/api/resource/quantity.go",
)  # fmt: skip
_GPU_PREFIX = "nvidia.com/"
_LARGE_ENOUGH = 1 << 30


def _gpus(resources: dict[str, Any]) -> int:
    limits = resources.get("limits")
    items = limits.items() if isinstance(limits, dict) else ()
    return sum(whole(v) or 0 for k, v in items if str(k).startswith(_GPU_PREFIX))


@about(Topic.K8S_SHM)
def conventional_shm(c: Context) -> Iterator[Answer]:
    """Keys shm.{medium,sizeLimit}: an emptyDir mounted on /dev/shm."""
    values = conventional(c)
    if values is None:
        return
    ranks = max(c.tp * c.pp, _gpus(values.mapping("resources")))
    if not values.mapping("shm"):
        if any("shm" in name.lower() and name != "shm" for name in values.data):
            return  # a chart with a key of its own for it
        yield Figure("shm_bytes", RUNTIME_DEFAULT)
        if ranks > 1:
            yield _small(
                c, key("shm"), ranks, RUNTIME_DEFAULT, "add shm: {medium: Memory, sizeLimit: 4Gi}"
            )
        return
    limit = amount(values.text("resources", "limits", "memory"))
    yield from _volume(c, values, ("shm",), limit, ranks)


def _volume(
    c: Context, values: Values, place: tuple[str | int, ...], limit: int | None, ranks: int
) -> Iterator[Answer]:
    """An emptyDir at `place`, judged against the memory limit."""
    medium = values.get(*place, "medium")
    written = values.text(*place, "sizeLimit")
    size = amount(written) if written is not None else None
    size_key = key(*place, "sizeLimit")
    if written is not None and (size is None or size < 0):
        yield BAD_SIZE.found(
            c, size_key, f"`{written[:60]}` is not a quantity", "write e.g. 4Gi",
            line=values.line(*place, "sizeLimit"),
        )  # fmt: skip
        return
    size = size or None  # the kubelet takes zero for unset
    if medium != "Memory":
        if size is not None:
            yield Figure("shm_bytes", size)
        yield ON_DISK.found(
            c, key(*place, "medium"), "the emptyDir for /dev/shm has no medium: Memory, so it lies on the node's "
            "disk and counts as ephemeral storage",
            "medium: Memory, and a memory limit that has room for it",
        )  # fmt: skip
        return
    real = min((x for x in (size, limit) if x), default=None)
    if real is not None:
        yield Figure("shm_bytes", real)
    if size is None:
        bound = f"{limit} bytes, the memory limit" if limit else "the node's allocatable memory"
        yield NO_SIZE.found(
            c, size_key, f"without sizeLimit /dev/shm grows to {bound}, and it counts against the memory limit",
            "set sizeLimit, e.g. 1Gi and 1Gi more for each GPU",
        )  # fmt: skip
    elif limit is not None and size >= limit:
        yield OVER_LIMIT.found(
            c, size_key,
            f"sizeLimit {written} ({size} bytes) is not below resources.limits.memory ({limit} bytes), against "
            "which /dev/shm counts: filling it kills the container (OOMKilled)",
            f"a sizeLimit well below the limit, or a memory limit above {size} bytes plus what the server "
            "needs",
        )  # fmt: skip
    elif ranks > 1 and size <= RUNTIME_DEFAULT:
        yield _small(c, size_key, ranks, size, "sizeLimit: 4Gi, or 1Gi and 1Gi more for each GPU")


def _small(c: Context, place: str, ranks: int, size: int, fix: str) -> Any:
    return TOO_SMALL.found(
        c, place, f"/dev/shm has {size} bytes ({size >> 20} MiB), and {ranks} ranks share memory there: NCCL "
        "cannot make its segments",
        fix,
    )  # fmt: skip


# ---- vllm-stack: a volume only with vllmConfig.tensorParallelSize, of shmSize or 20Gi
@about(Topic.K8S_SHM)
def vllm_stack_shm(c: Context) -> Iterator[Answer]:
    values = values_of(c)
    if values is None or chart_of(c) != VLLM_STACK:
        return
    for model in model_specs(values):
        yield from _vllm_model(c, values, model)


def _vllm_model(c: Context, values: Values, model: ModelSpec) -> Iterator[Answer]:
    data = model.data
    config = data.get("vllmConfig")
    config = config if isinstance(config, dict) else {}
    wished = values.text(*model.path, "shmSize")
    ranks = max(_ranks(config), whole(data.get("requestGPU")) or 1, c.tp * c.pp)
    size_key = f"{model.key}.shmSize"
    if wished is not None and amount(wished) is None:
        yield BAD_SIZE.found(
            c, size_key, f"`{wished[:60]}` is not a quantity", "write e.g. 20Gi",
            line=values.line(*model.path, "shmSize"),
        )  # fmt: skip
        return
    if config and "tensorParallelSize" in config:
        size = amount(wished or "20Gi") or 0
        limit = amount(values.text(*model.path, "limitMemory"))
        yield Figure("shm_bytes", min(size, limit) if limit else size)
        if limit is not None and size >= limit:
            yield OVER_LIMIT.found(
                c, size_key, f"/dev/shm of {wished or '20Gi, the default,'} is not below limitMemory ({limit} "
                "bytes), against which it counts: filling it kills the container (OOMKilled)",
                "a smaller shmSize or a larger limitMemory",
            )  # fmt: skip
        return
    own = _own_volume(values, model)
    if own is not None:
        yield from _volume(c, values, own, None, ranks)
        return
    yield Figure("shm_bytes", RUNTIME_DEFAULT)
    tp = max(ranks, 2)
    if wished is not None:
        yield UNUSED.found(
            c, size_key,
            f"shmSize: {wished} has no effect: the chart mounts /dev/shm only when "
            f"vllmConfig.tensorParallelSize is set, so the container keeps {RUNTIME_DEFAULT >> 20} MiB",
            f"set vllmConfig.tensorParallelSize: {tp if ranks > 1 else 1} (and drop --tensor-parallel-size from "
            "extraArgs); check that the manifest has an emptyDir of medium Memory on /dev/shm",
        )  # fmt: skip
    elif ranks > 1:
        yield _small(
            c, f"{model.key}.vllmConfig.tensorParallelSize", ranks, RUNTIME_DEFAULT,
            f"set vllmConfig.tensorParallelSize: {ranks}: the chart mounts /dev/shm only then",
        )  # fmt: skip


def _ranks(config: dict[str, Any]) -> int:
    """Tensor times pipeline parallel size of `extraArgs`."""
    arguments = config.get("extraArgs")
    words = [str(word) for word in arguments[:1_000]] if isinstance(arguments, list) else []
    sizes = {"--tensor-parallel-size": 1, "--pipeline-parallel-size": 1}
    for at, word in enumerate(words):
        name, _, value = word.partition("=")
        name = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size"}.get(name, name)
        if name in sizes:
            text = value or (words[at + 1] if at + 1 < len(words) else "")
            sizes[name] = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 1
    return sizes["--tensor-parallel-size"] * sizes["--pipeline-parallel-size"]


def _own_volume(values: Values, model: ModelSpec) -> tuple[str | int, ...] | None:
    """The emptyDir of `extraVolumes` that `extraVolumeMounts` puts on /dev/shm."""
    mounts, volumes = model.data.get("extraVolumeMounts"), model.data.get("extraVolumes")
    names = {
        mount.get("name")
        for mount in (mounts if isinstance(mounts, list) else ())
        if isinstance(mount, dict) and str(mount.get("mountPath")).rstrip("/") == "/dev/shm"
    }
    for at, volume in enumerate(volumes if isinstance(volumes, list) else ()):
        if isinstance(volume, dict) and volume.get("name") in names and "emptyDir" in volume:
            return (*model.path, "extraVolumes", at, "emptyDir")
    return None


RULES = (conventional_shm, vllm_stack_shm)
