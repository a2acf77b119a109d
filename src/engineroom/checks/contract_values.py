"""Does a value fit the type that a contract states? As the real consumer converts it, not as JSON does.

LLM arguments are pydantic models in lax mode: a number may be written as text, a boolean as one of
its words, a string must be a string (pydantic documentation, Conversion Table). Types that a contract
gives as text and that are not listed here are not judged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_BOOL_WORDS = {"0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"}
_OPTIONAL = re.compile(r"Optional\[(.*)\]\Z")
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*\Z")


def misfit(fact: Mapping[str, Any], value: Any) -> str | None:
    """Why `value` does not fit, in a few words; None when it does or cannot be judged."""
    kind = str(fact.get("type", ""))
    optional = _OPTIONAL.match(kind)
    if optional:
        kind = optional[1]
    if value is None:
        required_default = fact.get("default")
        return None if optional or required_default is None else f"null is no {kind}"
    allowed = fact.get("allowed")
    # A union with str takes any word; a plain str with a list is a validated one.
    if allowed and "Union[" not in kind and not kind.startswith("List") and isinstance(value, str):
        near = next((a for a in allowed if str(a).lower() == value.lower()), None)
        if value in allowed:
            return None
        listed = ", ".join(map(str, allowed))
        return f"`{value}` is not one of {listed}" + (f"; write {near}" if near else "")
    wrong = _KINDS.get(kind, _any)(value)
    if wrong:
        return f"{_shown(value)} is no {kind}"
    if re.fullmatch(r"\w*Config", kind) and not isinstance(value, dict):
        return f"{_shown(value)} is no mapping of {kind}"
    return None


def _shown(value: Any) -> str:
    text = str(value)
    return f"`{text[:60]}{'…' if len(text) > 60 else ''}`"


def _any(value: Any) -> bool:
    return False


def _not_bool(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() not in _BOOL_WORDS
    return not (isinstance(value, bool) or value in (0, 1))


def _not_int(value: Any) -> bool:
    if isinstance(value, str):
        return not re.fullmatch(r"\s*[-+]?\d+(\.0+)?\s*", value)
    return not isinstance(value, int) and not (isinstance(value, float) and value.is_integer())


def _not_float(value: Any) -> bool:
    return (
        not _NUMBER.match(value) if isinstance(value, str) else not isinstance(value, int | float)
    )


def _not_str(value: Any) -> bool:
    return not isinstance(value, str)


def _not_ints(value: Any) -> bool:
    return not isinstance(value, list) or any(_not_int(item) for item in value)


_KINDS = {
    "bool": _not_bool,
    "int": _not_int,
    "float": _not_float,
    "str": _not_str,
    "List[int]": _not_ints,
    "Literal": _not_str,
}
