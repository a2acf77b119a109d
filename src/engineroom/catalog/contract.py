"""A contract: what one TensorRT-LLM version accepts, as data read from upstream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engineroom.errors import CatalogError, Where
from engineroom.names import LaneName

_MODELS = {
    "inflight_batcher_llm": ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble"),
    "llmapi": ("",),  # one model, at the family's own level
}
_STEPS = ("preprocessing", "tensorrt_llm", "postprocessing")
_OBJECT = re.compile(r"(?:Optional\[)?([A-Z]\w*Config)\]?\Z")


def object_type(text: str) -> str | None:
    """``Optional[KvCacheConfig]`` as ``KvCacheConfig``; None for a type that is no single object."""
    match = _OBJECT.match(text)
    return match[1] if match else None


def _undescribed(model: str, facts: Mapping[str, Any]) -> str | None:
    """What a model's facts lack of what a lane reads, in words."""
    for side in ("inputs", "outputs"):
        if not facts.get(side):
            return f"its {side}"
        for tensor in facts[side]:
            # Rendering skips an optional tensor without a shape.
            known = tensor.get("data_type") is not None and tensor.get("dims") is not None
            known = known and all(isinstance(number, int) for number in tensor["dims"])
            if not known and not tensor.get("optional"):
                return f"type and shape of {tensor['name']}"
    if model == "tensorrt_llm" and "parameters" not in facts:
        return "its parameters"
    steps = tuple(step["model"] for step in facts.get("steps") or ())
    if model == "ensemble" and steps != _STEPS:
        return f"the steps {', '.join(_STEPS)}"
    return None


@dataclass(frozen=True)
class Contract:
    """`deploy/contracts/trtllm/<version>.json`, of the shape that `contract_schema` checks.

    The JSON keeps upstream's own names; this class answers the questions that lanes and checks
    ask, so that a version differs by data and not by code.
    """

    version: str
    data: Mapping[str, Any]
    digest: str
    file: str | None = None

    @property
    def knows_families(self) -> bool:
        """False for a contract captured where no Triton models were at hand: they may exist."""
        return bool(self.data["triton"]["families"])

    @property
    def has_engine_lane(self) -> bool:
        """True when this version has `trtllm-build` and the inflight_batcher_llm models."""
        return bool(self._build.get("command_exists")) and bool(
            self.data["triton"]["families"].get("inflight_batcher_llm")
        )

    @property
    def has_llmapi_lane(self) -> bool:
        return bool(self.data["triton"]["families"].get("llmapi"))

    def has_lane(self, lane: LaneName) -> bool:
        """Whether this version has what the lane renders for."""
        if lane is LaneName.ENGINE:
            return self.has_engine_lane
        return lane is LaneName.LLMAPI and self.has_llmapi_lane

    @property
    def _build(self) -> Mapping[str, Any]:
        return self.data.get("trtllm_build") or {}

    @cached_property
    def build_flags(self) -> Mapping[str, Mapping[str, Any]]:
        """`trtllm-build` flags with type, default and choices; empty where there is no command."""
        return self._build.get("flags") or {}

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
        return frozenset(self._class(type_name))

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
        return self._class(name) if name else {}

    def _class(self, name: str) -> Mapping[str, Mapping[str, Any]]:
        """Fields of a nested class; some are wrapped to say which source has the class."""
        rows = self.data["llm_api"].get("nested", {}).get(name)
        if isinstance(rows, Mapping) and "_presence" in rows:
            rows = rows.get("fields")
        if not isinstance(rows, Mapping):
            return {}
        return {key: facts for key, facts in rows.items() if isinstance(facts, Mapping)}

    @property
    def refuses_unknown_arguments(self) -> bool:
        """Whether the version's LLM argument models forbid unknown keys; before 1.0 they dropped them."""
        return str(self.data["llm_api"].get("extra_fields", "")) == "forbidden"

    def family(self, name: str) -> Mapping[str, Any]:
        """Triton family facts: models with tensors and parameters, as a lane renders them.

        Raises:
            CatalogError: the contract does not describe the family's models.
        """
        found = self.data["triton"].get(name)  # a remark in some contracts
        family: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
        for model in _MODELS.get(name, ()):
            facts: Any = family.get(model) if model else family
            missing = _undescribed(model, facts) if isinstance(facts, Mapping) else "the model"
            if missing:
                raise CatalogError(
                    f"the contract of TensorRT-LLM {self.version} does not describe {missing}: "
                    "nothing can be rendered from it",
                    where=Where(self.file, key=".".join(filter(None, ("triton", name, model)))),
                    hint="capture it with `engineroom matrix capture --all-models DIR`",
                )
        return family

    @property
    def confidence(self) -> str:
        value = self.data.get("confidence", "unknown")
        return str(value.get("overall", "unknown")) if isinstance(value, Mapping) else str(value)
