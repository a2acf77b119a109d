"""`upgrade`: what changes around the settings: clients, hosts, artefacts, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from packaging.version import InvalidVersion, Version

from engineroom.catalog import Catalog
from engineroom.catalog.load import in_range
from engineroom.catalog.request_fields import Dialect, contract_names, load_request_fields
from engineroom.errors import UsageError, Where
from engineroom.names import LaneName, Support
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.planning.support_matrix import lane_support, nearest
from engineroom.spec.model import StackRef
from engineroom.types import StackRelease
from engineroom.types.upgrade import ClientChange, HostChange, LaneEnd, Rebuild

_DIALECTS: dict[LaneName, Dialect] = {
    LaneName.ENGINE: "engine",
    LaneName.LLMAPI: "llmapi",
    LaneName.VLLM: "vllm",
}
_FACTS = {
    "cuda": "CUDA toolkit of the image",
    "min_driver": "floor of the driver (the CUDA line's minor-version compatibility)",
    "toolkit_driver": "driver that comes with the toolkit; not a minimum",
    "tensorrt": "TensorRT",
    "torch": "PyTorch",
    "python": "Python",
}
_ENGINE_SOURCE = (
    "triton-inference-server/tensorrtllm_backend issue #531 (engine version and runtime version)"
)
_PACKAGE_SOURCE = "arguments by version: NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py; vllm-project/vllm vllm/engine/arg_utils.py"
_CHECKPOINT_SOURCE = "NVIDIA/Model-Optimizer modelopt/torch/export (Hugging Face layout)"


def stack_of(catalog: Catalog, name: str, key: str) -> StackRelease:
    """A release by id, or a version with or without ``trtllm-`` or ``vllm-``.

    Raises:
        UsageError: neither; the hint has the nearest releases.
    """
    known = catalog.known_stack(name)
    if known is not None:
        return known
    runtime, _, version = name.rpartition("-")
    like_a_release = not runtime and name.count(".") == 1 and name[:2].isdigit()
    try:
        if runtime not in ("", "trtllm", "vllm") or like_a_release:
            raise InvalidVersion(name)
        Version(version)
    except InvalidVersion:
        raise UsageError(
            f"no Triton release `{name}` in the catalog, and no version either",
            where=Where(key=key),
            hint=f"{nearest(name, catalog.stacks)}; a version is written 1.2.1 or vllm-0.24.0",
        ) from None
    ref = StackRef(vllm=version) if runtime == "vllm" else StackRef(trtllm=version)
    return catalog.stack(ref, Where(key=key))


def as_lane(stack: StackRelease, lane: LaneName) -> StackRelease:
    """The stack as a lane runs on it.

    Raises:
        UsageError: it has no runtime for the lane.
    """
    if lane is LaneName.VLLM:
        own = stack.of_vllm()
        if own is None:
            raise UsageError(f"stack {stack.id} has no vLLM container")
        return own
    if not stack.tensorrt_llm:
        raise UsageError(f"stack {stack.id} names a vLLM version")
    return stack


def lane_end(
    catalog: Catalog, old: StackRelease, new: StackRelease, lane: LaneName
) -> LaneEnd | None:
    """Support of a lane on both sides; None where one of them has no runtime for it."""
    try:
        a, b = (as_lane(side, lane) for side in (old, new))
    except UsageError:
        return None
    before = lane_support(catalog, lane, a.runtime_version)[0]
    after, reason, source = lane_support(catalog, lane, b.runtime_version)
    return LaneEnd(lane, a.runtime_version, b.runtime_version, before, after, reason, source)


def ends(row: LaneEnd) -> str:
    """A lane that ends, in words."""
    what = "ends" if row.after is Support.NO else f"is {row.after}"
    return (
        f"the {row.lane} lane {what} between {row.old_version} and {row.new_version}: {row.reason}"
    )


def clients(catalog: Catalog, lanes: Sequence[LaneEnd]) -> Iterator[ClientChange]:
    """Fields of requests and answers that come or go; our own additions stay on both sides."""
    fields = load_request_fields(catalog)
    for row in lanes:
        dialect = _DIALECTS[row.lane]
        old, new = (catalog.lane_contract(row.lane, v) for v in (row.old_version, row.new_version))
        if old is None or new is None or row.after is not Support.YES:
            continue
        source = f"contracts of {row.old_version} and {row.new_version}"
        for side, rows in (("inputs", fields.inputs), ("outputs", fields.outputs)):
            ours = {n for f in rows if dialect in f.ours for n in f.names(dialect)}
            before, after = (contract_names(c, dialect, side) | ours for c in (old, new))
            for name in sorted(before ^ after):
                gone = name in before
                yield ClientChange(
                    row.lane, side, name, "removed" if gone else "added",
                    f"{row.new_version} {'no longer has' if gone else 'adds'} `{name}`", source,
                )  # fmt: skip


def hosts(old: StackRelease, new: StackRelease, lanes: Sequence[LaneEnd]) -> Iterator[HostChange]:
    """CUDA, drivers and libraries of the containers; the driver's floor also where it stays."""
    for vllm in sorted({row.lane is LaneName.VLLM for row in lanes}):
        lane = LaneName.VLLM if vllm else None
        a, b = (as_lane(side, lane or LaneName.LLMAPI) for side in (old, new))
        for name, meaning in _FACTS.items():
            before, after = getattr(a, name), getattr(b, name)
            if before != after or (name == "min_driver" and before):
                yield HostChange(lane, name, before, after, _meaning(name, meaning, before, after))


def _meaning(name: str, meaning: str, before: str | None, after: str | None) -> str:
    if before == after:
        return f"{meaning}: unchanged"
    if before is None or after is None:
        return f"{meaning}: unknown on one side"
    if name == "min_driver":
        return f"{meaning}: nodes below {after} do not run the new image"
    return meaning


def rebuild(
    catalog: Catalog,
    new: StackRelease,
    moving: Sequence[ResolvedTarget],
    moved: Mapping[int, ResolvedTarget],
) -> Iterator[Rebuild]:
    """What becomes of each target's artefact and repository, and of the checkpoint that all share."""
    for item in moving:
        there = moved[item.index].stack
        compiled = item.target.lane is LaneName.ENGINE
        same = item.stack.runtime_version == there.runtime_version
        if compiled and same and item.stack.tensorrt == there.tensorrt:
            why = (
                f"both sides run TensorRT-LLM {there.tensorrt_llm} and TensorRT {there.tensorrt}, so the "
                "engine's format is the same; it is built again because its key has the image"
            )
        elif compiled:
            why = (
                f"an engine is bound to its version: {item.stack.tensorrt_llm} before, "
                f"{there.tensorrt_llm} now"
            )
        else:
            why = "files only: the arguments are those of the new version, the weights are linked"
        yield Rebuild(
            item.target.id, "engine" if compiled else "package",
            "rebuild" if compiled else "write again", why,
            _ENGINE_SOURCE if compiled else _PACKAGE_SOURCE,
        )  # fmt: skip
        yield Rebuild(
            item.target.id, "repository", "write again",
            "rendered from the new version's contract", "the contract of the version",
        )  # fmt: skip
    yield Rebuild(None, "checkpoint", "keep", _checkpoint(catalog, new), _CHECKPOINT_SOURCE)


def rebuild_any(catalog: Catalog, new: StackRelease, lanes: Sequence[LaneEnd]) -> Iterator[Rebuild]:
    """The same for whatever a spec may have on these lanes."""
    for row in lanes:
        if row.after is Support.YES and row.lane is LaneName.ENGINE:
            text = "an engine is bound to its version"
            yield Rebuild(None, "engine", "rebuild", text, _ENGINE_SOURCE)
        elif row.after is Support.YES:
            yield Rebuild(
                None, "package", "write again", f"{row.lane}: files only", _PACKAGE_SOURCE
            )
    yield Rebuild(None, "checkpoint", "keep", _checkpoint(catalog, new), _CHECKPOINT_SOURCE)


def _checkpoint(catalog: Catalog, new: StackRelease) -> str:
    text = "a quantized checkpoint is of no runtime version"
    version = new.tensorrt_llm
    row = next(
        (r for r in catalog.writers.runtimes if version and in_range(version, r.tensorrt_llm)), None
    )
    pins = [
        f"{name} {value}"
        for name in ("modelopt", "transformers")
        if (value := getattr(row, name, None))
    ]
    return text + (f"; TensorRT-LLM {version} is built with {' and '.join(pins)}" if pins else "")


def rollback(
    job: Job, moving: Sequence[ResolvedTarget], old: StackRelease, changed: Sequence[ClientChange]
) -> Iterator[str]:
    """Steps back, in order."""
    yield f"the old spec {job.loaded.file.as_posix()} was not changed: deploy it again"
    images = dict.fromkeys(i.stack.image for i in moving if i.stack.image)
    if images:
        yield f"keep the old image(s) at hand: {', '.join(images)}"
    places = ", ".join(f"targets[{i.index}].stack" for i in moving)
    yield f"or set {places} back to {shown(old)}"
    yield (
        "keep the old artefacts until the new side has proven itself: their folders carry version and "
        "digest, so nothing of the old side is overwritten"
    )
    if any(row.change == "added" and row.side == "inputs" for row in changed):
        yield "clients that send inputs of the new side must stop first"


def shown(stack: StackRelease) -> str:
    """A stack as a spec says it."""
    runtime, _, version = stack.id.partition("-")
    return f"{{{runtime}: {version}}}" if runtime in ("trtllm", "vllm") else f'"{stack.id}"'
