"""Plain scalars as go-yaml v2 resolves them: YAML 1.1 with octal numbers and many words for true.

Source: go-yaml v2 resolve.go, which sigs.k8s.io/yaml and so Helm use.
"""

from __future__ import annotations

import re
from typing import Any

from engineroom.reading import go_numbers

_TRUE = {"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"}
_FALSE = {"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"}
_NULL = {"", "~", "null", "Null", "NULL"}
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF|nan|NaN|NAN)")


class ValuesError(ValueError):
    """Text that Helm would refuse too, or more than we read."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


def resolve(text: str, line: int | None = None) -> Any:
    """A plain scalar by go-yaml v2's table.

    Raises:
        ValuesError: infinity or not-a-number, which JSON cannot hold.
    """
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _SPECIAL.fullmatch(text):
        raise ValuesError(f"`{text}` has no JSON form", line)
    if text[:1] not in "+-.0123456789" or _DATE.fullmatch(text):
        return text
    plain = text.replace("_", "") if text[0] != "." else text
    if text[0] != "." and len(plain) < 80:
        number = go_numbers.parse_int(plain)
        if number is None and re.fullmatch(r"\+?[0-9]{19,20}", plain) and int(plain) < 2**64:
            number = int(plain)
        if number is not None:
            return float(number)
    if _FLOAT.fullmatch(plain):
        found = go_numbers.parse_float(plain)
        return text if found is None else found
    return text
