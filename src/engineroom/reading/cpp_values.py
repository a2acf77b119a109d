"""How consumers turn a parameter's text into a value: C++ `std::sto*`, and Python's words.

C++ getters read the longest number at the front and drop the rest, so "1e6" is 1 as an integer;
Python's `int` refuses the same text. Sources: the C++ standard, [string.conversions]; getters of
triton_backend/inflight_batcher_llm/src/model_state.cc (NVIDIA/TensorRT-LLM).
"""

from __future__ import annotations

import math
import re

INT32 = (-(2**31), 2**31 - 1)
UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1

MAX_ITEMS = 1024
"""Items of a list that are looked at: no machine has more GPUs or ranks for one model."""

_SPACE = " \t\n\v\f\r"
_INT = re.compile(r"[+-]?[0-9]{1,400}")
_FLOAT = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F]{1,400}|inf(?:inity)?|nan|"
    r"(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,5})?)",
    re.IGNORECASE,
)
CPP_TRUE, CPP_FALSE = ("True", "true", "TRUE", "1"), ("False", "false", "FALSE", "0")
PYTHON_TRUE, PYTHON_FALSE = ("true", "1", "t", "y", "yes"), ("false", "0", "f", "n", "no")
"""Words of the preprocessing and postprocessing models, upper and lower case alike."""


def cpp_bool(text: str) -> bool | None:
    """None where the getter throws: any word but the eight it compares with."""
    return True if text in CPP_TRUE else False if text in CPP_FALSE else None


def _front(text: str) -> int | None:
    found = _INT.match(text.lstrip(_SPACE))
    return int(found[0]) if found else None


def stoi(text: str) -> int | None:
    """`std::stoi`; None where it throws."""
    number = _front(text)
    return number if number is not None and INT32[0] <= number <= INT32[1] else None


def stoull(text: str, bits: int = 64) -> int | None:
    """`std::stoull`, or `stoul` cast to 32 bits: a minus sign wraps around."""
    number = _front(text)
    if number is None or abs(number) > UINT64_MAX:
        return None
    return number % (1 << bits)


def stof(text: str) -> float | None:
    """`std::stof`: dot as decimal sign; a number out of the range of float throws."""
    found = _FLOAT.match(text.lstrip(_SPACE))
    if not found:
        return None
    word = found[0]
    if word.lstrip("+-").lower().startswith("0x"):
        return float(int(word.replace("+", ""), 16)) if len(word) < 30 else None
    number = float(word)
    if math.isfinite(number) and abs(number) > 3.4028235677973366e38:
        return None
    return None if math.isinf(number) and "n" not in word.lower() else number


def csv_ints(text: str) -> list[int] | None:
    """`csvStrToVecInt`: comma-separated, None where it throws (nothing, or no number)."""
    numbers: list[int] = []
    for part in text.split(",", MAX_ITEMS)[:MAX_ITEMS]:
        bare = part.lstrip(_SPACE)
        if not bare:
            break
        number = stoi(bare)
        if number is None:
            return None
        numbers.append(number)
    return numbers or None


def device_sets(text: str) -> list[list[int]] | None:
    """`gpu_device_ids` and `participant_ids`: sets separated by `;`; None where reading throws."""
    pieces = text.split(";", MAX_ITEMS)[:MAX_ITEMS]
    if pieces and pieces[-1] == "":  # std::getline gives no last empty piece
        pieces.pop()
    sets: list[list[int]] = []
    for piece in pieces:
        numbers = csv_ints(piece)
        if numbers is None:
            return None
        sets.append(numbers)
    return sets


TREE = re.compile(r"\s*\{[0-9,\s]+\}(?:\s*,\s*\{[0-9,\s]+\})*\s*")
"""What `csvStrToVecVecInt` reads as a tree of choices: ``{0}, {0, 0}, {1}``."""


_YES = {"true", "1", "yes", "y", "on", "t", "enable", "enabled"}
_NO = {"false", "0", "no", "n", "off", "f", "disable", "disabled"}


def meant_bool(text: str) -> bool | None:
    """What a person means by a word, whoever reads it; None for anything else."""
    word = text.strip().strip("'\"").lower()
    return True if word in _YES else False if word in _NO else None


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
          "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}  # fmt: skip
_MEANT = re.compile(
    r"([+-]?[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,3})?|[+-]?\.[0-9]{1,40})\s*(%|[kKmMgGtT]?i?)[bB]?"
)


def meant_number(text: str) -> float | None:
    """The number a person means: digit groups, a size unit or a per cent sign understood."""
    plain = text.strip().strip("'\"").replace("_", "")
    if re.fullmatch(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?", plain):
        plain = plain.replace(",", "")
    elif re.fullmatch(r"[+-]?[0-9]{1,3},[0-9]{1,6}", plain):
        plain = plain.replace(",", ".")
    found = _MEANT.fullmatch(plain)
    if not found:
        return None
    factor = 0.01 if found[2] == "%" else _UNITS.get(found[2].lower())
    number = float(found[1]) * factor if factor is not None else None
    return number if number is not None and math.isfinite(number) else None
