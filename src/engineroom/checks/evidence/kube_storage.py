"""Volume access modes against the number of pods that mount the claim."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.kube_values import conventional, key
from engineroom.names import Severity, Topic
from engineroom.reading.helm_yaml import Values, whole
from engineroom.types import Figure

_DOCS = "Kubernetes documentation, Persistent Volumes, Access Modes"
ONE_NODE = declare(
    "claim-for-one-node", Topic.K8S_STORAGE, Severity.ERROR,
    says="several pods that share a claim need an access mode for several nodes",
    why="install succeeds; pods on other nodes stay in ContainerCreating with Multi-Attach errors",
    source=_DOCS + "; vllm-project/production-stack issue #107",
)  # fmt: skip
SURGE = declare(
    "rollout-waits-for-claim", Topic.K8S_STORAGE, Severity.WARN,
    says="a pod that owns a claim for one node is stopped before its successor starts",
    why="the new pod waits for the volume and the old one for the new pod: the update never ends",
    source=_DOCS + "; helmforgedev/charts issue #1294; mattermost/mattermost-helm issue #283",
)  # fmt: skip
SURGE_DEFAULT = declare(
    "rollout-strategy-unset", Topic.K8S_STORAGE, Severity.INFO,
    says="a Deployment with a claim for one node sets its update strategy",
    why="the default, RollingUpdate with one pod more, deadlocks when the new pod lands on another node",
    source=_DOCS + "; helmforgedev/charts issue #1294",
)  # fmt: skip
BAD_MODE = declare(
    "access-mode-unknown", Topic.K8S_STORAGE, Severity.ERROR,
    says="an access mode is one that Kubernetes knows",
    why="the API server refuses the claim",
    source=_DOCS,
)  # fmt: skip
_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_SHARED = ("ReadWriteMany", "ReadOnlyMany")
_HOST = "kubernetes.io/hostname"


def _modes(values: Values) -> tuple[tuple[str | int, ...], list[str]] | None:
    """Where the access modes are written, and the modes."""
    for name in ("accessModes", "accessMode"):
        found = values.get("pvc", name)
        if isinstance(found, str):
            return ("pvc", name), [found]
        if isinstance(found, list):
            return ("pvc", name), [str(item) for item in found[:20]]
    return None


def max_replicas(values: Values) -> int | None:
    """The most replicas: the autoscaler's maximum where it is on, else the static count (default 1)."""
    scaling = values.mapping("autoscaling")
    if scaling.get("enabled") is True:
        return whole(scaling.get("maxReplicas"))
    for name in ("replicaCount", "replicas"):
        if values.get(name) is not None:
            return whole(values.get(name))
    return 1


@about(Topic.K8S_STORAGE)
def access_modes(c: Context) -> Iterator[Answer]:
    values = conventional(c)
    if values is None:
        return
    replicas = max_replicas(values)
    if replicas is not None:
        yield Figure("max_replicas", replicas)
    found = _modes(values)
    if found is None or values.get("pvc", "enabled") is False:
        return
    place, modes = found
    unknown = [mode for mode in modes if mode not in _MODES]
    for mode in unknown:
        yield BAD_MODE.found(
            c, key(*place), f"`{mode[:60]}` is not an access mode", "one of " + ", ".join(_MODES)
        )
    if unknown or any(mode in _SHARED for mode in modes):
        return
    # Each replica of a StatefulSet gets a claim of its own, unless all are given the same one.
    existing = values.get("pvc", "existingClaim")
    if c.evidence.workload_kind == "StatefulSet" and not existing:
        return
    mode = "ReadWriteOncePod" if "ReadWriteOncePod" in modes else "ReadWriteOnce"
    pinned = mode == "ReadWriteOnce" and values.get("nodeSelector", _HOST) is not None
    if replicas is not None and replicas > 1:
        if pinned:
            return
        auto = values.get("autoscaling", "enabled") is True
        count = "autoscaling.maxReplicas" if auto else "replicaCount"
        yield ONE_NODE.found(
            c, key(*place),
            f"{count} is {replicas}, and accessModes is {mode}: one claim for "
            + ("one pod; a second pod is refused it" if mode == "ReadWriteOncePod" else "one node; pods on other "
               "nodes hang in ContainerCreating (Multi-Attach)"),
            "accessModes: [ReadWriteMany] (or [ReadOnlyMany] for a read-only engine store), one claim for each "
            f"replica (StatefulSet), or {count}: 1",
            line=values.line(*place),
        )  # fmt: skip
    elif c.evidence.workload_kind != "StatefulSet" and not pinned:
        yield from _surge(c, values, mode, replicas or 1)


def _surge(c: Context, values: Values, mode: str, replicas: int) -> Iterator[Answer]:
    """An update that starts the new pod first, while the old one holds the volume."""
    name = next((n for n in ("strategy", "updateStrategy") if values.get(n) is not None), None)
    strategy = values.get(name) if name else None
    rolling: dict[str, Any] = {}
    kind: Any = strategy
    if isinstance(strategy, dict):
        kind = strategy.get("type", "RollingUpdate")
        found = strategy.get("rollingUpdate")
        rolling = found if isinstance(found, dict) else {}
    if kind == "Recreate":
        return
    surge = _count(rolling.get("maxSurge", "25%"), replicas, up=True)
    if surge == 0:
        return
    reason = (
        f"an update starts the new pod while the old one holds the claim ({mode}): on another node it waits "
        "for the volume, and the old pod for the new one"
    )
    fix = "strategy: {type: Recreate}, or rollingUpdate: {maxSurge: 0, maxUnavailable: 1}"
    if name is None:
        yield SURGE_DEFAULT.found(
            c, key("strategy"), f"no strategy is set here; by default {reason}", fix
        )
    else:
        yield SURGE.found(
            c, key(name), reason, fix,
            severity=Severity.ERROR if mode == "ReadWriteOncePod" else None,
        )  # fmt: skip


def _count(value: Any, replicas: int, *, up: bool) -> int:
    """maxSurge or maxUnavailable in pods; percentages round up and down."""
    match = re.fullmatch(r"([0-9]{1,3})%", value) if isinstance(value, str) else None
    if match is None:
        number = whole(value)
        return 1 if number is None else number
    share = int(match[1]) * replicas / 100
    return math.ceil(share) if up else math.floor(share)


RULES = (access_modes,)
