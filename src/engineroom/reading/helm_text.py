"""Renders a chart template from its values, and says what each value became.

The right tool is Helm itself; this evaluator answers where it is not installed. It covers text,
`.Values`, variables, `if`/`with`/`range` and the functions of :mod:`helm_functions`. An action that
needs more is left out and named, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engineroom.reading import helm_expressions as e
from engineroom.reading import helm_template as t
from engineroom.reading.go_format import NotEvaluated, RenderError, printed
from engineroom.reading.helm_functions import FORMATTING, OTHERS, truth
from engineroom.reading.helm_yaml import Path, Values

MAX_STEPS = 50_000
MAX_OUTPUT = 2_000_000
_ROOT: Path = ("\0root",)
_VALUES = "Values"


@dataclass(frozen=True)
class Printed:
    """What one action printed.

    Attributes:
        paths: values that it reads.
        functions: functions on the way from the value to the text.
        at, end: where the action stands in the template.
    """

    text: str
    paths: tuple[Path, ...]
    functions: tuple[str, ...]
    at: int
    end: int


@dataclass
class Rendering:
    """The text as far as it could be made.

    Attributes:
        complete: nothing was left out.
        skipped: sources of actions that were not evaluated and name `.Values`.
        failed: (action, reason) where Helm itself stops.
    """

    text: str = ""
    printed: list[Printed] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    complete: bool = True


@dataclass(frozen=True)
class _Tracked:
    """A value, the paths it was read from, and the functions it went through."""

    value: Any
    paths: tuple[Path, ...] = ()
    functions: tuple[str, ...] = ()
    place: Path | None = None


_UNKNOWN = _Tracked(object())


def render(template: str, values: Values) -> Rendering:
    """Raises :class:`helm_template.TemplateError` for text that is no template."""
    return _Evaluator(values).run(t.parse(template))


class _Evaluator:
    def __init__(self, values: Values) -> None:
        self.values = values
        self.out: list[str] = []
        self.size = 0
        self.steps = 0
        self.result = Rendering()
        root = _Tracked(None, place=_ROOT)
        self.scopes: list[dict[str, _Tracked]] = [{"$": root}]
        self.dot = root

    def run(self, items: Sequence[t.Item]) -> Rendering:
        try:
            self._all(items)
        except NotEvaluated:
            self.result.complete = False
        self.result.text = "".join(self.out)
        return self.result

    def _all(self, items: Sequence[t.Item]) -> None:
        for item in items:
            self.steps += 1
            if self.steps > MAX_STEPS or self.size > MAX_OUTPUT:
                raise NotEvaluated("a template that runs long")
            if isinstance(item, t.Text):
                self._emit(item.text)
            elif isinstance(item, t.Print):
                self._print(item)
            elif isinstance(item, t.Assign):
                self._assign(item)
            elif isinstance(item, t.Block):
                self._block(item)

    def _emit(self, text: str) -> None:
        self.out.append(text)
        self.size += len(text)

    def _print(self, item: t.Print) -> None:
        found = self._try(item.pipe, item.source)
        if found is _UNKNOWN:
            return
        try:
            text = printed(found.value)
        except NotEvaluated:
            self._skip(item.source)
            return
        # Helm removes the text that Go prints for a missing value.
        text = "" if found.value is None else text.replace("<no value>", "")
        self._emit(text)
        if found.paths:
            self.result.printed.append(
                Printed(text, found.paths, found.functions, item.at, item.end)
            )

    def _skip(self, source: str) -> None:
        self.result.complete = False
        if "Values" in source:
            self.result.skipped.append(source)

    def _try(self, pipe: e.Node | None, source: str) -> _Tracked:
        """The pipeline's value; unknown when it needs more than there is here."""
        if pipe is None:
            self._skip(source)
            return _UNKNOWN
        try:
            return self._value(pipe)
        except NotEvaluated:
            self._skip(source)
        except RenderError as error:
            self.result.complete = False
            self.result.failed.append((source, str(error)))
        except (TypeError, ValueError, OverflowError):
            # A wrong number of arguments, or a size that no chart has.
            self._skip(source)
        return _UNKNOWN

    def _assign(self, item: t.Assign) -> None:
        value = self._try(item.pipe, item.source)
        scope = self.scopes[-1]
        if not item.declares:
            scope = next((s for s in reversed(self.scopes) if item.name in s), scope)
        scope[item.name] = value

    def _block(self, item: t.Block) -> None:
        found = self._try(item.pipe, item.source)
        if found is _UNKNOWN:
            return
        before = self.dot
        self.scopes.append({})
        if item.kind == "range":
            self._range(item, found)
        elif found.place == _ROOT or truth(found.value):
            if item.variables:
                self.scopes[-1][item.variables[0]] = found
            if item.kind == "with":
                self.dot = found
            self._all(item.body)
        else:
            self._all(item.otherwise)
        self.dot = before
        self.scopes.pop()

    def _range(self, item: t.Block, found: _Tracked) -> None:
        pairs: list[tuple[Any, Any]]
        if isinstance(found.value, list):
            pairs = [(e.GoInt(at), value) for at, value in enumerate(found.value)]
        elif isinstance(found.value, dict):
            pairs = sorted(found.value.items())
        elif found.value is None:
            pairs = []
        else:
            raise NotEvaluated("range over this value")
        if not pairs:
            self._all(item.otherwise)
        for key, value in pairs:
            step = int(key) if isinstance(key, int) else key
            place = None if found.place is None else (*found.place, step)
            self.dot = _Tracked(value, () if place is None else (place,), (), place)
            self.scopes.append({})
            names = item.variables
            if len(names) == 2:
                self.scopes[-1].update({names[0]: _Tracked(key), names[1]: self.dot})
            elif names:
                self.scopes[-1][names[0]] = self.dot
            self._all(item.body)
            self.scopes.pop()

    # ---- expressions
    def _value(self, node: e.Node, piped: _Tracked | None = None) -> _Tracked:
        if isinstance(node, e.Literal):
            return _Tracked(node.value)
        if isinstance(node, e.Name):
            return self._name(node)
        if isinstance(node, e.Pipe):
            result = self._value(node.commands[0])
            for command in node.commands[1:]:
                if not isinstance(command, e.Call):
                    raise NotEvaluated("a pipe into something that is no function")
                result = self._call(command, result)
            return result
        return self._call(node, piped)

    def _call(self, node: e.Call, piped: _Tracked | None) -> _Tracked:
        arguments = [self._value(argument) for argument in node.arguments]
        if piped is not None:
            arguments.append(piped)
        if any(isinstance(a.place, tuple) and a.place[:1] == _ROOT for a in arguments):
            raise NotEvaluated("the whole context as an argument")
        paths = tuple(dict.fromkeys(p for a in arguments for p in a.paths))
        before = tuple(dict.fromkeys(f for a in arguments for f in a.functions))
        functions = (*before, node.function)
        if node.function in ("and", "or"):
            if not arguments:
                raise NotEvaluated("no arguments")
            stops = node.function == "or"
            chosen = next((a for a in arguments if truth(a.value) is stops), arguments[-1])
            return _Tracked(chosen.value, paths, functions)
        if node.function == "index" and len(arguments) > 1:
            return self._index(arguments)
        function = FORMATTING.get(node.function) or OTHERS.get(node.function)
        if function is None:
            raise NotEvaluated(f"the function {node.function}")
        return _Tracked(function(*[a.value for a in arguments]), paths, functions)

    def _index(self, arguments: list[_Tracked]) -> _Tracked:
        """`index .Values "a" "b"` is `.Values.a.b`; a list takes whole numbers."""
        base = arguments[0]
        for step in (a.value for a in arguments[1:]):
            value = base.value
            if isinstance(value, dict) and isinstance(step, str):
                found = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value):
                found = value[step]
            else:
                raise NotEvaluated("an index of something else")
            place = None if base.place is None else (*base.place, step)
            base = _Tracked(found, () if place is None else (place,), base.functions, place)
        return base

    def _name(self, node: e.Name) -> _Tracked:
        base = self.dot if node.root == "." else self._variable(node.root)
        if base is _UNKNOWN:
            raise NotEvaluated("a variable that was not evaluated")
        fields = list(node.fields)
        if base.place == _ROOT:
            if not fields:
                return base
            if fields.pop(0) != _VALUES:
                raise NotEvaluated("a built-in object")
            base = _Tracked(self.values.data, ((),), (), ())
        for name in fields:
            if base.value is None:
                # Go: `nil pointer evaluating interface {}.name`; our values may be an excerpt.
                raise NotEvaluated("a field of a value that is not there")
            if not isinstance(base.value, dict):
                raise RenderError(f"can't evaluate field {name} in a value that is no mapping")
            place = None if base.place is None else (*base.place, name)
            paths = () if place is None else (place,)
            base = _Tracked(base.value.get(name), paths, base.functions, place)
        return base

    def _variable(self, name: str) -> _Tracked:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise NotEvaluated("an unknown variable")
