"""Template functions of Go, sprig and Helm that turn values into text.

Sources: Masterminds/sprig numeric.go, strings.go, defaults.go (v3.3.0); spf13/cast v1.7.0; Go's fmt;
helm/helm pkg/engine/funcs.go @ e9b85e4. What is not here is not guessed (:class:`NotEvaluated`).
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from typing import Any

from engineroom.reading import go_numbers
from engineroom.reading.go_format import (
    NotEvaluated,
    RenderError,
    go_type,
    printed,
    printf,
    quote,
    to_json,
    to_yaml,
)
from engineroom.reading.go_format import text_of as _text
from engineroom.reading.helm_expressions import GoInt, GoInt64

MAX_STRING = 1_000_000


def empty(value: Any) -> bool:
    """sprig's `empty`: nil, false, zero, and what has no length."""
    return (
        value is None
        or value is False
        or (not isinstance(value, bool) and value in (0, "", [], {}))
    )


def int64(value: Any) -> int:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return go_numbers.to_int64(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return go_numbers.cast_int(value)
    if value is None:
        return 0
    return 0


def float64(value: Any) -> float:
    if isinstance(value, str):
        found = go_numbers.parse_float(value)
        if found is None and re.search(r"(?i)inf|nan|0x|_", value):
            raise NotEvaluated("an unusual number")
        return found or 0.0
    if isinstance(value, bool | int | float):
        return float(value)
    return 0.0


def _number(value: Any) -> int:
    """An argument that Go declares as `int`."""
    if isinstance(value, int) and not isinstance(value, bool | GoInt64):
        return int(value)
    if value is None:
        raise NotEvaluated("nil as an int")
    raise RenderError(f"wrong type for value; expected int; got {go_type(value)}")


def _compare(left: Any, right: Any, *, ordered: bool) -> int:
    """Go's comparison of basic kinds: a YAML number is a float64 and no int compares with it."""
    kinds = []
    for value in (left, right):
        if value is None or isinstance(value, list | dict):
            raise NotEvaluated("a comparison of this value")
        kinds.append(
            "int" if isinstance(value, int) and not isinstance(value, bool) else go_type(value)
        )
    if kinds[0] != kinds[1]:
        raise RenderError("incompatible types for comparison")
    if ordered and kinds[0] == "bool":
        raise RenderError("invalid type for comparison")
    return int(left > right) - int(left < right)


def equal(first: Any, *others: Any) -> bool:
    if not others:
        raise RenderError("missing argument for comparison")
    return any(_compare(first, other, ordered=False) == 0 for other in others)


def default(fallback: Any, *given: Any) -> Any:
    return fallback if not given or empty(given[0]) else given[0]


def coalesce(*values: Any) -> Any:
    return next((value for value in values if not empty(value)), None)


def required(_: Any, value: Any) -> Any:
    if value is None or value == "":
        raise NotEvaluated("required without a value")
    return value


def _divided(a: int, b: int, *, rest: bool) -> int:
    if b == 0:
        raise RenderError("integer divide by zero")
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return a - b * quotient if rest else quotient


def _wrapped(value: int) -> GoInt64:
    return GoInt64((value + 2**63) % 2**64 - 2**63)


def _product(*values: Any) -> GoInt64:
    return _wrapped(math.prod(int64(value) for value in values))


def _replace(old: Any, new: Any, text: Any) -> str:
    return _bounded(_text(text).replace(_text(old), _text(new)))


def _trunc(count: Any, text: Any) -> str:
    size, raw = _number(count), _text(text)
    if not raw.isascii():
        raise NotEvaluated("trunc of other than ASCII")
    if size < 0:
        return raw[size:] if len(raw) + size > 0 else raw
    return raw[:size]


def _indent(count: Any, text: Any) -> str:
    pad = " " * max(0, min(_number(count), 1000))
    return _bounded(pad + _text(text).replace("\n", "\n" + pad))


def _bounded(text: str) -> str:
    if len(text) > MAX_STRING:
        raise NotEvaluated("a long text")
    return text


def _ternary(yes: Any, no: Any, which: Any) -> Any:
    if not isinstance(which, bool):
        raise RenderError("wrong type for value; expected bool")
    return yes if which else no


def _kind(value: Any) -> str:
    if isinstance(value, dict | list):
        return "map" if isinstance(value, dict) else "slice"
    return "invalid" if value is None else go_type(value)


def _has_key(mapping: Any, key: Any) -> bool:
    if not isinstance(mapping, dict):
        raise NotEvaluated("hasKey of this value")
    return _text(key) in mapping


def _print(*values: Any) -> str:
    if len(values) != 1:
        raise NotEvaluated("print of several values")
    return printed(values[0])


def _atoi(text: str) -> GoInt:
    if re.fullmatch(r"[+-]?[0-9]{19,}", text):
        raise NotEvaluated("a number near the end of int64")
    return GoInt(int(text) if re.fullmatch(r"[+-]?[0-9]+", text) else 0)


# What only changes the form: the text still stands for the value that was written.
FORMATTING: dict[str, Callable[..., Any]] = {
    "quote": quote,
    "squote": lambda *v: " ".join(f"'{printed(x)}'" for x in v if x is not None),
    "int": lambda value: GoInt(int64(value)),
    "int64": lambda value: GoInt64(int64(value)),
    "float64": float64,
    "atoi": lambda text: _atoi(_text(text)),
    "toString": printed,
    "toJson": to_json, "toYaml": to_yaml, "mustToJson": to_json, "mustToYaml": to_yaml,
    "default": default, "coalesce": coalesce, "required": required,
    "printf": printf, "print": _print,
    "trim": lambda text: _text(text).strip(),
    "indent": _indent, "nindent": lambda count, text: "\n" + _indent(count, text),
}  # fmt: skip
OTHERS: dict[str, Callable[..., Any]] = {
    "upper": lambda text: _text(text).upper(),
    "lower": lambda text: _text(text).lower(),
    "replace": _replace, "trunc": _trunc,
    "trimSuffix": lambda part, text: _text(text).removesuffix(_text(part)),
    "trimPrefix": lambda part, text: _text(text).removeprefix(_text(part)),
    "contains": lambda part, text: _text(part) in _text(text),
    "hasPrefix": lambda part, text: _text(text).startswith(_text(part)),
    "hasSuffix": lambda part, text: _text(text).endswith(_text(part)),
    "b64enc": lambda text: base64.b64encode(_text(text).encode()).decode(),
    "ternary": _ternary, "empty": empty, "hasKey": _has_key,
    "kindIs": lambda kind, value: _kind(value) == _text(kind), "kindOf": _kind,
    "add": lambda *v: _wrapped(sum(int64(x) for x in v)),
    "add1": lambda v: _wrapped(int64(v) + 1),
    "sub": lambda a, b: _wrapped(int64(a) - int64(b)),
    "mul": _product,
    "div": lambda a, b: _wrapped(_divided(int64(a), int64(b), rest=False)),
    "mod": lambda a, b: _wrapped(_divided(int64(a), int64(b), rest=True)),
    "max": lambda a, *v: GoInt64(max(int64(x) for x in (a, *v))),
    "min": lambda a, *v: GoInt64(min(int64(x) for x in (a, *v))),
    "floor": lambda v: _rounded(math.floor, v), "ceil": lambda v: _rounded(math.ceil, v),
    "not": lambda v: not truth(v),
    "eq": equal, "ne": lambda a, b: not equal(a, b),
    "lt": lambda a, b: _compare(a, b, ordered=True) < 0,
    "le": lambda a, b: _compare(a, b, ordered=True) <= 0,
    "gt": lambda a, b: _compare(a, b, ordered=True) > 0,
    "ge": lambda a, b: _compare(a, b, ordered=True) >= 0,
}  # fmt: skip


def _rounded(how: Callable[[float], int], value: Any) -> float:
    return float(how(float64(value)))


def truth(value: Any) -> bool:
    """Go's truth: the zero value is false."""
    return not empty(value)
