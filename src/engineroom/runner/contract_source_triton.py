"""Triton model families of a source tree: tensors, parameters and template variables.

Upstream's config.pbtxt are templates (`${name}` where a value goes), so they are no text protobuf
until they are filled; this reader takes a placeholder as a value.
"""

from __future__ import annotations

import re
from typing import Any

from engineroom.runner.contract_source_tree import SourceTree

# From about 0.20 the models live in TensorRT-LLM; before, in the tensorrtllm_backend repository.
_ROOTS = ("triton_backend/all_models", "all_models")
_DEEP = ("inflight_batcher_llm", "llmapi")
_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<hole>\$\{[\w.-]+\})|(?P<mark>[{}\[\]:,;<>])|(?P<word>[^\s{}\[\]:,;<>"'\#]+)"""
)
_HOLE = re.compile(r"\$\{([\w.-]+)\}")
_DEPTH = 20


class PbtxtError(ValueError):
    """A config.pbtxt that is no text protobuf, template or not."""


def triton(tree: SourceTree, models: SourceTree | None = None) -> dict[str, Any]:
    """The `triton` section; families are empty and noted when the tree holds no models.

    Args:
        tree: the TensorRT-LLM tree, which takes the notes.
        models: an `all_models` folder from elsewhere.
    """
    if models is not None:
        section = _families(models, ".")
        tree.unknown += [item for item in models.unknown if item not in tree.unknown]
        tree.digests |= {f"all_models/{name}": d for name, d in models.digests.items()}
        return section
    root = next((name for name in _ROOTS if tree.folders(name)), None)
    if root is None:
        tree.note(
            "triton.families",
            "no all_models folder: older versions keep it in the tensorrtllm_backend repository",
        )
        return {"families": {}}
    return _families(tree, root)


def _families(tree: SourceTree, root: str) -> dict[str, Any]:
    families = [
        family
        for family in tree.folders(root)
        if any(
            tree.has(f"{root}/{family}/{model}/config.pbtxt")
            for model in tree.folders(f"{root}/{family}")
        )
    ]
    if not families:
        tree.note("triton.families", "the all_models folder holds no model")
        return {"families": {}}
    section: dict[str, Any] = {"families": dict.fromkeys(families, True)}
    for family in _DEEP:
        if family not in families:
            section["families"][family] = False
            section[family] = {"exists": False}
            continue
        models = {
            model: facts
            for model in tree.folders(f"{root}/{family}")
            if (facts := _model(tree, f"{root}/{family}/{model}/config.pbtxt"))
        }
        if family == "llmapi":
            section[family] = {"exists": True, **_llmapi(tree, f"{root}/{family}", models)}
        else:
            section[family] = {"exists": True, **models}
    return section


def _llmapi(tree: SourceTree, root: str, models: dict[str, Any]) -> dict[str, Any]:
    """The llmapi family is one model; contracts keep its facts at the family's own level."""
    name = next(iter(models), None)
    facts: dict[str, Any] = dict(models[name]) if name else {}
    keys: list[str] = []
    path = f"{root}/{name}/1/model.yaml"
    if name and tree.has(path):
        keys = re.findall(r"(?m)^([A-Za-z_]\w*):", tree.text(path))
    return {
        "model_name": name,
        "max_batch_size_in_pbtxt": facts.pop("has_max_batch_size", None),
        "decoupled_in_pbtxt": facts.pop("has_decoupled", None),
        "model_yaml": {"path": "1/model.yaml", "keys": keys} if keys else None,
        **facts,
    }


def _model(tree: SourceTree, path: str) -> dict[str, Any] | None:
    if not tree.has(path):
        return None
    text = tree.text(path)
    try:
        config = parse_pbtxt(text)
    except PbtxtError as error:
        tree.note(path, str(error))
        return None
    parameters = [_parameter(item) for item in _blocks(config, "parameters")]
    taken = {item["template_variable"] for item in parameters}
    plain = "\n".join(line.split("#", 1)[0] for line in text.splitlines())
    holes = [name for name in dict.fromkeys(_HOLE.findall(plain)) if name not in taken]
    facts: dict[str, Any] = {
        key: _first(config, key) for key in ("backend", "platform") if key in config
    }
    facts |= {
        "parameters": parameters,
        "inputs": [_tensor(item, True) for item in _blocks(config, "input")],
        "outputs": [_tensor(item, False) for item in _blocks(config, "output")],
        "template_variables": holes,
        "sources": [path],
    }
    steps = [s for block in _blocks(config, "ensemble_scheduling") for s in _blocks(block, "step")]
    if steps:
        facts["steps"] = [
            {
                "model": _first(step, "model_name"),
                "inputs": _map(step, "input_map"),
                "outputs": _map(step, "output_map"),
            }
            for step in steps
        ]
    if "/llmapi/" in path:
        facts["has_max_batch_size"] = "max_batch_size" in config
        facts["has_decoupled"] = "model_transaction_policy" in config
    return facts


def _tensor(item: dict[str, list[Any]], given: bool) -> dict[str, Any]:
    dims = [int(d) if re.fullmatch(r"-?\d{1,9}", str(d)) else d for d in item.get("dims", [])]
    facts: dict[str, Any] = {
        "name": _first(item, "name"),
        "data_type": _first(item, "data_type"),
        "dims": dims,
        "optional": given and _first(item, "optional") == "true",
    }
    if _first(item, "allow_ragged_batch") == "true":
        facts["allow_ragged_batch"] = True
    if item.get("reshape"):
        facts["reshape"] = [s for block in _blocks(item, "reshape") for s in block.get("shape", [])]
    return facts


def _parameter(item: dict[str, list[Any]]) -> dict[str, Any]:
    value = next((_first(b, "string_value") for b in _blocks(item, "value")), None)
    hole = _HOLE.fullmatch(value) if isinstance(value, str) else None
    return {
        "key": _first(item, "key"),
        "template_variable": hole[1] if hole else None,
        "default": None if hole else value,
    }


def _map(step: dict[str, list[Any]], name: str) -> dict[str, Any]:
    return {str(_first(b, "key")): _first(b, "value") for b in _blocks(step, name)}


def _blocks(config: dict[str, list[Any]], name: str) -> list[dict[str, list[Any]]]:
    return [item for item in config.get(name, []) if isinstance(item, dict)]


def _first(config: dict[str, list[Any]], name: str) -> Any:
    return next(iter(config.get(name, [])), None)


def parse_pbtxt(text: str) -> dict[str, list[Any]]:
    """Fields by name, each a list of its values: text, or a nested dictionary of the same form.

    Raises:
        PbtxtError: no text protobuf, or nested deeper than Triton's own configurations ever are.
    """
    tokens = _tokens(text)
    config, rest = _message(tokens, 0, None, 0)
    if rest != len(tokens):
        raise PbtxtError(f"`{tokens[rest]}` closes nothing")
    return config


def _tokens(text: str) -> list[str]:
    tokens, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise PbtxtError(f"line {text.count(chr(10), 0, place) + 1} is no text protobuf")
        if match.lastgroup:
            tokens.append(match[0])
        place = match.end()
    return tokens


def _message(
    tokens: list[str], at: int, closing: str | None, depth: int
) -> tuple[dict[str, list[Any]], int]:
    if depth > _DEPTH:
        raise PbtxtError("it is nested too deeply")
    found: dict[str, list[Any]] = {}
    while at < len(tokens):
        token = tokens[at]
        if token == closing:
            return found, at + 1
        if token in (",", ";"):
            at += 1
            continue
        if token in "{}[]:<>":
            raise PbtxtError(f"`{token}` where a field name belongs")
        at += 1
        if at < len(tokens) and tokens[at] == ":":
            at += 1
        values, at = _value(tokens, at, depth)
        found.setdefault(token, []).extend(values)
    if closing is not None:
        raise PbtxtError(f"`{closing}` is missing")
    return found, at


def _value(tokens: list[str], at: int, depth: int) -> tuple[list[Any], int]:
    if depth > _DEPTH:
        raise PbtxtError("it is nested too deeply")
    if at >= len(tokens):
        raise PbtxtError("a value is missing at the end")
    token = tokens[at]
    if token in ("{", "<"):
        block, at = _message(tokens, at + 1, "}" if token == "{" else ">", depth + 1)
        return [block], at
    if token == "[":
        items: list[Any] = []
        at += 1
        while at < len(tokens) and tokens[at] != "]":
            if tokens[at] == ",":
                at += 1
                continue
            values, at = _value(tokens, at, depth + 1)
            items += values
        if at >= len(tokens):
            raise PbtxtError("`]` is missing")
        return items, at + 1
    if token in "}]:,;>":
        raise PbtxtError(f"`{token}` where a value belongs")
    quoted = token[0] in "\"'" and len(token) > 1
    return [token[1:-1] if quoted else token], at + 1
