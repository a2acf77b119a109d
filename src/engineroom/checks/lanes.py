"""Does the lane exist in this version of its runtime, and do we know the version at all?"""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.catalog.load import in_range
from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.names import LaneName, Severity, Support, Topic
from engineroom.types import Finding

_RELEASES = "triton-inference-server/server docs/introduction/compatibility.md"
LANE = declare(
    "lane-not-in-version", Topic.SPEC, Severity.ERROR,
    says="the lane exists in the TensorRT-LLM version of the stack",
    why="trtllm-build and the C++ backend end with the 1.2 line; the llmapi models came with 0.20",
    source="NVIDIA/TensorRT-LLM PR #15918, #15907, #16369; triton_backend/all_models of the version",
)  # fmt: skip
VERSION = declare(
    "unknown-trtllm-version", Topic.SPEC, Severity.WARN,
    says="what the TensorRT-LLM version accepts is known",
    why="without a contract nothing is written for it: flags, arguments and models differ by version",
    source="NVIDIA/TensorRT-LLM release notes (arguments are added, renamed and removed in each release)",
)  # fmt: skip
VLLM_VERSION = declare(
    "unknown-vllm-version", Topic.VLLM, Severity.WARN,
    says="what the vLLM version accepts is known",
    why="an unknown key in model.json is a TypeError at load, and arguments come and go with versions",
    source="vllm-project/vllm vllm/engine/arg_utils.py of the version; triton-inference-server/"
    "vllm_backend src/model.py (AsyncEngineArgs(**model.json))",
)  # fmt: skip
DOUBTFUL = declare(
    "doubtful-stack", Topic.SPEC, Severity.WARN,
    says="the sources agree about what the release carries",
    why="the container table is contradictory for some releases",
    source=_RELEASES,
)  # fmt: skip
IMAGE = declare(
    "stack-without-image", Topic.SPEC, Severity.WARN,
    says="a container image is named",
    why="nobody knows where to run the build or what to deploy",
    source="Kubernetes documentation, Containers: Images (a container needs an image)",
)  # fmt: skip


def lane_exists(c: TargetContext) -> Iterator[Finding]:
    """The contract decides; without one, the table of version lines does."""
    version, lane = c.stack.runtime_version, c.target.lane
    row = next(
        (r for r in c.catalog.lanes.lanes if r.lane == lane and in_range(version, r.versions)), None
    )
    gone = row is not None and row.support is Support.NO
    known = c.contract is not None and c.contract.knows_families
    if c.lane_in_contract or (not known and not gone):
        return  # unknown_version speaks about a version without a contract
    yield LANE.found(
        c, "@.lane",
        f"the {lane} lane does not exist in {c.stack.runtime_name} {version}"
        + (f": {row.reason}" if row is not None and gone else ""),
        row.fix if row is not None and gone else "choose another lane or stack",
        source=("; ".join(row.source) if row else None),
    )  # fmt: skip


def unknown_version(c: TargetContext) -> Iterator[Finding]:
    """A version without a contract is unknown: checks warn, build and render refuse."""
    if c.contract is not None:
        if not c.contract.knows_families:
            yield VERSION.found(
                c, "@.stack",
                f"the contract of TensorRT-LLM {c.stack.tensorrt_llm} lists no Triton models, so whether "
                f"the {c.target.lane} lane exists there is unknown, and render will refuse",
                "capture it again with `engineroom matrix capture --all-models DIR`",
            )  # fmt: skip
        return
    if c.target.lane is LaneName.VLLM:
        yield VLLM_VERSION.found(
            c, "@.stack",
            f"no contract of vLLM {c.stack.runtime_version} (stack {c.stack.id}): its engine arguments "
            "are unknown, so build and render will refuse",
            f"use a stack with a known version ({', '.join(c.catalog.vllm_versions)}), or put a contract "
            "into deploy/contracts/vllm/ of a --catalog overlay",
        )  # fmt: skip
        return
    known = ", ".join(c.catalog.contract_versions)
    yield VERSION.found(
        c, "@.stack",
        f"no contract of TensorRT-LLM {c.stack.tensorrt_llm} (stack {c.stack.id}): its build flags, "
        "LLM arguments and Triton models are unknown, so build and render will refuse",
        f"use a stack with a known version ({known}), or capture the contract inside the container with "
        "`engineroom matrix capture` and pass it with --catalog",
    )  # fmt: skip


def doubtful_stack(c: TargetContext) -> Iterator[Finding]:
    """The container table itself is contradictory for some releases."""
    if c.stack.confidence == "low":
        yield DOUBTFUL.found(
            c, "@.stack",
            f"the sources disagree about what {c.stack.id} carries: {c.stack.note}",
            "use a neighbouring release, or read the version inside the image first",
            source="; ".join(c.stack.source),
        )  # fmt: skip


def image_named(c: TargetContext) -> Iterator[Finding]:
    """Without an image nobody knows where to run the build plan or what to deploy."""
    if c.stack.image is None and c.spec.deploy.image is None:
        yield IMAGE.found(
            c, "@.stack",
            f"stack {c.stack.id} names no container image: build plans and releases will lack one",
            "add `image:` to the stack, or set deploy.image",
        )  # fmt: skip


RULES = (lane_exists, unknown_version, doubtful_stack, image_named)
