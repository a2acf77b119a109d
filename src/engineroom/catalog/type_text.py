"""Type texts of contracts, which spell one type in several ways: do two mean the same values?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

# Constrained numbers and looser spellings of one type.
_SAME = {
    "PositiveInt": "int", "NonNegativeInt": "int", "StrictInt": "int", "PositiveFloat": "float",
    "NonNegativeFloat": "float", "StrictBool": "bool", "Dict": "dict", "List": "list",
    "Tuple": "tuple", "Set": "set", "flag": "bool", "store_true": "bool", "path": "str",
}  # fmt: skip
_VAGUE = frozenset({"object", "Any", "enum", "?"})


def same_type(old: Any, new: Any) -> bool:
    """True when two type texts mean the same values, or one of them is vague."""
    if old is None or new is None:
        return True
    left, right = _members(str(old)), _members(str(new))
    return left == right or bool((left | right) & _VAGUE)


def _members(text: str) -> frozenset[str]:
    """The members of a union, `Optional` included, each in one spelling."""
    text = re.sub(r"(int|float)[<>]=?-?\d+", r"\1", text)
    try:
        node = ast.parse(text.strip()[:2000], mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset({text})
    return frozenset(_flatten(node, 0))


def _flatten(node: ast.expr, depth: int) -> Iterator[str]:
    if depth > 30:
        yield "?"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _flatten(node.left, depth + 1)
        yield from _flatten(node.right, depth + 1)
    elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if node.value.id in ("Optional", "Union"):
            for part in parts:
                yield from _flatten(part, depth + 1)
            if node.value.id == "Optional":
                yield "None"
            return
        head = _SAME.get(node.value.id, node.value.id)
        if head == "dict":
            yield head  # what is in a dictionary is told by some contracts only
            return
        inner = ["|".join(sorted(_flatten(part, depth + 1))) for part in parts]
        yield f"{head}[{','.join(inner)}]"
    elif isinstance(node, ast.Name):
        yield _SAME.get(node.id, node.id)
    else:
        yield ast.unparse(node)
