"""The command line of `trtllm-build` in a source tree: argparse calls, and what plugin fields add."""

from __future__ import annotations

import ast
from typing import Any

from engineroom.runner.contract_source_fields import Models
from engineroom.runner.contract_source_tree import Module, SourceTree
from engineroom.runner.contract_source_values import (
    SUPPRESS,
    UNKNOWN,
    ClassRef,
    Values,
    call_name,
    keyword,
    plain,
)

BUILD = "tensorrt_llm/commands/build.py"
PLUGIN = "tensorrt_llm/plugin/plugin.py"
Flags = dict[str, dict[str, Any]]


def trtllm_build(tree: SourceTree, values: Values, models: Models) -> dict[str, Any]:
    """The `trtllm_build` section; `command_exists` is None when the file cannot be parsed."""
    if not tree.has(BUILD):
        return {
            "command_exists": False,
            "flags": None,
            "plugin_fields_without_flag": None,
            "sources": [f"{BUILD} is absent"],
        }
    module = tree.module(BUILD)
    if module is None:
        tree.note("trtllm_build.flags", f"{BUILD} could not be parsed")
        return {
            "command_exists": None,
            "flags": None,
            "plugin_fields_without_flag": None,
            "sources": [BUILD],
        }
    flags: Flags = {}
    hidden: list[str] | None = None
    groups = _groups(module)
    for call in calls_of(module.body):
        if call_name(call) == "add_argument" and isinstance(call.func, ast.Attribute):
            entry = _argument(tree, values, module, call)
            if entry:
                group = groups.get(call_name(call.func.value), "general")
                flags[entry[0]] = entry[1] | {"group": group}
        elif call_name(call) == "add_plugin_argument":
            made, hidden = _plugin_flags(tree, values, models)
            flags |= made
    if not flags:
        tree.note("trtllm_build.flags", f"{BUILD} has no add_argument call")
    sources = [BUILD, *([PLUGIN] if hidden is not None else [])]
    return {
        "command_exists": True,
        "flags": flags or None,
        "plugin_fields_without_flag": hidden,
        "sources": sources,
    }


def calls_of(node: ast.AST) -> list[ast.Call]:
    """Every call below a node, in the order of the text."""
    calls = [item for item in ast.walk(node) if isinstance(item, ast.Call)]
    return sorted(calls, key=lambda c: (c.lineno, c.col_offset))


def _groups(module: Module) -> dict[str, str]:
    """Variable of an argument group to the first word of its title, in lower case."""
    names: dict[str, str] = {}
    for node in ast.walk(module.body):
        if isinstance(node, ast.Assign) and call_name(node.value) == "add_argument_group":
            call = node.value
            title = call.args[0] if isinstance(call, ast.Call) and call.args else None
            if isinstance(title, ast.Constant) and isinstance(title.value, str):
                word = title.value.split()[0].lower() if title.value.split() else "general"
                names |= {t.id: word for t in node.targets if isinstance(t, ast.Name)}
    return names


def _argument(
    tree: SourceTree, values: Values, module: Module, call: ast.Call
) -> tuple[str, dict[str, Any]] | None:
    options = [a.value for a in call.args if isinstance(a, ast.Constant)]
    names = [o for o in options if isinstance(o, str) and o.startswith("--")]
    if not names:
        return None
    path = f"trtllm_build.flags.{names[0]}"
    action = keyword(call, "action")
    kind, choices = "str", None
    given = keyword(call, "type")
    if action is not None:
        kind = str(values.evaluate(module, action))
    elif given is not None:
        ref = values.class_of(module, given)
        if ref is not None and values.is_enum(ref):
            kind = "enum"
            choices = [member.shown for member in values.members(ref).values()]
        else:
            kind = call_name(given) or "?"
    if values.evaluate(module, keyword(call, "nargs")) in ("+", "*"):
        kind = f"list[{kind}]"
    limits = keyword(call, "choices")
    if limits is not None:
        found = plain(values.evaluate(module, limits))
        if isinstance(found, list):
            choices = found
        else:
            tree.note(f"{path}.choices", "the choices are not written out")
    default: Any = False if kind == "store_true" else None
    facts: dict[str, Any] = {"type": kind, "default": default, "choices": choices}
    node = keyword(call, "default")
    if node is not None:
        value = values.evaluate(module, node)
        if value == SUPPRESS:
            facts["note"] = "argparse.SUPPRESS: not set unless given"
        elif plain(value) is UNKNOWN:
            facts["default_known"] = False
            tree.note(f"{path}.default", "the default is not written out")
        else:
            facts["default"] = plain(value)
    told = values.evaluate(module, keyword(call, "help"))
    facts["deprecated"] = isinstance(told, str) and told.lower().startswith("deprecated")
    if len(names) > 1:
        facts["aliases"] = names[1:]
    return names[0], facts


def _plugin_flags(
    tree: SourceTree, values: Values, models: Models
) -> tuple[Flags, list[str] | None]:
    """Flags that upstream makes from the fields of PluginConfig, and the fields that get none.

    Upstream's `add_plugin_argument` turns a bool into enable or disable, text into its choices with
    `disable` for None, and keeps other types. gemm_plugin keeps None as its default where the
    function names it.
    """
    module = tree.module(PLUGIN)
    listed = values.evaluate(module, module.assigns.get("cli_plugin_args")) if module else UNKNOWN
    if (
        module is None
        or not isinstance(listed, list)
        or "PluginConfig" not in module.classes
        or "add_plugin_argument" not in module.functions
    ):
        tree.note("trtllm_build.flags plugins", f"{PLUGIN} has no list of plugin arguments to read")
        return {}, None
    body = ast.dump(module.functions["add_plugin_argument"])
    keeps_none = "'gemm_plugin'" in body
    flags: Flags = {}
    hidden: list[str] = []
    for name, facts, options in _plugin_fields(values, models, module):
        if name not in listed:
            hidden.append(name)
            continue
        default = facts.get("default")
        entry: dict[str, Any] = {"type": facts["type"], "default": default, "choices": None}
        if facts.get("default_known") is False:
            entry["default_known"] = False
            tree.note(f"trtllm_build.flags.--{name}.default", "the default is not written out")
        elif options is not None:
            entry = {"type": "str", "default": default or "disable", "choices": options}
            if name == "gemm_plugin" and keeps_none:
                entry["default"] = default
        elif facts["type"] == "bool":
            word = "enable" if default else "disable"
            entry = {"type": "bool", "default": word, "choices": ["enable", "disable"]}
        flags[f"--{name}"] = {**entry, "deprecated": False, "group": "plugin"}
    return flags, [name for name in hidden if name != "dtype"]


def _plugin_fields(
    values: Values, models: Models, module: Module
) -> list[tuple[str, dict[str, Any], list[str] | None]]:
    ref = ClassRef(module, module.classes["PluginConfig"])
    usual = values.evaluate(module, module.assigns.get("DEFAULT_PLUGIN_DTYPE_OPTIONS"))
    special = values.evaluate(module, module.assigns.get("PLUGIN_DTYPE_OPTIONS_MAP"))
    rows = []
    for statement in ref.node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if call_name(statement.value or statement.annotation) == "PrivateAttr":
            continue
        # Before 1.0 the fields were stored with an underscore in front.
        name = statement.target.id.lstrip("_")
        annotation = models.annotation(module, statement.annotation)
        facts = models.facts(module, name, statement.value, annotation, False)
        options: list[str] | None = None
        if annotation.allowed:
            options = [*[str(v) for v in annotation.allowed], "disable"]
        elif annotation.text in ("str", "Optional[str]") and isinstance(usual, list):
            own = special.get(name, usual) if isinstance(special, dict) else usual
            options = [v or "disable" for v in own] if isinstance(own, list) else None
        rows.append((name, facts, options))
    return rows
