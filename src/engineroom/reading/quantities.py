"""Kubernetes quantities (`20Gi`, `500m`, `1e3`) as whole numbers.

Grammar: kubernetes/apimachinery pkg/api/resource/quantity.go: a signed decimal with one suffix out
of Ki Mi Gi Ti Pi Ei, n u m k M G T P E, or a decimal exponent.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Any

_FORM = re.compile(r"([+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40}))(.{0,4})")
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]{1,2})")
_SUFFIXES = {"": Decimal(1)}
_SUFFIXES |= {unit: Decimal(1000) ** n for n, unit in enumerate("kMGTPE", start=1)}
_SUFFIXES |= {unit + "i": Decimal(1024) ** n for n, unit in enumerate("KMGTPE", start=1)}
_SUFFIXES |= {unit: Decimal(1000) ** -n for n, unit in enumerate("mun", start=1)}


def amount(value: Any) -> int | None:
    """A quantity in its base unit (bytes, cores, devices), rounded up; None when it is none.

    YAML numbers are accepted as Kubernetes accepts them: `2` and `"2"` are the same.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = value if isinstance(value, str) else repr(value)
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    number, suffix = match.groups()
    exponent = _EXPONENT.fullmatch(suffix)
    if exponent is not None:
        factor = Decimal(10) ** int(exponent[1])
    elif suffix in _SUFFIXES:
        factor = _SUFFIXES[suffix]
    else:
        return None
    return int((Decimal(number) * factor).to_integral_value(rounding=ROUND_CEILING))
