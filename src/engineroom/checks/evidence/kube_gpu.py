"""MIG and shared GPUs: resource names, selectors, memory, and ranks over parts of a card."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.gpu_offer import (
    GPU,
    SOURCE,
    Offer,
    device_mib,
    is_mig,
    mismatches,
    offer_of,
    profile_mib,
    requested,
)
from engineroom.checks.evidence.kube_values import conventional, key
from engineroom.names import Severity, Topic
from engineroom.types import Figure

RESOURCE = declare(
    "gpu-resource-not-offered", Topic.GPU_SHARING, Severity.ERROR,
    says="the pod asks for a GPU resource that the node offers, and for no more than it has",
    why="Kubernetes accepts the pod and leaves it Pending",
    source="NVIDIA/gpu-operator issue #637; vllm-project/production-stack issue #252; " + SOURCE,
)  # fmt: skip
SELECTOR = declare(
    "node-selector-matches-nothing", Topic.GPU_SHARING, Severity.ERROR,
    says="the node selector matches the labels that the node has",
    why="MIG (single) and sharing change nvidia.com/gpu.product; the plain name no longer matches",
    source="NVIDIA/k8s-device-plugin issue #257; " + SOURCE,
)  # fmt: skip
MEMORY = declare(
    "model-over-device-memory", Topic.GPU_SHARING, Severity.ERROR,
    says="the model fits the device that the pod gets, slice or card",
    why="a slice has a part of the card's memory, whatever the card's name promises",
    source=SOURCE,
)  # fmt: skip
RANKS_OVER_MIG = declare(
    "ranks-over-mig", Topic.GPU_SHARING, Severity.ERROR,
    says="a model on MIG slices has one rank",
    why="CUDA uses a single MIG device per process, and slices have no path to each other",
    source="NVIDIA/k8s-device-plugin issue #728; NVIDIA MIG User Guide, application considerations",
)  # fmt: skip
SEVERAL_SLICES = declare(
    "several-mig-slices", Topic.GPU_SHARING, Severity.WARN,
    says="a container asks for one MIG slice",
    why="CUDA uses the first one only; the others are reserved and idle",
    source="NVIDIA/k8s-device-plugin issue #728",
)  # fmt: skip
RANKS_OVER_SHARES = declare(
    "ranks-over-shared-gpu", Topic.GPU_SHARING, Severity.ERROR,
    says="ranks have cards of their own",
    why="two units of a shared GPU may be the same card, and NCCL refuses a GPU that is there twice",
    source="NVIDIA/gpu-operator issue #386; NVIDIA/k8s-device-plugin issue #1432; " + SOURCE,
)  # fmt: skip
NO_ISOLATION = declare(
    "shared-gpu-memory", Topic.GPU_SHARING, Severity.INFO,
    says="time slicing shares a card's memory among all pods on it",
    why="a KV cache that takes most of the free memory leaves none to the neighbours",
    source=SOURCE,
)  # fmt: skip
OVERFULL = declare(
    "shared-gpu-overfull", Topic.GPU_SHARING, Severity.ERROR,
    says="all replicas that may share a card fit into its memory together",
    why="time slicing does not divide memory; the last pod to load fails",
    source=SOURCE,
)  # fmt: skip
TOO_FEW = declare(
    "gpus-below-ranks", Topic.GPU_SHARING, Severity.ERROR,
    says="a pod whose ranks fit one node asks for a GPU for each of them",
    why="the container sees only the GPUs that it asked for, and the other ranks find no device",
    source="NVIDIA/k8s-device-plugin README (requesting GPUs); NVIDIA/TensorRT-LLM#2058",
)  # fmt: skip
INVALID_MIG = declare(
    "mig-single-invalid", Topic.GPU_SHARING, Severity.ERROR,
    says="with MIG strategy single all cards of a node are cut into equal slices",
    why="the node is labelled MIG-INVALID and offers nothing",
    source="NVIDIA/k8s-device-plugin internal/lm/mig-strategy.go @ 1b826ac",
)  # fmt: skip
_RESOURCES = key("resources", "limits")


def _asked(c: Context) -> dict[str, int]:
    values = conventional(c)
    return requested(values) if values is not None else {}


def _best(offer: Offer) -> str | None:
    """The resource to ask for instead: the largest slice, else whole or shared cards."""
    slices = [name for name in offer.available if is_mig(name)]
    if slices:
        return max(slices, key=lambda name: (profile_mib(name) or 0, name))
    if offer.available:
        return next(iter(offer.available))
    return GPU if offer.strategy in ("single", "none") else None


@about(Topic.GPU_SHARING)
def resource_name(c: Context) -> Iterator[Answer]:
    offer, asked = offer_of(c), _asked(c)
    if offer is None:
        if len(asked) == 1:
            yield Figure("gpu_resource", next(iter(asked)))
        return
    if offer.profile == "INVALID":
        yield INVALID_MIG.found(
            c, "node.labels", "the label nvidia.com/gpu.product ends with MIG-INVALID: the cards of the node are "
            "cut differently, or some not at all, and strategy single offers none of it",
            "cut all cards alike, or use MIG strategy mixed",
        )  # fmt: skip
        return
    good = [name for name, count in asked.items()
            if (has := offer.has(name)) is None or count <= has]  # fmt: skip
    resource = good[0] if good else _best(offer)
    if resource is not None:
        yield Figure("gpu_resource", resource)
    for name, count in asked.items():
        have = offer.has(name)
        if have is None or count <= have:
            continue
        offered = (
            ", ".join(f"{n}: {k}" for n, k in sorted(offer.available.items())) or "no GPU at all"
        )
        strategy = f" (MIG strategy {offer.strategy})" if offer.strategy else ""
        size = profile_mib(resource) if resource else None
        yield RESOURCE.found(
            c, f"{_RESOURCES}.{name}", f"the pod asks for {name}: {count}, and the node has {have}{strategy}; it "
            f"offers {offered}. The pod stays Pending",
            (f"ask for {resource} instead" if resource and resource != name else f"ask for at most {have}, or "
             "use another node")
            + (f", and size the model for about {size} MiB" if size else ""),
        )  # fmt: skip


@about(Topic.GPU_SHARING)
def selector(c: Context) -> Iterator[Answer]:
    values, node = conventional(c), c.evidence.node
    if values is None or node is None or node.labels is None:
        return
    failed = mismatches(values, dict(node.labels))
    if failed is None:
        return
    yield Figure("node_selector_matches", not failed)
    for name, wanted, found in failed:
        has = f"`{found}`" if found is not None else "no such label"
        why = ""
        if name == GPU + ".product" and found is not None and found.startswith(wanted + "-"):
            why = ": MIG (single) and sharing add to the product's name" + _memory_note(c)
        place = "nodeSelector" if name in values.mapping("nodeSelector") else "affinity"
        yield SELECTOR.found(
            c, f"{key(place)}.{name}", f"{name} is wanted to be `{wanted}`, and the node has {has}{why}",
            f"select by the label that the node has ({found}) and check its memory, or use nodes without "
            "slices and sharing" if why else "use the node's own label, or another node",
        )  # fmt: skip


def _memory_note(c: Context) -> str:
    memory = c.label("gpu.memory")
    return f"; nvidia.com/gpu.memory is {memory} MiB, that of one device" if memory else ""


@about(Topic.GPU_SHARING)
def memory(c: Context) -> Iterator[Answer]:
    offer, asked = offer_of(c), _asked(c)
    if offer is None or offer.profile == "INVALID":
        return
    resource = next(iter(asked), None)
    if resource is None or offer.has(resource) == 0:
        resource = _best(offer)
    size = device_mib(c, offer, resource)
    if not size:
        return
    yield Figure("gpu_memory_mib", size)
    facts = c.evidence.memory
    if facts is None or facts.engine_bytes is None:
        return
    needed = facts.engine_bytes + (facts.other_runtime_bytes or 0)
    mib = (needed + (1 << 20) - 1) >> 20
    if needed > size << 20:
        yield MEMORY.found(
            c, "memory.engine_bytes", f"the model takes {mib} MiB of each device, and one unit of "
            f"{resource or GPU} has {size} MiB",
            "a larger slice or a whole card, a smaller weight format, or more GPUs (tensor parallelism needs "
            "whole cards)",
        )  # fmt: skip
    elif offer.sharing == "time-slicing" and offer.replicas > 1:
        yield from _crowd(c, offer, needed, size)


def _crowd(c: Context, offer: Offer, needed: int, size: int) -> Iterator[Answer]:
    """Pods of the same release on one time-sliced card."""
    values = conventional(c)
    pods = min(offer.replicas, (values.whole("replicaCount") or 1) if values is not None else 1)
    if pods > 1 and needed * pods > size << 20:
        yield OVERFULL.found(
            c, key("replicaCount"), f"up to {pods} replicas may share one card of {size} MiB (nvidia.com/gpu.replicas "
            f"{offer.replicas}), and each takes {needed >> 20} MiB",
            "fewer replicas per card, MIG slices, or whole cards",
        )  # fmt: skip
    else:
        yield NO_ISOLATION.found(
            c, "node.labels", f"{offer.replicas} units share one card and its {size} MiB; nothing divides the "
            "memory",
            "limit the KV cache (max tokens, or a small fraction) so that neighbours have room",
        )  # fmt: skip


@about(Topic.GPU_SHARING)
def ranks_over_slices(c: Context) -> Iterator[Answer]:
    offer, asked, world = offer_of(c), _asked(c), c.tp * c.pp
    sliced = {name: n for name, n in asked.items() if is_mig(name)}
    if not sliced and offer is not None and offer.profile not in (None, "INVALID"):
        sliced = {name: n for name, n in asked.items() if name == GPU} or {GPU: 1}
    if not sliced and not asked and offer is not None and offer.available:
        # Nothing is asked for: the ranks would have to go onto what the node offers.
        sliced = {
            n: k for n, k in offer.available.items() if all(is_mig(x) for x in offer.available)
        }
        sliced = dict.fromkeys(sliced, 1)
    for name, count in list(sliced.items())[:1]:
        if world > 1:
            yield RANKS_OVER_MIG.found(
                c, f"{_RESOURCES}.{name}" if name in asked else "node.labels",
                f"{world} ranks (TP {c.tp}, PP {c.pp}) over MIG slices ({name}: {count}): CUDA uses one MIG device "
                "per process, and slices have no peer path",
                f"whole GPUs for TP {c.tp}, or TP 1 on one larger slice with a smaller or quantized model",
            )  # fmt: skip
        elif count > 1:
            yield SEVERAL_SLICES.found(
                c, f"{_RESOURCES}.{name}", f"the container asks for {count} MIG slices ({name}), and CUDA uses the "
                "first only",
                f"{name}: 1, or one larger slice",
            )  # fmt: skip


@about(Topic.GPU_SHARING)
def ranks_over_shares(c: Context) -> Iterator[Answer]:
    offer = offer_of(c)
    if offer is None:
        return
    cards = _cards(c, offer)
    if cards is not None:
        yield Figure("physical_gpus", cards)
    if offer.profile is not None:
        return
    asked = sum(n for name, n in _asked(c).items() if not is_mig(name))
    world = c.tp * c.pp
    pods = (c.evidence.pod.lws_size_pods if c.evidence.pod else None) or 1
    if 0 < asked * pods < world and cards is not None and world <= cards:
        yield TOO_FEW.found(
            c, f"{_RESOURCES}.{GPU}", f"the pod asks for {asked} GPU{'s' * (asked > 1)}, and TP {c.tp} x PP {c.pp} has "
            f"{world} ranks", f"ask for {world}",
        )  # fmt: skip
    if offer.sharing is None:
        return
    count = max(world, asked)
    if count <= 1:
        return
    units = (
        f"{offer.sharing}: each card is offered {offer.replicas} times"
        if offer.replicas > 1
        else offer.sharing
    )
    enough = cards is not None and world <= cards and world > 1 and offer.sharing != "mps"
    yield RANKS_OVER_SHARES.found(
        c, f"{_RESOURCES}.{GPU}",
        f"{world} ranks (TP {c.tp}, PP {c.pp}) and {max(asked, 1)} units of {GPU} on shared cards ({units})"
        + (f"; behind them are {cards} real GPUs" if cards is not None else "")
        + ": several units may be one and the same card, and bring no more memory",
        "use a node without sharing for tensor parallelism, or TP 1 and one unit",
        severity=Severity.WARN if enough or (world == 1 and offer.sharing != "mps") else None,
    )  # fmt: skip


def _cards(c: Context, offer: Offer) -> int | None:
    """Real cards behind what the node offers."""
    node = c.evidence.node
    if node is not None and node.gpu_count is not None:
        return node.gpu_count
    count = c.label("gpu.count")
    if (
        count is not None
        and count.isascii()
        and count.isdigit()
        and len(count) < 6
        and offer.profile is None
    ):
        return int(count)
    if offer.profile is not None or offer.counts is None:
        return None
    units = offer.counts.get(GPU + ".shared") or offer.counts.get(GPU)
    sharing_unknown = offer.sharing is not None and offer.replicas == 1
    if units is None or sharing_unknown or any(is_mig(name) for name in offer.available):
        return None
    return units // offer.replicas


RULES = (resource_name, selector, memory, ranks_over_slices, ranks_over_shares)
