"""What an image's `NVIDIA_REQUIRE_CUDA` says about a node, as the container runtime reads it.

Grammar (NVIDIA/nvidia-container-toolkit, internal/requirements/constraints/factory.go @ d34b3046):
alternatives are separated by a space and ORed; the conditions of one alternative are separated by a
comma and ANDed; a condition is a property, one of ``= != < <= > >=``, and a value. Conditions on a
property that the runtime does not know are skipped. Versions have one to three numbers and missing
numbers are 0, so ``driver<536`` is ``< 536.0.0``.
"""

from __future__ import annotations

import re

_CONDITION = re.compile(r"([^<>=!]+)(!=|<=|>=|=|<|>)([^<>=!]*)")
_VERSION = re.compile(r"v?([0-9]{1,9})(?:\.([0-9]{1,9}))?(?:\.([0-9]{1,9}))?")
_VERSION_PROPERTIES = ("cuda", "driver", "arch")
_MAX_LENGTH = 100_000


def evaluate(
    expr: str,
    *,
    cuda: str | None,
    driver: str | None,
    brand: str | None,
    arch: str | None = None,
) -> tuple[bool | None, str]:
    """Whether a node satisfies one `NVIDIA_REQUIRE_*` value.

    Args:
        expr: the value, e.g. ``cuda>=12.8 brand=tesla,driver>=535,driver<536``.
        cuda: highest CUDA version that the node's driver supports (``12.4``), not the image's.
        driver: the node's driver (``535.104.05``); a short form such as ``535`` means 535.0.0.
        brand: NVML's product brand in lower case: ``tesla``, ``nvidia``, ``geforce``, …
        arch: compute capability, ``9.0``.

    Returns:
        Satisfied, and why in one sentence. None: a needed fact is missing or cannot be read, and
        the known facts do not decide. An empty expression asks for nothing.
    """
    facts = {"cuda": cuda, "driver": driver, "brand": brand, "arch": arch}
    if len(expr) > _MAX_LENGTH:
        return None, f"the requirement is longer than {_MAX_LENGTH} characters"
    unmet: list[str] = []
    unknown: list[str] = []
    asked = False
    for alternative in expr.split(" "):
        verdicts: list[tuple[bool | None, str]] = []
        for condition in alternative.split(","):
            if not condition.strip():
                continue
            match = _CONDITION.fullmatch(condition)
            if match is None:
                return None, f"`{condition}` is not a condition; the runtime refuses to read it"
            name, operator, wanted = match.groups()
            if name not in facts:
                continue
            if name in _VERSION_PROPERTIES and not _VERSION.fullmatch(wanted):
                return None, f"`{condition}` has no version; the runtime refuses to read it"
            verdicts.append((_compare(name, facts[name], operator, wanted), condition))
        if not verdicts:
            continue
        asked = True
        failed = next((text for verdict, text in verdicts if verdict is False), None)
        open_ones = [text for verdict, text in verdicts if verdict is None]
        if failed is not None:
            unmet.append(failed)
        elif open_ones:
            unknown.extend(open_ones)
        else:
            return True, f"`{alternative}` holds ({_facts(facts)})"
    if not asked:
        return True, "it asks for nothing"
    if unknown:
        return None, f"`{unknown[0]}` cannot be decided ({_facts(facts)})"
    more = f" nor any of {len(unmet) - 1} other alternatives" if len(unmet) > 1 else ""
    return False, f"`{unmet[0]}` does not hold{more} ({_facts(facts)})"


def _compare(name: str, have: str | None, operator: str, wanted: str) -> bool | None:
    if have is None:
        return None
    left: object
    right: object
    if name in _VERSION_PROPERTIES:
        left, right = _version(have), _version(wanted)
        if left is None or right is None:
            return None
    else:
        left, right = have, wanted
    order = (left > right) - (left < right)  # type: ignore[operator]
    return {
        "=": order == 0,
        "!=": order != 0,
        "<": order < 0,
        "<=": order <= 0,
        ">": order > 0,
        ">=": order >= 0,
    }[operator]


def _version(text: str) -> tuple[int, ...] | None:
    match = _VERSION.fullmatch(text)
    return tuple(int(part or 0) for part in match.groups()) if match else None


def _facts(facts: dict[str, str | None]) -> str:
    return ", ".join(
        f"{name} {value or 'unknown'}" for name, value in facts.items() if name != "arch"
    )
