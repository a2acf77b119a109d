"""The command line of `trtllm-serve` in a source tree: click decorators."""

from __future__ import annotations

import ast
from typing import Any

from engineroom.runner.contract_source_build import Flags, calls_of
from engineroom.runner.contract_source_tree import Module, SourceTree
from engineroom.runner.contract_source_values import UNKNOWN, Values, call_name, keyword, plain

SERVE = "tensorrt_llm/commands/serve.py"


def trtllm_serve(tree: SourceTree, values: Values) -> dict[str, Any] | None:
    """The `trtllm_serve` section: options by command. None when the tree has no such file."""
    if not tree.has(SERVE):
        return None
    module = tree.module(SERVE)
    if module is None:
        tree.note("trtllm_serve", f"{SERVE} could not be parsed")
        return None
    names = _command_names(values, module)
    section: dict[str, Any] = {"positional": []}
    for function in module.functions.values():
        decorators = [d for d in function.decorator_list if isinstance(d, ast.Call)]
        command = next((d for d in decorators if call_name(d) == "command"), None)
        if command is None:
            continue
        own = values.evaluate(module, command.args[0]) if command.args else None
        name = names.get(function.name) or (own if isinstance(own, str) else function.name)
        # Before it had commands, 0.17's single one was named like the program.
        name = "serve" if name == "trtllm-serve" else name
        options: Flags = {}
        for decorator in decorators:
            if call_name(decorator) == "argument" and name == "serve" and decorator.args:
                section["positional"].append(values.evaluate(module, decorator.args[0]))
            elif call_name(decorator) == "option":
                entry = _option(tree, values, module, decorator, name)
                if entry:
                    options[entry[0]] = entry[1]
        section[name] = options
    section["sources"] = [SERVE]
    return section


def _command_names(values: Values, module: Module) -> dict[str, str]:
    """Function to command name, from `Group(commands={"serve": serve})`."""
    names = {}
    for call in calls_of(module.body):
        table = keyword(call, "commands")
        if isinstance(table, ast.Dict):
            for key, value in zip(table.keys, table.values):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Name):
                    names[value.id] = str(key.value)
    return names


def _option(
    tree: SourceTree, values: Values, module: Module, call: ast.Call, command: str
) -> tuple[str, dict[str, Any]] | None:
    options = [a.value for a in call.args if isinstance(a, ast.Constant)]
    names = [o for o in options if isinstance(o, str) and o.startswith("-")]
    long = next((o for o in names if o.startswith("--")), None)
    if long is None:
        return None
    # `--yes/--no` declares both words of a switch.
    long = long.split("/")[0]
    flag = values.evaluate(module, keyword(call, "is_flag")) is True or any("/" in o for o in names)
    facts: dict[str, Any] = {"type": "flag" if flag else "str", "default": False if flag else None}
    given = keyword(call, "type")
    if given is not None and not flag:
        facts |= _click_type(tree, values, module, given, f"trtllm_serve.{command}.{long}")
    node = keyword(call, "default")
    if node is not None:
        value = plain(values.evaluate(module, node))
        if value is UNKNOWN:
            facts["default_known"] = False
            tree.note(f"trtllm_serve.{command}.{long}.default", "the default is not written out")
        else:
            facts["default"] = value
    facts["status"] = _stability(values, module, keyword(call, "help"))
    aliases = [o.split("/")[0] for o in names if o.split("/")[0] != long]
    if aliases:
        facts["aliases"] = aliases
    if values.evaluate(module, keyword(call, "multiple")) is True:
        facts["multiple"] = True
    return long, facts


def _click_type(
    tree: SourceTree, values: Values, module: Module, node: ast.expr, path: str
) -> dict[str, Any]:
    name = call_name(node)
    if isinstance(node, ast.Call):
        if "Choice" in name:
            facts: dict[str, Any] = {"type": "choice"}
            value = plain(values.evaluate(module, node.args[0])) if node.args else UNKNOWN
            if isinstance(value, list):
                facts["choices"] = value
            else:
                tree.note(f"{path}.choices", "the choices are not written out")
            if len(node.args) > 1 and "Alias" in name:
                others = plain(values.evaluate(module, node.args[1]))
                if isinstance(others, dict):
                    facts["choice_aliases"] = others
            return facts
        return {"type": {"Path": "path", "IntRange": "int", "FloatRange": "float"}.get(name, name)}
    words = {"INT": "int", "FLOAT": "float", "STRING": "str", "BOOL": "bool"}
    return {"type": words.get(name, name or "?")}


def _stability(values: Values, module: Module, node: ast.expr | None) -> str | None:
    """The tag of `help_info_with_stability_tag(text, tag)`."""
    if isinstance(node, ast.Call) and call_name(node) == "help_info_with_stability_tag":
        value = values.evaluate(module, node.args[1]) if len(node.args) > 1 else None
        return value if isinstance(value, str) else None
    return None
