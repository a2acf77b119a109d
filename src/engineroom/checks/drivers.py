"""The node's driver against the stack. The container table's driver is the toolkit's, no minimum."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.catalog.models import DRIVER_VERSION
from engineroom.checks.base import TargetContext
from engineroom.names import Severity
from engineroom.types import Finding


def parse_driver(text: str) -> tuple[int, ...] | None:
    """``580.159.04`` as (580, 159, 4); None when it is no driver version."""
    if not DRIVER_VERSION.fullmatch(text):
        return None
    return tuple(int(part) for part in text.split("."))


def driver_for_stack(c: TargetContext) -> Iterator[Finding]:
    key = c.key("driver")
    if c.target.driver is None:
        if c.stack.toolkit_driver:
            yield c.finding(
                "driver-needed",
                Severity.INFO,
                key,
                f"stack {c.stack.id} is built on CUDA {c.stack.cuda}: its toolkit ships driver "
                f"{c.stack.toolkit_driver}, and {c.stack.min_driver} is the floor of the CUDA line",
                "add `driver:` to the target to have it checked (nvidia-smi shows it)",
                "; ".join(c.stack.source),
            )
        return
    driver = parse_driver(c.target.driver)
    if driver is None:
        yield c.finding(
            "driver-unreadable", Severity.ERROR, key,
            f"`{c.target.driver}` is not a driver version",
            "write it as nvidia-smi prints it, e.g. 580.159.04", "NVIDIA driver version form",
        )  # fmt: skip
        return
    source = "; ".join(c.stack.source)
    if c.stack.toolkit_driver is None or c.stack.min_driver is None:
        yield c.finding(
            "unknown-driver-needs", Severity.WARN, key,
            f"nothing is known about the driver that {c.stack.id} needs",
            "use a Triton release of the catalog, or check the image's NVIDIA_REQUIRE_CUDA", source,
        )  # fmt: skip
        return
    toolkit, floor = parse_driver(c.stack.toolkit_driver), parse_driver(c.stack.min_driver)
    if toolkit is None or floor is None or driver >= toolkit:
        return
    gap = f"driver {c.target.driver} is older than {c.stack.toolkit_driver}, with which CUDA {c.stack.cuda} ships"
    if driver >= floor:
        yield c.finding(
            "driver-minor-compat", Severity.INFO, key,
            f"{gap}; it is at or above {c.stack.min_driver}, so CUDA minor-version compatibility holds",
            "nothing; upgrade the driver if a feature is reported missing", source,
        )  # fmt: skip
    elif c.sku.data_center:
        yield c.finding(
            "driver-needs-compat-package", Severity.WARN, key,
            f"{gap}, and below {c.stack.min_driver}: it works only through the CUDA forward-compatibility "
            "package, which data-centre GPUs support",
            f"upgrade to {c.stack.min_driver} or newer, or check that the image's compat package covers it",
            source,
        )  # fmt: skip
    else:
        yield c.finding(
            "driver-too-old", Severity.ERROR, key,
            f"{gap}, and below {c.stack.min_driver}; {c.sku.id} has no forward compatibility",
            f"upgrade the driver to {c.stack.min_driver} or newer, or use a stack of an older CUDA line",
            source,
        )  # fmt: skip


RULES = (driver_for_stack,)
