"""Placeholders of config.pbtxt: left over, without a value, or filled with what nobody accepts.

Where a placeholder stands decides what it does: bare, the server's text parser stops at `$` and the
model cannot be read; in quotes it is a string, and the code that reads the string decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from engineroom.catalog.load import in_range
from engineroom.checks.codes import Code, declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence import triton_types, triton_values
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.triton_values import CHANGES, IGNORES, REFUSES
from engineroom.names import Severity, Topic
from engineroom.reading import model_config
from engineroom.reading.model_config import Fault, Value
from engineroom.reading.pbtxt import PLACEHOLDER, Scalar
from engineroom.types import Figure

_PROTO = (
    "triton-inference-server/common protobuf/model_config.proto; core "
    "src/model_config_utils.cc (ReadTextProto, ValidateModelConfig)"
)
BARE = declare(
    "placeholder-stops-parser", Topic.TEMPLATE_FILL, Severity.ERROR,
    says="no placeholder is left where config.pbtxt holds a number, a boolean or an enum",
    why="the text-proto parser stops at `$`, names a line and a column but no key, and the model "
    "cannot be read",
    source="triton-inference-server/tensorrtllm_backend#210, #501; server#8592; " + _PROTO,
)  # fmt: skip
REQUIRED = declare(
    "placeholder-refused", Topic.TEMPLATE_FILL, Severity.ERROR,
    says="no placeholder is left in a string that the server or the model needs",
    why="the file can be read, but the model does not load",
    source=_PROTO,
)  # fmt: skip
DEFAULTED = declare(
    "placeholder-becomes-default", Topic.TEMPLATE_FILL, Severity.WARN,
    says="an unfilled string parameter is filled or taken out",
    why="reading it fails, which counts as not specified: a default that nobody chose is in force, "
    "with one line in the log",
    source=_PROTO,
)  # fmt: skip
UNSET = declare(
    "placeholder-counts-as-unset", Topic.TEMPLATE_FILL, Severity.INFO,
    says="an unfilled parameter that its reader takes for unset",
    why="the reader looks for a leftover `${...}`, or does not use the value",
    source=_PROTO,
)  # fmt: skip
ILLEGAL = declare(
    "field-value-refused", Topic.TEMPLATE_FILL, Severity.ERROR,
    says="a value of config.pbtxt is of the kind that its field has in ModelConfig",
    why="the text-proto parser refuses the whole file",
    source=_PROTO,
)  # fmt: skip
BROKEN = declare(
    "pbtxt-not-readable", Topic.TEMPLATE_FILL, Severity.ERROR,
    says="config.pbtxt is a ModelConfig in protobuf text",
    why="the server refuses the file at the first fault",
    source="Protocol Buffers, Text Format Language Specification; " + _PROTO,
)  # fmt: skip
MISSING = declare(
    "template-value-missing", Topic.TEMPLATE_FILL, Severity.ERROR,
    says="every placeholder of the template has a value",
    why="safe_substitute leaves the others as they are, and newer templates have more of them",
    source="triton-inference-server/server#8592; tensorrtllm_backend tools/fill_template.py @ v0.19.0",
)  # fmt: skip
WRONG_VALUE = declare(
    "template-value-refused", Topic.TEMPLATE_FILL, Severity.ERROR,
    says="a value given for a placeholder is one that its field accepts",
    why="the file looks filled and is refused, or read as something else",
    source="triton-inference-server/server#8592; " + _PROTO,
)  # fmt: skip
TABLE_TYPE = declare(
    "tensor-type-differs", Topic.TEMPLATE_FILL, Severity.WARN,
    says="tensors that hold the engine's own numbers have its data type",
    why="a request with such a tensor is refused when the types differ; others are not affected",
    source="NVIDIA/TensorRT-LLM cpp/tensorrt_llm/batch_manager/promptTuningBuffers.cpp, "
    "triton_backend/inflight_batcher_llm/src/model_instance_state.cc (1.3.0rc3); "
    "tensorrtllm_backend docs/model_config.md @ v0.19.0",
)  # fmt: skip

ABSENT = declare(
    "required-parameter-absent", Topic.TEMPLATE_FILL, Severity.ERROR,
    says="a complete config of the C++ backend has every parameter that it reads without a fallback",
    why="from 0.19 on the backend reads three parameters of guided decoding outside any catch: without "
    "them, even empty, the model does not load",
    source="triton-inference-server/tensorrtllm_backend inflight_batcher_llm/src/model_instance_state.cc @ v0.19.0 "
    "(getGuidedDecodingConfigFromParams); NVIDIA/TensorRT-LLM triton_backend/inflight_batcher_llm/src (1.3.0rc3)",
)  # fmt: skip

# Strings that triton core resolves while it loads the model.
_RESOLVED = {"name", "platform", "backend", "runtime", "ensemble_scheduling.step.model_name"}


# Messages that a file has once: what is wrong in them is told under their own name as well.
_SINGLE = ("model_transaction_policy", "dynamic_batching", "instance_group", "ensemble_scheduling")


@dataclass(frozen=True)
class _Place:
    """Where a value stands, for findings and figures."""

    c: Context
    part: str
    file: str
    model: repo.Model

    def key(self, path: str) -> str:
        return f"{self.part}.{path}" if path else self.part


def unfilled(place: _Place, value: Value) -> tuple[Code, triton_values.Outcome]:
    """What a placeholder left in `value` leads to."""
    scalar = value.scalar
    name = repo.first_placeholder(scalar)
    if value.kind is not None and not model_config.accepts(value.kind, scalar):
        kind = "a message" if value.kind == "message" else model_config.expected(value.kind)
        return BARE, triton_values.Outcome(
            REFUSES, Severity.ERROR,
            f"placeholder `{name}` is left in `{value.path}`, where the text format wants {kind}: the "
            "server cannot read the file, and no model that uses this one loads",
            right=triton_types.right_for(place.c, value, place.model.role),
        )  # fmt: skip
    if value.parameter is not None:
        row = repo.rows(place.c, place.model).get(value.parameter)
        if row is None:
            return UNSET, triton_values.Outcome(
                IGNORES, None, f"placeholder `{name}` is left in a parameter that no code of the family is known to read"
            )  # fmt: skip
        outcome = triton_values.judge(row, scalar, place.c.trtllm)
        code = {REFUSES: REQUIRED, IGNORES: UNSET}.get(outcome.server, DEFAULTED)
        if code is DEFAULTED and not row.telling:
            # Not specified and not filled are one to the server; upstream's own guide leaves dozens.
            outcome = replace(outcome, severity=None)
        return code, outcome
    if value.path in _RESOLVED or value.path.startswith("ensemble_scheduling."):
        return REQUIRED, triton_values.Outcome(
            REFUSES, Severity.ERROR,
            f"placeholder `{name}` is left in `{value.path}`; the file can be read, but the server "
            "finds nothing of that name and does not load the model",
            right=triton_types.right_for(place.c, value, place.model.role),
        )  # fmt: skip
    return DEFAULTED, triton_values.Outcome(
        CHANGES, Severity.WARN,
        f"placeholder `{name}` is left in `{value.path}` and is used as it stands: "
        f'"{scalar.shown}"', scalar.text,
    )  # fmt: skip


def _answers(
    place: _Place, value: Value, code: Code, outcome: triton_values.Outcome
) -> Iterator[Answer]:
    name = repo.first_placeholder(value.scalar)
    fix = f"fill `{name}`" + (
        f" with {triton_values.show(outcome.right)}" if outcome.right is not None else ""
    )
    if value.parameter is not None and outcome.server != REFUSES:
        fix += ", or take the parameter out"
    source = repo.parameter_source(place.c, place.model) if value.parameter else None
    yield code.found(
        place.c, place.key(value.path), f"`{value.path}`: {outcome.reason}", fix,
        severity=outcome.severity or Severity.INFO, source=source or None, line=value.line,
    )  # fmt: skip
    yield _figure(place, value, outcome, name)


def _figure(
    place: _Place, value: Value, outcome: triton_values.Outcome, name: str | None
) -> Figure:
    return repo.field_figure(
        value.path, outcome.severity, file=place.file, line=value.line, effective=outcome.effective,
        right=outcome.right, placeholder=name, server=outcome.server,
    )  # fmt: skip


def _place(c: Context, model: repo.Model) -> _Place:
    return _Place(c, f"triton_configs[{model.index}]", model.config.path, model)


@about(Topic.TEMPLATE_FILL, Topic.SILENT_FALLBACK)
def leftovers(c: Context) -> Iterator[Answer]:
    """Every placeholder left in the configs."""
    for model in repo.models(c):
        place = _place(c, model)
        defaulted: list[tuple[Value, triton_values.Outcome]] = []
        for value in model.config.values:
            if not value.scalar.placeholders:
                continue
            code, outcome = unfilled(place, value)
            if code is DEFAULTED and value.parameter is not None:
                defaulted.append((value, outcome))
            else:
                yield from _answers(place, value, code, outcome)
        if len(defaulted) <= _APART:
            for value, outcome in defaulted:
                yield from _answers(place, value, DEFAULTED, outcome)
        else:
            yield from _together(place, defaulted)


_APART = 6
"""Up to so many unfilled parameters of a file are told one by one; templates have dozens."""


def _together(
    place: _Place, defaulted: list[tuple[Value, triton_values.Outcome]]
) -> Iterator[Answer]:
    told = ", ".join(
        str(value.parameter)[:60]
        + (f" ({triton_values.show(o.effective)})" if o.effective is not None else "")
        for value, o in defaulted[:60]
    )
    yield DEFAULTED.found(
        place.c, place.key("parameters"),
        f"{len(defaulted)} parameters of {place.file} hold placeholders that were not filled; each counts as not "
        f"specified, and its default holds: {told}",
        "fill those that matter, and take the others out",
        severity=min((o.severity or Severity.INFO for _, o in defaulted), key=lambda s: s.rank),
        source=repo.parameter_source(place.c, place.model), line=defaulted[0][0].line,
    )  # fmt: skip
    for value, outcome in defaulted:
        yield _figure(place, value, outcome, repo.first_placeholder(value.scalar))


@about(Topic.TEMPLATE_FILL)
def refused_values(c: Context) -> Iterator[Answer]:
    """Values and structure that the text-proto parser refuses."""
    for model in repo.models(c):
        place = _place(c, model)
        for fault in model.config.faults:
            if fault.value is None:
                yield BROKEN.found(
                    c, place.key(fault.path), f"{model.config.path}, line {fault.line}: {fault.message}",
                    "mend the file; the server names only this line and a column", line=fault.line,
                )  # fmt: skip
            elif not fault.value.scalar.placeholders:
                yield from _refused(place, fault, fault.value)
        for value in model.config.values:
            yield from _wrong(place, value)


def _refused(place: _Place, fault: Fault, value: Value) -> Iterator[Answer]:
    right = triton_types.right_for(place.c, value, place.model.role)
    yield ILLEGAL.found(
        place.c, place.key(value.path), f"{place.file}, line {fault.line}: {fault.message}; the server "
        "refuses the file", f"write {triton_values.show(right)}" if right is not None else
        "write a value of that kind", line=fault.line,
    )  # fmt: skip
    yield repo.field_figure(
        value.path, Severity.ERROR, file=place.file, line=fault.line, right=right, server=REFUSES
    )


def _wrong(place: _Place, value: Value) -> Iterator[Answer]:
    """A value that the parser reads and something behind it does not take."""
    if value.scalar.placeholders or not model_config.accepts(value.kind or "", value.scalar):
        return
    outcome = triton_types.legal_but_wrong(place.c, value, place.model.role)
    if outcome is None or outcome.severity is None:
        return
    code = TABLE_TYPE if outcome.severity is Severity.WARN else ILLEGAL
    yield code.found(
        place.c, place.key(value.path), f"`{value.path}` is {value.scalar.shown}: {outcome.reason}",
        f"write {triton_values.show(outcome.right)}" if outcome.right is not None else "write another value",
        severity=outcome.severity, line=value.line,
    )  # fmt: skip
    yield _figure(place, value, outcome, None)


_UNGUARDED = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")


@about(Topic.TEMPLATE_FILL)
def absent_parameters(c: Context) -> Iterator[Answer]:
    """Only of files that are whole (tensors and both main parameters): an excerpt lacks what it likes."""
    if c.trtllm is None or not in_range(c.trtllm, ">=0.19.dev0"):
        return
    for model in repo.engines(c):
        parameters = model.config.parameters
        whole = "input_ids" in model.config.tensors("input") and {
            "gpt_model_path",
            "gpt_model_type",
        } <= set(parameters)
        missing = [key for key in _UNGUARDED if key not in parameters]
        if model.backend != repo.CPP or not whole or not missing:
            continue
        yield ABSENT.found(
            c, model.parameter_key(missing[0]), f"{model.config.path} has no {', '.join(missing)}: the backend of "
            f"TensorRT-LLM {c.trtllm} stops with `Cannot find parameter with name: {missing[0]}`",
            "add each of them, with an empty string_value when guided decoding is not used",
        )  # fmt: skip


# ---- a template and the values for it
@about(Topic.TEMPLATE_FILL)
def template_and_values(c: Context) -> Iterator[Answer]:
    """The template is asked which values it needs; a fixed list would miss new ones."""
    template = c.evidence.triton_template
    if template is None:
        return
    config = model_config.read(template.path, template.text, True)
    role, backend = repo.role_of(config, c.evidence.triton_family)
    if role is None and "tensorrt_llm" in config.folder and "bls" not in config.folder:
        role, backend = repo.ENGINE, repo.CPP
    place = _Place(c, "triton_template", template.path, repo.Model(0, config, role, backend))
    given = c.evidence.fill_values or {}
    missing: dict[str, None] = {}
    rights: dict[str, Any] = {}
    for value in config.values:
        names = value.scalar.placeholders
        if not names:
            continue
        absent = [name for name in names if name not in given]
        missing |= dict.fromkeys(absent)
        if absent:
            _, outcome = unfilled(place, value)
            yield MISSING.found(
                c, place.key(value.path),
                f"placeholder `{absent[0]}` of {template.path} has no value: {outcome.reason}",
                f"supply {absent[0]}"
                + (f": {triton_values.show(outcome.right)}" if outcome.right is not None else ""),
                severity=outcome.severity or Severity.INFO, line=value.line,
            )  # fmt: skip
            yield _figure(place, value, outcome, absent[0])
            if outcome.server == REFUSES and outcome.right is not None:
                rights.setdefault(absent[0], outcome.right)
            continue
        yield from _filled(place, value, {n: written(given[n]) for n in names}, rights)
    yield Figure("missing_placeholders", list(missing))
    yield Figure("fill_values_right", rights)


def written(value: str | int | bool) -> str:
    """A value as `string.Template` writes it into the file."""
    return str(value)


def _filled(
    place: _Place, value: Value, given: dict[str, str], rights: dict[str, Any]
) -> Iterator[Answer]:
    text = PLACEHOLDER.sub(lambda found: given[found[1]], value.scalar.text)
    name = next(iter(given))
    quoted = value.scalar.quoted
    after = replace(value, scalar=Scalar(text if quoted else text.strip(), value.line, quoted))
    outcome = _judged(place, after)
    if outcome is None or outcome.severity is None:
        return
    alone = value.scalar.text == f"${{{name}}}"
    if outcome.right is not None and alone:
        rights[name] = outcome.right
    yield WRONG_VALUE.found(
        place.c, place.key(value.path), f"`{name}` is filled with `{given[name][:60]}`: {outcome.reason}",
        f"fill `{name}` with {triton_values.show(outcome.right)}" if outcome.right is not None
        else f"fill `{name}` with a value that `{value.path}` takes",
        severity=outcome.severity, line=value.line,
    )  # fmt: skip
    yield _figure(place, value, outcome, None)


def _judged(place: _Place, value: Value) -> triton_values.Outcome | None:
    """What the server makes of a filled value; None where nothing is known against it."""
    right = triton_types.right_for(place.c, value, place.model.role)
    if value.scalar.quoted and any(mark in value.scalar.text for mark in '"\\\n'):
        return triton_values.Outcome(
            REFUSES, Severity.ERROR, f"a quote, a backslash or a line end breaks the string of `{value.path}`"
        )  # fmt: skip
    if value.kind is not None:
        pieces = [value.scalar]
        if not value.scalar.quoted and value.path.endswith("preferred_batch_size"):
            pieces = [Scalar(p.strip(), value.line) for p in value.scalar.text.split(",")]
        if not all(model_config.accepts(value.kind, piece) for piece in pieces):
            return triton_values.Outcome(
                REFUSES, Severity.ERROR,
                f"the text format wants {model_config.expected(value.kind)} in `{value.path}`", right=right,
            )  # fmt: skip
    if value.parameter is not None:
        row = repo.rows(place.c, place.model).get(value.parameter)
        return triton_values.judge(row, value.scalar, place.c.trtllm) if row else None
    return triton_types.legal_but_wrong(place.c, value, place.model.role)


RULES = (leftovers, refused_values, absent_parameters, template_and_values)
