"""What a consumer makes of one parameter's text: read, replaced by a default, or refused."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

from engineroom.catalog.triton_parameters import ParameterRow
from engineroom.names import Severity
from engineroom.reading import cpp_values as cpp
from engineroom.reading.pbtxt import Scalar

READS, IGNORES, CHANGES, REFUSES = "reads", "ignores", "changes", "refuses"
_TREE = cpp.TREE
_OLD_WORDS = {"guaranteed_completion": "guaranteed_no_evict"}
"""Policy names of 2023 guides (NVIDIA/TensorRT-LLM#677)."""


@dataclass(frozen=True)
class Outcome:
    """What the server does.

    Attributes:
        server: ``reads``, ``ignores`` (as if absent), ``changes`` or ``refuses``.
        severity: None where nothing is to be said.
        effective: the value in force; None where the runtime decides or nothing loads.
        right: what to write.
    """

    server: str
    severity: Severity | None
    reason: str
    effective: Any = None
    right: Any = None


def judge(row: ParameterRow, scalar: Scalar, version: str | None) -> Outcome:
    if scalar.placeholders:
        return _unfilled(row, scalar, version)
    if scalar.text == "" and row.reader != "string":
        return _empty(row, version)
    if row.reader in ("bool_cpp", "bool_python"):
        return _bool(row, scalar.text, version)
    if row.reader in ("bool_true", "bool_bls"):
        return _python_true(row, scalar.text)
    if row.accepted:
        return _choice(row, scalar.text, version)
    if row.reader in ("sets_cpp", "tree_cpp", "ints_cpp"):
        return _list(row, scalar.text, version)
    if row.reader == "string":
        if scalar.text == "" and row.required:
            return _empty(row, version)
        return Outcome(READS, None, "kept as text", scalar.text)
    return _number(row, scalar.text, version)


def fallback(row: ParameterRow, version: str | None) -> Any:
    """The default in force; the one listed first where it changed and no version is known."""
    return row.defaults(version)[0]


def _default_words(row: ParameterRow, version: str | None) -> str:
    known = [show(v) for v in row.defaults(version) if v is not None]
    return "the default " + " or ".join(known) if known else "the runtime's own default"


def show(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unfilled(row: ParameterRow, scalar: Scalar, version: str | None) -> Outcome:
    left = f"`{scalar.shown}` is a placeholder that was not filled"
    if row.unfilled == "refuse":
        return Outcome(REFUSES, Severity.ERROR, f"{left}; the model cannot serve ({row.effect})",
                       right=row.right)  # fmt: skip
    if row.unfilled == "ignore":
        return Outcome(IGNORES, None, f"{left}; it counts as unset", fallback(row, version))
    if row.unfilled == "keep":
        return Outcome(CHANGES, Severity.WARN, f"{left} and is used as it stands ({row.effect})",
                       scalar.text)  # fmt: skip
    return Outcome(
        CHANGES, Severity.WARN,
        f"{left}; it cannot be read, so {_default_words(row, version)} holds ({row.effect})",
        fallback(row, version),
    )  # fmt: skip


def _empty(row: ParameterRow, version: str | None) -> Outcome:
    if row.required:
        return Outcome(REFUSES, Severity.ERROR, f"is empty; the model does not load ({row.effect})",
                       right=row.right)  # fmt: skip
    return Outcome(IGNORES, None, "is empty: the default holds", fallback(row, version))


def _lost(row: ParameterRow, text: str, version: str | None, meant: Any, takes: str) -> Outcome:
    """The text cannot be read."""
    right = meant
    if row.unreadable == "refuse":
        return Outcome(REFUSES, Severity.ERROR,
                       f"`{text[:60]}` is refused: {takes}; the model does not load", right=right)  # fmt: skip
    effective = fallback(row, version)
    return Outcome(
        CHANGES, Severity.ERROR,
        f"`{text[:60]}` cannot be read: {takes}. It counts as not specified, so "
        f"{_default_words(row, version)} holds ({row.effect})",
        effective, right,
    )  # fmt: skip


def _bool(row: ParameterRow, text: str, version: str | None) -> Outcome:
    meant = cpp.meant_bool(text)
    if row.reader == "bool_cpp":
        value = cpp.cpp_bool(text)
        takes = "the C++ getter takes True, true, TRUE, 1 or False, false, FALSE, 0"
    else:
        word = text.lower()
        value = True if word in cpp.PYTHON_TRUE else False if word in cpp.PYTHON_FALSE else None
        takes = "the model takes true, 1, t, y, yes or false, 0, f, n, no"
    if value is not None:
        return Outcome(READS, None, f"read as {show(value)}", value)
    return _lost(row, text, version, meant, takes)


def _python_true(row: ParameterRow, text: str) -> Outcome:
    words = ("true", "yes", "1", "t") if row.reader == "bool_bls" else ("1", "true")
    value, meant = text.lower() in words, cpp.meant_bool(text)
    if value == meant:
        return Outcome(READS, None, f"read as {show(value)}", value)
    return Outcome(
        CHANGES, Severity.ERROR,
        f"`{text[:60]}` is read as false: only {', '.join(words)} are true here ({row.effect})",
        value, meant,
    )  # fmt: skip


def _choice(row: ParameterRow, text: str, version: str | None) -> Outcome:
    word = text.lower() if row.reader == "choice_python" else text
    if word in row.accepted:
        return Outcome(READS, None, f"read as {text}", text)
    plain = text.strip().lower().replace("-", "_").replace(" ", "_")
    plain = _OLD_WORDS.get(plain, plain)
    near = (
        [plain] if plain in row.accepted else difflib.get_close_matches(plain, row.accepted, 1, 0.7)
    )
    default = fallback(row, version)
    right = near[0] if near else row.right or (default if isinstance(default, str) else None)
    return _lost(row, text, version, right, "accepted are exactly " + ", ".join(row.accepted))


def _plain_ints(text: str) -> bool:
    """Whether each piece between commas is one whole number, and nothing else."""
    return all(
        re.fullmatch(r"\s*[+-]?\d{1,20}\s*|\s*", piece)
        for piece in text.split(",")[: cpp.MAX_ITEMS]
    )


def _list(row: ParameterRow, text: str, version: str | None) -> Outcome:
    if row.reader == "tree_cpp":
        if _TREE.fullmatch(text):
            return Outcome(READS, None, "read as a tree", text)
        return _lost(row, text, version, None, "a tree is written {0, 0}, {0, 1}")
    if row.reader == "ints_cpp":
        numbers = cpp.csv_ints(text)
        if numbers is None:
            return _lost(row, text, version, None, "whole numbers separated by commas are")
        if row.least is not None and min(numbers) < row.least:
            return _outside(row, text, min(numbers))
        if not _plain_ints(text):
            kept = ",".join(map(str, numbers))
            return Outcome(
                CHANGES, Severity.ERROR, f"`{text[:60]}` is read as {kept}: whole numbers are separated by "
                "commas, and what follows a number is dropped", kept,
            )  # fmt: skip
        return Outcome(READS, None, f"read as {numbers[:8]}", text)
    sets = cpp.device_sets(text)
    if sets is not None and not _plain_ints(text.replace(";", ",")):
        kept = ";".join(",".join(map(str, ids)) for ids in sets)
        return Outcome(
            CHANGES, Severity.ERROR,
            f"`{text[:60]}` is read as {kept}: numbers are separated by commas, sets by semicolons, and what "
            "follows a number is dropped", kept,
        )  # fmt: skip
    if sets is not None:
        return Outcome(READS, None, f"read as {sets[:8]}", text)
    read = []
    for piece in text.split(";")[: cpp.MAX_ITEMS]:
        numbers = cpp.csv_ints(piece)
        if numbers is None:
            break
        read.append(",".join(map(str, numbers)))
    lost = _lost(row, text, version, None, "numbers separated by commas, sets by semicolons are")
    if not read:
        return lost
    kept = ";".join(read)
    return Outcome(
        CHANGES, Severity.ERROR, f"`{text[:60]}` is read up to its first fault: {kept}", kept
    )


_READERS = {
    "int_cpp": (cpp.stoi, "stoi reads a whole number within 32 bits"),
    "uint_cpp": (cpp.stoull, "stoull reads a whole number"),
    "uint32_cpp": (lambda text: cpp.stoull(text, 32), "stoul reads a whole number"),
    "float_cpp": (cpp.stof, "stof reads a number with a decimal point"),
    "int_python": (lambda text: _python(int, text), "Python's int() reads a whole number"),
    "float_python": (lambda text: _python(float, text), "Python's float() reads a number"),
    "digits_python": (lambda t: int(t) if t.isdecimal() and len(t) < 30 else None, "digits only"),
}  # fmt: skip


def _python(kind: Any, text: str) -> Any:
    try:
        return kind(text) if len(text) < 100 else None
    except ValueError:
        return None


def _number(row: ParameterRow, text: str, version: str | None) -> Outcome:
    reader, takes = _READERS[row.reader]
    value, meant = reader(text), cpp.meant_number(text)
    whole = "float" not in row.reader
    right: Any = int(meant) if meant is not None and whole and meant == int(meant) else meant
    if whole and meant is not None and meant != int(meant):
        right = None
    if value is None:
        return _lost(row, text, version, right, takes)
    if (row.above is not None and not value > row.above) or (
        row.below is not None and not value < row.below
    ):
        return _outside(row, text, value, right)
    if row.least is not None and value < row.least:
        return _outside(row, text, value, right)
    if meant is None or abs(meant - value) > 1e-6 * max(1.0, abs(meant)):
        return Outcome(
            CHANGES, Severity.ERROR,
            f"`{text[:60]}` is read as {value}: {takes} and drops the rest ({row.effect})", value, right,
        )  # fmt: skip
    return Outcome(READS, None, f"read as {value}", value)


def _outside(row: ParameterRow, text: str, value: float, right: Any = None) -> Outcome:
    limits = [
        f"above {row.above:g}" if row.above is not None else "",
        f"below {row.below:g}" if row.below is not None else "",
        f"at least {row.least}" if row.least is not None else "",
    ]
    wanted = " and ".join(filter(None, limits))
    fits = right is not None and right != value and (
        (row.above is None or right > row.above)
        and (row.below is None or right < row.below)
        and (row.least is None or right >= row.least)
    )  # fmt: skip
    return Outcome(
        REFUSES, Severity.ERROR,
        f"`{text[:60]}` is read as {value}, which must be {wanted}: the model does not load",
        right=right if fits else None,
    )  # fmt: skip
