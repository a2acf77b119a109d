"""Closed schemas of what a node brings: drivers, compatibility packages, MIG slices, labels."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from engineroom.catalog.models import Driver, Row, Sources, VersionText
from engineroom.catalog.support_models import Id, Sourced, unique_ids

CudaVersion = Annotated[VersionText, Field(pattern=r"^\d{1,2}\.\d{1,2}(\.\d{1,3})?$")]


# ---- drivers
class DriverFloor(Sourced):
    """Oldest driver of a CUDA major line (minor-version compatibility), Linux."""

    cuda: VersionText
    min_driver: Driver


class Toolkit(Row):
    """The driver that ships with a CUDA toolkit release (Linux x86_64)."""

    cuda: CudaVersion
    driver: Driver


class ToolkitTable(Sourced):
    rows: tuple[Toolkit, ...]


class ForwardCompatibility(Sourced):
    """The cuda-compat package: a newer CUDA major on an older driver."""

    package: str
    hardware: tuple[str, ...]
    rule: str


class RequireCuda(Sourced):
    """`NVIDIA_REQUIRE_CUDA` of a family of images for one CUDA version.

    Public images write the product of brands and driver branches out; here it is kept short.
    """

    images: str
    cuda: CudaVersion | None
    minimum: CudaVersion
    brands: tuple[str, ...] = ()
    branches: tuple[int, ...] = ()

    @property
    def expression(self) -> str:
        """The value as the image has it."""
        extra = [
            f"brand={brand},driver>={branch},driver<{branch + 1}"
            for branch in self.branches
            for brand in self.brands
        ]
        return " ".join([f"cuda>={self.minimum}", *extra])


class DriversFile(Row):
    schema_version: Literal[1]
    floors: tuple[DriverFloor, ...]
    toolkits: ToolkitTable
    forward_compatibility: ForwardCompatibility
    require_cuda: tuple[RequireCuda, ...]


# ---- MIG
class MigProfile(Row):
    """A slice: `instances` at most per GPU; memory in MiB as the label gives it, or None."""

    memory_mib: Annotated[int, Field(gt=0, strict=True)] | None
    instances: Annotated[int, Field(gt=0, strict=True)]


class MigRow(Sourced):
    """Profiles of the SKUs that share a memory size. `memory_source` is for `memory_mib`."""

    skus: Annotated[tuple[str, ...], Field(min_length=1)]
    profiles: dict[Annotated[str, StringConstraints(pattern=r"^\d+g\.\d+gb$")], MigProfile]
    memory_source: Sources | None = None


class LabelFact(Sourced):
    id: Id
    form: str
    rule: str


class MigFile(Row):
    schema_version: Literal[1]
    gpus: tuple[MigRow, ...]
    labels: Annotated[tuple[LabelFact, ...], AfterValidator(unique_ids)]
