"""What a name or an expression of a source tree is worth, without running it.

Only what is written out counts: constants, enum members, defaults of fields, keys of dictionaries and
small arithmetic. Everything else is `UNKNOWN`, never a guess.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Any

from engineroom.runner.contract_source_tree import Module, SourceTree


class _Unknown:
    """The value of an expression that is not written out."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()
SUPPRESS = "argparse.SUPPRESS"
_DEPTH = 40
_INT_BITS = 256


@dataclass(frozen=True)
class ClassRef:
    """A class and the module that defines it."""

    module: Module
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class Member:
    """An enum member. Contracts show the value where it is text, else the name."""

    name: str
    value: Any

    @property
    def shown(self) -> str:
        return self.value if isinstance(self.value, str) else self.name


@dataclass(frozen=True)
class Instance:
    """A call of a class: its arguments are not followed."""

    name: str


class Values:
    """Resolves names through imports of one tree and evaluates expressions."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree

    # ---- names
    def find(self, module: Module, name: str, depth: int = 0) -> tuple[Module, ast.AST] | None:
        """(module, definition) of a name: a class, a function, or the assigned expression."""
        if depth > _DEPTH:
            return None
        for table in (module.classes, module.functions, module.assigns):
            if name in table:
                return module, table[name]
        if name not in module.imports:
            return None
        source, original = module.imports[name]
        target = self.tree.dotted(source)
        if target is None or original is None or target is module:
            return None
        found = self.find(target, original, depth + 1)
        if found is None:  # `from package import submodule` gives no definition
            return None
        return found

    def class_of(self, module: Module, node: ast.AST, depth: int = 0) -> ClassRef | None:
        """The class that an expression names, when the tree defines it."""
        if isinstance(node, ast.Name) and depth <= _DEPTH:
            found = self.find(module, node.id)
            if found and isinstance(found[1], ast.ClassDef):
                return ClassRef(found[0], found[1])
            if found and isinstance(found[1], ast.Name):  # LlmArgs = TorchLlmArgs
                return self.class_of(found[0], found[1], depth + 1)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            source, original = module.imports.get(node.value.id, ("", None))
            dotted = source if original is None else f"{source}.{original}"
            target = self.tree.dotted(dotted) if source else None
            if target and node.attr in target.classes:
                return ClassRef(target, target.classes[node.attr])
        return None

    def ancestry(self, ref: ClassRef) -> list[ClassRef]:
        """The class and the bases that the tree defines, nearest first, each once."""
        order: list[ClassRef] = []
        queue = [ref]
        while queue and len(order) < 50:
            item = queue.pop(0)
            if any(item.node is seen.node for seen in order):
                continue
            order.append(item)
            bases = [self.class_of(item.module, base) for base in item.node.bases]
            queue = [base for base in bases if base] + queue
        return order

    def outer_bases(self, ref: ClassRef) -> set[str]:
        """`module.name` of every base that the tree does not define, through all ancestors."""
        names = set()
        for item in self.ancestry(ref):
            for base in item.node.bases:
                if self.class_of(item.module, base) is None:
                    text = ast.unparse(base)
                    source, original = item.module.imports.get(text, ("", None))
                    names.add(f"{source}.{original}" if original else text)
        return names

    # ---- enums
    def is_enum(self, ref: ClassRef) -> bool:
        return any(
            base.rsplit(".", 1)[-1] in {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}
            for base in self.outer_bases(ref)
        )

    def members(self, ref: ClassRef) -> dict[str, Member]:
        """Members of an enum that the tree defines, in order."""
        bases = self.outer_bases(ref)
        text = any(b.endswith("StrEnum") or b == "str" for b in bases)
        # enum.StrEnum of the standard library lowers the name in auto(), the strenum package does not.
        lower = "enum.StrEnum" in bases
        found: dict[str, Member] = {}
        for statement in ref.node.body:
            if not isinstance(statement, ast.Assign) or len(found) >= 1000:
                continue
            for target in statement.targets:
                if isinstance(target, ast.Name) and not target.id.startswith("_"):
                    value = self.evaluate(ref.module, statement.value)
                    if _is_auto(statement.value):
                        name = target.id.lower() if lower else target.id
                        value = name if text else len(found) + 1
                    found[target.id] = Member(target.id, value)
        return found

    # ---- expressions
    def evaluate(self, module: Module, node: ast.AST | None, depth: int = 0) -> Any:
        """The value of an expression, or UNKNOWN."""
        if node is None or depth > _DEPTH:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return UNKNOWN if isinstance(node.value, bytes | complex) else node.value
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            items = [self.evaluate(module, item, depth + 1) for item in node.elts]
            return UNKNOWN if UNKNOWN in items else items
        if isinstance(node, ast.Dict):
            return self._dict(module, node, depth)
        if isinstance(node, ast.UnaryOp | ast.BinOp):
            return self._arithmetic(module, node, depth)
        if isinstance(node, ast.Name):
            found = self.find(module, node.id)
            if found and isinstance(found[1], ast.expr):
                return self.evaluate(found[0], found[1], depth + 1)
            return UNKNOWN
        if isinstance(node, ast.Attribute):
            return self._attribute(module, node, depth)
        if isinstance(node, ast.Call):
            return self._call(module, node, depth)
        return UNKNOWN

    def _dict(self, module: Module, node: ast.Dict, depth: int) -> Any:
        result = {}
        for key, value in zip(node.keys, node.values):
            name = self.evaluate(module, key, depth + 1)
            if name is UNKNOWN or not isinstance(name, str | int | bool | type(None)):
                return UNKNOWN
            result[name] = self.evaluate(module, value, depth + 1)
        return result

    def _arithmetic(self, module: Module, node: ast.UnaryOp | ast.BinOp, depth: int) -> Any:
        if isinstance(node, ast.UnaryOp):
            value = self.evaluate(module, node.operand, depth + 1)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return -value if isinstance(node.op, ast.USub) and number else UNKNOWN
        left = self.evaluate(module, node.left, depth + 1)
        right = self.evaluate(module, node.right, depth + 1)
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in (left, right)):
            return UNKNOWN
        try:
            if isinstance(node.op, ast.Mult):
                result = left * right
            elif isinstance(node.op, ast.Add):
                result = left + right
            elif isinstance(node.op, ast.Sub):
                result = left - right
            elif isinstance(node.op, ast.Div):
                result = left / right
            elif isinstance(node.op, ast.Pow) and abs(right) <= 64 and abs(left) <= 1024:
                result = left**right
            elif isinstance(node.op, ast.LShift) and 0 <= right <= 64:
                result = left << right
            else:
                return UNKNOWN
        except (ArithmeticError, TypeError):
            return UNKNOWN
        if isinstance(result, int) and result.bit_length() > _INT_BITS:
            return UNKNOWN
        return result

    def _attribute(self, module: Module, node: ast.Attribute, depth: int) -> Any:
        if ast.unparse(node) == SUPPRESS:
            return SUPPRESS
        if node.attr == "default" and isinstance(node.value, ast.Subscript):
            return self._field_default(module, node.value, depth)
        ref = self.class_of(module, node.value)
        if ref is not None and self.is_enum(ref):
            return self.members(ref).get(node.attr, UNKNOWN)
        if ref is not None:
            return self.class_default(ref, node.attr, depth + 1)
        inner = self.evaluate(module, node.value, depth + 1)
        if isinstance(inner, Member) and node.attr in ("value", "name"):
            return inner.value if node.attr == "value" else inner.name
        return UNKNOWN

    def _field_default(self, module: Module, node: ast.Subscript, depth: int) -> Any:
        """`Model.model_fields["name"].default`."""
        holder, name = node.value, self.evaluate(module, node.slice, depth + 1)
        if isinstance(holder, ast.Attribute) and holder.attr in ("model_fields", "__fields__"):
            ref = self.class_of(module, holder.value)
            if ref is not None and isinstance(name, str):
                return self.class_default(ref, name, depth + 1)
        return UNKNOWN

    def class_default(self, ref: ClassRef, name: str, depth: int = 0) -> Any:
        """The default of a class attribute: a plain value, `Field(default=…)` or `field(…)`."""
        for item in self.ancestry(ref):
            for statement in item.node.body:
                if (
                    isinstance(statement, ast.AnnAssign)
                    and isinstance(statement.target, ast.Name)
                    and statement.target.id == name
                ):
                    return self._declared(item.module, statement.value, depth)
                if isinstance(statement, ast.Assign) and any(
                    isinstance(t, ast.Name) and t.id == name for t in statement.targets
                ):
                    return self._declared(item.module, statement.value, depth)
        return UNKNOWN

    def _declared(self, module: Module, node: ast.expr | None, depth: int) -> Any:
        if isinstance(node, ast.Call) and call_name(node) in ("Field", "PydanticField", "field"):
            given = keyword(node, "default") or (node.args[0] if node.args else None)
            return self.evaluate(module, given, depth + 1)
        return self.evaluate(module, node, depth + 1)

    def _call(self, module: Module, node: ast.Call, depth: int) -> Any:
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr in ("keys", "values") and not node.args:
            inner = self.evaluate(module, func.value, depth + 1)
            if isinstance(inner, dict):
                return list(inner) if func.attr == "keys" else list(inner.values())
            return UNKNOWN
        if isinstance(func, ast.Name) and func.id in ("list", "tuple", "sorted", "dict", "set"):
            if not node.args:
                return {} if func.id == "dict" else []
            inner = self.evaluate(module, node.args[0], depth + 1)
            ref = self.class_of(module, node.args[0])
            if ref is not None and self.is_enum(ref):
                inner = list(self.members(ref).values())
            if isinstance(inner, list | dict) and func.id in ("list", "tuple"):
                return list(inner)
            return UNKNOWN
        ref = self.class_of(module, func)
        if ref is not None and not self.is_enum(ref):
            return Instance(ref.name)
        return UNKNOWN


def plain(value: Any) -> Any:
    """A JSON value, or UNKNOWN: members as contracts show them, instances as `default instance`."""
    if isinstance(value, Member):
        return value.shown
    if isinstance(value, Instance):
        return "default instance"
    if isinstance(value, list):
        items = [plain(item) for item in value]
        return UNKNOWN if UNKNOWN in items else items
    if isinstance(value, dict):
        pairs = {str(key): plain(item) for key, item in value.items()}
        return UNKNOWN if UNKNOWN in pairs.values() else pairs
    if isinstance(value, float) and not math.isfinite(value):
        return UNKNOWN
    return value if value is None or isinstance(value, str | int | float) else UNKNOWN


def call_name(node: ast.AST) -> str:
    """The last part of a called name: `Field` of `pydantic.Field(...)`."""
    func = node.func if isinstance(node, ast.Call) else node
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def keyword(node: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((item.value for item in node.keywords if item.arg == name), None)


def _is_auto(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and call_name(node) == "auto" and not node.args
