"""A request's fields from what was asked for: names by lane and model, types by the model. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engineroom.catalog.request_fields import RequestFields
from engineroom.errors import UsageError, Where
from engineroom.runner.client_model import ModelInfo, TensorInfo
from engineroom.runner.client_values import fit, from_text
from engineroom.types import ClientFields


@dataclass(frozen=True)
class Guide:
    """Guided decoding: `kind` is json_schema, regex or ebnf_grammar."""

    kind: str
    text: str


@dataclass(frozen=True)
class Ask:
    """What a request asks for, in terms that all lanes share.

    Attributes:
        prompt, messages: exactly one of them.
        options: by row id of the table of field names: ``max_tokens``, ``top_k``, ``stop`` …
        sets: further inputs by the model's own names, as text (``--set``).
        extra: further inputs as values, sent as they are.
    """

    prompt: str | None = None
    messages: Sequence[Mapping[str, str]] | None = None
    stream: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    guide: Guide | None = None
    sets: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


# vLLM's names of the kinds of guides (StructuredOutputsParams).
_VLLM_GUIDES = {"json_schema": "json", "regex": "regex", "ebnf_grammar": "grammar"}


class _Body:
    """Collects fields; refuses a second value and a name that the model does not declare."""

    def __init__(self, info: ModelInfo, fields: ClientFields, table: RequestFields) -> None:
        self.info, self.fields, self.table = info, fields, table
        self.data: dict[str, Any] = {}
        self.parameters: dict[str, Any] = {}
        self.from_option: dict[str, str] = {}
        self.declared = set(info.inputs)
        if fields.parameters_json in info.inputs:
            self.declared |= table.parameters

    def put(self, name: str, value: Any, option: str) -> None:
        """`value` is typed here when the model says the type."""
        if name in self.from_option:
            raise UsageError(
                f"`{name}` is set twice", where=Where(key=option),
                hint=f"leave out one of {self.from_option[name]} and {option}",
            )  # fmt: skip
        self.from_option[name] = option
        head, dot, key = name.partition(".")
        if dot and head == self.fields.parameters_json:
            self.parameters[key] = value
        else:
            tensor = self.info.inputs.get(name) or TensorInfo(name)
            self.data[name] = fit(tensor, value, option)

    def named(self, what: str, value: Any, option: str) -> None:
        """An option under the model's own name for it."""
        name = self.table.name(what, self.fields.dialect, self.declared)
        if name is None:
            raise UsageError(
                f"`{self.info.name}` has no input for it: "
                + self.table.hint(what, self.fields.dialect, self.declared).text,
                where=Where(key=option),
                hint=f"leave {option} out, or ask a front that has it (--model)",
            )
        tensor = self.info.inputs.get(name)
        if what == "lora" and tensor is not None and tensor.datatype in ("UINT64", "INT64"):
            if not str(value).isdecimal():
                raise UsageError(
                    f"this model knows adapters by number (`{name}`), not by `{value}`",
                    where=Where(key=option),
                    hint=f"write the adapter's task_id: {option} 1",
                )
            value = int(value)
        self.put(name, value, option)

    def set(self, name: str, text: str) -> None:
        """``--set NAME=TEXT``.

        Raises:
            UsageError: the model declares no such input; Triton would ignore it without a word.
        """
        head, dot, _ = name.partition(".")
        if dot and head == self.fields.parameters_json and name in self.declared:
            self.put(name, _json_or_text(text), f"--set {name}")
        elif name in self.info.inputs:
            self.put(name, from_text(self.info.inputs[name], text, f"--set {name}"), "--set")
        else:
            hint = self.table.hint(name, self.fields.dialect, self.declared)
            raise UsageError(
                f"`{self.info.name}` has no input `{name}`, and Triton would ignore it: {hint.text}",
                where=Where(key="--set"),
                hint=f"write --set {hint.use}=…" if hint.use else "leave it out",
            )


def build(info: ModelInfo, fields: ClientFields, table: RequestFields, ask: Ask) -> dict[str, Any]:
    """Fields of the generate JSON, by the names and types of this model.

    Raises:
        UsageError: an option the model has no input for, an unknown name, or a value of a wrong type.
    """
    body = _Body(info, fields, table)
    if (ask.prompt is None) == (ask.messages is None):
        raise UsageError("a request has a prompt or messages, and not both")
    if ask.messages is not None:
        text = json.dumps([dict(message) for message in ask.messages], ensure_ascii=False)
        body.named("messages", text, "--message")
    else:
        body.put(fields.prompt, ask.prompt, "PROMPT")
    if ask.stream:
        body.put(fields.stream, True, "--stream")
    for what, value in ask.options.items():
        if value is not None and value != () and value is not False:
            body.named(what, list(value) if isinstance(value, tuple) else value, option_of(what))
    if ask.guide is not None:
        _guide(body, ask.guide)
    for name, text in ask.sets.items():
        body.set(name, text)
    if fields.parameters_json is not None:
        # The backend's default echoes the prompt in whole answers and not in streams.
        echo = table.name("exclude_input", fields.dialect, body.declared)
        if echo is not None and echo not in body.data:
            body.put(echo, True, "--set")
        if body.parameters:
            body.data[fields.parameters_json] = json.dumps(body.parameters, ensure_ascii=False)
    return {**body.data, **ask.extra}


def option_of(what: str) -> str:
    """``top_k`` as ``--top-k``; rows that ask for an output have options of other names."""
    return _OPTIONS.get(what, "--" + what.replace("_", "-"))


_OPTIONS = {
    "return_log_probs": "--log-probs",
    "return_prompt_tokens": "--usage",
    "return_completion_tokens": "--usage",
    "return_perf": "--perf-metrics",
    "return_finish_reason": "--finish-reason",
}


def _guide(body: _Body, guide: Guide) -> None:
    option = {"json_schema": "--json-schema", "regex": "--regex"}.get(guide.kind, "--grammar")
    if body.fields.parameters_json is not None:
        text = json.dumps({_VLLM_GUIDES[guide.kind]: guide.text}, ensure_ascii=False)
        body.named("guide", text, option)
    else:
        body.named("guide_type", guide.kind, option)
        body.named("guide", guide.text, option)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
