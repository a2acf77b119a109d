"""Values of a template as text: Go's fmt, JSON and YAML as Helm writes them, and `quote`."""

from __future__ import annotations

import json
import re
from typing import Any

from engineroom.reading import go_numbers
from engineroom.reading.go_yaml import ValuesError, resolve
from engineroom.reading.helm_expressions import GoInt64


class NotEvaluated(Exception):
    """Something that this evaluator does not know."""


class RenderError(Exception):
    """Helm itself fails here."""


def go_type(value: Any) -> str:
    """The Go type as `%!d(…)` names it."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, GoInt64):
        return "int64"
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "float64"
    if isinstance(value, str):
        return "string"
    raise NotEvaluated("a list or a mapping as text")


def printed(value: Any) -> str:
    """``%v``."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return go_numbers.shortest(value)
    if isinstance(value, str):
        return value
    raise NotEvaluated("a list or a mapping as text")


def text_of(value: Any) -> str:
    """An argument that Go declares as `string`."""
    if isinstance(value, str):
        return value
    if value is None:
        raise NotEvaluated("nil as a string")
    raise RenderError(f"wrong type for value; expected string; got {go_type(value)}")


def to_json(value: Any) -> str:
    if isinstance(value, float):
        return go_numbers.json_number(value)
    if isinstance(value, bool | int) or value is None:
        return "null" if value is None else printed(value)
    if isinstance(value, str) and value.isprintable():
        text = json.dumps(value, ensure_ascii=False)
        return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    raise NotEvaluated("toJson of this value")


def to_yaml(value: Any) -> str:
    if isinstance(value, float):
        return go_numbers.yaml_number(value)
    if isinstance(value, bool | int) or value is None:
        return "null" if value is None else printed(value)
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_./+-]*", value):
        try:
            plain = isinstance(resolve(value), str) and not re.match(
                r"[0-9]{4}-[0-9]{1,2}-[0-9]", value
            )
        except ValuesError:
            plain = False
        if not plain or value in ("=", "<<"):
            return f'"{value}"'
        if not value.startswith(("-", ".")):
            return value
    raise NotEvaluated("toYaml of this value")


def quote(*values: Any) -> str:
    out = []
    for value in values:
        if value is None:
            continue
        text = go_numbers.quoted(printed(value))
        if text is None:
            raise NotEvaluated("quote of unusual characters")
        out.append(text)
    return " ".join(out)


_VERB = re.compile(r"%(?:\.([0-9]{1,2}))?([a-zA-Z%])")


def printf(pattern: Any, *values: Any) -> str:
    """Go's Sprintf for plain verbs; a verb that does not fit prints ``%!d(float64=1e+06)``."""
    pattern, used, out, at = text_of(pattern), 0, [], 0
    if "%" in _VERB.sub("", pattern):
        raise NotEvaluated("printf with flags")
    for match in _VERB.finditer(pattern):
        out.append(pattern[at : match.start()])
        at = match.end()
        precision, verb = match.groups()
        if verb == "%":
            out.append("%")
        elif used >= len(values):
            out.append(f"%!{verb}(MISSING)")
        else:
            out.append(_formatted(verb, precision, values[used]))
            used += 1
    out.append(pattern[at:])
    extra = values[used:]
    if extra:
        listed = ", ".join(
            f"{go_type(v)}={printed(v)}" if v is not None else "<nil>" for v in extra
        )
        out.append(f"%!(EXTRA {listed})")
    return "".join(out)


def _formatted(verb: str, precision: str | None, value: Any) -> str:
    kind = go_type(value)
    if precision is not None and (kind != "float64" or verb not in "fF"):
        raise NotEvaluated("printf with a precision")
    if verb == "v":
        return printed(value)
    if verb == "d" and kind in ("int", "int64"):
        return printed(value)
    if verb == "s" and kind == "string":
        return str(value)
    if verb == "t" and kind == "bool":
        return printed(value)
    if verb in "fF" and kind == "float64":
        return f"{value:.{int(precision or 6)}f}"
    if verb == "g" and kind == "float64":
        return go_numbers.shortest(value)
    if verb == "q" and kind == "string":
        return quote(value)
    if verb in "dstfFgq" and not (verb == "q" and kind in ("int", "int64")):
        return f"%!{verb}({kind}={printed(value)})" if value is not None else f"%!{verb}(<nil>)"
    raise NotEvaluated(f"printf %{verb}")
