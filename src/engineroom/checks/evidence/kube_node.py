"""Node labels as such: does this node carry the SKU that was asked for?"""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.types import Finding, GpuSku

_GFD = "NVIDIA/k8s-device-plugin docs/gpu-feature-discovery/README.md and internal/lm/resource.go @ 1b826ac"
OTHER_SKU = declare(
    "node-has-another-gpu", Topic.GPU_SHARING, Severity.ERROR,
    says="the node carries the GPU that was asked for",
    why="engines are made for one card, and sizes are worked out for its memory",
    source=_GFD,
)  # fmt: skip
CUT = declare(
    "node-gpu-is-cut", Topic.GPU_SHARING, Severity.WARN,
    says="the node offers whole GPUs of the SKU",
    why="the label carries -MIG-… or -SHARED then: a selector on the plain name does not match, and the "
    "memory is a slice's",
    source=_GFD,
)  # fmt: skip
MEMORY = declare(
    "node-gpu-memory-differs", Topic.GPU_SHARING, Severity.WARN,
    says="the memory label is about that of the SKU",
    why="another variant of the card, or a slice of it",
    source=_GFD,
)  # fmt: skip
UNLABELLED = declare(
    "node-without-gpu-labels", Topic.GPU_SHARING, Severity.WARN,
    says="the node has GPU Feature Discovery's labels",
    why="without them no selector on a product can match",
    source=_GFD,
)  # fmt: skip


def split_product(label: str) -> tuple[str, str | None, bool]:
    """(product, MIG profile or None, shared) of a `nvidia.com/gpu.product` label."""
    shared = label.endswith("-SHARED")
    bare = label.removesuffix("-SHARED")
    product, found, profile = bare.partition("-MIG-")
    return product, (profile if found else None), shared


@about(Topic.GPU_SHARING)
def wanted_sku(c: Context) -> Iterator[Answer]:
    """Speaks where a SKU is stated (`gpu.product`, `--sku`) and a node is given."""
    gpu, node = c.evidence.gpu, c.evidence.node
    if gpu is None or gpu.product is None or node is None or node.labels is None:
        return
    wanted = c.catalog.sku_by_product(gpu.product)
    name = wanted.id if wanted else gpu.product
    label = c.label("gpu.product")
    if label is None:
        yield UNLABELLED.found(
            c, "node.labels", f"the node has no label nvidia.com/gpu.product, so nothing says that it has a {name}",
            "install GPU Feature Discovery, or label the node by hand: nvidia.com/gpu.product="
            + gpu.product,
        )  # fmt: skip
        return
    product, profile, shared = split_product(label)
    if not _same(c, wanted, gpu.product, product):
        found = c.catalog.sku_by_product(product)
        yield OTHER_SKU.found(
            c, "node.labels", f"{name} was asked for (nvidia.com/gpu.product {gpu.product}), and the node is "
            f"labelled {label}" + (f", a {found.id}" if found else ""),
            "another node, or another SKU: build the engine for the card that serves it",
        )  # fmt: skip
        return
    if profile is not None or shared:
        how = f"MIG slices {profile}" if profile else "shared GPUs"
        yield CUT.found(
            c, "node.labels", f"the node has the right card, but offers {how}: its label is {label}, not "
            f"{gpu.product}",
            "select by the label as it is and size the model for the slice, or use a node with whole GPUs",
        )  # fmt: skip
    elif wanted is not None:
        yield from _memory(c, wanted)


def _same(c: Context, wanted: GpuSku | None, stated: str, found: str) -> bool:
    if wanted is None:
        return stated == found
    other = c.catalog.sku_by_product(found)
    return other is not None and other.id == wanted.id


def _memory(c: Context, wanted: GpuSku) -> Iterator[Finding]:
    text = c.label("gpu.memory")
    if text is None or not text.isdecimal() or len(text) > 9:
        return
    if abs(int(text) - wanted.memory_mib) > 0.08 * wanted.memory_mib:
        yield MEMORY.found(
            c, "node.labels", f"nvidia.com/gpu.memory is {text} MiB, and {wanted.id} has {wanted.memory_mib} MiB",
            "check which variant of the card it is, and whether it is cut into slices",
        )  # fmt: skip


RULES = (wanted_sku,)
