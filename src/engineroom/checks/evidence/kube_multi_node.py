"""LeaderWorkerSet: pods of a group, GPUs of a pod, and the ranks of the model."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.reading.quantities import amount
from engineroom.types import Figure

_LWS = "kubernetes-sigs/lws api/leaderworkerset/v1 (size: pods of a group, leader included)"
TOO_MANY = declare(
    "pod-gpus-over-node", Topic.MULTI_NODE, Severity.ERROR,
    says="a pod asks for no more GPUs than a node has",
    why="no node can run it; the pod stays Pending",
    source="kserve/kserve issue #4226; " + _LWS,
)  # fmt: skip
TOO_FEW = declare(
    "group-gpus-below-ranks", Topic.MULTI_NODE, Severity.ERROR,
    says="the pods of a group together have a GPU for every rank",
    why="the launch waits for ranks that have no GPU, or fails on a device that is not there",
    source=_LWS + "; NVIDIA/TensorRT-LLM tensorrt_llm/mapping.py (world_size = tp x pp)",
)  # fmt: skip
IDLE = declare(
    "group-gpus-over-ranks", Topic.MULTI_NODE, Severity.WARN,
    says="every GPU of a group has a rank",
    why="the others are reserved and idle, and the launcher's ranks per pod no longer match",
    source=_LWS + "; NVIDIA/TensorRT-LLM tensorrt_llm/mapping.py (gpus_per_node)",
)  # fmt: skip
SPLIT = declare(
    "tensor-group-across-pods", Topic.MULTI_NODE, Severity.INFO,
    says="a tensor-parallel group is within one pod, or fills several",
    why="all-reduce of every layer crosses the network otherwise",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/mapping.py (ranks are numbered tensor-parallel first)",
)  # fmt: skip


def node_gpus(c: Context) -> int | None:
    """Whole GPUs of a node: stated, else the feature labels, else what it offers."""
    node = c.evidence.node
    if node is None:
        return None
    if node.gpu_count is not None:
        return node.gpu_count
    label = c.label("gpu.count")
    if label is not None and label.isdecimal() and len(label) < 6:
        return int(label)
    return amount((node.allocatable or {}).get("nvidia.com/gpu"))


def layout(world: int, per_node: int | None) -> tuple[int, int]:
    """(pods, GPUs of each): as few pods as nodes allow, all alike."""
    if per_node is None or per_node < 1 or world <= per_node:
        return 1, world
    pods = -(-world // per_node)
    while world % pods:
        pods += 1
    return pods, world // pods


@about(Topic.MULTI_NODE)
def group(c: Context) -> Iterator[Answer]:
    pod = c.evidence.pod
    if c.evidence.spec is None and pod is None:
        return
    world, per_node = c.tp * c.pp, node_gpus(c)
    yield Figure("world_size", world)
    pods = pod.lws_size_pods if pod else None
    gpus = pod.gpu_count if pod else None
    fits = per_node is None or gpus is None or gpus <= per_node
    sound = bool(pods and gpus and fits and pods * gpus == world)
    right_pods, right_gpus = layout(world, per_node)
    if sound and pods and gpus:
        right_pods, right_gpus = pods, gpus
    if sound or per_node is not None:
        yield Figure("lws_size_pods", right_pods)
        yield Figure("gpus_per_pod", right_gpus)
    fix = f"size: {right_pods}, nvidia.com/gpu: {right_gpus} in every pod (the leader included)"
    ranks = f"TP {c.tp} x PP {c.pp} = {world} ranks"
    if gpus is not None and per_node is not None and gpus > per_node:
        yield TOO_MANY.found(
            c, "pod.gpu_count", f"the pod asks for {gpus} GPUs, and a node has {per_node}: it stays Pending; "
            f"{ranks} need {right_pods} pods of {right_gpus} GPUs",
            fix,
        )  # fmt: skip
        return
    if gpus is None or pods is None:
        if gpus is not None and gpus < world and pod is not None and right_pods > 1:
            yield TOO_FEW.found(
                c, "pod.gpu_count", f"{ranks}, and the pod has {gpus} GPUs; without a LeaderWorkerSet there is "
                "one pod",
                fix,
            )  # fmt: skip
        return
    have = pods * gpus
    if have < world:
        yield TOO_FEW.found(
            c, "pod.lws_size_pods", f"{ranks}, and {pods} pods of {gpus} GPUs have {have}; size counts the leader",
            fix,
        )  # fmt: skip
    elif have > world:
        yield IDLE.found(
            c, "pod.lws_size_pods", f"{ranks}, and {pods} pods of {gpus} GPUs have {have}: {have - world} stay idle",
            fix,
        )  # fmt: skip
    elif gpus % c.tp and c.tp % gpus:
        yield SPLIT.found(
            c, "pod.gpu_count", f"TP {c.tp} with {gpus} GPUs in a pod: some tensor-parallel groups lie across two "
            "pods",
            f"GPUs of a pod that are a multiple or a divisor of {c.tp}",
        )  # fmt: skip


RULES = (group,)
