"""Prints the facts of the `tensorrt_llm` that this interpreter has, as one JSON object.

Run as a file by another Python, so it may use the standard library and tensorrt_llm only (with the
pydantic, click and torch that it brings). Exit code 0 and an object with `error`, or one with the
sections of a contract.
"""

from __future__ import annotations

import sys

# This file's folder comes first in sys.path and has a triton.py, which torch would import as Triton.
if sys.path and __name__ == "__main__":
    del sys.path[0]

import argparse
import dataclasses
import enum
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import math
import os
import typing

Facts = typing.Dict[str, typing.Any]  # noqa: UP006 - the other interpreter may be old
UNKNOWN: Facts = {"default": None, "default_known": False}
notes: list[dict[str, str]] = []

PACKAGES = {
    "tensorrt": "tensorrt",
    "torch": "torch",
    "transformers": "transformers",
    "nvidia-modelopt": "modelopt",
    "triton": "triton_openai",
    "torchao": "torchao",
    "flashinfer-python": "flashinfer",
    "xgrammar": "xgrammar",
    "numpy": "numpy",
}


def note(path: str, reason: str) -> None:
    notes.append({"path": path, "reason": reason})


def shown(value: typing.Any) -> Facts:
    """A default as contracts write it."""
    if isinstance(value, enum.Enum):
        value = value.value if isinstance(value.value, str) else value.name
    if isinstance(value, (set, tuple, frozenset)):
        value = list(value)
    if isinstance(value, float) and not math.isfinite(value):
        return dict(UNKNOWN)
    if value is None or isinstance(value, (str, int, float)):
        return {"default": value}
    if isinstance(value, (list, dict)):
        try:
            return {"default": json.loads(json.dumps(value, allow_nan=False))}
        except (TypeError, ValueError):
            return dict(UNKNOWN)
    if is_model(type(value)):
        return {"default": "default instance"}
    return dict(UNKNOWN)


def is_model(cls: typing.Any) -> bool:
    return inspect.isclass(cls) and (hasattr(cls, "model_fields") or dataclasses.is_dataclass(cls))


def type_text(hint: typing.Any, allowed: list[typing.Any], classes: list[typing.Any]) -> str:
    """A type as contracts write it; fills the values it admits and the models it names."""
    if hint is None or hint is type(None):
        return "None"
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        allowed.extend(v for v in args if v is not None and v not in allowed)
        return "Literal"
    if origin is getattr(typing, "Annotated", object()):
        return type_text(args[0], allowed, classes)
    if origin is typing.Union or str(origin) == "<class 'types.UnionType'>":
        texts = [type_text(a, allowed, classes) for a in args if a is not type(None)]
        inner = texts[0] if len(texts) == 1 else f"Union[{','.join(texts)}]"
        return f"Optional[{inner}]" if type(None) in args else inner
    if origin is not None:
        name = {"list": "List", "dict": "Dict", "tuple": "Tuple"}.get(
            getattr(origin, "__name__", "?"), getattr(origin, "__name__", "?")
        )
        return f"{name}[{','.join(type_text(a, allowed, classes) for a in args)}]"
    if inspect.isclass(hint):
        if issubclass(hint, enum.Enum):
            for member in hint:
                value = member.value if isinstance(member.value, str) else member.name
                if value not in allowed:
                    allowed.append(value)
        elif is_model(hint) and hint not in classes:
            classes.append(hint)
        return hint.__name__
    return "..." if hint is Ellipsis else getattr(hint, "__name__", str(hint)).rsplit(".", 1)[-1]


def fields(cls: typing.Any, stable: bool) -> tuple[dict[str, Facts], dict[str, list[typing.Any]]]:
    """Fields of a pydantic model or dataclass, and the models that each names."""
    found: dict[str, Facts] = {}
    uses: dict[str, list[typing.Any]] = {}
    if hasattr(cls, "model_fields"):
        rows = [(n, f.annotation, f) for n, f in cls.model_fields.items()]
    else:
        try:
            hints = typing.get_type_hints(cls)
        except Exception:  # a forward reference that cannot be resolved here
            hints = {}
        rows = [(f.name, hints.get(f.name, f.type), f) for f in dataclasses.fields(cls)]
    for name, hint, info in rows:
        if name.startswith("_"):
            continue
        allowed: list[typing.Any] = []
        classes: list[typing.Any] = []
        facts: Facts = {"type": type_text(hint, allowed, classes)}
        facts.update(default_of(info))
        extra = getattr(info, "json_schema_extra", None)
        extra = getattr(extra, "_trtllm_json_schema_extra", extra)
        status = extra.get("status") if isinstance(extra, dict) else None
        facts["status"] = status or ("stable" if stable else None)
        if allowed:
            facts["allowed"] = allowed
        facts.update(aliases_of(name, info))
        found[name], uses[name] = facts, classes
    return found, uses


def default_of(info: typing.Any) -> Facts:
    factory = getattr(info, "default_factory", None)
    if factory is dataclasses.MISSING:
        factory = None
    if factory in (list, set, tuple):
        return {"default": []}
    if factory is dict:
        return {"default": {}}
    if inspect.isclass(factory):
        return {"default": "default instance"}
    if factory is not None:
        try:
            return shown(factory())
        except Exception:  # it needs more than an import to run
            return dict(UNKNOWN)
    required = getattr(info, "is_required", lambda: info.default is dataclasses.MISSING)()
    return {"default": None, "required": True} if required else shown(info.default)


def aliases_of(name: str, info: typing.Any) -> Facts:
    given = getattr(info, "validation_alias", None) or getattr(info, "alias", None)
    names = [given] if isinstance(given, str) else list(getattr(given, "choices", []))
    names = [n for n in names if isinstance(n, str)]
    others = [n for n in names if n != name]
    if not others:
        return {}
    return {"aliases": others, **({} if name in names else {"only_by_alias": True})}


def llm_api() -> Facts:
    module = importlib.import_module("tensorrt_llm.llmapi.llm_args")
    cls = getattr(module, "TorchLlmArgs", None) or module.LlmArgs
    signature = getattr(module, "Field", None)
    stable = signature is not None and "status" in inspect.signature(signature).parameters
    own, uses = fields(cls, stable)
    other: dict[str, Facts] = {}
    if hasattr(module, "TrtLlmArgs"):
        every, more = fields(module.TrtLlmArgs, stable)
        other = {name: facts for name, facts in every.items() if name not in own}
        uses.update({name: more[name] for name in other})
    nested: dict[str, dict[str, Facts]] = {}
    queue = [c for classes in uses.values() for c in classes]
    while queue and len(nested) < 300:
        item = queue.pop(0)
        if item.__name__ in nested:
            continue
        inner, deeper = fields(item, False)
        nested[item.__name__] = {
            n: {k: v for k, v in f.items() if k != "status" or v} for n, f in inner.items()
        }
        queue += [c for classes in deeper.values() for c in classes]
    config = getattr(cls, "model_config", {})
    words = {"forbid": "forbidden", "allow": "allowed", "ignore": "ignored"}
    return {
        "class_name": cls.__name__,
        "import_path": "tensorrt_llm.LLM",
        "extra_fields": words.get(str(config.get("extra", "ignore"))),
        "fields": own,
        "nested": dict(sorted(nested.items())),
        "classes_by_field": {n: [c.__name__ for c in cs] for n, cs in uses.items() if cs},
        "trt_llm_args": other or None,
        "sources": [f"{cls.__module__}.{cls.__name__}.model_fields"],
    }


def trtllm_build() -> Facts:
    name = "tensorrt_llm.commands.build"
    facts: Facts = {"command_exists": True, "flags": None, "plugin_fields_without_flag": None}
    facts["sources"] = [f"{name}.parse_arguments"]
    if not exists(name):
        return {**facts, "command_exists": False}
    try:
        parser = importlib.import_module(name).parse_arguments()
    except (Exception, SystemExit) as error:
        note("trtllm_build.flags", f"{type(error).__name__}: {error}"[:300])
        return facts
    if not isinstance(parser, argparse.ArgumentParser):
        note("trtllm_build.flags", "parse_arguments() gives no parser in this version")
        return facts
    flags: dict[str, Facts] = {}
    for group in parser._action_groups:
        title = (group.title or "general").split()[0].lower()
        title = "general" if title in ("options", "optional", "positional") else title
        for action in group._group_actions:
            names = [o for o in action.option_strings if o.startswith("--")]
            if names and names[0] != "--help":
                flags[names[0]] = {**argument(action, names), "group": title}
    facts["flags"] = flags
    if exists("tensorrt_llm.plugin.plugin"):
        config = importlib.import_module("tensorrt_llm.plugin.plugin").PluginConfig
        known = list(fields(config, False)[0])
        facts["plugin_fields_without_flag"] = [
            n for n in known if f"--{n}" not in flags and n != "dtype"
        ]
    return facts


def argument(action: typing.Any, names: list[str]) -> Facts:
    kind, choices = getattr(action.type, "__name__", "str"), action.choices
    if isinstance(action, argparse._StoreTrueAction):
        kind = "store_true"
    elif inspect.isclass(action.type) and issubclass(action.type, enum.Enum):
        kind, choices = (
            "enum",
            [m.value if isinstance(m.value, str) else m.name for m in action.type],
        )
    if action.nargs in ("+", "*"):
        kind = f"list[{kind}]"
    listed = list(dict.fromkeys(choices)) if choices is not None else None
    if listed == ["enable", "disable"]:
        kind = "bool"
    suppressed = action.default == argparse.SUPPRESS
    facts = {"type": kind, **({"default": None} if suppressed else shown(action.default))}
    facts["choices"] = listed
    facts["deprecated"] = str(action.help or "").lower().startswith("deprecated")
    if len(names) > 1:
        facts["aliases"] = names[1:]
    return facts


def trtllm_serve() -> Facts | None:
    name = "tensorrt_llm.commands.serve"
    if not exists(name):
        return None
    try:
        main = importlib.import_module(name).main
        commands = getattr(main, "commands", None) or {"serve": main}
    except Exception as error:
        note("trtllm_serve", f"{type(error).__name__}: {error}"[:300])
        return None
    section: Facts = {"positional": []}
    for command, item in commands.items():
        section[command] = {}
        for parameter in item.params:
            long = next((o for o in parameter.opts if o.startswith("--")), None)
            if long is None:
                if command == "serve":
                    section["positional"].append(parameter.name)
                continue
            section[command][long] = option(parameter, long)
    section["sources"] = [f"{name}.main"]
    return section


def option(parameter: typing.Any, long: str) -> Facts:
    names = {"text": "str", "integer": "int", "boolean": "bool", "integer range": "int"}
    names.update({"float range": "float", "choice": "choice", "path": "path", "float": "float"})
    kind = "flag" if parameter.is_flag else names.get(parameter.type.name, parameter.type.name)
    # click 8.2 and later mark "not given" by an object of their own.
    default = parameter.default
    given = not callable(default) and "UNSET" not in repr(default)
    facts: Facts = {"type": kind, **(shown(default) if given else {"default": None})}
    choices = getattr(parameter.type, "choices", None)
    if choices is not None:
        facts["choices"] = [str(c) for c in choices]
    aliases = [o for o in parameter.opts if o != long]
    if aliases:
        facts["aliases"] = aliases
    if parameter.multiple:
        facts["multiple"] = True
    return facts


def quantization() -> Facts:
    try:
        mode = importlib.import_module("tensorrt_llm.quantization.mode")
        names = [m.value for m in mode.QuantAlgo]
        kept = {m.value for m in mode.QUANT_ALGO_LIST}
        return {
            "quant_algo": names,
            "uncertain": [],
            "weight_quant_excludes": [n for n in names if n not in kept],
            "kv_cache_quant_algo": [m.value for m in mode.KV_CACHE_QUANT_ALGO_LIST],
            "source": "tensorrt_llm.quantization.mode",
        }
    except (ImportError, AttributeError) as error:
        note("quantization.quant_algo", f"{type(error).__name__}: {error}"[:300])
        return {"quant_algo": None, "weight_quant_excludes": None, "kv_cache_quant_algo": None}


def pins() -> Facts:
    found: Facts = {"python": ".".join(str(n) for n in sys.version_info[:3])}
    for package, key in PACKAGES.items():
        try:
            found[key] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    found.setdefault("tensorrt", "none: not installed")
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    if isinstance(cuda, str):
        found["cuda"] = cuda
    found["source"] = ["importlib.metadata", "torch.version.cuda"]
    return found


def exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def capture() -> Facts:
    if not exists("tensorrt_llm"):
        return {"error": "absent"}
    try:
        package = importlib.import_module("tensorrt_llm")
    except Exception as error:
        return {"error": "import", "message": f"{type(error).__name__}: {error}"[:500]}
    if not exists("tensorrt_llm.llmapi.llm_args"):
        return {"error": "stub", "message": str(getattr(package, "__file__", None))}
    sections = {
        "llm_api": llm_api(),
        "trtllm_build": trtllm_build(),
        "trtllm_serve": trtllm_serve(),
        "quantization": quantization(),
        "pins": pins(),
    }
    version = str(getattr(package, "__version__", "")) or None
    return {"version": version, "sections": sections, "unknown": notes}


def main() -> None:
    # Libraries print on import; the answer alone goes to the real stdout.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        result = capture()
    except Exception as error:
        result = {"error": "failed", "message": f"{type(error).__name__}: {error}"[:500]}
    json.dump(result, answer, allow_nan=False)
    answer.close()


if __name__ == "__main__":
    main()
