"""`deploy/support/request_fields.yaml`: what one thing is called by each kind of model.

The names of a dialect are those of its models in the contracts; the file adds which of them mean the
same. A model's own metadata decides what it takes; this table says what a name would be elsewhere.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from engineroom.catalog.contract import Contract
from engineroom.catalog.load import Catalog
from engineroom.catalog.models import Confidence, Day, Row, Sources

FILE = "deploy/support/request_fields.yaml"
Dialect = Literal["engine", "core", "llmapi", "vllm"]
DIALECTS: tuple[Dialect, ...] = ("engine", "core", "llmapi", "vllm")
PARAMETERS = "sampling_parameters"
"""vLLM's input with the sampling parameters as one JSON object."""

_SHOWN = 12  # names that a message lists

# Family and models of the contracts that speak a dialect; an empty model is the family itself, and
# vLLM's contract has one backend and no families.
_MODELS: Mapping[Dialect, tuple[str, tuple[str, ...]]] = {
    "engine": ("inflight_batcher_llm", ("tensorrt_llm_bls", "ensemble")),
    "core": ("inflight_batcher_llm", ("tensorrt_llm",)),
    "llmapi": ("llmapi", ("",)),
    "vllm": ("", ("",)),
}
RESERVED = frozenset(
    {"id", "parameters", "model", "sequence_id", "sequence_start", "sequence_end", "priority",
     "timeout", "binary_data_output"}
)  # fmt: skip
"""Keys of a request that are the server's own and no input of a model (Triton's HTTP protocol)."""


def _names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


class FieldRow(Row):
    """One thing and its names.

    Attributes:
        option: the option of `engineroom generate`.
        ours: dialects whose name here only engineroom's repositories declare.
        also: names from elsewhere that people write.
        streamed: of an output, what the responses of a stream give together: their lists joined,
            their numbers added up, or the last one's value.
    """

    id: str
    option: str | None = None
    engine: Names = ()
    core: Names = ()
    llmapi: Names = ()
    vllm: Names = ()
    ours: tuple[Dialect, ...] = ()
    also: tuple[str, ...] = ()
    streamed: Literal["join", "sum", "last"] = "last"

    def names(self, dialect: str) -> tuple[str, ...]:
        found: tuple[str, ...] = getattr(self, dialect) if dialect in DIALECTS else ()
        return found

    def has(self, name: str) -> bool:
        """Whether the thing is called so anywhere; keys of vLLM's object go by their bare name."""
        every = [n for d in DIALECTS for n in self.names(d)]
        return name in (*every, *(n.partition(".")[2] for n in every), *self.also, self.id)


class FieldsFile(Row):
    schema_version: Literal[1]
    source: Sources
    verified_on: Day
    confidence: Confidence
    inputs: tuple[FieldRow, ...]
    outputs: tuple[FieldRow, ...]
    vllm_sampling_parameters: tuple[str, ...]


@dataclass(frozen=True)
class Hint:
    """What to do about a name that a model does not take.

    Attributes:
        name: as it was written.
        use: the model's name for it, or a declared name that is spelled alike; None: neither.
        renamed: True when `use` is the same thing, False when it is only spelled alike.
    """

    name: str
    use: str | None
    renamed: bool
    text: str


class RequestFields:
    """Look-ups by name and dialect."""

    def __init__(self, file: FieldsFile) -> None:
        self.file = file
        self.inputs, self.outputs = file.inputs, file.outputs
        self._by_id = {row.id: row for row in file.inputs}

    @property
    def parameters(self) -> frozenset[str]:
        """Keys of vLLM's object of sampling parameters, as ``sampling_parameters.NAME``."""
        return frozenset(f"{PARAMETERS}.{name}" for name in self.file.vllm_sampling_parameters)

    def names(self, what: str, dialect: str) -> tuple[str, ...]:
        """Names of an input by the row's id; empty where the dialect has none."""
        row = self._by_id.get(what)
        return row.names(dialect) if row else ()

    def name(self, what: str, dialect: str, declared: Collection[str]) -> str | None:
        """The first of the names that the model declares."""
        return next((n for n in self.names(what, dialect) if n in declared), None)

    def known(self, dialect: Dialect, contracts: Iterable[Contract]) -> frozenset[str]:
        """Every input name of a dialect: of these contracts and of our own repositories."""
        found = {n for row in self.inputs for n in row.names(dialect)}
        if dialect == "vllm":
            found |= self.parameters
        for contract in contracts:
            found |= contract_names(contract, dialect, "inputs")
        return frozenset(found)

    def hint(self, name: str, dialect: str, declared: Collection[str]) -> Hint:
        """What a name that is not declared may have meant.

        Args:
            declared: names of the model's inputs; for vLLM also ``sampling_parameters.NAME``.
        """
        plain = name.strip().lstrip("-").replace("-", "_")
        rows = [r for r in self.inputs if r.has(plain) or r.has(plain.lower())]
        for row in rows:
            use = next((n for n in row.names(dialect) if n in declared), None)
            if use is not None:
                return Hint(name, use, True, f"this model calls it `{use}`")
        if rows:
            there = "; ".join(
                f"{d}: {' or '.join(f'`{n}`' for n in rows[0].names(d))}"
                for d in DIALECTS
                if d != dialect and rows[0].names(d)
            )
            return Hint(name, None, False, f"this model has no input for {rows[0].id} ({there})")
        short = {n.partition(".")[2] or n: n for n in declared}
        near = difflib.get_close_matches(plain, list(short), n=1, cutoff=0.6)
        if near:
            return Hint(name, short[near[0]], False, f"did you mean `{short[near[0]]}`?")
        takes = sorted(n for n in declared if "." not in n)
        more = ", …" if len(takes) > _SHOWN else ""
        text = f"it takes {', '.join(takes[:_SHOWN]) or 'no inputs'}{more}"
        return Hint(name, None, False, text)


def contract_names(contract: Contract, dialect: Dialect, side: str) -> frozenset[str]:
    """Names of `inputs` or `outputs` of the dialect's models in a version; empty where it has none."""
    family, models = _MODELS[dialect]
    facts: Any = (contract.data.get("triton") or {}).get(family)
    if not family:
        facts = contract.data.get("backend")
    found: set[str] = set()
    for model in models if isinstance(facts, Mapping) else ():
        described = facts.get(model) if model else facts
        if isinstance(described, Mapping):
            found |= {str(t["name"]) for t in described.get(side) or ()}
    return frozenset(found)


def contracts_of(catalog: Catalog, dialect: Dialect) -> list[Contract]:
    """Contracts of every version that has the dialect's models, oldest first."""
    found: list[Contract | None] = (
        [catalog.vllm_contract(version) for version in catalog.vllm_versions]
        if dialect == "vllm"
        else [catalog.contract(version) for version in catalog.contract_versions]
    )
    return [c for c in found if c is not None and contract_names(c, dialect, "inputs")]


@lru_cache(maxsize=8)
def load_request_fields(catalog: Catalog) -> RequestFields:
    """Raises CatalogError when the file, or an overlay's, is not of its schema."""
    return RequestFields(catalog._single(FILE, FieldsFile))
