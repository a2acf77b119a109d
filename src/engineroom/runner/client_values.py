"""Values of a request against the data types that a model declares. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from engineroom.errors import UsageError, Where
from engineroom.runner.client_model import TensorInfo

_INTEGERS = {
    **{f"INT{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}
_FLOATS = {"FP16": 65504.0, "BF16": 3.39e38, "FP32": 3.4028235e38, "FP64": math.inf}


def from_text(tensor: TensorInfo, text: str, option: str) -> Any:
    """The value of ``--set NAME=TEXT`` in the type of the input.

    Numbers and booleans are written as in JSON; a text stands for itself; several values are a JSON
    list.

    Raises:
        UsageError: not of the input's type; names input, type and text.
    """
    if tensor.datatype == "BYTES" and not (tensor.is_list and text.lstrip().startswith("[")):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    return fit(tensor, value, option)


def fit(tensor: TensorInfo, value: Any, option: str) -> Any:
    """The value as the input takes it; a type that is not known takes anything.

    Raises:
        UsageError: not of the input's type, or out of its range.
    """
    if isinstance(value, list | tuple):
        if not tensor.is_list:
            raise _wrong(tensor, option, f"takes one value, got {len(value)}")
        return _each(tensor, list(value), option)
    one = _one(tensor, value, option)
    return [one] if tensor.is_list and tensor.shape and tensor.datatype != "BYTES" else one


def _each(tensor: TensorInfo, values: list[Any], option: str) -> list[Any]:
    """Lists may be nested: a tensor of several dimensions."""
    return [
        _each(tensor, value, option) if isinstance(value, list) else _one(tensor, value, option)
        for value in values
    ]


def _one(tensor: TensorInfo, value: Any, option: str) -> Any:
    kind = tensor.datatype
    check: Callable[[TensorInfo, Any, str], Any] | None = None
    if kind == "BOOL":
        check = _bool
    elif kind in _INTEGERS:
        check = _integer
    elif kind in _FLOATS:
        check = _float
    elif kind == "BYTES":
        check = _text
    return check(tensor, value, option) if check else value


def _bool(tensor: TensorInfo, value: Any, option: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(tensor, option, f"takes true or false, got {_shown(value)}")
    return value


def _integer(tensor: TensorInfo, value: Any, option: str) -> int:
    low, high = _INTEGERS[str(tensor.datatype)]
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(tensor, option, f"takes a whole number, got {_shown(value)}")
    if not low <= value <= high:
        raise _wrong(tensor, option, f"takes {low} to {high}, got {_shown(value)}")
    return value


def _float(tensor: TensorInfo, value: Any, option: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(tensor, option, f"takes a number, got {_shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or abs(number) > _FLOATS[str(tensor.datatype)]:
        raise _wrong(tensor, option, f"takes a finite number, got {_shown(value)}")
    return number


def _text(tensor: TensorInfo, value: Any, option: str) -> str:
    if not isinstance(value, str):
        raise _wrong(tensor, option, f"takes text, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"`{text[:60]}`"


def _wrong(tensor: TensorInfo, option: str, reason: str) -> UsageError:
    kind = f" ({tensor.datatype})" if tensor.datatype else ""
    return UsageError(f"`{tensor.name}`{kind} {reason}", where=Where(key=option))
