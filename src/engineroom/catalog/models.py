"""Closed schemas of the catalog files. Every row says where and when it was read."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from engineroom.names import KvCacheFormat, WeightFormat


def _as_tuple(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _source_text(value: Any) -> Any:
    return getattr(value, "text", value)


DRIVER_VERSION = re.compile(r"\d{3,4}(\.\d{1,4}){0,2}")
"""NVIDIA's form, as nvidia-smi prints it: 580.159.04."""


def _specifier(value: str) -> str:
    SpecifierSet(value)  # InvalidSpecifier is a ValueError
    return value


def _sources(value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        if not text.strip() or text.strip().lower() in ("none", "unknown", "engineroom"):
            raise ValueError(f"{text!r} is no source: name an upstream page, file or issue")
    return value


def _version(value: str) -> str:
    Version(value)  # InvalidVersion is a ValueError
    return value


def _driver(value: str) -> str:
    if not DRIVER_VERSION.fullmatch(value):
        raise ValueError(f"{value!r} is no driver version")
    return value


Ranges = Annotated[str, AfterValidator(_specifier)]
Finite = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Sources = Annotated[
    tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_sources), Field(min_length=1)
]
VersionText = Annotated[str, BeforeValidator(_source_text)]
PepVersion = Annotated[VersionText, AfterValidator(_version)]
Driver = Annotated[VersionText, AfterValidator(_driver)]
Confidence = Literal["high", "medium", "low", "unknown"]
Day = Annotated[str, Field(pattern=r"^20\d\d-[01]\d-[0-3]\d$")]
"""When somebody last read the source: year-month-day."""


class Row(BaseModel):
    """Closed and frozen; lax about int/float, strict about keys.

    Schemas are compiled when a file is first read: a run reads few of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class SkuFile(Row):
    """`build/skus/<id>.yaml`. Memory in MiB as NVML reports it; peaks dense, in TFLOPS."""

    schema_version: Literal[1]
    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    name: str
    aliases: tuple[str, ...] = ()
    architecture: str
    compute_capability: Annotated[VersionText, Field(pattern=r"^\d+\.\d$")]
    memory_mib: Annotated[int, Field(gt=0, strict=True)]
    memory_basis: Literal["nvml", "nominal"]
    memory_evidence: str
    memory_bandwidth_gbs: Finite
    dense_peak_tflops: dict[str, float | None]
    nvlink_gbs_bidirectional: float | None
    interconnect: str
    tdp_w: float | None
    mig_supported: bool
    mig_max_instances: int | None
    brand: str | None = None
    data_center: bool
    node_label: str
    node_label_confidence: str | None
    source: Sources
    verified_on: Day
    confidence: Confidence
    note: str | None = None
    max_gpus_per_node: Annotated[int, Field(gt=0)] = 8


class VllmContainer(Row):
    """The vllm-python-py3 container of a release; `build` is the version it reports."""

    image: str
    version: PepVersion
    build: PepVersion | None = None
    cuda: VersionText | None
    python: VersionText | None
    toolkit_driver: Driver | None
    min_driver: Driver | None
    image_size_gb: float | None = None
    source: Sources
    verified_on: Day
    confidence: Confidence
    note: str | None = None


class StackFile(Row):
    """`deploy/stacks/<release>.yaml`: the Triton containers of one release."""

    schema_version: Literal[1]
    id: VersionText
    image: str
    tensorrt_llm: PepVersion
    tensorrt: VersionText | None
    torch: VersionText | None
    cuda: VersionText | None
    python: VersionText | None
    toolkit_driver: Driver | None
    min_driver: Driver | None
    require_cuda: str | None = None
    image_size_gb: float | None = None
    source: Sources
    verified_on: Day
    confidence: Confidence
    note: str | None = None
    vllm: VllmContainer | None = None


class GroupSize(Row):
    default: int
    allowed: tuple[int, ...]


class WeightRecipe(Row):
    """`build/recipes/weights/<id>.yaml`: how a weight format is made.

    `bytes_per_group_scale` is the size of one scale as exported; 0 for per-tensor formats.
    `recommended_samples` is a default for `init`, not a limit.
    """

    schema_version: Literal[1]
    id: str
    weights: WeightFormat
    modelopt_config: str | None
    quant_algo: str | None
    algorithm: str
    weight_granularity: str
    activation_scheme: str
    group_size: GroupSize | None
    weight_dtype: str
    bytes_per_group_scale: int
    trtllm_checkpoint: bool
    recommended_samples: int
    source: Sources
    verified_on: Day
    confidence: Confidence


class KvRecipe(Row):
    """`build/recipes/kv_cache/<id>.yaml`; `scales`: calibrated, cast or absent."""

    schema_version: Literal[1]
    id: str
    kv_cache: KvCacheFormat
    modelopt_config: str | None
    kv_cache_quant_algo: str | None
    scales: Literal["calibrated", "cast", "absent"]
    source: Sources
    verified_on: Day
    confidence: Confidence
