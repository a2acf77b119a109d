"""The fate of every leaf: by what drafting decided, else by the tables of the catalog."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from engineroom.catalog.migration import FateRow, Fates
from engineroom.catalog.triton_parameters import TritonParameters
from engineroom.migration.decisions import Decision, Draft
from engineroom.migration.fates_off import is_off, unknown_fill, unused_tensor
from engineroom.migration.old_models import fill
from engineroom.migration.setup import FILE
from engineroom.reading.cpp_values import cpp_bool, csv_ints, device_sets, stof, stoi, stoull
from engineroom.reading.pbtxt import PLACEHOLDER
from engineroom.types.migration import BuildCall, Fate, Leaf, OldModel, SettingReport

_ROLES = {"engine": "tensorrt_llm", "bls": "tensorrt_llm_bls", "preprocessing": "preprocessing",
          "postprocessing": "postprocessing", "disaggregated": "disaggregated_serving_bls"}  # fmt: skip
_DIALECTS: Mapping[str, str] = {"ensemble": "engine", "bls": "engine", "engine": "core"}
_CALL = re.compile(r"(?P<tool>.+)\[(?P<index>\d+)\](?:\.(?P<flag>[^#]+))?(?:#\d+)?\Z")
_BARE = ("max_batch_size", "decoupled", "count", "preferred_batch_size", "max_queue_size",
         "max_queue_delay_microseconds", "kind", "gpus")  # fmt: skip
"""Fields where the text format wants a number, a boolean or a name: a placeholder stops the parser."""


@dataclass(frozen=True)
class NewModel:
    """Tensors of the model that replaces the old ones: name to (data type, dims)."""

    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    outputs: Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class TensorFate:
    """What becomes of a tensor that clients send or get. `new`: names in the new model."""

    fate: Fate
    new: tuple[str, ...]
    what: str
    todo: str
    source: str


@dataclass(frozen=True)
class Tables:
    """What is known beside the setup.

    Attributes:
        tensors: by dialect (``engine`` for fronts, ``core`` for the engine's model), ``input`` or
            ``output``, and name.
    """

    fates: Fates
    parameters: TritonParameters
    tensors: Mapping[tuple[str, str, str], TensorFate]
    new: NewModel


def settings(draft: Draft, tables: Tables) -> tuple[SettingReport, ...]:
    """One report a leaf, in the order of the leaves."""
    models = {m.file: m for m in draft.setup.models}
    facts = {e.file for e in (draft.setup.engine, draft.setup.checkpoint) if e is not None}
    calls = {(c.file, c.tool, c.index): c for c in draft.setup.calls}
    strangers = {m.file.rpartition("/")[0] for m in draft.setup.models if m.kind == "other"}
    doubt = unknown_fill(draft.setup.calls)
    found = []
    for leaf in draft.setup.leaves:
        decision = draft.decisions.get((leaf.file, leaf.key))
        if leaf.key == FILE:
            folder = leaf.file.partition("/")[0]
            if folder in strangers:
                found.append(_stranger(leaf, tables))
            else:
                found.append(_file(leaf, tables.fates))
        elif leaf.file in models:
            model = models[leaf.file]
            found.append(
                (_stranger(leaf, tables) if model.kind == "other" else None)
                or _decided(leaf, decision, tables, model)
                or _unused(leaf, model, draft, tables)
                or _of_model(leaf, model, tables, doubt)
            )
        elif leaf.file in facts:
            row = tables.fates.engine(leaf.key)
            found.append(_decided(leaf, decision, tables) or _by_row(leaf, row, tables, "key"))
        else:
            found.append(_of_script(leaf, decision, calls, tables))
    return tuple(_with_value(report, draft.spec) for report in found)


def _stranger(leaf: Leaf, tables: Tables) -> SettingReport:
    """Of a model outside the family: an embedder, an ensemble of other models."""
    return _report(
        leaf, Fate.IMPOSSIBLE, None, None, "of a model that is not of the inflight_batcher_llm family",
        "keep this model beside the new one in your own repository, if it is still needed",
        tables.fates.named("templates"),
    )  # fmt: skip


def _unused(leaf: Leaf, model: OldModel, draft: Draft, tables: Tables) -> SettingReport | None:
    """An input of a feature that the old service never had switched on."""
    side, _, name = leaf.key.partition(".")
    if side != "input" or (what := unused_tensor(name.partition("#")[0], model, draft)) is None:
        return None
    return _report(
        leaf, Fate.REDEFAULTED, None, None, what, "", tables.fates.named("speculative", "fields")
    )


_PLACE = re.compile(r"[a-z_]+(?:\[\d+\])?(?:\.[a-z_]+)*\Z")


def _with_value(report: SettingReport, spec: Mapping[str, Any]) -> SettingReport:
    """What the new spec has at the key that a row names."""
    if report.new_value is not None or not report.new_key or not _PLACE.match(report.new_key):
        return report
    here: Any = spec
    for part in re.findall(r"[a-z_]+|\d+", report.new_key):
        if isinstance(here, list) and part.isdigit() and int(part) < len(here):
            here = here[int(part)]
        elif isinstance(here, Mapping) and part in here:
            here = here[part]
        else:
            return report
    return replace(report, new_value=here)


def _report(
    leaf: Leaf, fate: Fate, new: str | None, value: Any, what: str, todo: str, source: str
) -> SettingReport:
    return SettingReport(
        leaf.file, leaf.key, leaf.line, leaf.value, fate, new, value, what, todo, source
    )


def _decided(
    leaf: Leaf, decision: Decision | None, tables: Tables, model: OldModel | None = None
) -> SettingReport | None:
    if decision is None:
        return None
    what = decision.what + (_script_says(leaf, model) if model else "")
    source = tables.fates.named(*decision.source)
    return _report(
        leaf, decision.fate, decision.new_key, decision.new_value, what, decision.todo, source
    )


def _by_row(
    leaf: Leaf, row: FateRow | None, tables: Tables, kind: str, value: str | None = None
) -> SettingReport:
    """By the table.

    Args:
        value: what a placeholder is filled with, in place of the leaf's own value.
    """
    if row is None:
        return _report(
            leaf, Fate.LEFTOVER, None, None,
            f"no release that was read has a {kind} of this name: nothing reads it, or a file of your own does",
            "look whether your own code reads it", tables.fates.named("templates"),
        )  # fmt: skip
    said = leaf.value if value is None else value
    if row.fate == "impossible" and is_off(leaf.key, said, kind):
        return _report(
            leaf, Fate.REDEFAULTED, None, None, f"`{_word(said)}` here means that nothing of it was used: {row.what}",
            "", tables.fates.source(row),
        )  # fmt: skip
    return _report(
        leaf, Fate(row.fate), row.new, None, row.what, row.todo, tables.fates.source(row)
    )


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:40]


def _script_says(leaf: Leaf, model: OldModel) -> str:
    """What the build script puts in for a placeholder, and which ones it leaves."""
    names = PLACEHOLDER.findall(str(leaf.value))
    known = [f"{name} = {model.filled[name]}" for name in names if name in model.filled]
    return f" (the build script fills {', '.join(known)})" if known else ""


# ---- config.pbtxt
def _of_model(leaf: Leaf, model: OldModel, tables: Tables, doubt: str) -> SettingReport:
    side, _, name = leaf.key.partition(".")
    name = name.partition("#")[0]
    if side in ("input", "output") and name:
        return _tensor(leaf, model, side, name, tables)
    text = fill(str(leaf.value), model.filled)
    open_ = PLACEHOLDER.findall(text)
    told = _script_says(leaf, model)
    if side == "parameters" and name:
        row = tables.fates.parameter(name)
        if open_ or text == "":
            return _unfilled_parameter(leaf, model, name, row, bool(open_), tables, doubt)
        found = _unreadable(leaf, model, name, text, row, tables) or _by_row(
            leaf, row, tables, "parameter", text
        )
    else:
        row = tables.fates.field(leaf.key)
        found = _by_row(leaf, row, tables, "field", text)
        if open_:
            return _unfilled_field(found, open_[0], doubt)
    return _more(found, told)


_READERS: Mapping[str, Callable[[str], object]] = {
    "int_cpp": stoi, "uint_cpp": stoull, "uint32_cpp": stoull, "float_cpp": stof, "bool_cpp": cpp_bool,
    "ints_cpp": csv_ints, "sets_cpp": device_sets,
}  # fmt: skip


def _unreadable(
    leaf: Leaf, model: OldModel, key: str, text: str, row: FateRow | None, tables: Tables
) -> SettingReport | None:
    """A value that the old backend could not read, so that its default held."""
    if model.kind != "engine" or model.backend == "python" or row is None:
        return None
    known = tables.parameters.rows(_ROLES["engine"], "tensorrtllm", None).get(key)
    reader = _READERS.get(known.reader) if known is not None else None
    if known is None or reader is None or known.unreadable != "default" or reader(text) is not None:
        return None
    return _report(
        leaf, Fate.REDEFAULTED, row.new, None,
        f"`{text[:40]}` could not be read and counted as not specified; on the new side: {row.what}", row.todo,
        tables.fates.named("parameters", *row.by),
    )  # fmt: skip


def _more(report: SettingReport, told: str) -> SettingReport:
    return replace(report, what=report.what + told)


def _unfilled_field(row: SettingReport, name: str, doubt: str) -> SettingReport:
    bare = row.key.rsplit(".", 1)[-1] in _BARE
    if doubt:
        what = f"placeholder `{name}` is not filled, {doubt}"
    else:
        what = f"placeholder `{name}` was never filled" + (
            ": the old server could not read this file" if bare else " and was used as it stands"
        )
    return replace(row, fate=Fate.LEFTOVER, what=f"{what}; on the new side: {row.what}")


def _unfilled_parameter(
    leaf: Leaf, model: OldModel, key: str, row: FateRow | None, placeholder: bool, tables: Tables,
    doubt: str,
) -> SettingReport:  # fmt: skip
    """What the old reader did with it, and what holds now."""
    state = "a placeholder that was never filled" if placeholder else "empty"
    if placeholder and doubt:
        state = f"a placeholder that is not filled, {doubt}; if nothing did"
    backend = "tensorrtllm" if model.kind == "engine" and model.backend != "python" else "python"
    role = _ROLES.get(model.kind, "")
    known = tables.parameters.rows(role, backend, None).get(key)
    does = known.unfilled if known and placeholder else "default"
    if known is None:
        old = "nothing is known to read it"
    elif does == "refuse":
        old = "the old model does not load with it"
    elif does == "ignore":
        old = "its reader takes it for unset"
    elif does == "keep":
        old = "its reader uses it as it stands"
    else:
        old = "it counts as not specified"
    default = (
        known.defaults(None)[0] if known is not None and does in ("default", "ignore") else None
    )
    old += (
        f" (default {str(default).lower() if isinstance(default, bool) else default})"
        if default is not None
        else ""
    )
    now = f"; on the new side: {row.what}" if row is not None else ""
    new = row.new if row is not None else None
    source = tables.fates.named("parameters") + (f"; {tables.fates.source(row)}" if row else "")
    return _report(leaf, Fate.LEFTOVER, new, None, f"{state}: {old}{now}", "", source)


# ---- tensors
def _tensor(leaf: Leaf, model: OldModel, side: str, name: str, tables: Tables) -> SettingReport:
    dialect = _DIALECTS.get(model.kind)
    if dialect is None:
        return _inner_tensor(leaf, model, tables)
    told = tables.tensors.get((dialect, side, name))
    if told is None:  # of an ensemble whose steps are not in the repository
        return _report(
            leaf, Fate.IMPOSSIBLE, None, None, "a tensor of a model that does not lead to the engine that is carried over",
            "keep that model beside the new one, or migrate its engine as a service of its own",
            tables.fates.named("our_model"),
        )  # fmt: skip
    declared = tables.new.inputs if side == "input" else tables.new.outputs
    kinds = [f"{declared[n][0]} {list(declared[n][1])}" for n in told.new if n in declared]
    what = told.what or "the same thing" + ("" if told.new == (name,) else " under another name")
    found = re.search(r"data_type: (TYPE_\w+)", str(leaf.value))
    if kinds and found and len(kinds) == 1 and not kinds[0].startswith(f"{found[1]} "):
        what += f"; {kinds[0].split()[0]}, no longer {found[1]}"
    absent = [n for n in told.new if n not in declared]
    todo = told.todo
    if absent and side == "output" and not todo:
        todo = "switch its feature on in serving.features, if clients read it"
    return _report(
        leaf, told.fate, ", ".join(told.new) or None, ", ".join(kinds) or None,
        what, todo, told.source,
    )  # fmt: skip


def _inner_tensor(leaf: Leaf, model: OldModel, tables: Tables) -> SettingReport:
    if model.kind in ("preprocessing", "postprocessing", "multimodal"):
        return _report(
            leaf, Fate.MOVED, None, None,
            "between the models of the old repository; the new model does this step inside",
            "", tables.fates.named("our_model"),
        )  # fmt: skip
    return _report(
        leaf, Fate.IMPOSSIBLE, None, None, "a tensor of a model that is not of the inflight_batcher_llm family",
        "keep that model beside the new one in your own repository, if it is still needed",
        tables.fates.named("templates"),
    )  # fmt: skip


# ---- build script and other files
def _of_script(
    leaf: Leaf,
    decision: Decision | None,
    calls: Mapping[tuple[str, str, int], BuildCall],
    tables: Tables,
) -> SettingReport:
    if leaf.key.startswith("variable "):
        return _variable(leaf, tables)
    found = _CALL.fullmatch(leaf.key)
    tool, index, name = (
        (found["tool"], int(found["index"]), found["flag"]) if found else ("", 0, None)
    )
    call = calls.get((leaf.file, tool, index))
    if call is None:
        return _report(
            leaf, Fate.LEFTOVER, None, None, "no call of a build or launch tool: nothing is carried over",
            "look whether the new service needs it", "the build script itself",
        )  # fmt: skip
    if name is None:
        return _report(
            leaf, Fate.REDEFAULTED, None, None, f"a call of {tool} without options", "",
            tables.fates.named("removal"),
        )  # fmt: skip
    row = tables.fates.flag(tool, name) or (
        tables.fates.flag(tool, "*") if tool == "mpirun" else None
    )
    report = _decided(leaf, decision, tables) or _by_row(leaf, row, tables, "option")
    flag = next((f for f in call.flags if f.name == name and f.unresolved), None)
    if flag is None:
        return report
    unknown = ", ".join(f"`{n}`" for n in flag.unresolved)
    return _more(report, f"; the script alone does not say what {unknown} is")


def _variable(leaf: Leaf, tables: Tables) -> SettingReport:
    name = leaf.key.removeprefix("variable ").partition("#")[0]
    row = tables.fates.variable(name)
    if row is not None:
        return _by_row(leaf, row, tables, "variable")
    if "$(" in str(leaf.value) or "`" in str(leaf.value) or "${" in str(leaf.value):
        return _report(
            leaf, Fate.LEFTOVER, None, None, "only running the script would tell its value", "",
            "the build script itself",
        )  # fmt: skip
    return _report(
        leaf, Fate.MOVED, None, None, "a variable of the script; its value is in the calls that use it", "",
        "the build script itself",
    )  # fmt: skip


def _file(leaf: Leaf, fates: Fates) -> SettingReport:
    name = leaf.file.rsplit("/", 1)[-1]
    if name.endswith((".engine", ".plan")):
        return _report(leaf, Fate.IMPOSSIBLE, None, None, "a compiled engine: nothing of it can be used again", "",
                       fates.named("removal"))  # fmt: skip
    if name.endswith(".py"):
        return _report(
            leaf, Fate.REDEFAULTED, None, None, "a model file: the new repository has files of its own",
            "nothing, if it is upstream's; what you changed in it is not carried over", fates.named("our_model"),
        )  # fmt: skip
    return _report(leaf, Fate.LEFTOVER, None, None, "not read", "look whether the new service needs it",
                   "the repository itself")  # fmt: skip
