"""`deploy/support/triton_parameters.yaml`: what a consumer does with the text of a parameter."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, model_validator
from typing_extensions import Self

from engineroom.catalog.load import Catalog, in_range
from engineroom.catalog.models import Confidence, Day, Ranges, Row, Sources

FILE = "deploy/support/triton_parameters.yaml"
Scalar = bool | int | float | str | None
Reader = Literal[
    "bool_cpp", "int_cpp", "uint_cpp", "uint32_cpp", "float_cpp", "ints_cpp", "sets_cpp", "tree_cpp",
    "choice_cpp", "bool_python", "bool_true", "bool_bls", "int_python", "float_python",
    "digits_python", "choice_python", "string",
]  # fmt: skip


class DefaultOf(Row):
    """A default that changed from one version to another."""

    versions: Ranges
    value: Scalar


def _defaults(value: Any) -> Any:
    return value if isinstance(value, list) else [{"versions": "", "value": value}]


class ParameterRow(Row):
    """One parameter of one model.

    Attributes:
        unreadable: what a text that the reader cannot read leads to.
        unfilled: what a placeholder that is left over leads to.
        above: the value must be larger, `below` smaller, `least` at least this.
        right: the value to write where a required one is missing.
        telling: left unfilled, its default gives answers that most clients do not want.
    """

    key: str
    reader: Reader
    effect: str
    accepted: tuple[str, ...] = ()
    default: Annotated[tuple[DefaultOf, ...], BeforeValidator(_defaults)] = ()
    required: bool = False
    unreadable: Literal["default", "refuse"] = "default"
    unfilled: Literal["default", "refuse", "ignore", "keep"] = "default"
    above: float | None = None
    below: float | None = None
    least: int | None = None
    right: str | None = None
    telling: bool = False
    versions: Ranges = ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.reader.startswith("choice") != bool(self.accepted):
            raise ValueError(f"`{self.key}`: a choice lists `accepted`, nothing else does")
        return self

    def defaults(self, version: str | None) -> tuple[Scalar, ...]:
        """The default of a version; of all versions, in the order of the file, where it is not known."""
        rows = [d.value for d in self.default if version is None or in_range(version, d.versions)]
        return tuple(dict.fromkeys(rows)) if rows else (None,)


class ParameterGroup(Row):
    """Parameters of one model in one backend, with where that was read."""

    family: Literal["inflight_batcher_llm", "llmapi"]
    model: str
    backend: Literal["tensorrtllm", "python"]
    versions: Ranges
    source: Sources
    verified_on: Day
    confidence: Confidence
    parameters: tuple[ParameterRow, ...]


class ParametersFile(Row):
    schema_version: Literal[1]
    groups: tuple[ParameterGroup, ...]


class TritonParameters:
    """Look-up by model, backend and key."""

    def __init__(self, file: ParametersFile) -> None:
        self.groups = file.groups

    def rows(self, model: str, backend: str, version: str | None) -> dict[str, ParameterRow]:
        """Rows of a version; where it is not known, the newest row of each key."""
        found: dict[str, ParameterRow] = {}
        for group in self._matching(model, backend):
            for row in group.parameters:
                if version is None or in_range(version, row.versions):
                    found.setdefault(row.key, row)
        return found

    def source(self, model: str, backend: str) -> str:
        return "; ".join(s for g in self._matching(model, backend) for s in g.source)

    def _matching(self, model: str, backend: str) -> tuple[ParameterGroup, ...]:
        return tuple(g for g in self.groups if g.model == model and g.backend == backend)


@lru_cache(maxsize=8)
def load_triton_parameters(catalog: Catalog) -> TritonParameters:
    """Raises CatalogError when the file, or an overlay's, is not of its schema."""
    return TritonParameters(catalog._single(FILE, ParametersFile))
