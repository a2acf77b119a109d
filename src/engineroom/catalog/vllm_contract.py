"""The contract of one vLLM version: what `model.json` may say, and the vLLM backend's tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version
from pydantic import BaseModel, ConfigDict, ValidationError

from engineroom.catalog import resources
from engineroom.catalog.contract import Contract
from engineroom.catalog.files import read_json
from engineroom.catalog.support import SupportTables
from engineroom.errors import CatalogError, Where
from engineroom.names import LaneName


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class _Argument(_Row):
    """A field of AsyncEngineArgs. `default` is absent where it is computed."""

    type: str
    default: bool | int | float | str | None = None
    allowed: tuple[bool | int | str, ...] | None = None


class _Tensor(_Row):
    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool


class _Memory(_Row):
    """Whether CUDA graphs count within gpu_memory_utilization; whether a KV dtype of `auto` takes the
    checkpoint's KV format. None: not read in the source of this version."""

    cuda_graphs_within_utilization: bool
    auto_kv_follows_checkpoint: bool | None


class _ModelOpt(_Row):
    """Checkpoints of ModelOpt that the version loads."""

    quant_algos: tuple[str, ...]
    kv_cache_quant_algos: tuple[str, ...]
    min_compute_capability: dict[str, str]


class _Backend(_Row):
    """triton-inference-server/vllm_backend: tensors, and the sampling key of guided decoding."""

    release: str
    guided_decoding_key: Literal["guided_decoding", "structured_outputs"]
    inputs: tuple[_Tensor, ...]
    outputs: tuple[_Tensor, ...]


class _File(_Row):
    schema_version: Literal[1]
    kind: Literal["vllm"]
    version: str
    sources: dict[str, str]
    verified_on: str
    confidence: Literal["high", "medium", "low", "unknown"]
    note: str
    engine_args: dict[str, _Argument]
    kv_cache_dtypes: tuple[str, ...]
    block_sizes: tuple[int, ...] | None
    memory: _Memory
    modelopt: _ModelOpt
    backend: _Backend


class VllmContract(Contract):
    """`deploy/contracts/vllm/<version>.json`. It has the vllm lane and nothing of TensorRT-LLM."""

    @property
    def knows_families(self) -> bool:
        return True

    def has_lane(self, lane: LaneName) -> bool:
        return lane is LaneName.VLLM

    @property
    def has_engine_lane(self) -> bool:
        return False

    @property
    def has_llmapi_lane(self) -> bool:
        return False

    @property
    def engine_args(self) -> Mapping[str, Mapping[str, Any]]:
        """Fields of AsyncEngineArgs, which are the keys of `model.json`: an unknown one is a TypeError."""
        facts: Mapping[str, Mapping[str, Any]] = self.data["engine_args"]
        return facts

    @property
    def kv_cache_dtypes(self) -> tuple[str, ...]:
        return tuple(self.data["kv_cache_dtypes"])

    @property
    def block_sizes(self) -> tuple[int, ...] | None:
        """Sizes the version lists; None where it takes any positive number."""
        sizes = self.data["block_sizes"]
        return None if sizes is None else tuple(sizes)

    @property
    def quant_algos(self) -> tuple[str, ...]:
        """`quant_algo` of ModelOpt checkpoints that the version loads."""
        return tuple(self.data["modelopt"]["quant_algos"])

    @property
    def cuda_graphs_within_utilization(self) -> bool:
        return bool(self.data["memory"]["cuda_graphs_within_utilization"])

    @cached_property
    def backend(self) -> Mapping[str, Any]:
        """`inputs` and `outputs` of the vLLM backend, `release`, `guided_decoding_key`."""
        facts: Mapping[str, Any] = self.data["backend"]
        return facts


def read_vllm_contract(path: Path, version: str) -> VllmContract:
    """Read and check one contract.

    Raises:
        CatalogError: not of the shape of one, or of another version.
    """
    data, raw = read_json(path)
    try:
        _File.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise CatalogError(
            f"not a contract of vLLM {version}: {first['msg']}",
            where=Where(path.as_posix(), key=".".join(map(str, first["loc"])) or None),
            hint="see the shipped files of deploy/contracts/vllm/",
        ) from None
    if data["version"] != version:
        raise CatalogError(
            f"the file is named {version} and says {data['version']}",
            where=Where(path.as_posix(), key="version"),
        )
    return VllmContract(version, data, hashlib.sha256(raw).hexdigest(), path.as_posix())


class VllmContracts(SupportTables):
    """`deploy/contracts/vllm/*.json`, shipped and overlaid."""

    @cached_property
    def _vllm_files(self) -> dict[str, Path]:
        files = resources.find_files(self.roots, "deploy/contracts/vllm", ".json")
        return {Path(relative).stem: path for relative, path in files.items()}

    @cached_property
    def vllm_versions(self) -> tuple[str, ...]:
        """vLLM versions that have a contract, oldest first."""
        return tuple(sorted(self._vllm_files, key=Version))

    def vllm_contract(self, version: str) -> VllmContract | None:
        """The contract of exactly this vLLM version, or None.

        Raises:
            CatalogError: a file that is not of the shape of one.
        """
        path = self._vllm_files.get(version)
        if path is None:
            return None
        if version not in self._vllm_cache:
            self._vllm_cache[version] = read_vllm_contract(path, version)
        return self._vllm_cache[version]

    @cached_property
    def _vllm_cache(self) -> dict[str, VllmContract]:
        return {}
