"""Loads the catalog: validates each file against its schema, answers look-ups."""

from __future__ import annotations

import difflib
import hashlib
import re
from functools import cached_property
from pathlib import Path

from packaging.version import InvalidVersion, Version

from engineroom.catalog import models, resources
from engineroom.catalog.contract import Contract
from engineroom.catalog.contract_schema import first_problem
from engineroom.catalog.files import read_json
from engineroom.catalog.support import in_range
from engineroom.catalog.vllm_contract import VllmContracts
from engineroom.errors import CatalogError, UsageError, Where
from engineroom.names import KvCacheFormat, LaneName
from engineroom.spec import yaml_lines
from engineroom.spec.model import StackRef
from engineroom.types import GpuSku, StackRelease, VllmRelease

__all__ = ["Catalog", "in_range"]

_MAX_LABEL = 256
_PRODUCT = re.compile(r"(.+?)(?:-MIG-(?:INVALID|[0-9a-z.]+(?:-me[a-z.]*)?))?(?:-SHARED)?")
"""What GPU feature discovery appends to `nvidia.com/gpu.product` (NVIDIA/k8s-device-plugin,
internal/lm/resource.go and mig-strategy.go @ 1b826acc)."""


class Catalog(VllmContracts):
    """All facts, shipped and overlaid: look-ups that answer with the nearest name when they miss."""

    # ---- SKUs and stacks
    @cached_property
    def skus(self) -> dict[str, GpuSku]:
        """Every SKU by id; reads every file. Use :meth:`sku` for one."""
        return {name: self._sku(name) for name in self._sku_files}

    @cached_property
    def _sku_files(self) -> dict[str, Path]:
        files = resources.find_files(self.roots, "build/skus", ".yaml")
        return {Path(relative).stem: path for relative, path in files.items()}

    def _sku(self, name: str) -> GpuSku:
        if name not in self._sku_cache:
            row = self._member(f"{name}.yaml", self._sku_files[name], models.SkuFile)
            self._sku_cache[name] = GpuSku(
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
                aliases=row.aliases,
                brand=row.brand,
                mig_supported=row.mig_supported,
            )
        return self._sku_cache[name]

    @cached_property
    def _sku_cache(self) -> dict[str, GpuSku]:
        return {}

    def sku_by_product(self, label: str) -> GpuSku | None:
        """The SKU behind a `nvidia.com/gpu.product` label or an NVML product name.

        The suffixes of a MIG slice and of a shared GPU are taken off; what is left must equal a
        node label or an alias, upper and lower case included. Never by a part of the name: the
        RTX A6000 and the RTX 6000 Ada differ in compute capability.
        """
        match = _PRODUCT.fullmatch(_as_label(label[:_MAX_LABEL]))
        if match is None:
            return None
        for name, path in self._sku_files.items():
            # Files that do not have the name anywhere need not be parsed.
            if match[1] in _as_label(path.read_text(encoding="utf-8", errors="replace")):
                sku = self._sku(name)
                if match[1] in (sku.node_label, *map(_as_label, sku.aliases)):
                    return sku
        return None

    def sku(self, name: str, where: Where | None = None) -> GpuSku:
        """A SKU by id.

        Raises:
            UsageError: not in the catalog; the hint has the nearest ids.
        """
        if name in self._sku_files:
            return self._sku(name)
        raise UsageError(
            f"no GPU SKU `{name}` in the catalog",
            where=where,
            hint=_nearest(name.lower(), list(self._sku_files), "build/skus/"),
        )

    @cached_property
    def stacks(self) -> dict[str, StackRelease]:
        """Every Triton release by id; reads every file. Use :meth:`stack` for one."""
        return {name: self._stack(name) for name in self._stack_files}

    @cached_property
    def _stack_files(self) -> dict[str, Path]:
        files = resources.find_files(self.roots, "deploy/stacks", ".yaml")
        return {Path(relative).stem: path for relative, path in files.items()}

    def _stack(self, name: str) -> StackRelease:
        row = self._member(f"{name}.yaml", self._stack_files[name], models.StackFile)
        vllm = row.vllm
        return StackRelease(
            **row.model_dump(
                include={
                    "id", "image", "tensorrt_llm", "tensorrt", "torch", "cuda", "python",
                    "toolkit_driver", "min_driver", "require_cuda", "source", "confidence", "note",
                }
            ),
            vllm=VllmRelease(**vllm.model_dump(exclude={"image_size_gb", "verified_on"})) if vllm else None,
        )  # fmt: skip

    def known_stack(self, name: str) -> StackRelease | None:
        """The Triton release of that name, or None; reads its file only."""
        return self._stack(name) if name in self._stack_files else None

    def stack(self, ref: StackRef | str, where: Where | None = None) -> StackRelease:
        """A stack by Triton release, or made from an explicit TensorRT-LLM version.

        Raises:
            UsageError: an unknown release, or a version that is not PEP 440.
        """
        if isinstance(ref, str):
            if ref in self._stack_files:
                return self._stack(ref)
            raise UsageError(
                f"no Triton release `{ref}` in the catalog",
                where=where,
                hint=_nearest(ref, list(self._stack_files), "deploy/stacks/")
                + "; or write {trtllm: VERSION, image: REF}",
            )
        given = ref.vllm or ref.trtllm or ""
        try:
            version = str(Version(given.strip()))  # v1.2.1 and 1.2.1 are one version
        except InvalidVersion:
            raise UsageError(
                f"`{given}` is not a version", where=where, hint="write e.g. 1.2.1"
            ) from None
        if ref.vllm:
            release = VllmRelease(version, ref.image, source=("the spec",))
            return StackRelease(f"vllm-{version}", None, "", vllm=release)
        return StackRelease(
            id=f"trtllm-{version}",
            image=ref.image,
            tensorrt_llm=version,
            source=("the spec",),
        )

    def lane_stack(
        self, ref: StackRef | str, lane: LaneName, where: Where | None = None
    ) -> StackRelease:
        """A stack as one lane runs on it: the vLLM lane has a container of its own.

        Raises:
            UsageError: an unknown release, or one that does not have the lane's runtime.
        """
        stack = self.stack(ref, where)
        if lane is LaneName.VLLM:
            own = stack.of_vllm()
            if own is None:
                raise UsageError(
                    f"stack {stack.id} has no vLLM container, which the vllm lane runs on",
                    where=where,
                    hint="use a Triton release such as 26.07, or {vllm: VERSION, image: REF}",
                )
            return own
        if not stack.tensorrt_llm:
            raise UsageError(
                f"stack {stack.id} names a vLLM version, and the {lane} lane runs on TensorRT-LLM",
                where=where,
                hint="set lane: vllm, or name a Triton release or {trtllm: VERSION, image: REF}",
            )
        return stack

    def lane_contract(self, lane: LaneName, version: str) -> Contract | None:
        """What exactly this version of the lane's runtime accepts, or None: then nothing is known."""
        return self.vllm_contract(version) if lane is LaneName.VLLM else self.contract(version)

    # ---- contracts
    @cached_property
    def contract_versions(self) -> tuple[str, ...]:
        files = resources.find_files(self.roots, "deploy/contracts/trtllm", ".json")
        for name, path in files.items():
            try:
                number = str(Version(Path(name).stem))
            except InvalidVersion:
                number = ""
            if name != f"{number}.json":  # v1.2.1 and 1.2.1 are one version, and one file
                raise CatalogError(
                    "a contract's file name must be a TensorRT-LLM version",
                    where=Where(path.as_posix()),
                    hint=f"name it deploy/contracts/trtllm/{number or '1.2.1'}.json",
                )
        return tuple(sorted((Path(name).stem for name in files), key=Version))

    def contract(self, version: str) -> Contract | None:
        """The contract of exactly this TensorRT-LLM version, or None: then nothing is known.

        Raises:
            CatalogError: a file that is not of the shape of a contract; names the file and the key.
        """
        files = resources.find_files(self.roots, "deploy/contracts/trtllm", ".json")
        path = files.get(f"{version}.json")
        if path is None:
            return None
        if version not in self._contract_cache:
            data, raw = read_json(path)
            problem = first_problem(data, version)
            if problem is not None:
                raise CatalogError(
                    f"not a contract of TensorRT-LLM {version}: {problem[1]}",
                    where=Where(path.as_posix(), key=yaml_lines.dotted(problem[0]) or None),
                    hint="see the shipped files of deploy/contracts/trtllm/, or write it with "
                    "`engineroom matrix capture`",
                )
            self._contract_cache[version] = Contract(
                version, data, hashlib.sha256(raw).hexdigest(), path.as_posix()
            )
        return self._contract_cache[version]

    @cached_property
    def _contract_cache(self) -> dict[str, Contract]:
        return {}

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


def _as_label(name: str) -> str:
    """A product name as GPU feature discovery writes it into a label (`sanitise`, same place)."""
    return "-".join(re.sub(r"[^A-Za-z0-9_. \n-]", "", name).split())


def _nearest(name: str, known: list[str], folder: str) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    if near:
        return "did you mean " + " or ".join(f"`{item}`" for item in near) + "?"
    return f"known: {', '.join(sorted(known))} (add a file to {folder} of a --catalog overlay)"
