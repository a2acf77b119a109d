"""Triton's ModelConfig over a text: what the server's parser would refuse, and a typed view.

Kinds of fields are in :mod:`engineroom.reading.model_config_fields`. The rules of numbers, booleans
and enums are those of protobuf's text format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from engineroom.reading import pbtxt
from engineroom.reading.model_config_fields import ENUMS, FIELDS
from engineroom.reading.pbtxt import Message, Problem, Scalar

ROOT = "ModelConfig"
_RANGES = {
    "int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1), "uint64": (0, 2**64 - 1),
}  # fmt: skip
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,20}|[0-9]{1,25})")
_NUMBER = re.compile(r"-?(?:[0-9]{1,60}\.?[0-9]{0,60}|\.[0-9]{1,60})(?:[eE][+-]?[0-9]{1,5})?[fF]?")
BOOL_WORDS = ("true", "t", "True", "1", "false", "f", "False", "0")
MAX_FAULTS = 200


@dataclass(frozen=True)
class Value:
    """A scalar of the file with its place.

    Attributes:
        path: ``max_batch_size``, ``parameters.<key>``, ``input.<tensor>.<field>``,
            ``dynamic_batching.preferred_batch_size`` …
        kind: protobuf kind, or None where the field is not known.
        parameter: the key, for the text of a parameter.
    """

    path: str
    scalar: Scalar
    kind: str | None
    parameter: str | None = None

    @property
    def line(self) -> int:
        return self.scalar.line


@dataclass(frozen=True)
class Fault:
    """What the server refuses when it reads the file."""

    line: int
    path: str
    message: str
    value: Value | None = None


def expected(kind: str) -> str:
    """The kind in words, for messages."""
    if kind.startswith("enum:"):
        return "one of " + ", ".join(ENUMS[kind[5:]][:20])
    return {"bool": "true or false", "string": "a string in quotes", "double": "a number",
            "float": "a number"}.get(kind, "a whole number")  # fmt: skip


def accepts(kind: str, scalar: Scalar) -> bool:
    """Whether the text format reads this scalar as that kind."""
    text = scalar.text
    if kind in ("string", "bytes"):
        return scalar.quoted
    if scalar.quoted:
        return False
    if kind == "bool":
        return text in BOOL_WORDS
    if kind in _RANGES:
        low, high = _RANGES[kind]
        return bool(_INTEGER.fullmatch(text)) and low <= _whole(text) <= high
    if kind in ("double", "float"):
        return bool(
            _NUMBER.fullmatch(text) or text.lstrip("-").lower() in ("inf", "infinity", "nan")
        )
    if kind.startswith("enum:"):
        if _INTEGER.fullmatch(text):  # open enums: any number of 32 bits is read
            return _RANGES["int32"][0] <= _whole(text) <= _RANGES["int32"][1]
        return text in ENUMS[kind[5:]]
    return True


def _whole(text: str) -> int:
    """A decimal, hexadecimal or octal literal."""
    bare = text.lstrip("-")
    if bare[:2] in ("0x", "0X"):
        number = int(bare, 16)
    elif len(bare) > 1 and bare[0] == "0":
        number = int(bare, 8) if set(bare) <= set("01234567") else 2**70
    else:
        number = int(bare)
    return -number if text.startswith("-") else number


def whole(scalar: Scalar | None) -> int | None:
    """The integer that a bare scalar is, else None."""
    if scalar is None or scalar.quoted or not _INTEGER.fullmatch(scalar.text):
        return None
    return _whole(scalar.text)


def truth(scalar: Scalar | None) -> bool | None:
    if scalar is None or scalar.quoted or scalar.text not in BOOL_WORDS:
        return None
    return scalar.text in ("true", "t", "True", "1")


@dataclass(frozen=True)
class InstanceGroup:
    """`kind` is None where it is absent; then Triton chooses."""

    count: int | None
    kind: str | None
    gpus: tuple[int, ...]
    line: int


@dataclass(frozen=True)
class ModelConfig:
    """One `config.pbtxt`.

    Attributes:
        path: as given, ``<model>/config.pbtxt``.
        values: every scalar in the order of the file.
        faults: what makes the server refuse the file; placeholders included.
    """

    path: str
    document: pbtxt.Document
    values: tuple[Value, ...]
    faults: tuple[Fault, ...]

    @property
    def root(self) -> Message:
        return self.document.root

    def _text(self, name: str) -> str | None:
        scalar = self.root.scalar(name)
        return scalar.text if scalar is not None and not scalar.placeholders else None

    @cached_property
    def folder(self) -> str:
        return self.path.rpartition("/")[0].rpartition("/")[2]

    @cached_property
    def name(self) -> str:
        """The field, else the folder, as the server does."""
        return self._text("name") or self.folder

    @property
    def backend(self) -> str | None:
        return self._text("backend")

    @property
    def platform(self) -> str | None:
        return self._text("platform")

    @property
    def is_ensemble(self) -> bool:
        return self.platform == "ensemble" or self.root.message("ensemble_scheduling") is not None

    @property
    def max_batch_size(self) -> int | None:
        return whole(self.root.scalar("max_batch_size"))

    @property
    def decoupled(self) -> bool | None:
        policy = self.root.message("model_transaction_policy")
        return truth(policy.scalar("decoupled")) if policy else None

    @cached_property
    def parameters(self) -> dict[str, Scalar]:
        """Key to its `string_value`; a later entry of the same key wins."""
        found: dict[str, Scalar] = {}
        for entry in self.root.messages("parameters"):
            key, value = entry.scalar("key"), entry.message("value")
            text = value.scalar("string_value") if value else None
            if key is not None and text is not None:
                found[key.text] = text
        return found

    @cached_property
    def instance_groups(self) -> tuple[InstanceGroup, ...]:
        groups = []
        for entry in self.root.messages("instance_group"):
            kind = entry.scalar("kind")
            gpus = [n for n in map(whole, entry.scalars("gpus")) if n is not None]
            groups.append(
                InstanceGroup(
                    whole(entry.scalar("count")),
                    kind.text if kind else None,
                    tuple(gpus),
                    entry.line,
                )
            )
        return tuple(groups)

    @cached_property
    def instances(self) -> int | None:
        """Instances in all, where every group says how many; GPUs multiply a group's count."""
        total = 0
        for group in self.instance_groups:
            if group.count is None:
                return None
            per_gpu = len(group.gpus) if group.kind == "KIND_GPU" and group.gpus else 1
            total += group.count * per_gpu
        return total if self.instance_groups else None

    def tensors(self, kind: str) -> dict[str, Message]:
        """`input` or `output` tensors by name."""
        found = {}
        for entry in self.root.messages(kind):
            name = entry.scalar("name")
            if name is not None:
                found[name.text] = entry
        return found

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """Models that an ensemble chains."""
        scheduling = self.root.message("ensemble_scheduling")
        names = [s.scalar("model_name") for s in scheduling.messages("step")] if scheduling else []
        return tuple(n.text for n in names if n is not None)


@lru_cache(maxsize=64)
def read(path: str, text: str, excerpt: bool = False) -> ModelConfig:
    """Read a file or an excerpt of one.

    Args:
        excerpt: a piece of a template: faults of structure (an open bracket, a message without a
            name) are no faults of the whole.
    """
    document = pbtxt.parse(text)
    values: list[Value] = []
    faults: list[Fault] = []
    if not excerpt:
        faults += [Fault(p.line, "", p.message) for p in document.problems]
    for step in _walk(document.root, ROOT, "", 0):
        if isinstance(step, Value):
            values.append(step)
            if step.kind is not None and (fault := _fault(step)) is not None:
                faults.append(fault)
        elif not excerpt:
            faults.append(Fault(step.line, "", step.message))
        if len(faults) >= MAX_FAULTS:
            break
    return ModelConfig(path, document, tuple(values), tuple(sorted(faults, key=lambda f: f.line)))


def _fault(value: Value) -> Fault | None:
    kind, scalar = value.kind or "", value.scalar
    if accepts(kind, scalar):
        return None
    written = f'"{scalar.shown}"' if scalar.quoted else scalar.shown
    return Fault(
        value.line, value.path,
        f"`{value.path}` is {written}, and the text format wants {expected(kind)} there", value,
    )  # fmt: skip


def _walk(message: Message, kind: str, prefix: str, depth: int) -> Iterator[Value | Problem]:
    known = FIELDS.get(kind, {})
    seen: set[str] = set()
    label = _label(message)
    for item in message.fields:
        declared = known.get(item.name)
        if item.name == "":
            guessed, group = _guess(item.value)
            if isinstance(item.value, Message):
                below = f"{group}.{_label(item.value)}" if _label(item.value) else group
                yield from _walk(item.value, guessed, below, depth + 1)
            continue
        if declared is None:
            if kind in FIELDS:
                yield Problem(item.line, f"`{item.name[:60]}` is no field of {kind}")
            declared = _anywhere(item.name)
        repeated = bool(declared) and str(declared).startswith("*")
        if declared and not repeated:
            if item.name in seen:
                yield Problem(item.line, f"`{item.name}` is written twice")
            if item.listed:
                yield Problem(item.line, f"`{item.name}` takes one value, not a list")
            seen.add(item.name)
        bare = (declared or "").lstrip("*")
        path = _path(kind, prefix, label, item.name)
        if isinstance(item.value, Message):
            below_kind = bare[8:] if bare.startswith("message:") else ""
            if bare and not below_kind:
                yield Problem(item.line, f"`{item.name}` is no message")
            named = _label(item.value)
            below = path
            if kind == ROOT and named is not None:
                below = f"{path}.{named}"
            elif kind == f"{ROOT}.ParametersEntry":
                below = prefix
            yield from _walk(item.value, below_kind, below, depth + 1)
        elif bare.startswith("message:"):
            yield Problem(item.line, f"`{item.name}` is a message, so it needs braces")
            if item.value.placeholders:
                yield Value(path, item.value, "message")
        else:
            parameter = None
            if kind == "ModelParameter" and prefix.startswith("parameters."):
                parameter, path = prefix[len("parameters.") :], prefix
            yield Value(path, item.value, bare or None, parameter)


def _label(message: Message) -> str | None:
    """The tensor's `name` or the entry's `key`, by which `fields` names it."""
    for name in ("key", "name"):
        scalar = message.scalar(name)
        if scalar is not None and len(scalar.text) <= 200:
            return scalar.text
    return None


def _path(kind: str, prefix: str, label: str | None, name: str) -> str:
    return name if not prefix else f"{prefix}.{name}"


def _anywhere(name: str) -> str | None:
    """The kind of a field name in whichever message has it, for an excerpt without its message."""
    kinds = {fields[name].lstrip("*") for fields in FIELDS.values() if name in fields}
    return kinds.pop() if len(kinds) == 1 else None


_GROUPS = (
    ("ModelInput", "input"), ("ModelOutput", "output"), ("ModelInstanceGroup", "instance_group"),
    ("ModelConfig.ParametersEntry", "parameters"), ("ModelEnsembling.Step", "step"),
)  # fmt: skip


def _guess(value: Scalar | Message) -> tuple[str, str]:
    """(message kind, group name) of a message without a field name, by the fields it has."""
    if isinstance(value, Message):
        names = {item.name for item in value.fields}
        for kind, group in _GROUPS:
            if names and names <= set(FIELDS[kind]):
                return kind, group
    return "", "input"
