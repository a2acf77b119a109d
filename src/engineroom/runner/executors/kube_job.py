"""A build as a Kubernetes Job: the manifest as data, for `kubectl` and for the chart.

Facts and their sources:

* Node labels: NVIDIA/k8s-device-plugin internal/lm/resource.go and mig-strategy.go @ 1b826acc;
  `nvidia.com/mig.config` and its state: GPU Operator documentation, "GPU Operator with MIG".
* Retries: kubernetes.io, "Handling retriable and non-retriable pod failures with Pod failure policy"
  (stable since 1.31, on by default since 1.26), and Job's `backoffLimit`.
* User 1000 is `triton-server` in NVIDIA's images: server docs/customization_guide/deploy.md.
* ``$$`` in `args` stands for ``$``: Kubernetes API reference, Container.args.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from engineroom.errors import UsageError, Where
from engineroom.runner.kube_rules import LABEL
from engineroom.types import GpuSku, Step

PRODUCT = "nvidia.com/gpu.product"
REPLICAS = "nvidia.com/gpu.replicas"
SHARING = "nvidia.com/gpu.sharing-strategy"
MIG_STRATEGY = "nvidia.com/mig.strategy"
MIG_CONFIG = "nvidia.com/mig.config"
MIG_STATE = "nvidia.com/mig.config.state"
CONTAINER = "build"
JOB_LABEL = "engineroom/job"
MAX_DEADLINE = (1 << 31) - 1
"""Seconds. The field is an int64, but Kubernetes multiplies it into nanoseconds (Go's time.Duration), an
int64 as well; 68 years fit into both."""
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
Json = dict[str, Any]


@dataclass(frozen=True)
class JobRequest:
    """What a Job is made of.

    Attributes:
        name: of the Job, a DNS label of at most 63 characters.
        claim: PersistentVolumeClaim that holds the workspace, inputs included.
        publish: folder that the output becomes, relative to the workspace.
        manifest: what the output's manifest.json says; `pod_build` adds digests and seal.
        mount: where the pod sees the workspace.
        sub_path: folder of the claim that is the workspace; empty: its root.
        files: further files of the output, by name.
        probe: None, or ``{"path", "text"}`` of a file by which the pod recognises the workspace.
        timeout: seconds, waiting for a node included, or None.
        retries: pods after the first when a pod was taken away (preemption, eviction, a node that is
            drained or shut down); a build that fails is not tried again.
        user: uid and gid of the pod; 0 means root, which NVIDIA's image allows and many clusters not.
        cpu, shm_size: quantities.
    """

    name: str
    step: Step
    sku: GpuSku
    claim: str
    publish: str
    manifest: Mapping[str, Any]
    namespace: str = ""
    mount: str = "/var/lib/engineroom"
    sub_path: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    probe: Mapping[str, str] | None = None
    target: str = ""
    timeout: float | None = None
    retries: int = 2
    user: int = 1000
    pull_secret: str = ""
    cpu: str = "4"
    shm_size: str = "2Gi"


def job(request: JobRequest) -> Json:
    """The Job, as `kubectl create` takes it.

    Raises:
        UsageError: the step has no image, or a name or the time limit is none that Kubernetes takes.
    """
    if request.step.image is None:
        raise UsageError(
            f"the step {request.step.name} has no image to run in",
            where=Where(key="targets[].stack"),
            hint="name one: stack: {trtllm: VERSION, image: REGISTRY/IMAGE@sha256:DIGEST}",
        )
    for what, name in (("Job", request.name), ("claim", request.claim)):
        if not LABEL.fullmatch(name) or len(name) > 63:
            raise UsageError(
                f"`{name}` cannot be the name of a {what}: a-z, 0-9 and -, at most 63 characters",
                where=Where(key="--executor"),
            )
    labels = _labels(request)
    spec: Json = {
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": request.retries,
        # A pod that was taken away counts, so that retries are bounded; any other end is the build's.
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "Count",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "NotIn",
                        "values": [0],
                    },
                },
            ]
        },
        # Long enough to look at, short enough not to pile up.
        "ttlSecondsAfterFinished": 86400,
        "template": {"metadata": {"labels": labels}, "spec": _pod(request)},
    }
    if request.timeout is not None:
        if not 0 <= request.timeout <= MAX_DEADLINE:  # NaN is not either
            raise UsageError(
                f"a time limit of {request.timeout:g} s is none that a Job takes: 1 to {MAX_DEADLINE}",
                where=Where(key="--timeout"), hint="leave it out for no limit",
            )  # fmt: skip
        spec["activeDeadlineSeconds"] = max(1, math.ceil(request.timeout))
    metadata: Json = {
        "name": request.name,
        "labels": labels,
        "annotations": {
            "engineroom/target": request.target,
            "engineroom/key": str(request.manifest["key"]),
            "engineroom/publish": request.publish,
        },
    }
    if request.namespace:
        metadata["namespace"] = request.namespace
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _labels(request: JobRequest) -> dict[str, str]:
    """Labels that people select by; whole values are annotations, where any text fits."""
    return {
        "app.kubernetes.io/name": "engineroom",
        "app.kubernetes.io/component": "build",
        "app.kubernetes.io/managed-by": "engineroom",
        "engineroom/sku": label_value(request.sku.id),
        "engineroom/target": label_value(request.target),
        "engineroom/key": label_value(str(request.manifest["key"])[:16]),
        # Kubernetes' own label of a Job's pods has another name in older versions.
        JOB_LABEL: request.name,
    }


def label_value(text: str) -> str:
    """The text as a label's value: cut, and with ``-`` for what a label does not take."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:63].strip("-_.")


def _pod(request: JobRequest) -> Json:
    step = request.step
    mounted: Json = {"name": "workspace", "mountPath": request.mount}
    if request.sub_path:
        mounted["subPath"] = request.sub_path
    asked: dict[str, Any] = {"cpu": request.cpu}
    if step.host_memory_bytes is not None:
        # Mebibytes, rounded up. No limit: an estimate must not kill a build.
        asked["memory"] = f"{-(-step.host_memory_bytes // (1 << 20))}Mi"
    resources: Json = {"requests": asked}
    if step.gpus:
        # An extended resource: the request is the limit.
        resources["limits"] = {"nvidia.com/gpu": step.gpus}
    pod: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": node_selector_terms(request.sku)
                }
            }
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "securityContext": _security(request.user),
        "containers": [
            {
                "name": CONTAINER,
                "image": step.image,
                # args, not command: the image's entry point stays, which sets up CUDA's forward
                # compatibility on nodes with an older driver.
                "args": [escaped(word) for word in pod_argv(request)],
                "env": [
                    {"name": "HOME", "value": "/scratch"},
                    {"name": "TMPDIR", "value": "/scratch"},
                    {"name": "USER", "value": "engineroom"},
                    {"name": "HF_HUB_OFFLINE", "value": "1"},
                ],
                "resources": resources,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    mounted,
                    {"name": "shm", "mountPath": "/dev/shm"},
                    {"name": "scratch", "mountPath": "/scratch"},
                ],
            }
        ],
        "volumes": [
            {"name": "workspace", "persistentVolumeClaim": {"claimName": request.claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": request.shm_size}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }
    if request.pull_secret:
        pod["imagePullSecrets"] = [{"name": request.pull_secret}]
    return pod


def _security(user: int) -> Json:
    context: Json = {
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        # Not at every start: weights are large.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {"runAsNonRoot": True, **context} if user else context


def node_selector_terms(sku: GpuSku) -> list[Json]:
    """Node affinity that admits nodes with whole, unshared GPUs of this SKU, and no others.

    * The product must be equal: MIG slices (strategy `single`) and time-sliced or MPS-shared GPUs have
      a suffix (``-MIG-1g.10gb``, ``-SHARED``).
    * GPUs that are shared under another resource name have no suffix, but replicas and a strategy.
    * GPUs in MIG mode whose slices are not labelled as such have 0 replicas.
    * With strategy `mixed` the plain product says nothing about slices: such a node is admitted only
      when the MIG manager says that MIG is off on all its GPUs.

    `nvidia.com/gpu.replicas` is required, so a node labelled by hand needs it as well; a missing
    sharing strategy (older than 0.15 of GPU feature discovery) is not held against a node.
    """
    whole: list[Json] = [
        {"key": PRODUCT, "operator": "In", "values": products(sku)},
        {"key": REPLICAS, "operator": "In", "values": ["1"]},
        {"key": SHARING, "operator": "NotIn", "values": ["mps", "time-slicing"]},
    ]
    mixed_but_off: list[Json] = [
        {"key": MIG_STRATEGY, "operator": "In", "values": ["mixed"]},
        {"key": MIG_CONFIG, "operator": "In", "values": ["all-disabled"]},
        {"key": MIG_STATE, "operator": "In", "values": ["success"]},
    ]
    return [
        {
            "matchExpressions": [
                *whole,
                {"key": MIG_STRATEGY, "operator": "NotIn", "values": ["mixed"]},
            ]
        },
        {"matchExpressions": [*whole, *mixed_but_off]},
    ]


def products(sku: GpuSku) -> list[str]:
    """Values of the product label: the SKU's own, then its aliases as the label would have them."""
    names = (sku.node_label, *("-".join(alias.split()) for alias in sku.aliases))
    return [name for name in dict.fromkeys(names) if _LABEL_VALUE.fullmatch(name)]


def pod_argv(request: JobRequest) -> tuple[str, ...]:
    """What the container runs, before Kubernetes' escapes."""
    step = request.step
    script = resources.files("engineroom.runner.executors").joinpath("pod_build.py")
    content = {
        "workspace": request.mount,
        "argv": list(step.argv),
        "output_at": None if step.output_flag is None else step.argv.index(step.output_flag) + 1,
        "publish": request.publish,
        "outputs": list(step.outputs),
        "files": dict(request.files),
        "manifest": dict(request.manifest),
        "probe": None if request.probe is None else dict(request.probe),
    }
    return ("python3", "-c", script.read_text(encoding="utf-8"), json.dumps(content))


def escaped(word: str) -> str:
    """A word that Kubernetes gives to the container as it was: it expands ``$(NAME)``."""
    return word.replace("$", "$$")
