"""The LLM arguments of a source tree: `TorchLlmArgs`, what it inherits, and every nested model."""

from __future__ import annotations

from typing import Any

from engineroom.errors import UsageError, Where
from engineroom.runner.contract_source_fields import Annotation, Facts, Models
from engineroom.runner.contract_source_tree import SourceTree
from engineroom.runner.contract_source_values import ClassRef, Values

# Newest first. TensorRT-LLM 0.17 still had one `LlmArgs` dataclass in llm_utils.py.
_PLACES = (
    ("tensorrt_llm/llmapi/llm_args.py", ("TorchLlmArgs", "LlmArgs")),
    ("tensorrt_llm/llmapi/llm_utils.py", ("LlmArgs",)),
)
_MAX_CLASSES = 300


def llm_api(tree: SourceTree, values: Values, models: Models) -> dict[str, Any]:
    """The `llm_api` section.

    Raises:
        UsageError: the tree has no LLM arguments, or their file cannot be parsed.
    """
    found = _arguments(tree, values)
    if found is None:
        raise UsageError(
            "no class TorchLlmArgs or LlmArgs: this is no TensorRT-LLM source tree of 0.17 or newer",
            where=Where((tree.root / _PLACES[0][0]).as_posix()),
            hint="name the folder that holds `tensorrt_llm/llmapi/llm_args.py`",
        )
    path, ref = found
    fields = models.fields(ref)
    nested: dict[str, dict[str, Facts]] = {}
    types: dict[str, list[str]] = {}
    queue = list(fields.items())
    trt = _other(tree, values, models, set(fields))
    for name, (_, annotation) in [*queue, *trt.items()]:
        if annotation.classes:
            types[name] = [item.name for item in annotation.classes]
            _follow(tree, models, annotation, nested)
    section: dict[str, Any] = {
        "class_name": ref.name,
        "import_path": _import_path(tree),
        "extra_fields": models.extra(ref),
        "fields": {name: facts for name, (facts, _) in fields.items()},
        "nested": dict(sorted(nested.items())),
        "classes_by_field": types,
        "trt_llm_args": {name: facts for name, (facts, _) in trt.items()} or None,
        "sources": [path],
    }
    for name, facts in section["fields"].items():
        if facts.get("default_known") is False:
            tree.note(f"llm_api.fields.{name}.default", "the default is not written out")
    return section


def _arguments(tree: SourceTree, values: Values) -> tuple[str, ClassRef] | None:
    for path, names in _PLACES:
        module = tree.module(path, needed=True)
        for name in names if module else ():
            if module and name in module.classes:
                return path, ClassRef(module, module.classes[name])
    return None


def _other(
    tree: SourceTree, values: Values, models: Models, known: set[str]
) -> dict[str, tuple[Facts, Annotation]]:
    """What only the engine lane's `TrtLlmArgs` takes."""
    module = tree.module(_PLACES[0][0])
    if module is None or "TrtLlmArgs" not in module.classes:
        return {}
    fields = models.fields(ClassRef(module, module.classes["TrtLlmArgs"]))
    return {name: item for name, item in fields.items() if name not in known}


def _follow(
    tree: SourceTree, models: Models, annotation: Annotation, nested: dict[str, dict[str, Facts]]
) -> None:
    """Enter the annotation's models and the models of their fields, breadth first."""
    queue = list(annotation.classes)
    while queue:
        ref = queue.pop(0)
        if ref.name in nested:
            continue
        if len(nested) >= _MAX_CLASSES:
            tree.note("llm_api.nested", f"more than {_MAX_CLASSES} nested classes")
            return
        fields = models.fields(ref)
        if not fields:
            continue
        nested[ref.name] = {name: _lean(facts) for name, (facts, _) in fields.items()}
        for _, (_, inner) in fields.items():
            queue += inner.classes


def _lean(facts: Facts) -> Facts:
    """Nested fields carry a status only where upstream gives one."""
    status = facts.get("status")
    return {k: v for k, v in facts.items() if k != "status" or status not in (None, "stable")}


def _import_path(tree: SourceTree) -> str | None:
    module = tree.module("tensorrt_llm/__init__.py")
    return "tensorrt_llm.LLM" if module and "LLM" in module.imports else None
