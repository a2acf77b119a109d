"""The node's driver against the stack. The container table's driver is the toolkit's, no minimum.

:func:`compare` is the one place that decides; rules over a spec and over evidence word its answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engineroom.catalog.models import DRIVER_VERSION
from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.checks.require_cuda import evaluate
from engineroom.names import Severity, Topic
from engineroom.types import Finding

NEEDED = declare(
    "driver-needed", Topic.SPEC, Severity.INFO,
    says="the target names the driver of its nodes",
    why="a driver below the CUDA line's floor is found only when the container starts",
    source="NVIDIA CUDA Compatibility, Minor Version Compatibility",
)  # fmt: skip


def parse_driver(text: str) -> tuple[int, ...] | None:
    """``580.159.04`` as (580, 159, 4); None when it is no driver version."""
    if not DRIVER_VERSION.fullmatch(text):
        return None
    return tuple(int(part) for part in text.split("."))


@dataclass(frozen=True)
class DriverAnswer:
    """What is to be said about a driver: the finding's code, severity, reason and fix."""

    code: str
    severity: Severity
    reason: str
    fix: str


def compare(
    driver: str,
    *,
    cuda: str | None,
    toolkit: str | None,
    floor: str | None,
    stack: str,
    card: str,
    forward_compat: bool | None,
    data_center: bool | None,
) -> DriverAnswer | None:
    """A driver against what an image was built with; None: nothing to say.

    Args:
        cuda: CUDA version of the image.
        toolkit: the driver that ships with that CUDA toolkit; not a minimum.
        floor: the oldest driver of the CUDA major line (minor-version compatibility).
        forward_compat: the compatibility package is known to work on this host, or known not to.
        data_center: the card is one that the package supports; decides where `forward_compat` does not.
    """
    have = parse_driver(driver)
    if have is None:
        return DriverAnswer(
            "driver-unreadable", Severity.ERROR, f"`{driver[:60]}` is not a driver version",
            "write it as nvidia-smi prints it, e.g. 580.159.04",
        )  # fmt: skip
    made_for, oldest = parse_driver(toolkit or ""), parse_driver(floor or "")
    if toolkit is None and floor is None:
        return DriverAnswer(
            "unknown-driver-needs", Severity.WARN,
            f"nothing is known about the driver that {stack} needs",
            "use a Triton release of the catalog, or check the image's NVIDIA_REQUIRE_CUDA",
        )  # fmt: skip
    if (made_for and have >= made_for) or (made_for is None and oldest and have >= oldest):
        return None
    shipped = (
        f" is older than {toolkit}, with which CUDA {cuda or 'of the image'} ships"
        if made_for
        else ""
    )
    gap = f"driver {driver}{shipped}"
    if oldest is None:
        return DriverAnswer(
            "unknown-driver-needs", Severity.WARN, f"{gap}; the floor of its CUDA line is not known",
            f"upgrade to {toolkit} or newer",
        )  # fmt: skip
    if have >= oldest:
        return DriverAnswer(
            "driver-minor-compat", Severity.INFO,
            f"{gap}; it is at or above {floor}, so CUDA minor-version compatibility holds",
            "nothing; upgrade the driver if a feature is reported missing",
        )  # fmt: skip
    below = f"{gap}{', and' if shipped else ' is'} below {floor}"
    if forward_compat:
        return DriverAnswer(
            "driver-needs-compat-package", Severity.INFO,
            f"{below}: it works through the CUDA forward-compatibility package only, which works on this host",
            f"nothing; upgrade to {floor} or newer to be rid of it",
        )  # fmt: skip
    if forward_compat is None and data_center:
        return DriverAnswer(
            "driver-needs-compat-package", Severity.WARN,
            f"{below}: it works only through the CUDA forward-compatibility package, which data-centre GPUs "
            "support",
            f"upgrade to {floor} or newer, or check that the image's compat package covers it",
        )  # fmt: skip
    return DriverAnswer(
        "driver-too-old", Severity.ERROR,
        f"{below}; {card} has no forward compatibility",
        f"upgrade the driver to {floor} or newer"
        + (f" ({toolkit} for every feature)" if made_for else "")
        + ", or use a stack of an older CUDA line",
    )  # fmt: skip


def _refused_by_image(c: TargetContext, driver: str) -> Finding | None:
    """The container runtime applies the image's own rule before anything else; where it holds, the
    floor of the CUDA line still counts."""
    if not c.stack.require_cuda:
        return None
    met, why = evaluate(
        c.stack.require_cuda, cuda=c.catalog.cuda_of_driver(driver), driver=driver, brand=c.sku.brand,
        arch=c.sku.compute_capability,
    )  # fmt: skip
    if met is not False:
        return None
    return Finding(
        "require-cuda-refused", Severity.ERROR, c.place("@.driver")[1],
        f"NVIDIA_REQUIRE_CUDA of {c.stack.id}: {why[:300]}, so the container runtime refuses to start it",
        "upgrade the driver, or use a stack of an older CUDA", "; ".join(c.stack.source), c.target_id,
    )  # fmt: skip


def driver_for_stack(c: TargetContext) -> Iterator[Finding]:
    source = "; ".join(c.stack.source)
    if c.target.driver is None:
        if c.stack.toolkit_driver:
            yield NEEDED.found(
                c,
                "@.driver",
                f"stack {c.stack.id} is built on CUDA {c.stack.cuda}: its toolkit ships driver "
                f"{c.stack.toolkit_driver}, and {c.stack.min_driver} is the floor of the CUDA line",
                "add `driver:` to the target to have it checked (nvidia-smi shows it)",
                source=source,
            )
        return
    refusal = _refused_by_image(c, c.target.driver)
    if refusal is not None:
        yield refusal
    answer = compare(
        c.target.driver,
        cuda=c.stack.cuda,
        toolkit=c.stack.toolkit_driver,
        floor=c.stack.min_driver,
        stack=c.stack.id,
        card=c.sku.id,
        forward_compat=None,
        data_center=c.sku.data_center,
    )
    if answer is not None:
        unreadable = answer.code == "driver-unreadable"
        _, key = c.place("@.driver")
        yield Finding(
            answer.code, answer.severity, key, answer.reason, answer.fix,
            "NVIDIA driver version form" if unreadable else source, c.target_id,
        )  # fmt: skip


RULES = (driver_for_stack,)
