"""The table of request fields: one line a thing, its name on each kind of model, and since when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engineroom.catalog import Catalog, Contract
from engineroom.catalog.request_fields import (
    DIALECTS,
    PARAMETERS,
    Dialect,
    FieldRow,
    contract_names,
    contracts_of,
    load_request_fields,
)


@dataclass(frozen=True)
class NameUse:
    """A name of one dialect.

    Attributes:
        versions: ``""`` for every version with a contract; ``ours`` for an addition of engineroom's
            repositories; else the versions that have it, such as ``from 1.4.0rc4``.
    """

    name: str
    versions: str = ""

    @property
    def text(self) -> str:
        return f"{self.name} ({self.versions})" if self.versions else self.name


@dataclass(frozen=True)
class FieldLine:
    """One thing. `side` is inputs or outputs; `id` is its name here, `option` of `generate`."""

    side: str
    id: str
    option: str | None
    names: dict[Dialect, tuple[NameUse, ...]]

    def as_dict(self) -> dict[str, object]:
        names = {
            dialect: [{"name": use.name, "versions": use.versions or "all"} for use in uses]
            for dialect, uses in self.names.items()
        }
        return {"side": self.side, "id": self.id, "option": self.option, "names": names}


@dataclass(frozen=True)
class FieldTable:
    """Lines with a counterpart elsewhere, and the names of each dialect that have none.

    Attributes:
        alone: (side, dialect) to names.
    """

    lines: tuple[FieldLine, ...]
    alone: dict[tuple[str, Dialect], tuple[NameUse, ...]]

    def as_dict(self) -> dict[str, object]:
        return {
            "fields": [line.as_dict() for line in self.lines],
            "alone": [
                {"side": side, "kind": dialect, "names": [use.text for use in uses]}
                for (side, dialect), uses in self.alone.items()
            ],
        }


def field_table(catalog: Catalog) -> FieldTable:
    """Names by the contracts of every version, joined by the synonyms of request_fields.yaml."""
    table = load_request_fields(catalog)
    contracts = {dialect: contracts_of(catalog, dialect) for dialect in DIALECTS}
    lines: list[FieldLine] = []
    alone: dict[tuple[str, Dialect], tuple[NameUse, ...]] = {}
    for side, rows in (("inputs", table.inputs), ("outputs", table.outputs)):
        lines += [_line(side, row, contracts) for row in rows]
        for dialect in DIALECTS:
            placed = {name for row in rows for name in row.names(dialect)}
            every = set().union(*(contract_names(c, dialect, side) for c in contracts[dialect]))
            if dialect == "vllm" and side == "inputs":
                every |= table.parameters
                placed.add(PARAMETERS)
            rest = sorted(every - placed)
            alone[side, dialect] = tuple(_use(name, dialect, side, contracts) for name in rest)
    return FieldTable(tuple(lines), {key: uses for key, uses in alone.items() if uses})


def _line(side: str, row: FieldRow, contracts: dict[Dialect, list[Contract]]) -> FieldLine:
    names = {
        dialect: tuple(_use(name, dialect, side, contracts) for name in row.names(dialect))
        for dialect in DIALECTS
    }
    return FieldLine(side, row.id, row.option, names)


def _use(
    name: str, dialect: Dialect, side: str, contracts: dict[Dialect, list[Contract]]
) -> NameUse:
    if "." in name:  # a key of vLLM's object of sampling parameters, which no contract lists
        return NameUse(name)
    every = [c.version for c in contracts[dialect]]
    have = [c.version for c in contracts[dialect] if name in contract_names(c, dialect, side)]
    return NameUse(name, _versions(have, every))


def _versions(have: Sequence[str], every: Sequence[str]) -> str:
    if not have:
        return "ours"
    if list(have) == list(every):
        return ""
    first, last = every.index(have[0]), every.index(have[-1])
    if list(have) != list(every[first : last + 1]):
        return ", ".join(have)
    if last == len(every) - 1:
        return f"from {have[0]}"
    return f"until {have[-1]}" if first == 0 else f"{have[0]} to {have[-1]}"
