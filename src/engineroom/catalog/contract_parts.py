"""The parts of a contract as entries with one kind of path, whatever shape upstream gave them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from engineroom.catalog.contract import Contract
from engineroom.names import StrEnum

MAX_DEPTH = 6
WORD = re.compile(r"[A-Za-z_]\w*")
_FREE_TEXT = {"str", "Path", "Dict", "dict", "object", "Any"}
# Union types of tensorrt_llm/llmapi/llm_args.py: the argument takes any of these classes.
_UNIONS = {
    "SpeculativeConfig": re.compile(r"Decoding(Base)?Config\Z"),
    "SparseAttentionConfig": re.compile(r"AttentionConfig\Z"),
}


class Area(StrEnum):
    """Where a name is used."""

    LLM_ARGS = "llm-args"
    TRT_LLM_ARGS = "trt-llm-args"
    BUILD = "trtllm-build"
    SERVE = "trtllm-serve"
    TRITON = "triton"
    QUANTIZATION = "quantization"
    PINS = "pins"
    STACK = "stack"


@dataclass(frozen=True)
class Entry:
    """One name of one version.

    Attributes:
        path: dots for LLM arguments, ``command --flag`` for `trtllm-serve`, slashes for Triton.
        default_known: False where no default was found: None is then "unknown", not "unset".
        caveat: why the entry is not certain for exactly this version, or None.
        unsure: of `caveat`'s kinds, fields whose values differ between the sources (``default``, …).
        parent: path of the entry it is a part of.
        open: its own keys are not in the contract, so a key below it may or may not exist.
        free_text: a type that manifests of upstream leave out.
        early_only: only the earlier of two sources has it; it may be gone in this version.
    """

    area: Area
    path: str
    type: str | None = None
    default: Any = None
    default_known: bool = True
    allowed: tuple[str, ...] | None = None
    status: str | None = None
    aliases: tuple[str, ...] = ()
    caveat: str | None = None
    unsure: tuple[str, ...] = ()
    note: str | None = None
    parent: str | None = None
    open: bool = False
    free_text: bool = False
    early_only: bool = False


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(str(v) for v in value) if isinstance(value, (list, tuple)) else ()


def _rows(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _facts(area: Area, path: str, facts: Mapping[str, Any], parent: str | None = None) -> Entry:
    allowed = facts.get("allowed") or facts.get("choices")
    presence = facts.get("presence")
    caveat = None
    if isinstance(presence, str) and presence.startswith("only"):
        caveat = f"in one of two sources ({presence})"
    elif facts.get("recalled"):
        caveat = "recalled, not read"
    kind = facts.get("type")
    words = set(WORD.findall(kind)) if isinstance(kind, str) else set()
    default = "(required)" if facts.get("required") else facts.get("default")
    status = "deprecated" if facts.get("deprecated") is True else facts.get("status")
    return Entry(
        area=area,
        path=path,
        type=kind if isinstance(kind, str) else None,
        default=default,
        default_known=facts.get("default_known", "default" in facts or "required" in facts)
        is not False,
        allowed=texts(allowed) if isinstance(allowed, (list, tuple)) else None,
        status=status if isinstance(status, str) else None,
        aliases=texts(facts.get("aliases")),
        caveat=caveat,
        unsure=tuple(str(k) for k in mapping(facts.get("differs"))),
        note=facts.get("note") if isinstance(facts.get("note"), str) else None,
        parent=parent,
        open=bool(words & {"dict", "Dict"}) or any(w.endswith("Config") for w in words),
        free_text=bool(words & _FREE_TEXT) or any(w.endswith("Config") for w in words),
    )


def flat(area: Area, rows: Mapping[str, Any], parent: str | None = None) -> Iterator[Entry]:
    for name, facts in rows.items():
        if isinstance(facts, Mapping):
            yield _facts(area, name, facts, parent)


def llm_args(contract: Contract, api: Mapping[str, Any]) -> Iterator[Entry]:
    if not api:
        return
    classes = {name: _class(name, rows) for name, rows in mapping(api.get("nested")).items()}
    values = mapping(api.get("nested")).get("decoding_type_values")
    by_field = mapping(api.get("nested_by_field"))
    for name, facts in contract.llm_fields.items():
        entry = _facts(Area.LLM_ARGS, name, mapping(facts))
        below = list(_dotted(name, mapping(by_field.get(name))))
        complete = True
        if not below:
            below, complete = _nested(name, entry.type, classes, 1)
        yield replace(entry, open=entry.open and not (below and complete))
        yield from below
        if values and name == "speculative_config" and name not in by_field:
            yield _decoding_type(values)


def _dotted(field_name: str, rows: Mapping[str, Any]) -> Iterator[Entry]:
    """Keys of a manifest: ``block_reuse_config.policy`` implies the object between."""
    for name, facts in rows.items():
        parent = field_name
        *between, last = name.split(".")
        for part in between:
            yield Entry(Area.LLM_ARGS, f"{parent}.{part}", "object", None, False, parent=parent)
            parent = f"{parent}.{part}"
        yield _facts(Area.LLM_ARGS, f"{parent}.{last}", mapping(facts), parent)


def _class(name: str, rows: Any) -> Mapping[str, Any] | None:
    """Fields of a class, or None where the contract only has its name."""
    rows = mapping(rows)
    inner = rows.get("fields", rows) if "_presence" in rows else rows
    if inner is None:
        return None
    presence = {"presence": rows["_presence"]} if "_presence" in rows else {}
    return {
        key: {**presence, **facts}
        for key, facts in mapping(inner).items()
        if isinstance(facts, Mapping) and "type" in facts
    }


def _nested(
    parent: str, kind: str | None, classes: Mapping[str, Mapping[str, Any] | None], depth: int
) -> tuple[list[Entry], bool]:
    """(keys of the classes that a type names, whether all of these classes are known)."""
    found: list[Entry] = []
    complete = True
    if kind is None or depth > MAX_DEPTH:
        return found, False
    for word in dict.fromkeys(WORD.findall(kind)):
        union = _UNIONS.get(word)
        chosen = [c for c in classes if union.search(c)] if union else [word]
        for name in chosen:
            fields = classes.get(name) if name in classes else {}
            complete = complete and fields is not None
            for key, facts in (fields or {}).items():
                entry = _facts(Area.LLM_ARGS, f"{parent}.{key}", facts, parent)
                below, whole = _nested(entry.path, entry.type, classes, depth + 1)
                found.append(replace(entry, open=entry.open and not (below and whole)))
                found += below
    return found, complete


def _decoding_type(values: Any) -> Entry:
    """The discriminator of the speculative union; two sources may list different values."""
    lists = list(values.values()) if isinstance(values, Mapping) else [values]
    allowed = dict.fromkeys(text for row in lists for text in texts(row))
    return Entry(
        Area.LLM_ARGS,
        "speculative_config.decoding_type",
        "Literal",
        None,
        False,
        allowed=tuple(allowed),
        unsure=("allowed",) if len(lists) > 1 else (),
        parent="speculative_config",
    )


def build(part: Mapping[str, Any]) -> Iterator[Entry]:
    if part.get("command_exists"):
        yield Entry(Area.BUILD, "trtllm-build", "command", None, False)
        yield from flat(Area.BUILD, mapping(part.get("flags")), "trtllm-build")


def serve(part: Mapping[str, Any], unknown: dict[str, str]) -> Iterator[Entry]:
    for command, rows in part.items():
        if isinstance(rows, Mapping):
            yield Entry(Area.SERVE, command, "command", None, False)
            for flag, facts in rows.items():
                yield _facts(Area.SERVE, f"{command} {flag}", mapping(facts), command)
        elif rows is None and command not in ("note", "confidence"):
            unknown[f"{Area.SERVE} {command}"] = "null in the contract: nothing found"


def triton(part: Mapping[str, Any]) -> Iterator[Entry]:
    for family, exists in mapping(part.get("families")).items():
        if not exists:
            continue
        yield Entry(Area.TRITON, family, "family", None, False)
        facts = mapping(part.get(family))
        models = {k: v for k, v in facts.items() if "inputs" in mapping(v)}
        if "inputs" in facts:
            models[str(facts.get("model_name", "tensorrt_llm"))] = facts
        for model, rows in models.items():
            yield Entry(Area.TRITON, f"{family}/{model}", "model", None, False, parent=family)
            yield from _model(f"{family}/{model}", rows)


def _model(path: str, facts: Mapping[str, Any]) -> Iterator[Entry]:
    for kind in ("inputs", "outputs"):
        for tensor in map(mapping, _rows(facts.get(kind))):
            text = f"{tensor.get('data_type')}{tensor.get('dims')}"
            text += " optional" if tensor.get("optional") else ""
            known = tensor.get("data_type") is not None
            name = f"{path}/{kind}/{tensor.get('name')}"
            yield Entry(Area.TRITON, name, text if known else None, None, False, parent=path)
    for row in map(mapping, _rows(facts.get("parameters"))):
        name, default = f"{path}/parameters/{row.get('key')}", row.get("default")
        yield Entry(Area.TRITON, name, "parameter", default, default is not None, parent=path)
        variable = row.get("template_variable")
        if variable:
            name = f"{path}/template_variables/{variable}"
            yield Entry(Area.TRITON, name, "template variable", None, False, parent=path)
    for variable in _rows(facts.get("template_variables")):
        name = f"{path}/template_variables/{variable}"
        yield Entry(Area.TRITON, name, "template variable", None, False, parent=path)
    for key, row in mapping(mapping(facts.get("model_yaml")).get("triton_config")).items():
        name = f"{path}/model.yaml/triton_config.{key}"
        default = mapping(row).get("default")
        yield Entry(Area.TRITON, name, "setting", default, default is not None, parent=path)


def quantization(facts: Mapping[str, Any]) -> Iterator[Entry]:
    doubtful = texts(facts.get("uncertain"))
    for kind in ("quant_algo", "kv_cache_quant_algo"):
        for name in texts(facts.get(kind)):
            caveat = "the contract lists it as uncertain" if name in doubtful else None
            yield Entry(Area.QUANTIZATION, f"{kind}/{name}", "value", None, False, caveat=caveat)


def pins(part: Mapping[str, Any]) -> Iterator[Entry]:
    for name, value in part.items():
        if name not in ("source", "sources", "nearest", "note", "confidence") and (
            value is None or isinstance(value, str)
        ):
            yield Entry(Area.PINS, name, "pin", value, value is not None)
