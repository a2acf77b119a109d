"""What rules about a Triton model repository share: parsed configs, roles, and names of fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engineroom.catalog.triton_parameters import (
    ParameterRow,
    TritonParameters,
    load_triton_parameters,
)
from engineroom.checks.evidence.context import Context
from engineroom.names import Severity
from engineroom.reading import model_config
from engineroom.reading.cpp_values import cpp_bool, stoi
from engineroom.reading.model_config import ModelConfig
from engineroom.reading.pbtxt import Scalar
from engineroom.types import Figure

PREPROCESSING, POSTPROCESSING, BLS = "preprocessing", "postprocessing", "tensorrt_llm_bls"
ENGINE, DISAGGREGATED = "tensorrt_llm", "disaggregated_serving_bls"
CPP, PYTHON = "tensorrtllm", "python"


@dataclass(frozen=True)
class Model:
    """One model folder.

    Attributes:
        index: its place in `triton_configs`.
        role: the model of the family whose code reads the parameters, or None.
        backend: ``tensorrtllm`` or ``python``: who reads the parameters.
    """

    index: int
    config: ModelConfig
    role: str | None
    backend: str

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def is_engine(self) -> bool:
        return self.role == ENGINE

    def key(self, path: str) -> str:
        return f"triton_configs[{self.index}].{path}" if path else f"triton_configs[{self.index}]"

    def parameter_key(self, key: str) -> str:
        return self.key(f"parameters.{key}")

    def line(self, key: str) -> int | None:
        scalar = self.config.parameters.get(key)
        return scalar.line if scalar else None


def models(c: Context) -> tuple[Model, ...]:
    """All configs, in order."""
    return tuple(
        Model(i, config, *role_of(config, c.evidence.triton_family))
        for i, config in enumerate(
            model_config.read(item.path, item.text) for item in c.evidence.triton_configs or ()
        )
    )


def engines(c: Context) -> tuple[Model, ...]:
    """The models that load a TensorRT-LLM engine."""
    return tuple(m for m in models(c) if m.is_engine)


_BY_PARAMETER = (
    ("gpt_model_path", ENGINE), ("gpt_model_type", ENGINE),
    ("add_special_tokens", PREPROCESSING), ("skip_special_tokens", POSTPROCESSING),
    ("accumulate_tokens", BLS), ("context_model_name", DISAGGREGATED),
)  # fmt: skip
_BY_NAME = (
    ("disaggregated", DISAGGREGATED), ("bls", BLS), (PREPROCESSING, PREPROCESSING),
    (POSTPROCESSING, POSTPROCESSING),
)  # fmt: skip


def role_of(config: ModelConfig, family: str | None) -> tuple[str | None, str]:
    """(role, backend that reads the parameters).

    The backend decides first, then names as the templates give them, then parameters that only one
    model of the family has.
    """
    if config.is_ensemble:
        return None, PYTHON
    if config.backend == CPP:
        return ENGINE, CPP
    if family == "llmapi":
        return None, PYTHON
    for part, role in _BY_NAME:
        if part in config.folder or part in config.name:
            return role, PYTHON
    for key, role in _BY_PARAMETER:
        if key in config.parameters and (
            role != ENGINE or "add_special_tokens" not in config.parameters
        ):
            if role == ENGINE:
                return role, PYTHON if config.backend == PYTHON else CPP
            return role, PYTHON
    if "tensorrt_llm" in config.folder and config.backend != PYTHON:
        return ENGINE, CPP
    if (
        config.backend == PYTHON
        and family == "inflight_batcher_llm"
        and "tensorrt_llm" in config.folder
    ):
        return ENGINE, PYTHON
    return None, PYTHON


def rows(c: Context, model: Model) -> dict[str, ParameterRow]:
    """What is known of the parameters that this model reads."""
    if model.role is None:
        return {}
    return parameters(c).rows(model.role, model.backend, c.trtllm)


def parameters(c: Context) -> TritonParameters:
    return load_triton_parameters(c.catalog)


def parameter_source(c: Context, model: Model) -> str:
    return parameters(c).source(model.role or "", model.backend)


def field_figure(
    path: str,
    severity: Severity | None,
    *,
    file: str | None = None,
    line: int | None = None,
    effective: Any = None,
    right: Any = None,
    accepted: tuple[str, ...] = (),
    placeholder: str | None = None,
    server: str | None = None,
) -> Figure:
    """One entry of `fields`; what is not known is left out.

    Args:
        server: ``refuses``, ``ignores``, ``changes`` or ``reads``.
    """
    value: dict[str, Any] = {"verdict": {Severity.ERROR: "error", Severity.WARN: "warn"}.get(
        severity or Severity.INFO, "ok"
    )}  # fmt: skip
    known = {
        "effective": effective, "right": right, "accepted": list(accepted) or None, "path": file,
        "line": line, "placeholder": placeholder, "server": server,
    }  # fmt: skip
    value.update({key: item for key, item in known.items() if item is not None})
    return Figure("fields", {path: value})


def first_placeholder(scalar: Scalar) -> str | None:
    return next(iter(scalar.placeholders), None)


def world_size(c: Context) -> int | None:
    """tp x pp of the engine, from its config.json."""
    config = c.evidence.engine_config
    mapping = config.pretrained_config.mapping if config and config.pretrained_config else None
    if mapping is None:
        return None
    if mapping.tp_size or mapping.pp_size:
        return (mapping.tp_size or 1) * (mapping.pp_size or 1)
    return mapping.world_size


def is_called(c: Context, name: str) -> bool:
    """Whether a request names this model."""
    return any(r.model == name for r in c.evidence.requests or ())


def int_parameter(model: Model, key: str) -> int | None:
    """A whole number as the C++ getter reads it; None where it is absent or cannot be read."""
    scalar = model.config.parameters.get(key)
    return stoi(scalar.text) if scalar and not scalar.placeholders else None


def flag(c: Context, model: Model, key: str) -> bool | None:
    """A boolean parameter as its reader takes it; the default where it is absent or unreadable.

    None where the default differs between versions and the version is not known.
    """
    row = rows(c, model).get(key)
    scalar = model.config.parameters.get(key)
    if scalar is not None and not scalar.placeholders:
        value = (
            cpp_bool(scalar.text) if model.backend == CPP else scalar.text.lower() in ("1", "true")
        )
        if value is not None:
            return value
    known = row.defaults(c.trtllm) if row else (None,)
    value_ = known[0]
    return value_ if len(known) == 1 and isinstance(value_, bool) else None
