"""What changed about a name that both versions have: type, default, allowed values, status."""

from __future__ import annotations

import re

from engineroom.catalog.contract_parts import Area, Entry
from engineroom.catalog.version_change import Change, ChangeKind

_BOUND = re.compile(r"[<>]=?\s*-?[\d.]+")
_WRAPPED = re.compile(r"(Optional|Union)\[(.*)\]\Z")
_NUMBER = {"PositiveInt": "int", "NonNegativeInt": "int", "PositiveFloat": "float"}
_ENUM = {"Literal", "enum", "choice"}
_VAGUE = {"object", "command", "family", "model", "parameter", "template variable", "setting"}


def value_changes(a: Entry, b: Entry, *, deprecated: bool = False) -> list[Change]:
    """Changes of one name from `a` to `b`; what either contract does not know gives none.

    Args:
        deprecated: a change list says so.
    """
    if a.area is Area.PINS:
        return _pin(a, b)
    found: list[Change] = []

    def add(kind: ChangeKind, old: object, new: object, fact: str) -> None:
        unsure = fact in a.unsure or fact in b.unsure
        notes = [text for text in (a.caveat, b.caveat) if text]
        notes += [f"sources differ about the {fact}"] if unsure else []
        found.append(
            Change(
                kind,
                a.area,
                (a.path,),
                (b.path,),
                old,
                new,
                not notes,
                "; ".join(dict.fromkeys(notes)) or None,
            )
        )

    if _retyped(a, b):
        add(ChangeKind.RETYPED, a.type, b.type, "type")
    if a.default_known and b.default_known and not same(a.default, b.default):
        add(ChangeKind.REDEFAULTED, a.default, b.default, "default")
    if a.allowed is not None and b.allowed is not None and set(a.allowed) != set(b.allowed):
        add(ChangeKind.VALUES, a.allowed, b.allowed, "allowed")
    was, now = a.status == "deprecated", b.status == "deprecated" or deprecated
    if was != now and (a.status is not None or b.status is not None or deprecated):
        kind = ChangeKind.DEPRECATED if now else ChangeKind.RESTORED
        add(kind, a.status, b.status if b.status or not now else "deprecated", "status")
    return found


def same(a: object, b: object) -> bool:
    """Equality as a configuration file sees it: 0 is 0.0, but false is not 0."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _pin(a: Entry, b: Entry) -> list[Change]:
    if a.default == b.default:
        return []
    kind = ChangeKind.CHANGED if a.default_known and b.default_known else ChangeKind.UNKNOWN
    note = None if kind is ChangeKind.CHANGED else "one of the two was not found"
    return [Change(kind, a.area, (a.path,), (b.path,), a.default, b.default, note is None, note)]


def base_type(entry: Entry) -> tuple[frozenset[str], bool]:
    """(kinds of value, whether null is accepted); bounds and spellings of the sources dropped.

    ``Optional[int>0]`` and ``Union[int,None]`` are both int or null; an enum class, ``Literal[...]``
    and ``choice`` are all "enum".
    """
    text = _BOUND.sub("", entry.type or "").replace(" ", "")
    kinds: set[str] = set()
    pending = [text]
    while pending:
        part = pending.pop()
        wrapped = _WRAPPED.match(part)
        if wrapped:
            pending += [*split_type(wrapped[2]), *(["None"] if wrapped[1] == "Optional" else [])]
        elif part:
            pieces = split_type(part)
            if len(pieces) > 1:
                pending += pieces
            else:
                kinds.add(_kind(part))
    return frozenset(kinds - {"None"}), "None" in kinds


def _kind(text: str) -> str:
    head = text.split("[", 1)[0]
    enum_class = re.fullmatch(r"[A-Z]\w+", text) and not text.endswith(("Config", "Path", "Any"))
    return "enum" if head in _ENUM or enum_class else _NUMBER.get(text, text)


def split_type(text: str) -> list[str]:
    """Members of a union, split at ``|`` and ``,`` outside brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if char in "|," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _retyped(a: Entry, b: Entry) -> bool:
    if a.type == b.type or a.type is None or b.type is None:
        return False
    if a.allowed is not None and b.allowed is not None:
        return False  # the values say it better than two spellings of "one of these"
    old, new = base_type(a), base_type(b)
    return old != new and not (old[0] | new[0]) & _VAGUE


def fits(value: object, entry: Entry) -> bool:
    """Whether a written value is of a type; what the contract leaves open fits."""
    kinds, null = base_type(entry)
    if value is None:
        return null
    if entry.allowed is not None:
        return str(value) in entry.allowed
    names = {"bool": bool, "int": int, "float": (int, float), "str": str, "enum": str}
    if not kinds <= set(names):
        return True
    return any(
        isinstance(value, names[kind]) and (kind == "bool") == isinstance(value, bool)  # type: ignore[arg-type]
        for kind in kinds
    )
