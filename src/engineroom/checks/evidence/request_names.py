"""Names in a request's body against the inputs of the model that it is sent to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engineroom.catalog.request_fields import (
    PARAMETERS,
    RESERVED,
    Dialect,
    RequestFields,
    contract_names,
    contracts_of,
    load_request_fields,
)
from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import LaneName, Severity, Topic
from engineroom.reading.facts import RequestBody

NOT_AN_INPUT = declare(
    "request-name-is-no-input", Topic.SILENT_FALLBACK, Severity.ERROR,
    says="every name in a generate request is an input of the model it is sent to",
    why="Triton makes a request parameter of any other name, which the TensorRT-LLM models do not read: "
    "the answer comes as if it had not been sent",
    source="triton-inference-server/server docs/protocol/extension_generate.md (additional properties) "
    "and src/http_server.cc (ExactMappingInput)",
)  # fmt: skip

_DIALECTS: Mapping[str, tuple[Dialect, ...]] = {
    "ensemble": ("engine",),
    "tensorrt_llm_bls": ("engine",),
    "tensorrt_llm": ("llmapi", "core"),
    "vllm_model": ("vllm",),
}
_OF_LANE: Mapping[str, tuple[Dialect, ...]] = {
    "engine": ("engine", "core"),
    "llmapi": ("llmapi",),
    "vllm": ("vllm",),
}


@dataclass(frozen=True)
class _Reading:
    """A body as one kind of model takes it: names that it does not know, by key path."""

    dialect: Dialect
    declared: frozenset[str]
    unknown: Mapping[str, str]


@about(Topic.SILENT_FALLBACK)
def names(c: Context) -> Iterator[Answer]:
    table = load_request_fields(c.catalog) if c.evidence.request_bodies else None
    for at, request in enumerate(c.evidence.request_bodies or ()):
        assert table is not None
        # What the model is may be open: then the reading that explains most of the body counts.
        readings = list(_readings(c, table, request))
        best = min(readings, key=lambda r: len(r.unknown))
        model = f"`{request.model}`" if request.model else f"the {best.dialect} front"
        for key, name in best.unknown.items():
            hint = table.hint(name, best.dialect, best.declared)
            yield NOT_AN_INPUT.found(
                c,
                f"request_bodies[{at}].body.{key}",
                f"{model} {_what_happens(key, name)}: {hint.text}",
                f"write `{hint.use}`" if hint.use else "leave it out",
                severity=None if hint.renamed else Severity.WARN,
            )


def _what_happens(key: str, name: str) -> str:
    if key.startswith(f"{PARAMETERS}."):
        return f"has no sampling parameter `{name}`, and vLLM fails the request"
    return f"has no input `{name}`, and Triton ignores it"


def _readings(c: Context, table: RequestFields, request: RequestBody) -> Iterator[_Reading]:
    configured = _configured(c, request.model)
    for dialect in _dialects(c, request.model):
        if configured is not None:
            declared = configured
        else:
            known = [c.contract] if c.contract else []
            if not any(contract_names(item, dialect, "inputs") for item in known):
                known = contracts_of(c.catalog, dialect)
            declared = table.known(dialect, known)
        if PARAMETERS in declared:
            declared |= table.parameters
        yield _Reading(dialect, declared, dict(_unknown(request, declared)))


def _dialects(c: Context, model: str | None) -> tuple[Dialect, ...]:
    lane = c.lane
    if lane is None and c.evidence.triton_family is not None:
        lane = LaneName.LLMAPI if c.evidence.triton_family == "llmapi" else LaneName.ENGINE
    every: tuple[Dialect, ...] = ("engine", "llmapi", "vllm", "core")
    of_lane = _OF_LANE[lane] if lane is not None else every
    of_model = _DIALECTS.get(model or "", of_lane)
    return tuple(d for d in of_model if d in of_lane) or of_model


def _configured(c: Context, model: str | None) -> frozenset[str] | None:
    """Inputs of the model's own config.pbtxt, where it is there and says some."""
    for item in repo.models(c):
        if item.name == model and (inputs := item.config.tensors("input")):
            return frozenset(inputs)
    return None


def _unknown(request: RequestBody, declared: frozenset[str]) -> Iterator[tuple[str, str]]:
    """(key path, name) of what is neither an input nor the server's own.

    Keys below `parameters` are read like those beside it. vLLM's backend reads request parameters as
    sampling parameters, unless the input `sampling_parameters` is there.
    """
    body = request.body
    nested = body.get("parameters")
    rows = [(key, key) for key in body]
    rows += [
        (f"parameters.{key}", str(key)) for key in (nested if isinstance(nested, dict) else ())
    ]
    vllm, given = PARAMETERS in declared, PARAMETERS in body
    for path, name in rows:
        known = name in declared or (vllm and not given and f"{PARAMETERS}.{name}" in declared)
        if not known and name not in RESERVED:
            yield path, name
    if vllm and given:
        yield from _unknown_parameters(body[PARAMETERS], declared)


def _unknown_parameters(text: object, declared: frozenset[str]) -> Iterator[tuple[str, str]]:
    try:
        data = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return
    for name in data if isinstance(data, dict) else ():
        if f"{PARAMETERS}.{name}" not in declared:
            yield f"{PARAMETERS}.{name}", str(name)


RULES = (names,)
