"""GPUs of each model instance, and the processes that serve them."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.names import LaneName, Severity, Topic
from engineroom.types import Finding

_MULTI = "triton-inference-server/tensorrtllm_backend docs/llama_multi_instance.md @ 0b9d7d5a"
LEADER = declare(
    "leader-mode-instances", Topic.MPI_LAUNCH, Severity.ERROR,
    says="several instances of an engine are served in orchestrator mode",
    why="in leader mode the MPI world is one instance: several need a server each and a proxy in front",
    source=f"{_MULTI} (leader mode, orchestrator mode with instance_group)",
)  # fmt: skip
NODE = declare(
    "gpu-ids-over-node", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="gpu_device_ids are GPUs that the node has",
    why="a GPU that is not there cannot be set, and the model does not load",
    source="vendor's system data sheets (GPUs per host); CUDA runtime API, cudaSetDevice (invalid device ordinal)",
)  # fmt: skip
POD = declare(
    "gpu-ids-not-visible", Topic.PARALLEL_LAYOUT, Severity.WARN,
    says="gpu_device_ids count from 0 to the number of GPUs that the server gets",
    why="a pod is given as many GPUs as it asks for and numbers them from 0, whatever they are on the node",
    source="NVIDIA/k8s-device-plugin README (a container gets the GPUs that it requests); CUDA programming "
    "guide, CUDA_VISIBLE_DEVICES (devices are numbered anew)",
)  # fmt: skip
MODE = declare(
    "process-mode-unused", Topic.MPI_LAUNCH, Severity.INFO,
    says="process_mode is set for engines on several GPUs",
    why="one GPU needs one process, and the LLM API starts its own workers",
    source=f"{_MULTI}; docs/llmapi.md (--no-mpi)",
)  # fmt: skip


def instances(c: TargetContext) -> Iterator[Finding]:
    sets = c.target.gpu_device_ids or ()
    if len(sets) < 2:
        return
    if c.target.lane is LaneName.ENGINE and c.spec.serving.process_mode == "leader":
        yield LEADER.found(
            c, "serving.process_mode",
            f"{len(sets)} instances ({c.place('@.gpu_device_ids')[1]}) cannot share one leader",
            "set process_mode: orchestrator, or use deploy.replicas with one instance each",
        )  # fmt: skip


def visible(c: TargetContext) -> Iterator[Finding]:
    sets, most = c.target.gpu_device_ids, c.sku.max_gpus_per_node
    if sets is None:
        return
    used = sorted(gpu for group in sets for gpu in group)
    total = len(used)
    if used[-1] >= most or (total > most >= total // len(sets)):
        over = f"GPU {used[-1]}" if used[-1] >= most else f"{total} GPUs"
        yield NODE.found(
            c, "@.gpu_device_ids", f"{over}: a node of {c.sku.id} has {most}, numbered from 0",
            f"use ids from 0 to {most - 1}", source="; ".join(c.sku.source),
        )  # fmt: skip
    elif used != list(range(total)):
        yield POD.found(
            c, "@.gpu_device_ids",
            f"a pod of this target gets {total} GPUs, numbered 0 to {total - 1}; the ids are "
            f"{', '.join(map(str, used[:16]))}",
            f"use each id from 0 to {total - 1}; they are right only on a machine whose GPUs are all visible",
        )  # fmt: skip


def process_mode(c: TargetContext) -> Iterator[Finding]:
    serving = c.spec.serving
    if serving.process_mode == "orchestrator" and (
        c.target.lane is not LaneName.ENGINE or c.target.gpus == 1
    ):
        why = "one GPU" if c.target.lane is LaneName.ENGINE else f"the {c.target.lane} lane"
        yield MODE.found(
            c, "serving.process_mode", f"orchestrator has no effect on {why}", "leave process_mode out"
        )  # fmt: skip


RULES = (instances, visible, process_mode)
