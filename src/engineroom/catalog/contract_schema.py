"""The shape of a contract file. Names are open, because upstream's are; kinds of values are not.

A contract has thousands of values and is read at every start, so the shape is a few functions and not
a set of pydantic models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Place = tuple[str | int, ...]
Problem = tuple[Place, str]
"""A key path and what is wrong there."""

Shape = Callable[[Any, Place], Iterator[Problem]]
MAX_DEPTH = 20


def first_problem(data: Any, version: str) -> Problem | None:
    """The first thing that makes `data` no contract of this version, or None."""
    problem = next(_CONTRACT(data, ()), None)
    if problem is None and data["version"] != version:
        return ("version",), f"it says {data['version']}, the file name says {version}"
    if problem is None and not data["llm_api"]["fields"]:
        return ("llm_api", "fields"), "it lists no argument"
    return problem


# ---- shapes of single values
def _wrong(value: Any, place: Place, wanted: str) -> Problem:
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false"}
    return (
        place,
        f"wanted {wanted}, found {names.get(type(value), 'null' if value is None else 'a number')}",
    )


def _kind(wanted: str, *types: type) -> Shape:
    def check(value: Any, place: Place) -> Iterator[Problem]:
        # JSON's true is an int in Python, but a number nowhere in a contract.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            yield _wrong(value, place, wanted)

    return check


def _or_null(shape: Shape) -> Shape:
    def check(value: Any, place: Place) -> Iterator[Problem]:
        if value is not None:
            yield from shape(value, place)

    return check


def _list(item: Shape) -> Shape:
    def check(value: Any, place: Place) -> Iterator[Problem]:
        if not isinstance(value, list):
            yield _wrong(value, place, "a list")
            return
        for i, member in enumerate(value):
            yield from item(member, (*place, i))

    return check


def _map(item: Shape) -> Shape:
    def check(value: Any, place: Place) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield _wrong(value, place, "a mapping")
            return
        for key, member in value.items():
            yield from item(member, (*place, key))

    return check


def _keys(shapes: Mapping[str, Shape], *required: str) -> Shape:
    """A mapping with some keys of known shape; every other key holds plain JSON."""

    def check(value: Any, place: Place) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield _wrong(value, place, "a mapping")
            return
        for key in required:
            if key not in value:
                yield (*place, key), "missing"
        for key, member in value.items():
            yield from shapes.get(key, _plain)(member, (*place, key))

    return check


def _plain(value: Any, place: Place) -> Iterator[Problem]:
    """Any JSON of sensible depth; NaN and Infinity, which Python's parser lets through, are none."""
    if isinstance(value, float) and not math.isfinite(value):
        yield place, "not a finite number"
    elif len(place) > MAX_DEPTH:
        yield place, "nested too deeply"
    elif isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, member in items:
            yield from _plain(member, (*place, key))


_text = _kind("text", str)
_bool = _kind("true or false", bool)
_words = _list(_kind("text or a number", str, int, float, bool, type(None)))
_texts = _list(_text)
_whole = _kind("a whole number", int)
_names = _or_null(_texts)


def _text_or_texts(value: Any, place: Place) -> Iterator[Problem]:
    yield from (_text if isinstance(value, str) else _names)(value, place)


# ---- shapes of the sections
_FACTS = _keys(
    {
        "type": _or_null(_text),
        "allowed": _or_null(_words),
        "choices": _or_null(_words),
        "aliases": _names,
        "status": _or_null(_text),
        "note": _or_null(_text),
        "presence": _or_null(_text),
        "required": _bool,
        "deprecated": _bool,
        "default_known": _bool,
        "differs": _or_null(_map(_plain)),
    }
)
"""Facts of one argument, flag or key: see `contract_parts.Entry`."""


def _class(value: Any, place: Place) -> Iterator[Problem]:
    """Fields of a nested class; some wrap them to say which source has the class."""
    if place[-1] == "decoding_type_values":  # the words of a discriminator, or words by source
        yield from (_map(_texts) if isinstance(value, Mapping) else _texts)(value, place)
    elif not isinstance(value, Mapping):
        yield _wrong(value, place, "a mapping")
    elif "_presence" in value:
        yield from _keys({"fields": _or_null(_rows)})(value, place)
    else:
        yield from _rows(value, place)


def _rows(value: Any, place: Place) -> Iterator[Problem]:
    """Facts by name, with remarks (text, or a list of words) between them."""
    if not isinstance(value, Mapping):
        yield _wrong(value, place, "a mapping")
        return
    for key, member in value.items():
        shape = _words if isinstance(member, list) else _or_null(_text)
        yield from (_FACTS if isinstance(member, Mapping) else shape)(member, (*place, key))


def _serve(value: Any, place: Place) -> Iterator[Problem]:
    """Options by command, with remarks between the commands."""
    if not isinstance(value, Mapping):
        yield _wrong(value, place, "a mapping")
        return
    for key, member in value.items():
        shape = _words if isinstance(member, list) else _or_null(_text)
        yield from (_map(_FACTS) if isinstance(member, Mapping) else shape)(member, (*place, key))


_TENSOR = _keys(
    {
        "name": _text,
        "data_type": _or_null(_text),
        "dims": _or_null(_list(_kind("a whole number or a placeholder", int, str))),
        "reshape": _or_null(_list(_whole)),
        "optional": _or_null(_bool),
        "allow_ragged_batch": _or_null(_bool),
    },
    "name",
)
_STEP = _keys(
    {"model": _text, "inputs": _map(_text), "outputs": _map(_text)}, "model", "inputs", "outputs"
)
_MODEL = _keys(
    {
        "inputs": _list(_TENSOR),
        "outputs": _list(_TENSOR),
        "parameters": _list(_keys({"key": _text, "template_variable": _or_null(_text)}, "key")),
        "template_variables": _or_null(_words),
        "steps": _or_null(_list(_STEP)),
        "model_yaml": _or_null(_keys({"triton_config": _or_null(_map(_keys({})))})),
        "source": _text_or_texts,
        "sources": _text_or_texts,
    }
)


def _triton(value: Any, place: Place) -> Iterator[Problem]:
    """Families: one model at the family's own level, or models by name."""
    families = _map(_kind("true or false", bool, type(None)))
    yield from _keys({"families": families}, "families")(value, place)
    for family, facts in value.items() if isinstance(value, Mapping) else ():
        if family == "families" or (facts is None or isinstance(facts, str)):
            continue
        yield from _MODEL(facts, (*place, family))
        for model, inner in facts.items() if isinstance(facts, Mapping) else ():
            if isinstance(inner, Mapping) and model != "model_yaml":
                yield from _MODEL(inner, (*place, family, model))


def _confidence(value: Any, place: Place) -> Iterator[Problem]:
    yield from (_keys({"overall": _text}) if isinstance(value, Mapping) else _text)(value, place)


_SOURCES: dict[str, Shape] = {"source": _text_or_texts, "sources": _text_or_texts}
_LLM_API = _keys(
    {
        **_SOURCES,
        "fields": _map(_FACTS),
        "free_text_fields": _map(_FACTS),
        "nested_by_field": _map(_map(_FACTS)),
        "nested": _map(_class),
        "classes_by_field": _or_null(_map(_texts)),
        "trt_llm_args": _or_null(_map(_FACTS)),
        "extra_fields": _or_null(_text),
        "uncertain": _names,
    },
    "fields",
)
_BUILD = _keys({**_SOURCES, "command_exists": _or_null(_bool), "flags": _or_null(_map(_FACTS))})
_QUANTIZATION = _keys(
    {
        **_SOURCES,
        "quant_algo": _names,
        "kv_cache_quant_algo": _names,
        "weight_quant_excludes": _names,
        "uncertain": _names,
    }
)
_RENAME = _keys({"old": _text, "new": _text, "note": _or_null(_text)}, "old", "new")
_CHANGES = _keys(
    {
        **dict.fromkeys(("removed", "deprecated", "changed", "added"), _names),
        "renamed": _or_null(_list(_RENAME)),
        "previous": _or_null(_text),
        "source": _text_or_texts,
    }
)
_CAPTURE = _keys(
    {"unknown": _or_null(_list(_keys({"path": _text, "reason": _text}, "path", "reason")))}
)
_CONTRACT = _keys(
    {
        "version": _text,
        "llm_api": _LLM_API,
        "triton": _triton,
        "trtllm_build": _or_null(_BUILD),
        "trtllm_serve": _or_null(_serve),
        "quantization": _or_null(_QUANTIZATION),
        "pins": _or_null(_map(_plain)),
        "changes_since_previous": _or_null(_CHANGES),
        "confidence": _or_null(_confidence),
        "capture": _or_null(_CAPTURE),
    },
    "version",
    "llm_api",
    "triton",
)
