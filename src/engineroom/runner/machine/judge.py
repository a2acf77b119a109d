"""Whether a machine meets one target's needs.

Standard library only, Python 3.8 or newer: this module is part of the file that a pod runs
(:mod:`engineroom.runner.preflight`). Findings here are plain objects with the fields of
:class:`engineroom.types.Finding`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from engineroom.runner.machine.facts import clean, version_of

MIB = 1024 * 1024
GIB = 1024 * MIB
SEVERITIES = ("error", "warn", "info")
DOCKER_SHM = 64 * MIB
STACK_BYTES = 67108864

NCCL_DOC = "NVIDIA NCCL user guide, Troubleshooting, Shared memory (Docker): --shm-size=1g --ulimit memlock=-1"
ULIMIT_DOC = (
    "NVIDIA/TensorRT-LLM docs/source/quick-start-guide.md @ 02c8a948: docker run --ipc host "
    "--ulimit memlock=-1 --ulimit stack=67108864"
)
MIG_DOC = (
    "NVIDIA/nccl#1716 (MIG has no P2P over PCIe or NVLink; support is experimental since 2026-08); CUDA "
    "Programming Guide, CUDA_VISIBLE_DEVICES (a process enumerates one MIG instance)"
)
VISIBLE_DOC = "CUDA Programming Guide, CUDA environment variables, CUDA_VISIBLE_DEVICES"
REQUIRE_DOC = "NVIDIA/nvidia-container-toolkit internal/requirements @ 2da32970"
NVML_DOC = "NVML API reference, nvmlDeviceGetCount, nvmlDeviceGetMemoryInfo, nvmlDeviceGetMigMode"
MEMORY_DOC = "NVIDIA/TensorRT-LLM#15296 (host memory runs out while weights load); Linux cgroup v2, memory.max"
PRODUCT_DOC = (
    "TensorRT runtime, warning for an engine plan file used across different models of devices"
)
KV_DOC = "TensorRT-LLM KvCacheConfig.free_gpu_memory_fraction: a share of the memory that is free"
STATVFS_DOC = "statvfs(3) of this machine; sizes from the shapes in the model's safetensors headers"

# What a requirements file may say; everything is optional, and what is not said is not judged.
NEEDS: dict[str, Any] = {
    "schema_version": int,  # 1
    "target": str,  # id, copied into the findings
    "sku": str,
    "gpus": int,  # on this host
    "compute_capability": str,
    "memory_mib": int,  # total of one GPU
    "memory_basis": str,  # "nvml": a reading; else a nominal size
    "products": list,  # names of the SKU: NVML's, and node labels
    "weights_mib": int,  # on one GPU
    "sku_source": str,
    "brand": str,  # NVML's, for NVIDIA_REQUIRE_CUDA, where the machine does not tell
    "cuda": str,  # of the target's image
    "driver": list,  # [{"from": "525.0", "findings": [...]}], ascending; {driver} is filled in
    "require_cuda": str,
    "require_cuda_source": str,
    "shm_bytes": int,
    "weights_bytes": int,  # of the whole model, in host memory while it loads
    "host_memory_bytes": int,
    "disk_bytes": dict,  # "workspace", "hf_cache": bytes to be written there
}


def needs_from(data: Any) -> dict[str, Any]:
    """Checked requirements.

    Raises:
        ValueError: what is wrong with them.
    """
    if not isinstance(data, dict):
        raise ValueError("requirements must be a JSON object")
    for key, value in data.items():
        kind = NEEDS.get(key)
        if kind is None:
            raise ValueError(f"unknown key `{clean(key)}`; known: {', '.join(NEEDS)}")
        if not isinstance(value, kind) or isinstance(value, bool) or (kind is int and value < 0):
            raise ValueError(f"`{key}` must be a {kind.__name__}{', not negative' * (kind is int)}")
    if data.get("schema_version", 1) != 1:
        raise ValueError("`schema_version` must be 1")
    if not all(isinstance(name, str) for name in data.get("products", [])):
        raise ValueError("`products` holds names")
    for name, size in data.get("disk_bytes", {}).items():
        if name not in ("workspace", "hf_cache") or type(size) is not int:
            raise ValueError("`disk_bytes` holds bytes for `workspace` and `hf_cache`")
    for band in data.get("driver", []):
        findings = band.get("findings") if isinstance(band, dict) else None
        if not isinstance(findings, list) or not version_of(band.get("from")):
            raise ValueError("`driver` holds objects with `from` (a version) and `findings`")
        for item in findings:
            if not isinstance(item, dict) or not {"code", "severity", "reason"} <= set(item):
                raise ValueError("a finding in `driver` needs `code`, `severity` and `reason`")
            if item["severity"] not in SEVERITIES:
                raise ValueError(f"a finding in `driver` has a severity of {', '.join(SEVERITIES)}")
    return data


def finding(
    code: str, severity: str, key: str, reason: str, fix: str, source: str
) -> dict[str, Any]:
    """One verdict; the fields of engineroom's findings."""
    return {
        "code": f"doctor-{code}", "severity": severity, "key": f"machine.{key}",
        "reason": reason, "fix": fix, "source": source, "target": None,
    }  # fmt: skip


def size(number: int) -> str:
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / MIB:.0f} MiB"


def _visible(machine: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The GPUs that CUDA shows a process: CUDA_VISIBLE_DEVICES ends at its first invalid entry."""
    gpus = list(machine["gpus"] or [])
    chosen = machine["env"].get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    kept: list[dict[str, Any]] = []
    for entry in (part.strip() for part in chosen.split(",")):
        if entry.startswith(("GPU-", "MIG-")) and len(kept) < len(gpus):
            kept.append(gpus[len(kept)])  # an UUID names some GPU; which one does not matter here
        elif entry.isdigit() and int(entry[:6]) < len(gpus):
            kept.append(gpus[int(entry[:6])])
        else:
            break
    return kept


def _gpus(machine: Mapping[str, Any], needs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    want = needs.get("gpus", 0)
    told = "; ".join(machine["gpu_problems"]) or "no driver, no nvidia-smi"
    if machine["gpus"] is None:
        yield finding(
            "unknown-gpus", "warn" if want else "info", "gpus",
            f"whether this machine has GPUs is not known: {told}",
            "see what `nvidia-smi` prints; reload the driver or reboot if it hangs", NVML_DOC,
        )  # fmt: skip
        return
    gpus = _visible(machine)
    if not machine["gpus"] and want:
        yield finding(
            "no-gpu", "error", "gpus",
            f"the target needs {want} GPU(s) and this machine shows none ({told})",
            "run it on the target's host; in a container, ask for GPUs (--gpus all, or the resource "
            "nvidia.com/gpu)", NVML_DOC,
        )  # fmt: skip
        return
    if len(gpus) < want:
        hidden = len(machine["gpus"]) - len(gpus)
        more = f"; CUDA_VISIBLE_DEVICES hides {hidden}" if hidden > 0 else ""
        yield finding(
            "too-few-gpus", "error", "gpus",
            f"tensor x pipeline parallel needs {want} GPUs here, {len(gpus)} are visible{more}",
            "use smaller parallel sizes or a host with more GPUs",
            VISIBLE_DOC if hidden > 0 else NVML_DOC,
        )  # fmt: skip
    if want and machine["gpu_source"] == "proc":
        yield finding(
            "unknown-gpu-state", "warn", "gpus",
            f"driver {machine['driver'] or 'of unknown version'} is loaded, but its GPUs cannot be asked: {told}",
            "mend nvidia-smi first: a mismatch of driver and library goes with a reboot", NVML_DOC,
        )  # fmt: skip
    elif want:
        yield from _kind(gpus, needs, want)
        yield from _mig(gpus, want)
        yield from _free(gpus[:want], needs)


def _kind(
    gpus: list[dict[str, Any]], needs: Mapping[str, Any], want: int
) -> Iterator[dict[str, Any]]:
    capability, memory = needs.get("compute_capability"), needs.get("memory_mib")
    sku, source = needs.get("sku", "the target"), needs.get("sku_source", NVML_DOC)
    other = [g for g in gpus if capability and g["compute_capability"] not in (capability, None)]
    if capability and len(gpus) - len(other) < want and other:
        yield finding(
            "gpu-differs", "error", "gpus",
            f"GPU {other[0]['index']} is {other[0]['name']}, compute capability "
            f"{other[0]['compute_capability']}; {sku} has {capability}: engines do not load on another "
            "compute capability, and formats are supported by compute capability",
            "run it on the target's SKU, or add a target for this one", source,
        )  # fmt: skip
        return
    if capability and any(g["compute_capability"] is None for g in gpus):
        yield finding(
            "unknown-compute-capability", "warn", "gpus",
            "the compute capability of a GPU is not known",
            "install nvidia-ml-py, or a driver of R510 or newer whose nvidia-smi has compute_cap",
            NVML_DOC,
        )  # fmt: skip
    if not memory:
        return
    # ECC takes about a sixteenth of GDDR memory, and drivers reserve a little more or less.
    least = memory * (93 if needs.get("memory_basis") == "nvml" else 90) // 100
    small = [g for g in gpus if g["memory_mib"] is not None and g["memory_mib"] < least]
    if small and len(gpus) - len(small) < want:
        yield finding(
            "gpu-memory", "error", "gpus",
            f"GPU {small[0]['index']} ({small[0]['name']}) has {small[0]['memory_mib']} MiB; the plan for "
            f"{sku} counts on {memory} MiB", "run it on the target's SKU, or plan for this one", source,
        )  # fmt: skip
    elif any(g["memory_mib"] is None for g in gpus):
        yield finding(
            "unknown-gpu-memory", "warn", "gpus", f"the memory of a GPU is not known; {sku} has {memory} MiB",
            "install nvidia-ml-py, or see what `nvidia-smi` prints", NVML_DOC,
        )  # fmt: skip
    products = needs.get("products", [])
    aliens = [g for g in gpus if not {g["name"], g["name"].replace(" ", "-")} & set(products)]
    if products and aliens and len(gpus) - len(aliens) < want and not small:
        alien = aliens[0]
        yield finding(
            "gpu-product", "warn", "gpus",
            f"GPU {alien['index']} is `{alien['name']}` with {alien['memory_mib']} MiB, another product than "
            f"{sku}: the capacity plan is not for it, and engines built for {sku} may be slow or fail",
            "add a target for this GPU", PRODUCT_DOC,
        )  # fmt: skip


def _mig(gpus: list[dict[str, Any]], want: int) -> Iterator[dict[str, Any]]:
    cut = [g for g in gpus if g["mig"]]
    if not cut or len(gpus) - len(cut) >= want:
        return
    many = want > 1
    reason = (
        f"MIG is on (GPU {cut[0]['index']}) and the target spreads over {want} GPUs: ranks in MIG instances "
        "have no peer-to-peer path, and a process sees one instance only"
        if many
        else f"MIG is on (GPU {cut[0]['index']}): the server gets one instance, whose memory is less than the GPU's"
    )
    yield finding(
        "mig-parallel" if many else "mig-on", "error" if many else "warn", "gpus", reason,
        "turn MIG off on these GPUs (nvidia-smi -mig 0, as root, GPUs idle)"
        + ("" if many else ", or plan for the instance's size"), MIG_DOC,
    )  # fmt: skip


def _free(gpus: list[dict[str, Any]], needs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    weights = needs.get("weights_mib", 0)
    for gpu in gpus:
        free, total = gpu["memory_free_mib"], gpu["memory_mib"]
        if free is None or total is None:
            continue
        if weights and free < weights <= total:
            yield finding(
                "gpu-memory-taken", "error", "gpus",
                f"GPU {gpu['index']}: {free} of {total} MiB are free, the weights of one rank take {weights} MiB",
                "end the processes that hold it (nvidia-smi lists them)", NVML_DOC,
            )  # fmt: skip
        elif free < total * 95 // 100:
            yield finding(
                "gpu-busy", "warn", "gpus",
                f"GPU {gpu['index']}: {total - free} of {total} MiB are in use; the KV cache gets a share of "
                "what is free, so it will be smaller than planned",
                "end the processes that hold it (nvidia-smi lists them)", KV_DOC,
            )  # fmt: skip


def _in_image(machine: Mapping[str, Any], needs: Mapping[str, Any]) -> bool:
    """Whether we may be inside the target's image: the same CUDA, as major.minor."""
    here, there = machine["env"].get("CUDA_VERSION", ""), needs.get("cuda")
    return there is None or here.split(".")[:2] == there.split(".")[:2]


def _require(
    machine: Mapping[str, Any], needs: Mapping[str, Any], require: Callable[..., Any] | None
) -> tuple[bool | None, list[dict[str, Any]]]:
    """What NVIDIA_REQUIRE_CUDA of the stack's image says: this container's when it is that image."""
    own = machine["env"].get("NVIDIA_REQUIRE_CUDA") if _in_image(machine, needs) else None
    text = own or needs.get("require_cuda")
    if not text or not machine["gpus"]:
        return None, []
    gpu = machine["gpus"][0]
    met, why = None, "this copy cannot read it"
    if require is not None:
        met, why = require(
            text, cuda=machine["cuda"], driver=machine["driver"],
            brand=gpu["brand"] or needs.get("brand"), arch=gpu["compute_capability"],
        )  # fmt: skip
    severity = {True: "info", False: "error", None: "warn" if needs.get("gpus") else "info"}[met]
    code = {True: "require-cuda-met", False: "require-cuda", None: "unknown-require-cuda"}[met]
    whose = "this container" if own else "the image"
    fix = {
        True: "nothing",
        False: "upgrade the driver, or use an image of an older CUDA line",
        None: "compare `nvidia-smi` with the image's NVIDIA_REQUIRE_CUDA",
    }[met]
    source = REQUIRE_DOC if own else needs.get("require_cuda_source", REQUIRE_DOC)
    reason = f"NVIDIA_REQUIRE_CUDA of {whose}: {clean(why, 400)}"
    return met, [finding(code, severity, "driver", reason, fix, source)]


def _banded(needs: Mapping[str, Any], driver: str) -> list[dict[str, Any]]:
    """The findings of the last band that starts at or below the driver."""
    have = version_of(driver) or ()
    chosen: list[dict[str, Any]] = []
    for band in needs.get("driver", []):
        if (version_of(band["from"]) or ()) <= have:
            chosen = band["findings"]
    return [
        {**finding("", "", "driver", "", "", ""), **item,
         "reason": str(item["reason"]).replace("{driver}", driver)}
        for item in chosen
    ]  # fmt: skip


def _driver(
    machine: Mapping[str, Any],
    needs: Mapping[str, Any],
    require: Callable[..., Any] | None,
    rule: Callable[[str], list[dict[str, Any]]] | None,
) -> Iterator[dict[str, Any]]:
    met, found = _require(machine, needs, require)
    driver = machine["driver"]
    if met is not None:
        # It is the image's own condition: the rule by driver version has nothing to add.
        ours, theirs = version_of(machine["cuda"]), version_of(needs.get("cuda"))
        compat = bool(met and ours and theirs and ours[0] < theirs[0])
    elif driver is None:
        if needs.get("gpus") and machine["gpus"] != []:
            found.append(finding(
                "unknown-driver", "warn", "driver", "the version of the NVIDIA driver is not known",
                "see what `nvidia-smi` and /proc/driver/nvidia/version say", NVML_DOC,
            ))  # fmt: skip
        compat = False
    else:
        found += rule(driver) if rule else _banded(needs, driver)
        compat = any(item["code"].endswith("compat-package") for item in found)
    yield from found
    inside = machine["container"] and machine["cuda_toolkit"] and _in_image(machine, needs)
    if compat and inside and not machine["cuda_compat"]:
        yield finding(
            "compat-missing", "error", "driver",
            f"driver {driver} needs the CUDA forward-compatibility libraries, and this image has none in "
            "/usr/local/cuda/compat", "upgrade the driver, or use an image with them",
            "NVIDIA CUDA Compatibility, Forward Compatibility",
        )  # fmt: skip


def _host(machine: Mapping[str, Any], needs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    gpus, shm, least = needs.get("gpus", 0), machine["shm"], needs.get("shm_bytes", 0)
    if shm is None and least:
        yield finding(
            "unknown-shm",
            "warn",
            "shm",
            "the size of /dev/shm is not known",
            "see `df /dev/shm`",
            NCCL_DOC,
        )
    elif shm is not None and shm["total_bytes"] < least:
        tiny = shm["total_bytes"] <= DOCKER_SHM
        yield finding(
            "shm-small", "error" if tiny else "warn", "shm",
            f"/dev/shm has {size(shm['total_bytes'])}{', the default of Docker and Kubernetes' * tiny}; NCCL "
            f"between {gpus} ranks asks for {size(least)} and does not start when it runs out",
            f"docker run --shm-size={-(-least // GIB)}g (or --ipc=host); in Kubernetes mount an emptyDir with "
            "medium: Memory at /dev/shm", NCCL_DOC,
        )  # fmt: skip
    memory = machine["memory"]
    caps = [v for v in (memory["total_bytes"], memory["cgroup_limit_bytes"]) if v is not None]
    weights, wanted = needs.get("weights_bytes", 0), needs.get("host_memory_bytes", 0)
    if wanted and not caps:
        yield finding(
            "unknown-memory", "warn", "memory", "host memory and its cgroup limit are not known",
            f"see that {size(wanted)} are there", MEMORY_DOC,
        )  # fmt: skip
    elif wanted and min(caps) < wanted:
        cap = min(caps)
        whose = "the cgroup's limit" if cap != memory["total_bytes"] else "the host's memory"
        than = (
            f"less than the {size(weights)} of weights that pass through it"
            if cap < weights
            else f"below the {size(wanted)} estimated for loading {size(weights)} of weights"
        )
        yield finding(
            "memory-small", "warn", "memory", f"{whose} is {size(cap)}, {than}; a process above it is killed",
            f"give it {size(wanted)} (an estimate, not a measurement)", MEMORY_DOC,
        )  # fmt: skip
    for name, need in needs.get("disk_bytes", {}).items():
        disk = machine["disks"].get(name)
        if disk is None and need:
            yield finding(
                "unknown-disk", "warn", f"disks.{name}", f"free space of {name} is not known",
                f"see that {size(need)} are free", STATVFS_DOC,
            )  # fmt: skip
        elif disk is not None and disk["free_bytes"] < need:
            yield finding(
                "disk-small", "error", f"disks.{name}",
                f"{disk['path']} has {size(disk['free_bytes'])} free; about {size(need)} will be written there",
                "free some, or choose another place (--out, HF_HOME)", STATVFS_DOC,
            )  # fmt: skip
    yield from _ulimits(machine["limits"], gpus)


def _ulimits(limits: Mapping[str, Any], gpus: int) -> Iterator[dict[str, Any]]:
    if gpus and isinstance(limits["memlock"], int):
        yield finding(
            "memlock", "warn" if gpus > 1 else "info", "limits.memlock",
            f"locked memory is limited to {size(limits['memlock'])}; NVIDIA runs its containers without a limit",
            "docker run --ulimit memlock=-1; for Kubernetes, LimitMEMLOCK=infinity in the runtime's unit",
            NCCL_DOC if gpus > 1 else ULIMIT_DOC,
        )  # fmt: skip
    if gpus and isinstance(limits["stack"], int) and limits["stack"] < STACK_BYTES:
        yield finding(
            "stack", "info", "limits.stack",
            f"the stack is limited to {size(limits['stack'])}; NVIDIA runs its containers with 64 MiB",
            f"docker run --ulimit stack={STACK_BYTES}", ULIMIT_DOC,
        )  # fmt: skip
    if gpus > 1 and limits["memlock"] is None:
        yield finding(
            "unknown-ulimits", "warn", "limits", "the limit of locked memory is not known", "see `ulimit -l`",
            NCCL_DOC,
        )  # fmt: skip


def judge(
    machine: Mapping[str, Any],
    needs: Mapping[str, Any],
    *,
    require: Callable[..., Any] | None = None,
    driver_rule: Callable[[str], list[dict[str, Any]]] | None = None,
) -> list[dict[str, Any]]:
    """Findings about a machine, worst first.

    Args:
        machine: what :func:`collect` gives.
        needs: what :func:`needs_from` gives.
        require: reads NVIDIA_REQUIRE_CUDA: (met or None, why).
        driver_rule: findings for a driver version; None takes the bands in `needs`.
    """
    found = [
        *_gpus(machine, needs),
        *_driver(machine, needs, require, driver_rule),
        *_host(machine, needs),
    ]
    for item in found:
        item["target"] = needs.get("target")
    return sorted(found, key=lambda f: SEVERITIES.index(f["severity"]))


def verdict_of(findings: list[dict[str, Any]]) -> str:
    """`unfit` with an error, `doubtful` with a warning, else `fits`."""
    worst = {f["severity"] for f in findings}
    return "unfit" if "error" in worst else "doubtful" if "warn" in worst else "fits"


def fails(findings: list[dict[str, Any]], fail_on: str) -> bool:
    """Whether one is at or above `fail_on`; `unknown` counts errors, warnings and all unknowns."""
    bad = {"error"} if fail_on == "error" else {"error", "warn"}
    unknown = fail_on == "unknown"
    return any(
        f["severity"] in bad or (unknown and f["code"].startswith("doctor-unknown"))
        for f in findings
    )
