"""Compares two contracts of the same shape: what each says that the other does not, or says otherwise.

Unknown is no difference: a default that one side does not know, a section that a capture could not
read, and values that a type merely documents are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engineroom.catalog.type_text import same_type

KINDS = ("missing", "extra", "type", "default", "choices", "allowed", "alias", "status", "pin")
Facts = Mapping[str, Any]
_PIN_KEYS = (
    "torch", "tensorrt", "modelopt", "transformers", "triton_openai", "xgrammar", "torchao",
    "flashinfer", "base_image", "triton_base_image",
)  # fmt: skip
_DECODING_BASE = "DecodingBaseConfig"


@dataclass(frozen=True)
class Difference:
    """One row.

    Attributes:
        path: dotted place in the contract.
        kind: one of KINDS; `missing` is in the shipped contract only, `extra` in the captured only.
        shipped, captured: the two values, None where there is none.
    """

    path: str
    kind: str
    shipped: Any
    captured: Any

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "kind": self.kind,
            "shipped": self.shipped,
            "captured": self.captured,
        }


def differences(shipped: Facts, captured: Facts) -> list[Difference]:
    """Every difference, ordered by path."""
    unknown = tuple(
        str(item.get("path", ""))
        for item in (_map(captured.get("capture")).get("unknown") or ())
        if isinstance(item, Mapping)
    )
    rows = [
        *_build(shipped, captured),
        *_llm_api(shipped, captured),
        *_serve(shipped, captured),
        *_triton(shipped, captured),
        *_quantization(shipped, captured),
        *_pins(shipped, captured),
    ]
    kept = [row for row in rows if not _is_unknown(row, unknown)]
    return sorted(kept, key=lambda row: (row.path, KINDS.index(row.kind)))


def _is_unknown(row: Difference, unknown: tuple[str, ...]) -> bool:
    """True when the capture says it could not read the place, or that facet of it."""
    place = f"{row.path}.{row.kind}"
    return any(
        row.path == item or row.path.startswith(f"{item}.") or place == item
        for item in unknown
        if item
    )


# ---- sections
def _build(shipped: Facts, captured: Facts) -> Iterator[Difference]:
    old, new = _map(shipped.get("trtllm_build")), _map(captured.get("trtllm_build"))
    before, after = old.get("command_exists"), new.get("command_exists")
    if before is None or after is None:
        return
    if bool(before) != bool(after):
        kind = "missing" if before else "extra"
        yield Difference("trtllm_build.command_exists", kind, before, after)
        return
    yield from _table("trtllm_build.flags", old.get("flags"), new.get("flags"))


def _llm_api(shipped: Facts, captured: Facts) -> Iterator[Difference]:
    old, new = _map(shipped.get("llm_api")), _map(captured.get("llm_api"))
    for key in ("class_name", "extra_fields"):
        words = old.get(key), new.get(key)
        if None not in words and "not read" not in words and words[0] != words[1]:
            yield Difference(f"llm_api.{key}", "type", *words)
    yield from _table("llm_api.fields", _fields(old), _fields(new))
    yield from _table("llm_api.trt_llm_args", old.get("trt_llm_args"), new.get("trt_llm_args"))
    if "nested_by_field" in old or "nested_by_field" in new:
        for field in sorted(set(_fields(old)) & set(_fields(new))):
            mine, theirs = _nested_of(old, field), _nested_of(new, field)
            if mine and theirs:
                yield from _table(f"llm_api.fields.{field}", mine, theirs)
        return
    before, after = _classes(old), _classes(new)
    texts = " ".join(str(facts.get("type")) for facts in _fields(new).values())
    for name in sorted(set(before) | set(after)):
        path = f"llm_api.nested.{name}"
        if name not in after and re.search(rf"\b{re.escape(name)}\b", texts):
            continue  # a class of the C++ bindings: named, but not defined in the tree
        if name not in after:
            yield Difference(path, "missing", sorted(before[name]), None)
        elif name not in before:
            yield Difference(path, "extra", None, sorted(after[name]))
        else:
            yield from _table(path, before[name], after[name])


def _serve(shipped: Facts, captured: Facts) -> Iterator[Difference]:
    old, new = _map(shipped.get("trtllm_serve")), _map(captured.get("trtllm_serve"))
    if not old or not new:
        return
    for command in sorted(_commands(old) | _commands(new)):
        path = f"trtllm_serve.{command}"
        before, after = old.get(command), new.get(command)
        if before and not after:
            yield Difference(path, "missing", sorted(before), None)
        elif after and not before:
            yield Difference(path, "extra", None, sorted(after))
        else:
            yield from _table(path, before, after)


def _commands(section: Facts) -> set[str]:
    return {
        name
        for name, value in section.items()
        if isinstance(value, Mapping) and any(key.startswith("-") for key in value)
    }


def _triton(shipped: Facts, captured: Facts) -> Iterator[Difference]:
    old, new = _map(shipped.get("triton")), _map(captured.get("triton"))
    before, after = _map(old.get("families")), _map(new.get("families"))
    if not before or not after:
        return
    for family in sorted(set(before) | set(after)):
        has, had = bool(after.get(family)), bool(before.get(family))
        if has != had:
            yield Difference(f"triton.families.{family}", "extra" if has else "missing", had, has)
        elif has:
            yield from _family(family, _map(old.get(family)), _map(new.get(family)))


def _family(name: str, old: Facts, new: Facts) -> Iterator[Difference]:
    if not old or not new:
        return
    pairs: dict[str, tuple[Facts, Facts]] = {}
    if "inputs" in old or "inputs" in new:
        pairs[f"triton.{name}"] = (old, new)
    for model in sorted({k for side in (old, new) for k, v in side.items() if _is_model(v)}):
        mine, theirs = _map(old.get(model)), _map(new.get(model))
        if not mine or not theirs:
            kind = "extra" if theirs else "missing"
            yield Difference(f"triton.{name}.{model}", kind, bool(mine), bool(theirs))
            continue
        pairs[f"triton.{name}.{model}"] = (mine, theirs)
    for path, (left, right) in pairs.items():
        for group, key in (("inputs", "name"), ("outputs", "name"), ("parameters", "key")):
            yield from _tensors(
                f"{path}.{group}", _by(left.get(group), key), _by(right.get(group), key)
            )
        both = left.get("template_variables"), right.get("template_variables")
        if None not in both:
            yield from _names(f"{path}.template_variables", *both)


def _is_model(value: Any) -> bool:
    return isinstance(value, Mapping) and "inputs" in value


def _tensors(path: str, old: Mapping[str, Facts], new: Mapping[str, Facts]) -> Iterator[Difference]:
    yield from _names(path, list(old), list(new))
    facets = ("data_type", "dims", "optional", "allow_ragged_batch", "template_variable")
    for name in sorted(set(old) & set(new)):
        mine = {f: old[name][f] for f in facets if f in old[name]}
        theirs = {f: new[name][f] for f in facets if f in new[name]}
        if not path.endswith(".inputs"):
            mine.pop("optional", None), theirs.pop("optional", None)
        # A llmapi contract names parameters without saying which placeholder fills them.
        shared = (set(mine) | set(theirs)) - {"allow_ragged_batch", "template_variable"}
        shared |= set(mine) & set(theirs)
        left = {f: mine.get(f) for f in facets if f in shared}
        right = {f: theirs.get(f) for f in facets if f in shared}
        if left != right:
            yield Difference(f"{path}.{name}", "type", left, right)


def _quantization(shipped: Facts, captured: Facts) -> Iterator[Difference]:
    old, new = _map(shipped.get("quantization")), _map(captured.get("quantization"))
    for key in ("quant_algo", "kv_cache_quant_algo", "weight_quant_excludes"):
        if isinstance(old.get(key), list) and isinstance(new.get(key), list):
            yield from _names(f"quantization.{key}", old[key], new[key])


def _pins(shipped: Facts, captured: Facts) -> Iterator[Difference]:
    old, new = _map(shipped.get("pins")), _map(captured.get("pins"))
    for key in _PIN_KEYS:
        both = old.get(key), new.get(key)
        if None not in both and _pin(both[0]) != _pin(both[1]):
            yield Difference(f"pins.{key}", "pin", *both)


def _pin(text: Any) -> str:
    """A pin without the remark in parentheses that a hand-written contract adds."""
    bare = re.sub(r"\s*\(.*?\)", "", str(text)).replace(" ", "")
    return "none" if bare.startswith("none") else bare.removesuffix("-min")


# ---- tables of fields or flags
def _table(path: str, old: Any, new: Any) -> Iterator[Difference]:
    before, after = _map(old), _map(new)
    if not before or not after:
        return  # one side does not know the table
    renamed = {str(a): n for n, facts in after.items() for a in _set(_map(facts).get("aliases"))}
    for name in [*before, *(n for n in after if n not in before)]:
        place = f"{path}.{name}"
        if name not in after and name in renamed:
            yield Difference(place, "alias", "a field of its own", f"alias of {renamed[name]}")
        elif name not in after:
            yield Difference(place, "missing", _lean(before[name]), None)
        elif name not in before:
            yield Difference(place, "extra", None, _lean(after[name]))
        else:
            yield from _entry(place, _map(before[name]), _map(after[name]))


def _entry(path: str, old: Facts, new: Facts) -> Iterator[Difference]:
    if not same_type(old.get("type"), new.get("type")) and not _same_words(old, new):
        yield Difference(path, "type", old.get("type"), new.get("type"))
    known = all(side.get("default_known", True) and "default" in side for side in (old, new))
    required = bool(old.get("required")), bool(new.get("required"))
    if known and (required[0] != required[1] or not _same(old["default"], new["default"])):
        words = ["required" if r else side["default"] for r, side in zip(required, (old, new))]
        yield Difference(path, "default", *words)
    for key in ("choices", "allowed"):
        mine, theirs = old.get(key), new.get(key)
        # Only a closed type limits values; a list beside a plain str is documentation.
        closed = theirs is not None or (mine is not None and _is_closed(new.get("type")))
        if closed and isinstance(mine or [], list) and _set(mine) != _set(theirs):
            if theirs is None or (mine is None and _is_open(key, old, new)):
                continue
            yield Difference(path, key, mine, theirs)
    mine, theirs = _set(old.get("aliases")), _set(new.get("aliases"))
    if mine != theirs and not _aliases_in_note(old, theirs):
        yield Difference(path, "alias", sorted(mine), sorted(theirs))
    status = old.get("status"), new.get("status")
    if None not in status and status[0] != status[1]:
        yield Difference(path, "status", *status)


def _same_words(old: Facts, new: Facts) -> bool:
    """True when an enum class on one side has the words of a Literal on the other."""
    words = _set(old.get("allowed"))
    return bool(words) and words == _set(new.get("allowed"))


def _aliases_in_note(old: Facts, aliases: set[str]) -> bool:
    note = str(old.get("note", ""))
    return bool(aliases) and "alias" in note and all(alias in note for alias in aliases)


def _is_open(key: str, old: Facts, new: Facts) -> bool:
    """True when the contract names a choice or an enum class without listing its words."""
    if key == "choices":
        return old.get("type") in ("choice", "enum")
    return "Literal" not in str(new.get("type"))


def _is_closed(text: Any) -> bool:
    return "Literal" in str(text) or str(text) in ("choice", "enum")


# ---- small
def _same(old: Any, new: Any) -> bool:
    empty: tuple[Any, ...] = ({}, [], "default instance")
    if old in empty and new in empty:
        return True
    if isinstance(old, bool) != isinstance(new, bool):
        return False
    return bool(old == new)


def _names(path: str, old: Any, new: Any) -> Iterator[Difference]:
    for name in dict.fromkeys(str(item) for item in [*old, *new]):
        has, had = name in {str(i) for i in new}, name in {str(i) for i in old}
        if has != had:
            yield Difference(f"{path}.{name}", "extra" if has else "missing", had, has)


def _fields(api: Facts) -> dict[str, Facts]:
    objects = {name: {"type": "object"} for name in _map(api.get("nested_by_field"))}
    return {**objects, **_map(api.get("free_text_fields")), **_map(api.get("fields"))}


def _classes(api: Facts) -> dict[str, dict[str, Facts]]:
    """Nested classes by name, each with the fields it inherits.

    Hand-written contracts wrap some classes to say which snapshot had them, write the fields of
    DecodingBaseConfig once, and keep remarks beside the classes.
    """
    found: dict[str, dict[str, Facts]] = {}
    for name, facts in _map(api.get("nested")).items():
        facts = _map(facts)
        inner = _map(facts.get("fields")) if "_presence" in facts else facts
        fields = {key: value for key, value in inner.items() if isinstance(value, Mapping)}
        if fields:
            found[name] = fields
    base = found.pop(_DECODING_BASE, {})
    for name in found if base else ():
        if name.endswith("DecodingConfig"):
            found[name] = {**base, **found[name]}
    return found


def _nested_of(api: Facts, field: str) -> dict[str, Facts]:
    """First-level keys of a field's object, whatever form the contract has."""
    by_field = _map(api.get("nested_by_field"))
    if field in by_field:
        parents = {name.split(".")[0]: {"type": "object"} for name in by_field[field]}
        return {**parents, **{n: facts for n, facts in by_field[field].items() if "." not in n}}
    classes = _classes(api)
    names = _map(api.get("classes_by_field")).get(field)
    if names is None:
        text = str(_fields(api).get(field, {}).get("type", ""))
        names = [name for name in classes if re.search(rf"\b{re.escape(name)}\b", text)]
    found: dict[str, Facts] = {}
    for name in names:
        for key, facts in _map(classes.get(name)).items():
            # Members of a union may differ; then only the key's existence is compared.
            same = key not in found or found[key] == facts
            found[key] = facts if same else {"type": "object"}
    return found


def _by(items: Any, key: str) -> dict[str, Facts]:
    return {str(item.get(key)): item for item in items or () if isinstance(item, Mapping)}


def _map(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _set(value: Any) -> set[str]:
    return {str(item) for item in value} if isinstance(value, list) else set()


def _lean(facts: Any) -> Any:
    return (
        {k: v for k, v in facts.items() if k in ("type", "default")}
        if isinstance(facts, Mapping)
        else facts
    )
