"""Driver and CUDA of a node against the image; `NVIDIA_REQUIRE_CUDA` is applied first, as at start."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engineroom.checks import drivers
from engineroom.checks.codes import Code, declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.require_cuda import evaluate
from engineroom.names import Severity, Topic

_COMPAT = (
    "docs.nvidia.com/deploy/cuda-compatibility (minor-version and forward compatibility); "
    "NVIDIA/TensorRT-LLM issue #23"
)
_RUNTIME = (
    "NVIDIA/nvidia-container-toolkit internal/config/image/cuda_image.go and internal/requirements @ "
    "d34b3046; issues #940 and #152"
)


def _declared(id: str, severity: Severity, says: str, why: str, source: str = _COMPAT) -> Code:
    return declare(id, Topic.VERSIONS, severity, says=says, why=why, source=source)


_CODES = {
    code.id: code
    for code in (
        _declared("driver-too-old", Severity.ERROR, "the driver is not below the floor of the image's CUDA line",
                  "CUDA does not initialise; an older image ran on the same node"),
        _declared("driver-needs-compat-package", Severity.WARN,
                  "a driver below the floor has the forward-compatibility package",
                  "without it, or on a card that it does not support, CUDA does not initialise"),
        _declared("driver-minor-compat", Severity.INFO, "the driver is that of the image's toolkit or newer",
                  "minor-version compatibility holds, but newer features may be missing"),
        _declared("driver-unreadable", Severity.ERROR, "a driver version is three numbers with dots",
                  "nothing can be compared with it"),
        _declared("unknown-driver-needs", Severity.WARN, "it is known which driver the image needs",
                  "unknown is not yes"),
    )
}  # fmt: skip
REFUSED = _declared(
    "require-cuda-refused", Severity.ERROR, "the node satisfies the image's NVIDIA_REQUIRE_CUDA",
    "the container runtime refuses to start it, also where compatibility would have worked", _RUNTIME,
)  # fmt: skip
SKIPPED = _declared(
    "require-cuda-skipped", Severity.WARN, "NVIDIA_DISABLE_REQUIRE hides no requirement that the node fails",
    "it only skips the check; the libraries in the image still need what was asked for", _RUNTIME,
)  # fmt: skip
UNKNOWN_REQUIREMENT = _declared(
    "require-cuda-undecided", Severity.INFO, "it is known whether the node satisfies NVIDIA_REQUIRE_CUDA",
    "the runtime applies it before anything else", _RUNTIME,
)  # fmt: skip
CUDA_MAJOR = _declared(
    "cuda-major-over-driver", Severity.ERROR, "the driver supports the CUDA major version of the image",
    "minor-version compatibility does not reach across major versions",
)  # fmt: skip
_PREFIX = "NVIDIA_REQUIRE_"
# Go's strconv.ParseBool.
_TRUE = {"1", "t", "T", "TRUE", "true", "True"}


def node_driver(c: Context) -> tuple[str, str] | None:
    """(driver, key) as stated, else from the labels of GPU Feature Discovery, new or old."""
    node = c.evidence.node
    if node is None:
        return None
    if node.driver_version:
        return node.driver_version, "node.driver_version"
    full = c.label("cuda.driver-version.full")
    if full:
        return full, "node.labels"
    for base, names in (
        ("cuda.driver-version", ("major", "minor", "revision")),
        ("cuda.driver", ("major", "minor", "rev")),
    ):
        parts = [c.label(f"{base}.{name}") for name in names]
        if parts[0]:
            known = parts[: parts.index(None)] if None in parts else parts
            return ".".join(part for part in known if part), "node.labels"
    return None


def node_cuda(c: Context) -> str | None:
    """Highest CUDA of the driver: stated, labelled, or that of the driver's own toolkit branch."""
    node = c.evidence.node
    if node is not None and node.cuda_version:
        return node.cuda_version
    full = c.label("cuda.runtime-version.full")
    if full:
        return full
    for base in ("cuda.runtime-version", "cuda.runtime"):
        major, minor = c.label(f"{base}.major"), c.label(f"{base}.minor")
        if major and minor:
            return f"{major}.{minor}"
    found = node_driver(c)
    if found is None:
        return None
    branch = found[0].partition(".")[0]
    known = any(row.driver.partition(".")[0] == branch for row in c.catalog.drivers.toolkits.rows)
    return c.catalog.cuda_of_driver(found[0]) if known else None


def image_cuda(c: Context) -> str | None:
    facts = c.evidence.stack
    return (facts.cuda_version if facts else None) or (c.stack.cuda if c.stack else None)


def _requirements(c: Context) -> list[tuple[str, str, str]]:
    """(variable, value, key) of every requirement; the pod's environment wins over the catalog."""
    env = c.evidence.env or {}
    found = [
        (name, value, f"env.{name}")
        for name, value in sorted(env.items())
        if name.startswith(_PREFIX) and not name.startswith(_PREFIX + "JETPACK")
    ]
    if env.get("NVIDIA_REQUIRE_CUDA"):
        return found
    version = re.match(r"[0-9]{1,3}\.[0-9]{1,3}", env.get("CUDA_VERSION", ""))
    if version:
        # An image that has CUDA_VERSION alone is taken to ask for it.
        return [*found, ("CUDA_VERSION", f"cuda>={version[0]}", "env.CUDA_VERSION")]
    if c.stack is not None and c.stack.require_cuda and c.evidence.node is not None:
        return [*found, ("NVIDIA_REQUIRE_CUDA", c.stack.require_cuda, "stack.triton_release")]
    return found


@about(Topic.VERSIONS)
def requirement(c: Context) -> Iterator[Answer]:
    env = c.evidence.env or {}
    driver = node_driver(c)
    cuda = node_cuda(c)
    if c.evidence.node is None:
        return
    skipped = env.get("NVIDIA_DISABLE_REQUIRE") in _TRUE
    note = ""
    if env.get("NVIDIA_DISABLE_REQUIRES") in _TRUE and not skipped:
        note = " (the runtime reads NVIDIA_DISABLE_REQUIRE, not NVIDIA_DISABLE_REQUIRES)"
    for name, value, key in _requirements(c):
        met, why = evaluate(
            value,
            cuda=cuda,
            driver=driver[0] if driver else None,
            brand=c.sku.brand if c.sku else None,
            arch=c.compute_capability,
        )
        why = why if len(why) < 500 else why[:500] + "…"
        fix = (
            f"upgrade the driver, or take an image of CUDA {cuda} or older" if cuda
            else "upgrade the driver, or take an image of an older CUDA"
        )  # fmt: skip
        if met is False and skipped:
            yield SKIPPED.found(
                c, key, f"{name}: {why}; NVIDIA_DISABLE_REQUIRE skips the check, and nothing else changes",
                f"{fix}; or test the compatibility path on one such node",
            )  # fmt: skip
        elif met is False:
            yield REFUSED.found(
                c, key, f"{name}: {why}, so the container runtime refuses to start the container{note}",
                f"{fix}; NVIDIA_DISABLE_REQUIRE only skips the check and needs a tested compatibility path",
            )  # fmt: skip
        elif met is None:
            yield UNKNOWN_REQUIREMENT.found(
                c, key, f"{name}: {why}", "state the node's driver and CUDA"
            )


@about(Topic.VERSIONS)
def driver_for_image(c: Context) -> Iterator[Answer]:
    facts, found = c.evidence.stack, node_driver(c)
    cuda = image_cuda(c)
    toolkit = (facts.toolkit_driver_version if facts else None) or (
        c.stack.toolkit_driver if c.stack else None
    )
    if c.evidence.node is None or (cuda is None and toolkit is None):
        return
    compat = facts.forward_compat_available if facts else None
    if found is None:
        yield from _by_cuda(c, cuda, compat)
        return
    driver, key = found
    answer = drivers.compare(
        driver,
        cuda=cuda,
        toolkit=toolkit or _toolkit(c, cuda),
        floor=_floor(c, cuda),
        stack=(c.stack.id if c.stack else None) or f"CUDA {cuda}",
        card=c.sku.id if c.sku else "the host",
        forward_compat=compat,
        data_center=c.sku.data_center if c.sku else None,
    )
    if answer is not None:
        yield _CODES[answer.code].found(c, key, answer.reason, answer.fix, severity=answer.severity)


def _toolkit(c: Context, cuda: str | None) -> str | None:
    """The driver of a toolkit release by the catalog's table."""
    rows = c.catalog.drivers.toolkits.rows
    exact = next((row.driver for row in rows if row.cuda == cuda), None)
    short = ".".join((cuda or "").split(".")[:2])
    return exact or next((row.driver for row in rows if row.cuda == short), None)


def _floor(c: Context, cuda: str | None) -> str | None:
    if cuda is None:
        return c.stack.min_driver if c.stack else None
    major = cuda.partition(".")[0]
    return next((row.min_driver for row in c.catalog.drivers.floors if row.cuda == major), None)


def _by_cuda(c: Context, cuda: str | None, compat: bool | None) -> Iterator[Answer]:
    """No driver is known, but the CUDA that it supports is."""
    have = node_cuda(c)
    if cuda is None or have is None:
        return
    ours, theirs = _major(have), _major(cuda)
    if ours is None or theirs is None or ours >= theirs or compat:
        return
    yield CUDA_MAJOR.found(
        c, "node.cuda_version" if c.evidence.node and c.evidence.node.cuda_version else "node.labels",
        f"the node's driver supports CUDA {have}, and the image is built on CUDA {cuda}",
        f"upgrade the driver to one of CUDA {theirs}, or use an image of CUDA {ours}",
        severity=None if compat is False or not (c.sku and c.sku.data_center) else Severity.WARN,
    )  # fmt: skip


def _major(text: str) -> int | None:
    match = re.match(r"[0-9]{1,3}", text)
    return int(match[0]) if match else None


RULES = (requirement, driver_for_image)
