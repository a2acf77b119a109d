"""How Go reads and prints numbers and strings, as far as Helm templates need it.

A float64 that Go prints without a format (`%v`) has the shortest digits that read back, and goes to
exponent form below 1e-4 and from 1e+06 (strconv, format `g`, shortest); encoding/json goes to it
only below 1e-6 and from 1e+21. That is why a number of a million survives `toJson` and not `quote`.
"""

from __future__ import annotations

import re
from decimal import Decimal

_SIMPLE_INT = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|[1-9][0-9]*|0)")
_SIMPLE_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_INT64 = 1 << 63
# What amd64's conversion instruction answers for a float64 outside of int64.
_CONVERTED_OVERFLOW = -_INT64
_ESCAPES = {
    '"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r",
    "\t": "\\t", "\v": "\\v",
}  # fmt: skip


def _digits(value: float) -> tuple[str, int]:
    """Shortest digits and the decimal exponent of the first one."""
    _, digits, exponent = Decimal(repr(abs(value))).as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    point = len(text) + int(exponent)
    return text.rstrip("0") or "0", point - 1


def _exponent_form(digits: str, exponent: int) -> str:
    mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
    return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _plain_form(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    return whole + ("." + digits[exponent + 1 :] if len(digits) > exponent + 1 else "")


def shortest(value: float) -> str:
    """``%v`` of a float64: 999999 stays, 1000000 becomes ``1e+06``."""
    return _formed(value, value != 0 and not 1e-4 <= abs(value) < 1e6)


def json_number(value: float) -> str:
    """A float64 as encoding/json writes it."""
    text = _formed(value, value != 0 and not 1e-6 <= abs(value) < 1e21)
    return re.sub(r"e-0([0-9])$", r"e-\1", text)


def yaml_number(value: float) -> str:
    """A float64 as `toYaml` writes it: through JSON, where whole numbers become integers again."""
    text = json_number(value)
    if re.fullmatch(r"-?[0-9]+", text) and -_INT64 <= int(text) < 2 * _INT64:
        return text
    return shortest(float(text))


def _formed(value: float, with_exponent: bool) -> str:
    sign = "-" if str(value).startswith("-") else ""
    if value == 0:
        return sign + "0"
    digits, exponent = _digits(value)
    return sign + (_exponent_form if with_exponent else _plain_form)(digits, exponent)


def to_int64(value: float) -> int:
    """A float64 converted to int64: cut towards zero."""
    return int(value) if -_INT64 <= value < _INT64 else _CONVERTED_OVERFLOW


def parse_int(text: str) -> int | None:
    """strconv.ParseInt with base 0: `0x10`, `0o17` and `010` have a base; None is an error."""
    bare = text
    if "_" in text:
        if not re.fullmatch(r"[+-]?(0[xXbBoO]_?)?[0-9a-fA-F]+(_[0-9a-fA-F]+)*", text):
            return None
        bare = text.replace("_", "")
    if len(bare) > 80 or not _SIMPLE_INT.fullmatch(bare):
        return None
    sign, body = (-1 if bare[0] == "-" else 1), bare.lstrip("+-")
    base = {"0x": 16, "0b": 2, "0o": 8}.get(body[:2].lower(), 8 if body[:1] == "0" else 10)
    number = sign * int(body[2:] if body[1:2].lower() in "xbo" and len(body) > 2 else body, base)
    return number if -_INT64 <= number < _INT64 else None


def cast_int(text: str) -> int:
    """A string through `int` or `int64` (spf13/cast v1.7): what cannot be read is 0, not an error."""
    head, point, tail = text.partition(".")
    return parse_int(head if point and not tail.strip("0") else text) or 0


def parse_float(text: str) -> float | None:
    """strconv.ParseFloat of a decimal number; None is an error."""
    bare = text.replace("_", "") if re.fullmatch(r"[+-]?[0-9]+(_[0-9]+)+", text) else text
    if len(bare) > 400 or not _SIMPLE_FLOAT.fullmatch(bare):
        return None
    value = float(bare)
    return value if abs(value) != float("inf") else None


def quoted(text: str) -> str | None:
    """``%q`` of a string; None when it holds characters about which Go and Python may disagree."""
    out = []
    for char in text:
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif char < " " or char == "\x7f":
            out.append(f"\\x{ord(char):02x}")
        elif char < "\x7f" or char.isalnum():
            out.append(char)
        else:
            return None
    return '"' + "".join(out) + '"'
