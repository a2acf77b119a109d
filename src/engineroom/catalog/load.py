"""Loads the catalog: validates each file against its schema, answers look-ups."""

from __future__ import annotations

import difflib
import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import ValidationError

from engineroom.catalog import models, resources
from engineroom.catalog.contract import Contract
from engineroom.errors import CatalogError, UsageError, Where
from engineroom.names import KvCacheFormat, LaneName, Support
from engineroom.spec import yaml_lines
from engineroom.spec.load import read_text
from engineroom.spec.model import StackRef
from engineroom.types import GpuSku, StackRelease

T = TypeVar("T", bound=models.Row)


class Catalog:
    """All facts, shipped and overlaid.

    Args:
        overlay: a directory with the same layout as the shipped data; its files replace those of
            the same relative path and add new ones.
    """

    def __init__(self, overlay: Path | None = None) -> None:
        self.roots = resources.catalog_roots(overlay)

    @property
    def template_roots(self) -> tuple[Path, ...]:
        """Roots of the model repository templates; a later one wins file by file."""
        return tuple(root / "model_repo_templates" for root in self.roots)

    # ---- files
    def _yaml(self, path: Path, model: type[T]) -> T:
        document = yaml_lines.parse(read_text(path, "catalog file"), path.as_posix())
        try:
            return model.model_validate(document.data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise CatalogError(
                first["msg"],
                where=document.where(tuple(first["loc"])),
                hint=f"see the fields of `{model.__name__}`; the shipped files are examples",
            ) from None

    def _folder(self, folder: str, model: type[T]) -> dict[str, T]:
        files = resources.find_files(self.roots, folder, ".yaml")
        rows: dict[str, T] = {}
        for relative, path in files.items():
            row = self._yaml(path, model)
            name = str(getattr(row, "id", relative))
            if name != Path(relative).stem:
                raise CatalogError(
                    f"the id `{name}` differs from the file name",
                    where=Where(path.as_posix(), key="id"),
                    hint=f"name the file {name}.yaml",
                )
            rows[name] = row
        return rows

    def _single(self, file: str, model: type[T]) -> T:
        path = next(root / file for root in reversed(self.roots) if (root / file).is_file())
        return self._yaml(path, model)

    @cached_property
    def digest(self) -> str:
        """sha256 over every catalog file's relative path and bytes, overlay included."""
        total = hashlib.sha256()
        for folder in ("build", "deploy"):
            for suffix in (".yaml", ".json"):
                for relative, path in resources.find_files(self.roots, folder, suffix).items():
                    total.update(f"{folder}/{relative}\0".encode())
                    total.update(hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()

    # ---- SKUs and stacks
    @cached_property
    def skus(self) -> dict[str, GpuSku]:
        rows = self._folder("build/skus", models.SkuFile)
        return {
            name: GpuSku(
                id=row.id,
                name=row.name,
                architecture=row.architecture,
                compute_capability=row.compute_capability,
                memory_mib=row.memory_mib,
                memory_basis=row.memory_basis,
                memory_bandwidth_gbs=row.memory_bandwidth_gbs,
                data_center=row.data_center,
                node_label=row.node_label,
                node_label_confidence=row.node_label_confidence or "unknown",
                source=row.source,
                verified_on=row.verified_on,
                confidence=row.confidence,
                max_gpus_per_node=row.max_gpus_per_node,
            )
            for name, row in rows.items()
        }

    def sku(self, name: str, where: Where | None = None) -> GpuSku:
        """A SKU by id.

        Raises:
            UsageError: not in the catalog; the hint has the nearest ids.
        """
        if name in self.skus:
            return self.skus[name]
        raise UsageError(
            f"no GPU SKU `{name}` in the catalog",
            where=where,
            hint=_nearest(name.lower(), list(self.skus), "build/skus/"),
        )

    @cached_property
    def stacks(self) -> dict[str, StackRelease]:
        rows = self._folder("deploy/stacks", models.StackFile)
        return {
            name: StackRelease(
                **row.model_dump(
                    include={
                        "id", "image", "tensorrt_llm", "tensorrt", "torch", "cuda", "python",
                        "toolkit_driver", "min_driver", "source", "confidence", "note",
                    }
                )
            )
            for name, row in rows.items()
        }  # fmt: skip

    def stack(self, ref: StackRef | str, where: Where | None = None) -> StackRelease:
        """A stack by Triton release, or made from an explicit TensorRT-LLM version.

        Raises:
            UsageError: an unknown release, or a version that is not PEP 440.
        """
        if isinstance(ref, str):
            if ref in self.stacks:
                return self.stacks[ref]
            raise UsageError(
                f"no Triton release `{ref}` in the catalog",
                where=where,
                hint=_nearest(ref, list(self.stacks), "deploy/stacks/")
                + "; or write {trtllm: VERSION, image: REF}",
            )
        try:
            version = str(Version(ref.trtllm.strip()))  # v1.2.1 and 1.2.1 are one version
        except InvalidVersion:
            raise UsageError(
                f"`{ref.trtllm}` is not a version", where=where, hint="write e.g. 1.2.1"
            ) from None
        return StackRelease(
            id=f"trtllm-{version}",
            image=ref.image,
            tensorrt_llm=version,
            source=("the spec",),
        )

    # ---- contracts
    @cached_property
    def contract_versions(self) -> tuple[str, ...]:
        files = resources.find_files(self.roots, "deploy/contracts/trtllm", ".json")
        for name, path in files.items():
            try:
                Version(Path(name).stem)
            except InvalidVersion:
                raise CatalogError(
                    "a contract's file name must be a TensorRT-LLM version",
                    where=Where(path.as_posix()),
                    hint="name it e.g. 1.2.1.json",
                ) from None
        return tuple(sorted((Path(name).stem for name in files), key=Version))

    def contract(self, version: str) -> Contract | None:
        """The contract of exactly this TensorRT-LLM version, or None: then nothing is known."""
        files = resources.find_files(self.roots, "deploy/contracts/trtllm", ".json")
        path = files.get(f"{version}.json")
        if path is None:
            return None
        raw = path.read_bytes()
        try:
            data: dict[str, Any] = json.loads(raw)
            api, triton = data["llm_api"]["fields"], data["triton"]["families"]
            if not api:
                raise ValueError("llm_api.fields is empty")
            if (
                data["version"] != version
                or not isinstance(api, dict)
                or not isinstance(triton, dict)
            ):
                raise ValueError(f"its version is {data['version']}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CatalogError(
                f"not a contract of TensorRT-LLM {version}: {error}",
                where=Where(path.as_posix()),
                hint="it needs the keys version, llm_api.fields and triton.families",
            ) from None
        return Contract(version, data, hashlib.sha256(raw).hexdigest())

    # ---- support
    @cached_property
    def precision(self) -> models.PrecisionFile:
        return self._single("deploy/support/precision.yaml", models.PrecisionFile)

    @cached_property
    def lanes(self) -> models.LanesFile:
        return self._single("deploy/support/lanes.yaml", models.LanesFile)

    @cached_property
    def drivers(self) -> models.DriversFile:
        return self._single("deploy/support/drivers.yaml", models.DriversFile)

    def precision_support(
        self, lane: LaneName, version: str, axis: str, fmt: str, compute_capability: str
    ) -> tuple[Support, str]:
        """Support of a weight or KV format, and the source that says so.

        Args:
            axis: ``weights`` or ``kv_cache``.
        """
        for table in self.precision.tables:
            if table.lane == lane and in_range(version, table.versions):
                cells = (table.weights if axis == "weights" else table.kv_cache).get(fmt, {})
                support = cells.get(compute_capability, Support.UNKNOWN)
                return support, "; ".join(table.source)
        return Support.UNKNOWN, "no support table for this lane and version"

    # ---- recipes
    @cached_property
    def weight_recipes(self) -> dict[str, models.WeightRecipe]:
        return self._folder("build/recipes/weights", models.WeightRecipe)

    @cached_property
    def kv_recipes(self) -> dict[str, models.KvRecipe]:
        return self._folder("build/recipes/kv_cache", models.KvRecipe)

    def weight_recipe(self, name: str, where: Where | None = None) -> models.WeightRecipe:
        """Raises UsageError when there is no such recipe: the format is not implemented."""
        if name in self.weight_recipes:
            return self.weight_recipes[name]
        raise UsageError(
            f"no weight recipe `{name}`: engineroom does not make this format",
            where=where,
            hint=_nearest(name, list(self.weight_recipes), "build/recipes/weights/"),
        )

    def kv_recipe(self, fmt: KvCacheFormat, where: Where | None = None) -> models.KvRecipe:
        """16-bit formats and `auto` share the recipe `none`: no scales are written."""
        name = (
            "none" if fmt in (KvCacheFormat.AUTO, KvCacheFormat.BF16, KvCacheFormat.FP16) else fmt
        )
        if name in self.kv_recipes:
            return self.kv_recipes[name]
        raise UsageError(
            f"no KV-cache recipe `{name}`: engineroom does not calibrate this format",
            where=where,
            hint="use kv_cache: fp8, or auto for 16 bit",
        )


def in_range(version: str, specifier: str) -> bool:
    """PEP 440 range test with pre-releases counted: 1.4.0rc4 is in ``>=1.3``."""
    return SpecifierSet(specifier).contains(Version(version), prereleases=True)


def _nearest(name: str, known: list[str], folder: str) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    if near:
        return "did you mean " + " or ".join(f"`{item}`" for item in near) + "?"
    return f"known: {', '.join(sorted(known))} (add a file to {folder} of a --catalog overlay)"
