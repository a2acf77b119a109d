"""`matrix show` and `matrix diff`: the facts themselves, and what changes between two versions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from engineroom.catalog import Catalog, Contract
from engineroom.catalog.contract_parts import Area
from engineroom.catalog.version_change import Change, ChangeKind
from engineroom.catalog.version_diff import VersionDiff, diff
from engineroom.errors import UsageError, Where
from engineroom.planning.support_matrix import Cell, Query, stack_named, support_matrix
from engineroom.spec.model import StackRef
from engineroom.types import StackRelease

__all__ = ["Cell", "Query", "ReleaseDiff", "diff_releases", "diff_stacks", "show"]

_FACTS = (
    "image", "tensorrt_llm", "tensorrt", "torch", "cuda", "python", "toolkit_driver", "min_driver",
)  # fmt: skip


@dataclass(frozen=True)
class ReleaseDiff:
    """Two stacks, and what differs between them.

    Attributes:
        old_contract, new_contract: None where nobody recorded what the version accepts.
        changes: container facts first, then the contracts' changes, in order of kind.
        unknown: what could not be compared, and why.
    """

    old: StackRelease
    new: StackRelease
    old_contract: Contract | None
    new_contract: Contract | None
    contracts: VersionDiff | None
    changes: tuple[Change, ...]
    unknown: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        facts = self.contracts
        return {
            "from": _side(self.old, self.old_contract),
            "to": _side(self.new, self.new_contract),
            "counts": self.counts(),
            "changes": [c.as_dict() for c in self.changes],
            "statements": [
                {"version": s.version, "since": s.since, "kind": s.kind, "text": s.text}
                for s in (facts.statements if facts else ())
            ],
            "unknown": list(self.unknown),
            "sources": {
                str(Area.STACK): {s.id: list(s.source) for s in (self.old, self.new)},
                **{
                    area: {version: list(texts) for version, texts in sides.items()}
                    for area, sides in ((facts.sources if facts else None) or {}).items()
                },
            },
        }

    def counts(self) -> dict[str, int]:
        """Changes by kind, kinds that occur only."""
        found: dict[str, int] = {}
        for change in self.changes:
            found[str(change.kind)] = found.get(str(change.kind), 0) + 1
        return found


def _side(stack: StackRelease, contract: Contract | None) -> dict[str, Any]:
    return {
        "stack": stack.id,
        "tensorrt_llm": stack.tensorrt_llm,
        "stack_confidence": stack.confidence,
        "contract": contract is not None,
        "contract_confidence": contract.confidence if contract else "unknown",
    }


def show(query: Query, catalog: Path | None = None) -> list[Cell]:
    """The cells that a query asks for.

    Raises:
        UsageError: an unknown SKU, format or stack.
    """
    return support_matrix(Catalog(catalog), query)


def diff_releases(catalog: Catalog, old: str, new: str, *, trtllm: bool = False) -> ReleaseDiff:
    """What changes from one release to another.

    Args:
        trtllm: `old` and `new` are TensorRT-LLM versions, not Triton releases.

    Raises:
        UsageError: an unknown release, or text that is no version.
    """
    a, b = (_stack(catalog, name, trtllm) for name in (old, new))
    return diff_stacks(catalog, a, b, facts=not trtllm)


def diff_stacks(
    catalog: Catalog, a: StackRelease, b: StackRelease, *, facts: bool = True
) -> ReleaseDiff:
    """As :func:`diff_releases`, between two stacks that were looked up already.

    Args:
        facts: compare what the containers carry too; off where a side is a version alone.
    """
    left, right = catalog.contract(a.tensorrt_llm), catalog.contract(b.tensorrt_llm)
    unknown = [
        f"no contract of TensorRT-LLM {stack.tensorrt_llm}: what it accepts is unknown "
        f"(known: {', '.join(catalog.contract_versions)})"
        for stack, contract in ((a, left), (b, right))
        if contract is None
    ]
    contracts = None
    if left is not None and right is not None:
        ends = sorted((Version(left.version), Version(right.version)))
        between = [
            found
            for version in catalog.contract_versions
            if ends[0] < Version(version) < ends[1]
            and (found := catalog.contract(version)) is not None
        ]
        contracts = diff(left, right, between)
        unknown += contracts.unknown
    carried = _stack_changes(a, b) if facts else []
    changes = (*carried, *(contracts.changes if contracts else ()))
    return ReleaseDiff(
        a,
        b,
        left,
        right,
        contracts,
        tuple(sorted(changes, key=Change.order)),
        tuple(dict.fromkeys(unknown)),
    )


def _stack(catalog: Catalog, name: str, trtllm: bool) -> StackRelease:
    if trtllm:
        if name in catalog.stacks:
            raise UsageError(
                f"`{name}` is a Triton release, not a TensorRT-LLM version",
                where=Where(key="--trtllm"),
                hint=f"drop --trtllm, or write {catalog.stack(name).tensorrt_llm}",
            )
        return catalog.stack(StackRef(trtllm=name), Where(key="--trtllm"))
    return stack_named(catalog, name, "matrix diff")


def _stack_changes(a: StackRelease, b: StackRelease) -> list[Change]:
    found: list[Change] = []
    for name in _FACTS:
        old, new = getattr(a, name), getattr(b, name)
        if old == new:
            continue
        known = old is not None and new is not None
        note = None if known else f"{name} of {a.id if old is None else b.id} is unknown"
        kind = ChangeKind.CHANGED if known else ChangeKind.UNKNOWN
        found.append(Change(kind, Area.STACK, (name,), (name,), old, new, known, note))
    return found
