"""Fields of pydantic models and dataclasses in a source tree: type, default, aliases, status."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from engineroom.runner.contract_source_tree import Module
from engineroom.runner.contract_source_values import (
    UNKNOWN,
    ClassRef,
    Instance,
    Values,
    call_name,
    keyword,
    plain,
)

Facts = dict[str, Any]
_FIELD_CALLS = frozenset({"Field", "PydanticField", "field"})
_DEPTH = 30


@dataclass(frozen=True)
class Annotation:
    """An annotation: its text as contracts write it, the values it admits, the classes it names."""

    text: str
    allowed: list[Any] | None
    classes: tuple[ClassRef, ...]
    union_alias: str | None = None


class Models:
    """Reads model classes of one tree."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.enums: dict[str, list[str]] = {}

    def is_model(self, ref: ClassRef) -> bool:
        """True for a pydantic model or a dataclass: a class whose keys a user can write."""
        if any(base.rsplit(".", 1)[-1] == "BaseModel" for base in self.values.outer_bases(ref)):
            return True
        return any(
            call_name(decorator) == "dataclass"
            for item in self.values.ancestry(ref)
            for decorator in item.node.decorator_list
        )

    def extra(self, ref: ClassRef) -> str | None:
        """What happens to keys the model does not know: forbidden, allowed or ignored.

        Without a setting pydantic ignores them; a dataclass has no setting and gives None.
        """
        words = {"forbid": "forbidden", "allow": "allowed", "ignore": "ignored"}
        for item in self.values.ancestry(ref):
            for statement in item.node.body:
                if isinstance(statement, ast.ClassDef) and statement.name == "Config":
                    for inner in statement.body:
                        if isinstance(inner, ast.Assign) and _targets(inner) == ["extra"]:
                            return words.get(str(self.values.evaluate(item.module, inner.value)))
                elif isinstance(statement, ast.Assign) and _targets(statement) == ["model_config"]:
                    value: Any = UNKNOWN
                    if isinstance(statement.value, ast.Call):
                        given = keyword(statement.value, "extra")
                        value = self.values.evaluate(item.module, given)
                    else:
                        table = self.values.evaluate(item.module, statement.value)
                        value = table.get("extra", UNKNOWN) if isinstance(table, dict) else UNKNOWN
                    if value is not UNKNOWN:
                        return words.get(str(value))
        bases = self.values.outer_bases(ref)
        return "ignored" if any(b.rsplit(".", 1)[-1] == "BaseModel" for b in bases) else None

    def fields(self, ref: ClassRef) -> dict[str, tuple[Facts, Annotation]]:
        """Fields by name, those of base classes first; a later class replaces a field in place."""
        found: dict[str, tuple[Facts, Annotation]] = {}
        for item in reversed(self.values.ancestry(ref)):
            stable = _knows_status(item.module)
            for statement in item.node.body:
                if not isinstance(statement, ast.AnnAssign):
                    continue
                name = statement.target.id if isinstance(statement.target, ast.Name) else "_"
                if name.startswith("_"):
                    continue
                if _is_class_var(statement.annotation):
                    tag = self._tag(ref, name)
                    if tag:
                        found[name] = (tag, Annotation("Literal", tag["allowed"], ()))
                    continue
                annotation = self.annotation(item.module, statement.annotation)
                facts = self.facts(item.module, name, statement.value, annotation, stable)
                found[name] = (facts, annotation)
        return found

    def _tag(self, ref: ClassRef, name: str) -> Facts | None:
        """A key that `from_dict` reads to choose this class, as `decoding_type` is up to 1.3.0rc3.

        Only the words of its table count: the class variable of that name may have another word
        (`Draft_Target` for the key `DraftTarget`).
        """
        for item in self.values.ancestry(ref):
            for statement in item.node.body:
                if not isinstance(statement, ast.FunctionDef) or statement.name != "from_dict":
                    continue
                nodes = list(ast.walk(statement))
                words = [
                    key.value
                    for table in nodes
                    if isinstance(table, ast.Dict)
                    for key, value in zip(table.keys, table.values)
                    if isinstance(key, ast.Constant) and call_name(value) == ref.name
                ]
                if words and any(isinstance(n, ast.Constant) and n.value == name for n in nodes):
                    facts: Facts = {"type": "Literal", "default": None, "required": True}
                    return {**facts, "allowed": words, "note": "from_dict reads it"}
        return None

    # ---- one field
    def facts(
        self,
        module: Module,
        name: str,
        value: ast.expr | None,
        annotation: Annotation,
        stable: bool,
    ) -> Facts:
        """The facts of one declaration; `stable` says what a field without a status is."""
        call = value if isinstance(value, ast.Call) and call_name(value) in _FIELD_CALLS else None
        facts: Facts = {"type": annotation.text}
        if call is not None and annotation.text in (
            "object",
            "Any",
            "Optional[object]",
            "Optional[Any]",
        ):
            # Upstream documents what an untyped field really takes in its schema extra.
            extra = keyword(call, "json_schema_extra")
            told = self.values.evaluate(module, extra) if extra is not None else UNKNOWN
            if isinstance(told, dict) and isinstance(told.get("type"), str):
                facts["type"] = re.sub(r"(\w+\.)+", "", told["type"].replace(" ", ""))
        facts |= self._default(module, value, call)
        status = self._status(module, call)
        facts["status"] = status or ("stable" if stable else None)
        if annotation.allowed:
            facts["allowed"] = annotation.allowed
        facts |= self._aliases(module, name, call)
        return facts

    def _default(self, module: Module, value: ast.expr | None, call: ast.Call | None) -> Facts:
        if value is None:
            return {"default": None, "required": True}
        if call is None:
            return self._known(self.values.evaluate(module, value))
        factory = keyword(call, "default_factory")
        if factory is not None:
            return self._known(self._made_by(module, factory))
        given = keyword(call, "default") or (call.args[0] if call.args else None)
        if given is None or (isinstance(given, ast.Constant) and given.value is ...):
            return {"default": None, "required": True}
        return self._known(self.values.evaluate(module, given))

    def _made_by(self, module: Module, factory: ast.expr) -> Any:
        if isinstance(factory, ast.Lambda):
            return self.values.evaluate(module, factory.body)
        if isinstance(factory, ast.Name) and factory.id in ("list", "dict", "set", "tuple"):
            return {} if factory.id == "dict" else []
        ref = self.values.class_of(module, factory)
        return Instance(ref.name) if ref else UNKNOWN

    @staticmethod
    def _known(value: Any) -> Facts:
        shown = plain(value)
        if shown is UNKNOWN:
            return {"default": None, "default_known": False}
        return {"default": shown}

    def _status(self, module: Module, call: ast.Call | None) -> str | None:
        if call is None:
            return None
        given = keyword(call, "status")
        value = self.values.evaluate(module, given) if given is not None else UNKNOWN
        if value is UNKNOWN:
            extra = keyword(call, "json_schema_extra")
            table = self.values.evaluate(module, extra) if extra is not None else UNKNOWN
            value = table.get("status") if isinstance(table, dict) else None
        return value if isinstance(value, str) else None

    def _aliases(self, module: Module, name: str, call: ast.Call | None) -> Facts:
        if call is None:
            return {}
        names: list[str] = []
        for key in ("validation_alias", "alias"):
            given = keyword(call, key)
            if given is None:
                continue
            nodes = given.args if call_name(given) == "AliasChoices" else [given]  # type: ignore[attr-defined]
            for node in nodes:
                value = self.values.evaluate(module, node)
                if isinstance(value, str):
                    names.append(value)
        others = [alias for alias in dict.fromkeys(names) if alias != name]
        if not others:
            return {}
        facts: Facts = {"aliases": others}
        if name not in names:
            facts["only_by_alias"] = True
        return facts

    # ---- annotations
    def annotation(self, module: Module, node: ast.expr) -> Annotation:
        """An annotation as contracts write it: no spaces, `Literal` without its values."""
        node = _unquoted(node)
        allowed: list[Any] = []
        classes: list[ClassRef] = []
        text = self._text(module, node, allowed, classes, 0)
        unique = tuple({id(ref.node): ref for ref in classes}.values())
        return Annotation(text, allowed or None, unique)

    def _text(
        self,
        module: Module,
        node: ast.expr,
        allowed: list[Any],
        classes: list[ClassRef],
        depth: int,
    ) -> str:
        node = _unquoted(node)
        if depth > _DEPTH:
            return "?"
        if isinstance(node, ast.Subscript):
            head = call_name(node.value)
            if head == "Literal":
                inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                for item in inner:
                    value = plain(self.values.evaluate(module, item))
                    if value is not UNKNOWN and value is not None and value not in allowed:
                        allowed.append(value)
                return "Literal"
            if head == "Annotated" and isinstance(node.slice, ast.Tuple):
                return self._text(module, node.slice.elts[0], allowed, classes, depth + 1)
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            texts = [self._text(module, part, allowed, classes, depth + 1) for part in parts]
            return f"{head}[{','.join(texts)}]"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            left = self._text(module, node.left, allowed, classes, depth + 1)
            right = self._text(module, node.right, allowed, classes, depth + 1)
            return f"Union[{left},{right}]"
        if isinstance(node, ast.Name | ast.Attribute):
            alias = self._named(module, node, allowed, classes, depth)
            return "Literal" if alias == "Literal" else call_name(node)
        if isinstance(node, ast.Constant):
            return str(node.value)
        return ast.unparse(node).replace(" ", "")

    def _named(
        self,
        module: Module,
        node: ast.Name | ast.Attribute,
        allowed: list[Any],
        classes: list[ClassRef],
        depth: int,
    ) -> str | None:
        """Enter the enum values or model classes behind a name; the text of a type alias."""
        ref = self.values.class_of(module, node)
        if ref is not None:
            if self.values.is_enum(ref):
                members = [member.shown for member in self.values.members(ref).values()]
                self.enums.setdefault(ref.name, members)
                allowed += [value for value in members if value not in allowed]
            elif self.is_model(ref):
                classes.append(ref)
        elif isinstance(node, ast.Name):
            found = self.values.find(module, node.id)
            if found and isinstance(found[1], ast.expr) and not isinstance(found[1], ast.Call):
                return self._text(found[0], found[1], allowed, classes, depth + 1)
        return None


def _targets(statement: ast.Assign) -> list[str]:
    return [target.id for target in statement.targets if isinstance(target, ast.Name)]


def _is_class_var(node: ast.expr) -> bool:
    return call_name(node.value if isinstance(node, ast.Subscript) else node) == "ClassVar"


def _unquoted(node: ast.expr) -> ast.expr:
    """A quoted annotation (a forward reference) as an expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 2000:
        try:
            return ast.parse(node.value, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return node
    return node


def _knows_status(module: Module) -> bool:
    """True when the module's own `Field` takes `status`: then a field without one is stable."""
    function = module.functions.get("Field")
    return function is not None and any(a.arg == "status" for a in function.args.kwonlyargs)
