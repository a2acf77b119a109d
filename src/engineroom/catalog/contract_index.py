"""A contract as one flat table: every name a TensorRT-LLM version accepts, by area and path.

The JSON files keep upstream's shapes (classes, unions, manifests), which differ between versions;
two versions can only be compared after both are brought to the same paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engineroom.catalog import contract_parts as parts
from engineroom.catalog.contract import Contract
from engineroom.catalog.contract_parts import MAX_DEPTH, WORD, Area, Entry, mapping, texts

Key = tuple[Area, str]


@dataclass(frozen=True)
class ContractIndex:
    """All entries of a contract.

    Attributes:
        unknown: areas that the contract says nothing about, with the reason.
        leaves_out_free_text: read from a manifest without free-text fields below the top level.
        sources: where each area was read.
    """

    version: str
    entries: Mapping[Key, Entry]
    unknown: Mapping[str, str]
    leaves_out_free_text: bool
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def find(self, name: str, *areas: Area) -> list[Key]:
        """Keys of a name as people write it: a path, or a flag of any `trtllm-serve` command."""
        exact = [(a, name) for a in areas or tuple(Area) if (a, name) in self.entries]
        if exact or not name.startswith("-"):
            return exact
        return [k for k in self.entries if k[0] is Area.SERVE and k[1].endswith(f" {name}")]

    def ancestors(self, entry: Entry) -> Iterator[Entry]:
        """Existing entries above one, nearest first; `entry` may be another version's."""
        path, seen = entry.parent, 0
        while path is not None and seen < MAX_DEPTH:
            seen += 1
            above = self.entries.get((entry.area, path))
            if above is not None:
                yield above
                path = above.parent
            else:
                path = path.rpartition(".")[0] or None


def index(contract: Contract) -> ContractIndex:
    """Flatten a contract. Parts whose shape is not understood are left out and named unknown."""
    data = contract.data
    api = mapping(data.get("llm_api"))
    entries: dict[Key, Entry] = {}
    unknown: dict[str, str] = {}
    found = (
        (Area.LLM_ARGS, parts.llm_args(contract, api)),
        (Area.TRT_LLM_ARGS, parts.flat(Area.TRT_LLM_ARGS, mapping(api.get("trt_llm_args")))),
        (Area.BUILD, parts.build(mapping(data.get("trtllm_build")))),
        (Area.SERVE, parts.serve(mapping(data.get("trtllm_serve")), unknown)),
        (Area.TRITON, parts.triton(mapping(data.get("triton")))),
        (Area.QUANTIZATION, parts.quantization(mapping(data.get("quantization")))),
        (Area.PINS, parts.pins(mapping(data.get("pins")))),
    )
    for area, rows in found:
        count = len(entries)
        for entry in rows:
            old = entries.get((area, entry.path))
            entries[(area, entry.path)] = entry if old is None else _merged(old, entry)
        if len(entries) == count and not _known_absent(area, data, api):
            unknown.setdefault(str(area), f"the contract of {contract.version} says nothing of it")
    return ContractIndex(
        contract.version,
        _with_uncertain(_with_early(entries), texts(api.get("uncertain"))),
        unknown,
        "free_text_fields" in api,
        _sources(data),
    )


def _known_absent(area: Area, data: Mapping[str, Any], api: Mapping[str, Any]) -> bool:
    if area is Area.BUILD:
        return mapping(data.get("trtllm_build")).get("command_exists") is False
    if area is Area.TRT_LLM_ARGS:  # null beside a removed command means that the class is gone
        gone = mapping(data.get("trtllm_build")).get("command_exists") is False
        return gone and "trt_llm_args" in api
    return False


def _merged(old: Entry, new: Entry) -> Entry:
    """Two classes of a union with the same key: what they do not share is unknown."""
    same = old.default == new.default and old.default_known and new.default_known
    return replace(
        old,
        type=old.type if old.type == new.type else None,
        default=old.default if same else None,
        default_known=same,
        allowed=old.allowed if old.allowed == new.allowed else None,
        caveat=old.caveat if old.caveat and new.caveat else None,
    )


_MONTHS = "January February March April May June July August September October November December"


def _with_early(entries: dict[Key, Entry]) -> dict[Key, Entry]:
    """Mark what only the earlier of two merged snapshots has."""
    dates: dict[str, tuple[int, int]] = {}
    for entry in entries.values():
        found = re.search(r"([A-Z][a-z]+) (20\d\d)\)", entry.caveat or "")
        if found and found[1] in _MONTHS.split():
            month = _MONTHS.split().index(found[1])
            dates[entry.caveat or ""] = (int(found[2]), month)
    if len(dates) < 2:
        return entries
    early = min(dates, key=lambda text: dates[text])
    return {k: replace(e, early_only=True) if e.caveat == early else e for k, e in entries.items()}


def _with_uncertain(entries: dict[Key, Entry], texts: tuple[str, ...]) -> dict[Key, Entry]:
    words = {word for text in texts for word in WORD.findall(text)}
    return {
        k: replace(e, caveat="the contract lists it as uncertain")
        if k[0] is Area.LLM_ARGS and k[1] in words and not e.caveat
        else e
        for k, e in entries.items()
    }


def _sources(data: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for area, part in (
        (Area.LLM_ARGS, "llm_api"),
        (Area.BUILD, "trtllm_build"),
        (Area.SERVE, "trtllm_serve"),
        (Area.QUANTIZATION, "quantization"),
        (Area.PINS, "pins"),
    ):
        facts = mapping(data.get(part))
        found[str(area)] = texts(facts.get("sources") or facts.get("source"))
    lines: dict[str, None] = {}
    triton = mapping(data.get("triton"))
    for family in map(mapping, triton.values()):
        for facts in (family, *map(mapping, family.values())):
            lines |= dict.fromkeys(texts(facts.get("sources") or facts.get("source")))
    found[str(Area.TRITON)] = tuple(lines)
    found[str(Area.TRT_LLM_ARGS)] = found[str(Area.LLM_ARGS)]
    return found
