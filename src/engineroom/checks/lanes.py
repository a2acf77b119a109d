"""Does the lane exist in this TensorRT-LLM version, and do we know the version at all?"""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.catalog.load import in_range
from engineroom.checks.base import TargetContext
from engineroom.names import Severity, Support
from engineroom.types import Finding


def lane_exists(c: TargetContext) -> Iterator[Finding]:
    """The contract decides; without one, the table of version lines does."""
    version, lane = c.stack.tensorrt_llm, c.target.lane
    row = next(
        (r for r in c.catalog.lanes.lanes if r.lane == lane and in_range(version, r.versions)), None
    )
    if c.contract is not None:
        if c.lane_in_contract:
            return
        source = f"contract deploy/contracts/trtllm/{version}.json" + (
            f"; {row.source}" if row else ""
        )
    elif row is None or row.support is not Support.NO:
        return  # unknown_version below speaks
    else:
        source = row.source
    yield c.finding(
        "lane-not-in-version",
        Severity.ERROR,
        c.key("lane"),
        f"the {lane} lane does not exist in TensorRT-LLM {version}"
        + (f": {row.reason}" if row and row.support is Support.NO else ""),
        row.fix if row and row.support is Support.NO else "choose another lane or stack",
        source,
    )


def unknown_version(c: TargetContext) -> Iterator[Finding]:
    """A version without a contract is unknown: checks warn, build and render refuse."""
    if c.contract is not None:
        return
    known = ", ".join(c.catalog.contract_versions)
    yield c.finding(
        "unknown-trtllm-version",
        Severity.WARN,
        c.key("stack"),
        f"no contract of TensorRT-LLM {c.stack.tensorrt_llm} (stack {c.stack.id}): its build flags, "
        f"LLM arguments and Triton models are unknown, so build and render will refuse",
        f"use a stack with a known version ({known}), or add a contract file to a --catalog overlay",
        "deploy/contracts/trtllm/ of the catalog",
    )


def doubtful_stack(c: TargetContext) -> Iterator[Finding]:
    """The container table itself is contradictory for some releases."""
    if c.stack.confidence == "low":
        yield c.finding(
            "doubtful-stack",
            Severity.WARN,
            c.key("stack"),
            f"the sources disagree about what {c.stack.id} carries: {c.stack.note}",
            "use a neighbouring release, or read the version inside the image first",
            "; ".join(c.stack.source),
        )


def image_named(c: TargetContext) -> Iterator[Finding]:
    """Without an image nobody knows where to run the build plan or what to deploy."""
    if c.stack.image is None and c.spec.deploy.image is None:
        yield c.finding(
            "stack-without-image",
            Severity.WARN,
            c.key("stack"),
            f"stack {c.stack.id} names no container image: build plans and releases will lack one",
            "add `image:` to the stack, or set deploy.image",
            "the spec",
        )


RULES = (lane_exists, unknown_version, doubtful_stack, image_named)
