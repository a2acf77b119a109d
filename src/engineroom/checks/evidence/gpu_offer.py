"""What a node offers as GPUs, and what Helm values ask of it.

Facts: NVIDIA/k8s-device-plugin README.md, docs/gpu-feature-discovery/README.md and internal/lm @ 1b826ac.
With MIG strategy `single` slices are called nvidia.com/gpu and the labels speak of slices; with `mixed`
each profile is a resource of its own and nvidia.com/gpu counts whole cards only. Time slicing and MPS
multiply the count: `nvidia.com/gpu.replicas` is how often one card is offered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from engineroom.checks.evidence.context import Context
from engineroom.reading.helm_yaml import Values, whole
from engineroom.reading.quantities import amount

GPU = "nvidia.com/gpu"
SOURCE = (
    "NVIDIA/k8s-device-plugin README.md (shared access to GPUs) and docs/gpu-feature-discovery/README.md "
    "@ 1b826ac"
)
_PROFILE = re.compile(
    r"(?:nvidia\.com/mig-)?([1-9][0-9]?)(?:c\.[1-9][0-9]?)?g\.([1-9][0-9]{0,3})gb(?:[.+][a-z.]+)?"
)
_MIG_RESOURCE = re.compile(r"nvidia\.com/mig-[0-9a-z.+-]{1,40}?(\.shared)?")


def is_mig(resource: str) -> bool:
    return _MIG_RESOURCE.fullmatch(resource) is not None


def is_gpu(resource: str) -> bool:
    """A device that a container computes on, under any of the plugin's names."""
    return resource in (GPU, GPU + ".shared") or is_mig(resource)


def profile_mib(name: str) -> int | None:
    """Nominal memory of a profile such as `3g.71gb`, as the name states it; the real one is less."""
    match = _PROFILE.fullmatch(name.removesuffix(".shared"))
    return int(match[2]) * 1024 if match else None


@dataclass(frozen=True)
class Offer:
    """A node's GPUs.

    Attributes:
        counts: resource name to allocatable number; None when the node's resources are not known.
        strategy: `none`, `single`, `mixed`, or None when no label says.
        profile: MIG profile in the product label (strategy single).
        sharing: `time-slicing`, `mps`, or None.
        replicas: how often one card (or slice) is offered.
    """

    counts: dict[str, int] | None
    strategy: str | None
    profile: str | None
    sharing: str | None
    replicas: int

    @property
    def available(self) -> dict[str, int]:
        """Resources of which there is at least one."""
        return {name: count for name, count in (self.counts or {}).items() if count > 0}

    def has(self, resource: str) -> int | None:
        """How many of a resource there are; None when that is not known."""
        if self.counts is not None:
            return self.counts.get(resource, 0)
        return 0 if is_mig(resource) and self.strategy in ("single", "none") else None


def _number(text: str | None) -> int | None:
    return (
        int(text)
        if text is not None and text.isascii() and text.isdigit() and len(text) < 10
        else None
    )


def offer_of(c: Context) -> Offer | None:
    """None when there is no node."""
    node = c.evidence.node
    if node is None:
        return None
    counts: dict[str, int] | None = None
    if node.allocatable is not None:
        counts = {
            name: amount(text) or 0 for name, text in node.allocatable.items() if is_gpu(name)
        }
    elif node.labels:
        labelled = {
            name.removesuffix(".count"): _number(text) or 0
            for name, text in node.labels.items()
            if name.endswith(".count") and is_mig(name.removesuffix(".count"))
        }
        counts = labelled or None
    product = c.label("gpu.product") or ""
    _, has_profile, profile = product.removesuffix("-SHARED").partition("-MIG-")
    replicas = _number(c.label("gpu.replicas")) or 1
    sharing = c.label("gpu.sharing-strategy")
    if sharing not in ("time-slicing", "mps"):
        shared = (
            product.endswith("-SHARED")
            or replicas > 1
            or bool(counts and GPU + ".shared" in counts)
        )
        sharing = "time-slicing" if shared and sharing != "none" else None
    return Offer(
        counts, c.label("mig.strategy"), profile if has_profile else None, sharing, replicas
    )


def requested(values: Values) -> dict[str, int]:
    """GPU resources of `resources.limits`, where extended resources are set; else of the requests."""
    for part in ("limits", "requests"):
        found = values.mapping("resources", part)
        gpus = {name: number for name, value in found.items()
                if is_gpu(name) and (number := whole(value)) is not None}  # fmt: skip
        if gpus:
            return gpus
    return {}


def _slice_mib(c: Context, profile: str) -> int | None:
    """Memory of a slice: by the catalog's table for the card, else as its name states it."""
    name = profile.removeprefix("nvidia.com/mig-").removesuffix(".shared")
    row = c.catalog.mig_profile(c.sku.id, name) if c.sku else None
    return (row.memory_mib if row else None) or profile_mib(profile)


def device_mib(c: Context, offer: Offer, resource: str | None) -> int | None:
    """Memory of the device that a pod gets for one unit of the resource."""
    if resource is not None and is_mig(resource):
        labelled = _number(c.label(resource.removeprefix("nvidia.com/") + ".memory"))
        return labelled or _slice_mib(c, resource)
    memory = _number(c.label("gpu.memory"))
    if not memory and offer.profile is not None:
        memory = _slice_mib(c, offer.profile)
    if not memory:
        memory = c.memory_mib
    if memory and offer.sharing == "mps" and offer.replicas > 1:
        return memory // offer.replicas
    return memory


# ---- node selection
_KUBELET = (
    "kubernetes.io/",
    "node.kubernetes.io/",
    "topology.kubernetes.io/",
    "beta.kubernetes.io/",
)


def _from_kubelet(name: str) -> bool:
    """Labels that every node has, and excerpts leave out."""
    return name.startswith(_KUBELET)


def mismatches(values: Values, labels: dict[str, str]) -> list[tuple[str, str, str | None]] | None:
    """(key, wanted, found) of every part of nodeSelector and required affinity that the node fails.

    None when the values select no node.
    """
    selector = values.mapping("nodeSelector")
    terms = values.sequence(
        "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    )  # fmt: skip
    if not selector and not terms:
        return None
    failed = []
    for name in selector:
        wanted = values.text("nodeSelector", name) or ""
        found = labels.get(name)
        if found != wanted and not (found is None and _from_kubelet(name)):
            failed.append((name, wanted, found))
    parts = [_failed_term(term, labels) for term in terms[:100] if isinstance(term, dict)]
    if parts and all(part is not None for part in parts):
        failed.append(next(part for part in parts if part is not None))
    return failed


def _failed_term(
    term: dict[str, Any], labels: dict[str, str]
) -> tuple[str, str, str | None] | None:
    expressions = term.get("matchExpressions")
    for item in expressions[:100] if isinstance(expressions, list) else ():
        if not isinstance(item, dict) or not isinstance(item.get("key"), str):
            continue
        name, operator = item["key"], str(item.get("operator"))
        wanted = [
            str(v) if isinstance(v, str) else str(whole(v)) for v in _list(item.get("values"))
        ]
        found = labels.get(name)
        if found is None and _from_kubelet(name):
            continue
        if not _holds(operator, found, wanted):
            return name, f"{operator} {', '.join(wanted)}".strip(), found
    return None


def _list(value: Any) -> list[Any]:
    return value[:100] if isinstance(value, list) else []


def _holds(operator: str, found: str | None, wanted: list[str]) -> bool:
    if operator == "In":
        return found in wanted
    if operator == "NotIn":
        return found not in wanted
    if operator == "Exists":
        return found is not None
    if operator == "DoesNotExist":
        return found is None
    left, right = _number(found), _number(wanted[0] if wanted else None)
    if left is None or right is None:
        return False
    return left > right if operator == "Gt" else left < right if operator == "Lt" else True
