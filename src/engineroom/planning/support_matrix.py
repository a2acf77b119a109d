"""`matrix show`: support of every format by lane, version and compute capability, with sources."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from engineroom.catalog import Catalog
from engineroom.catalog.load import in_range
from engineroom.errors import UsageError, Where
from engineroom.names import KvCacheFormat, LaneName, Support, WeightFormat
from engineroom.spec.model import StackRef
from engineroom.types import GpuSku, StackRelease

WEIGHTS, KV_CACHE = "weights", "kv_cache"
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")


@dataclass(frozen=True)
class Cell:
    """One verdict.

    Attributes:
        stack: a Triton release, or ``trtllm-VERSION`` for a version without one.
        runtime: what the lane runs on, with its version; `tensorrt_llm` is empty for vLLM.
        axis: ``weights`` or ``kv_cache``.
        skus: catalog ids that have this compute capability (or were asked for); data-centre GPUs first.
        reason: why, where the source says more than the verdict; else None.
    """

    lane: LaneName
    stack: str
    tensorrt_llm: str
    runtime: str
    axis: str
    format: str
    compute_capability: str
    skus: tuple[str, ...]
    support: Support
    reason: str | None
    source: str
    confidence: str | None
    verified_on: str | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "lane": str(self.lane),
            "stack": self.stack,
            "tensorrt_llm": self.tensorrt_llm or None,
            "runtime": self.runtime,
            "axis": self.axis,
            "format": self.format,
            "compute_capability": self.compute_capability,
            "skus": list(self.skus),
            "support": str(self.support),
            "reason": self.reason,
            "source": self.source,
            "confidence": self.confidence,
            "verified_on": self.verified_on,
        }


@dataclass(frozen=True)
class Query:
    """Filters of `matrix show`; empty means all.

    Attributes:
        skus: catalog ids, or compute capabilities such as ``9.0``.
        stack: a Triton release; excludes `trtllm`.
        trtllm: a TensorRT-LLM version.
    """

    skus: tuple[str, ...] = ()
    lane: LaneName | None = None
    weights: str | None = None
    kv_cache: str | None = None
    stack: str | None = None
    trtllm: str | None = None


def support_matrix(catalog: Catalog, query: Query) -> list[Cell]:
    """Cells in the order lane, axis, format, compute capability.

    Without SKUs: every compute capability that a SKU of the catalog has.

    Without a version each lane is shown for the newest Triton release that has it.

    Raises:
        UsageError: an unknown SKU, format or stack, with the nearest names; stack and version both.
    """
    columns = _columns(catalog, query.skus)
    formats = _formats(catalog, query)
    chosen = _chosen_stack(catalog, query)
    cells: list[Cell] = []
    for lane in [query.lane] if query.lane else [LaneName.LLMAPI, LaneName.ENGINE]:
        stack = _as_lane(chosen, lane) if chosen else _newest(catalog, lane)
        version = stack.runtime_version
        exists, reason, source = lane_support(catalog, lane, version)
        for axis, fmt in formats:
            for capability, skus in columns:
                fact = catalog.precision_cell(lane, version, axis, fmt, capability)
                # A format that a table lists is no yes for a lane that nobody is sure of.
                doubt = exists is Support.UNKNOWN and fact.support is Support.YES
                gone = exists is Support.NO or doubt
                cells.append(
                    Cell(
                        lane=lane,
                        stack=stack.id,
                        tensorrt_llm=stack.tensorrt_llm,
                        runtime=f"{stack.runtime_name} {version}",
                        axis=axis,
                        format=fmt,
                        compute_capability=capability,
                        skus=skus,
                        support=exists if gone else fact.support,
                        reason=reason if gone else fact.note,
                        source=source if gone else "; ".join(fact.sources),
                        confidence=None if gone else fact.confidence,
                        verified_on=None if gone else fact.verified_on,
                    )
                )
    return cells


def lane_support(catalog: Catalog, lane: LaneName, version: str) -> tuple[Support, str, str]:
    """(support, reason, source) of a lane; the exact version's contract wins over the table."""
    row = next(
        (r for r in catalog.lanes.lanes if r.lane == lane and in_range(version, r.versions)), None
    )
    contract = catalog.lane_contract(lane, version)
    if contract is not None and contract.knows_families:
        has = contract.has_lane(lane)
        verdict = Support.YES if has else Support.NO
        if row is None or row.support is not verdict:
            what = "lists" if has else "does not list"
            return (
                verdict,
                f"the contract of TensorRT-LLM {version} {what} the lane's Triton models",
                f"deploy/contracts/trtllm/{version}.json and the sources it names",
            )
    if row is None:
        return (
            Support.UNKNOWN,
            f"no row or contract about the {lane} lane in {version}",
            "nothing found",
        )
    return row.support, row.reason, _joined(row.source)


def _joined(source: str | tuple[str, ...]) -> str:
    return source if isinstance(source, str) else "; ".join(source)


def _newest(catalog: Catalog, lane: LaneName) -> StackRelease:
    stacks = sorted(catalog.stacks.values(), key=_release, reverse=True)
    if lane is LaneName.VLLM:
        stacks = [own for stack in stacks if (own := stack.of_vllm()) is not None] or stacks
    for stack in stacks:
        if lane_support(catalog, lane, stack.runtime_version)[0] is Support.YES:
            return stack
    return stacks[0]


def _as_lane(stack: StackRelease, lane: LaneName) -> StackRelease:
    """The chosen stack with the lane's own container.

    Raises:
        UsageError: a stack without one.
    """
    if lane is not LaneName.VLLM:
        return stack
    own = stack.of_vllm()
    if own is None:
        raise UsageError(
            f"stack {stack.id} has no vLLM container",
            where=Where(key="--lane"),
            hint="name a Triton release with --stack",
        )
    return own


def _release(stack: StackRelease) -> Version:
    try:
        return Version(stack.id)
    except InvalidVersion:  # an overlay's own name: after every release
        return Version("0")


def _chosen_stack(catalog: Catalog, query: Query) -> StackRelease | None:
    if query.stack and query.trtllm:
        raise UsageError(
            "--stack and --trtllm exclude each other",
            hint="a stack names its TensorRT-LLM version already; give one of the two",
        )
    if query.stack:
        return stack_named(catalog, query.stack, "--stack")
    if query.trtllm:
        return catalog.stack(StackRef(trtllm=query.trtllm), Where(key="--trtllm"))
    return None


def stack_named(catalog: Catalog, name: str, option: str) -> StackRelease:
    """A Triton release by id.

    Raises:
        UsageError: not in the catalog; names the nearest ones.
    """
    if name in catalog.stacks:
        return catalog.stacks[name]
    raise UsageError(
        f"no Triton release `{name}` in the catalog",
        where=Where(key=option),
        hint=f"{nearest(name, catalog.stacks)}; a TensorRT-LLM version goes with --trtllm",
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the three nearest names, or all of them when none is near."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    if near:
        return "did you mean " + " or ".join(f"`{item}`" for item in near) + "?"
    return f"known: {', '.join(names)}"


def _columns(catalog: Catalog, wanted: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    if not wanted:
        groups: dict[str, list[GpuSku]] = {}
        for sku in catalog.skus.values():
            groups.setdefault(sku.compute_capability, []).append(sku)
        ordered = sorted(groups, key=Version)
        return [
            (c, tuple(s.id for s in sorted(groups[c], key=lambda s: (not s.data_center, s.id))))
            for c in ordered
        ]
    columns: list[tuple[str, tuple[str, ...]]] = []
    for name in dict.fromkeys(wanted):
        if _CAPABILITY.fullmatch(name):
            same = tuple(s.id for s in catalog.skus.values() if s.compute_capability == name)
            columns.append((name, same))
        else:
            sku = catalog.sku(name, Where(key="--sku"))
            columns.append((sku.compute_capability, (sku.id,)))
    return columns


def _formats(catalog: Catalog, query: Query) -> list[tuple[str, str]]:
    tables = catalog.precision.tables
    known = {
        WEIGHTS: {fmt: None for t in tables for fmt in t.weights}
        | {str(fmt): None for fmt in WeightFormat},
        KV_CACHE: {fmt: None for t in tables for fmt in t.kv_cache}
        | {str(fmt): None for fmt in KvCacheFormat if fmt is not KvCacheFormat.AUTO},
    }
    wanted = {WEIGHTS: query.weights, KV_CACHE: query.kv_cache}
    for axis, fmt in wanted.items():
        if fmt is not None and fmt not in known[axis]:
            raise UsageError(
                f"no {axis.replace('_', ' ')} format `{fmt}` in the support tables",
                where=Where(key=f"--{axis.replace('_', '-')}"),
                hint=nearest(fmt.lower(), known[axis]),
            )
    if query.weights is None and query.kv_cache is None:
        return [(axis, fmt) for axis in known for fmt in known[axis]]
    return [(axis, fmt) for axis, fmt in wanted.items() if fmt is not None]
