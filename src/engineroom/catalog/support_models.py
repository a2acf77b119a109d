"""Closed schemas of `deploy/support/*.yaml`: what goes with what, and who says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from engineroom.catalog.models import Confidence, Day, Ranges, Row, Sources, VersionText
from engineroom.names import Support

ComputeCapability = Annotated[VersionText, Field(pattern=r"^\d{1,2}\.\d$")]
Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Lane = Literal["engine", "llmapi", "vllm"]
Scalar = bool | int | float | str | None
_CELL = re.compile(r"\d{1,2}\.\d")


def unique_ids(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuses a file in which two rows have one id."""
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise ValueError(f"the id `{row.id}` is written twice")
        seen.add(row.id)
    return rows


def _cells(value: Any) -> Any:
    """``{"yes": 8.9 9.0, "no": 8.0}`` as one value per compute capability."""
    if not isinstance(value, dict):
        raise ValueError("write verdicts with compute capabilities, e.g. {yes: 8.9 9.0, no: 8.0}")
    cells: dict[str, Any] = {}
    for verdict, listed in value.items():
        for text in str(getattr(listed, "text", listed)).split():
            if not _CELL.fullmatch(text):
                raise ValueError(f"{text!r} is no compute capability such as 8.9")
            if text in cells:
                raise ValueError(f"compute capability {text} has two verdicts")
            cells[text] = verdict
    return cells


class Sourced(Row):
    """What every row says about itself."""

    source: Sources
    verified_on: Day
    confidence: Confidence
    note: str | None = None


# ---- precision
class FormatRow(Row):
    """One format: support by compute capability; a capability that is not listed is unknown.

    `source`, `verified_on` and `confidence` are the table's unless the row has its own.
    """

    cells: Annotated[dict[str, Support], BeforeValidator(_cells)]
    source: Sources | None = None
    verified_on: Day | None = None
    confidence: Confidence | None = None
    note: str | None = None

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        """The compute capabilities that have a verdict."""
        return iter(self.cells)

    def get(self, compute_capability: str, default: Support = Support.UNKNOWN) -> Support:
        return self.cells.get(compute_capability, default)


class PrecisionTable(Sourced):
    """Support of formats for one lane and version range, by compute capability."""

    lane: Lane
    versions: Ranges
    weights: dict[str, FormatRow]
    kv_cache: dict[str, FormatRow]


class ArchitectureRow(Sourced):
    """A compute capability that TensorRT-LLM knows only in a range of versions, in any format.

    Versions are TensorRT-LLM's, so the rows say nothing about the vLLM lane.
    """

    compute_capability: ComputeCapability
    name: str
    versions: Ranges


class PrecisionFile(Row):
    schema_version: Literal[1]
    legend: str
    architectures: tuple[ArchitectureRow, ...]
    tables: tuple[PrecisionTable, ...]
    notes: tuple[str, ...]


# ---- lanes
class LaneRow(Sourced):
    lane: Lane
    versions: Ranges
    support: Support
    reason: str
    fix: str


class LanesFile(Row):
    schema_version: Literal[1]
    lanes: tuple[LaneRow, ...]


# ---- constraints
class Condition(Row):
    """One comparison of one setting or fact with literal values; exactly one subject and test.

    Attributes:
        flag: a `trtllm-build` flag without dashes.
        parameter: a parameter of the Triton models (`config.pbtxt`).
        argument: an LLM argument, dotted (``kv_cache_config.enable_block_reuse``).
        fact: a property of the model, checkpoint, GPU or request.
        multiple_of: the value is a multiple of this number.
        same_as: the value equals that of another subject, named as ``kind:name``.
    """

    flag: str | None = None
    parameter: str | None = None
    argument: str | None = None
    fact: str | None = None
    equals: Scalar = None
    one_of: tuple[Scalar, ...] | None = None
    none_of: tuple[Scalar, ...] | None = None
    minimum: float | str | None = None
    maximum: float | str | None = None
    multiple_of: int | None = None
    same_as: str | None = None
    is_set: bool | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> Condition:
        subjects = {"flag", "parameter", "argument", "fact"}
        given = set(self.model_fields_set)
        if len(given & subjects) != 1 or len(given - subjects) != 1:
            raise ValueError(
                "a condition has one of flag, parameter, argument, fact and one test "
                "(equals, one_of, none_of, minimum, maximum, multiple_of, same_as, is_set)"
            )
        return self


class ConstraintRow(Sourced):
    """A pairwise rule: where it holds, what it says, and what the real consumer does about it.

    `when` and `requires` are conjunctions; `forbids` lists conditions of which none may hold. A row
    without them is a fact that a rule in Python cites by id; `values` is the closed list it needs.
    """

    id: Id
    lane: Literal["engine", "llmapi", "both"]
    versions: Ranges
    rule: str
    effect: Literal["reject", "warn", "adjust", "info", "unknown"]
    applies_to: Literal[
        "build", "llm_args", "triton", "checkpoint", "hardware", "deploy", "request"
    ]
    compute_capabilities: tuple[ComputeCapability, ...] | None = None
    when: tuple[Condition, ...] = ()
    requires: tuple[Condition, ...] = ()
    forbids: tuple[Condition, ...] = ()
    values: tuple[Scalar, ...] | None = None


class ConstraintsFile(Row):
    schema_version: Literal[1]
    constraints: Annotated[tuple[ConstraintRow, ...], AfterValidator(unique_ids)]


# ---- attention
class AttentionBackendRow(Sourced):
    """Attention implementations that one lane has, and how one is chosen."""

    lane: Lane
    versions: Ranges
    argument: str | None
    values: tuple[str, ...]
    default: str | None


KvMode = Literal["stored", "computed", "absent", "unknown"]


class KvComputeRow(Sourced):
    """What a quantized KV cache means for the attention arithmetic.

    ``stored``: values are kept in this format and turned back into 16 bit before the products.
    ``computed``: the products themselves run in `compute`. ``absent``: no kernel.
    """

    id: Id
    lane: Lane
    versions: Ranges
    kv_cache: Literal["fp8", "int8", "nvfp4"]
    phase: Literal["context", "generation"]
    compute: Literal["fp8", "16-bit"]
    modes: Annotated[dict[str, KvMode], BeforeValidator(_cells)]
    condition: str | None = None


class AttentionFile(Row):
    schema_version: Literal[1]
    backends: tuple[AttentionBackendRow, ...]
    kv_compute: Annotated[tuple[KvComputeRow, ...], AfterValidator(unique_ids)]


# ---- writers of checkpoints
class WriterRow(Sourced):
    """A ModelOpt range and the transformers range that it is made for."""

    modelopt: Ranges
    transformers: Ranges
    enforced: Literal["warning", "package metadata"]


class RuntimePins(Sourced):
    """What a TensorRT-LLM version is built with; None: no source that was read says it."""

    tensorrt_llm: Ranges
    transformers: VersionText | None
    modelopt: VersionText | None


class ConfigFact(Sourced):
    """A way of writing `config.json` that an older reader does not understand."""

    id: Id
    written_by: str
    ignored_by: str
    keys: tuple[str, ...]
    instead: tuple[str, ...]
    rule: str


class WritersFile(Row):
    schema_version: Literal[1]
    modelopt: tuple[WriterRow, ...]
    runtimes: tuple[RuntimePins, ...]
    config: Annotated[tuple[ConfigFact, ...], AfterValidator(unique_ids)]
