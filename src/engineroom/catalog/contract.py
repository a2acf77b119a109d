"""A contract: what one TensorRT-LLM version accepts, as data read from upstream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_OBJECT = re.compile(r"(?:Optional\[)?([A-Z]\w*Config)\]?\Z")


def object_type(text: str) -> str | None:
    """``Optional[KvCacheConfig]`` as ``KvCacheConfig``; None for a type that is no single object."""
    match = _OBJECT.match(text)
    return match[1] if match else None


@dataclass(frozen=True)
class Contract:
    """`deploy/contracts/trtllm/<version>.json`.

    The JSON keeps upstream's own names; this class answers the questions that lanes and checks
    ask, so that a version differs by data and not by code.
    """

    version: str
    data: Mapping[str, Any]
    digest: str

    @property
    def has_engine_lane(self) -> bool:
        """True when this version has `trtllm-build` and the inflight_batcher_llm models."""
        build = self.data.get("trtllm_build", {})
        families = self.data.get("triton", {}).get("families", {})
        return bool(build.get("command_exists")) and bool(families.get("inflight_batcher_llm"))

    @property
    def has_llmapi_lane(self) -> bool:
        return bool(self.data.get("triton", {}).get("families", {}).get("llmapi"))

    @cached_property
    def build_flags(self) -> Mapping[str, Mapping[str, Any]]:
        """`trtllm-build` flags with type, default and choices."""
        flags: Mapping[str, Mapping[str, Any]] = self.data.get("trtllm_build", {}).get("flags", {})
        return flags

    @cached_property
    def llm_fields(self) -> Mapping[str, Mapping[str, Any]]:
        """Top-level LLM arguments with type, default and allowed values.

        Contracts read from a manifest list scalar arguments, objects and free text apart.
        """
        api = self.data["llm_api"]
        objects = {name: {"type": "object"} for name in api.get("nested_by_field", {})}
        return {**objects, **api.get("free_text_fields", {}), **api["fields"]}

    def nested_fields(self, field: str, type_name: str) -> frozenset[str]:
        """Keys of the nested type of an LLM argument, e.g. `kv_cache_config`, `KvCacheConfig`."""
        api = self.data["llm_api"]
        by_field = api.get("nested_by_field", {})
        if field in by_field:
            return frozenset(name.split(".")[0] for name in by_field[field])
        return frozenset(api.get("nested", {}).get(type_name, {}))

    def nested_facts(self, field: str) -> Mapping[str, Mapping[str, Any]]:
        """Type, default and allowed values of the keys of an object argument; empty when unknown.

        Keys of deeper objects are dotted (``dynamic_batch_config.enable_batch_size_tuning``) where a
        contract lists them.
        """
        api = self.data["llm_api"]
        by_field: Mapping[str, Any] = api.get("nested_by_field", {})
        if field in by_field:
            facts: Mapping[str, Mapping[str, Any]] = by_field[field]
            return facts
        name = object_type(str(self.llm_fields.get(field, {}).get("type", "")))
        nested: Mapping[str, Mapping[str, Any]] = api.get("nested", {}).get(name or "", {})
        return nested if isinstance(nested, Mapping) else {}

    @property
    def refuses_unknown_arguments(self) -> bool:
        """Whether the version's LLM argument models forbid unknown keys; before 1.0 they dropped them."""
        return str(self.data["llm_api"].get("extra_fields", "")) == "forbidden"

    def family(self, name: str) -> Mapping[str, Any]:
        """Triton family facts: models with tensors and parameters."""
        family: Mapping[str, Any] = self.data["triton"].get(name, {})
        return family

    @property
    def confidence(self) -> str:
        value = self.data.get("confidence", "unknown")
        return str(value.get("overall", "unknown")) if isinstance(value, Mapping) else str(value)
