"""Look-ups in the support tables. Each file is read when it is first asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from engineroom.catalog import models, node_models, support_models
from engineroom.catalog.engine_config import EngineConfigFile
from engineroom.catalog.files import CatalogFiles
from engineroom.catalog.trtllm_checkpoint import TrtllmCheckpointFile
from engineroom.errors import InternalError
from engineroom.names import LaneName, Support

NO_TABLE = "no support table for this lane and version"


@dataclass(frozen=True)
class SupportCell:
    """One verdict and who says so.

    Attributes:
        axis: ``weights`` or ``kv_cache``.
        verified_on, confidence: None when there is no table at all.
    """

    lane: LaneName
    versions: str
    axis: str
    fmt: str
    compute_capability: str
    support: Support
    sources: tuple[str, ...]
    verified_on: str | None
    confidence: str | None
    note: str | None = None


class SupportTables(CatalogFiles):
    """`deploy/support/*.yaml` and `deploy/contracts/engine_config.json` as typed rows."""

    @cached_property
    def precision(self) -> support_models.PrecisionFile:
        return self._single("deploy/support/precision.yaml", support_models.PrecisionFile)

    @cached_property
    def lanes(self) -> support_models.LanesFile:
        return self._single("deploy/support/lanes.yaml", support_models.LanesFile)

    @cached_property
    def drivers(self) -> node_models.DriversFile:
        return self._single("deploy/support/drivers.yaml", node_models.DriversFile)

    @cached_property
    def mig(self) -> node_models.MigFile:
        return self._single("deploy/support/mig.yaml", node_models.MigFile)

    @cached_property
    def attention(self) -> support_models.AttentionFile:
        return self._single("deploy/support/attention.yaml", support_models.AttentionFile)

    @cached_property
    def writers(self) -> support_models.WritersFile:
        return self._single("deploy/support/writers.yaml", support_models.WritersFile)

    @cached_property
    def engine_config(self) -> EngineConfigFile:
        return self._json("deploy/contracts/engine_config.json", EngineConfigFile)

    @cached_property
    def trtllm_checkpoint(self) -> TrtllmCheckpointFile:
        return self._json("deploy/contracts/trtllm_checkpoint.json", TrtllmCheckpointFile)

    @cached_property
    def constraints(self) -> dict[str, support_models.ConstraintRow]:
        """Every pairwise rule by id."""
        file = self._single("deploy/support/constraints.yaml", support_models.ConstraintsFile)
        return {row.id: row for row in file.constraints}

    def constraint(self, name: str) -> support_models.ConstraintRow:
        """The row that a rule in code cites.

        Raises:
            InternalError: no such row; our own rule names one that the data does not have.
        """
        if name not in self.constraints:
            raise InternalError(f"deploy/support/constraints.yaml has no row `{name}`")
        return self.constraints[name]

    # ---- precision
    def precision_cell(
        self, lane: LaneName, version: str, axis: str, fmt: str, compute_capability: str
    ) -> SupportCell:
        """Support of a weight or KV format on one compute capability in one version.

        An architecture that the version does not know at all answers for every format.

        Args:
            axis: ``weights`` or ``kv_cache``.
        """
        for row in () if lane is LaneName.VLLM else self.precision.architectures:
            if row.compute_capability == compute_capability and not in_range(version, row.versions):
                return SupportCell(
                    lane, row.versions, axis, fmt, compute_capability, Support.NO, row.source,
                    row.verified_on, row.confidence,
                    f"TensorRT-LLM knows compute capability {compute_capability} ({row.name}) in "
                    f"versions {row.versions} only",
                )  # fmt: skip
        for table in self.precision.tables:
            if table.lane == lane and in_range(version, table.versions):
                return _cell(table, lane, axis, fmt, compute_capability)
        return SupportCell(
            lane, "", axis, fmt, compute_capability, Support.UNKNOWN, (NO_TABLE,), None, None
        )

    def precision_support(
        self, lane: LaneName, version: str, axis: str, fmt: str, compute_capability: str
    ) -> tuple[Support, str]:
        """As :meth:`precision_cell`, the verdict and its sources as one text."""
        cell = self.precision_cell(lane, version, axis, fmt, compute_capability)
        return cell.support, "; ".join(cell.sources)

    def precision_cells(
        self, lane: LaneName, version: str, compute_capability: str
    ) -> Iterator[SupportCell]:
        """Every format that the table of this lane and version names, weights first."""
        for table in self.precision.tables:
            if table.lane == lane and in_range(version, table.versions):
                for axis, formats in (("weights", table.weights), ("kv_cache", table.kv_cache)):
                    for fmt in formats:
                        yield self.precision_cell(lane, version, axis, fmt, compute_capability)

    # ---- drivers
    def cuda_of_driver(self, driver: str) -> str | None:
        """Highest CUDA ``major.minor`` that a driver reports, or None.

        A driver reports the CUDA of the toolkit release that it shipped with; branches in between
        (525, 530, 565, …) are not in the table, so an unlisted branch answers with the branch below
        it, which is a lower bound.
        """
        wanted = _numbers(driver)
        best: tuple[tuple[int, ...], str] | None = None
        for row in self.drivers.toolkits.rows:
            have = _numbers(row.driver)
            if wanted and have and have <= wanted and (best is None or have > best[0]):
                best = have, ".".join(row.cuda.split(".")[:2])
        return best[1] if best else None

    def mig_profile(self, sku: str, profile: str) -> node_models.MigProfile | None:
        """A slice such as ``1g.10gb`` of a SKU, or None when no source lists it."""
        for row in self.mig.gpus:
            if sku in row.skus:
                return row.profiles.get(profile)
        return None


def _cell(
    table: support_models.PrecisionTable,
    lane: LaneName,
    axis: str,
    fmt: str,
    compute_capability: str,
) -> SupportCell:
    formats = table.weights if axis == "weights" else table.kv_cache
    row = formats.get(fmt)
    return SupportCell(
        lane=lane,
        versions=table.versions,
        axis=axis,
        fmt=fmt,
        compute_capability=compute_capability,
        support=row.get(compute_capability) if row else Support.UNKNOWN,
        sources=(row.source if row else None) or table.source,
        verified_on=(row.verified_on if row else None) or table.verified_on,
        confidence=(row.confidence if row else None) or table.confidence,
        note=row.note if row else None,
    )


def _numbers(driver: str) -> tuple[int, ...] | None:
    if not re.fullmatch(models.DRIVER_VERSION, driver):
        return None
    return tuple(int(part) for part in driver.split("."))


@lru_cache(maxsize=8192)
def in_range(version: str, specifier: str) -> bool:
    """PEP 440 range test with pre-releases counted: 1.4.0rc4 is in ``>=1.3``."""
    return SpecifierSet(specifier).contains(Version(version), prereleases=True)
