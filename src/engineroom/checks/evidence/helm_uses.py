"""How the values of a chart are used by a template, and what a reader of the text makes of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from engineroom.reading import go_numbers
from engineroom.reading.go_yaml import ValuesError, resolve
from engineroom.reading.helm_functions import FORMATTING
from engineroom.reading.helm_text import Printed, Rendering
from engineroom.reading.helm_yaml import Path, Source, Values, dotted

_STOI = re.compile(r"\s*([+-]?[0-9]+)")
_STOF = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_TEXT_KEY = re.compile(r"(?i)(tag|version|release|image|revision|branch)$")


@dataclass(frozen=True)
class Use:
    """One value as an action printed it.

    Attributes:
        text: what arrives, without the quotes that are the file's syntax.
        inside: the action stands in quotes, a block of text, or beside other text.
        plain_field: it is a whole YAML value of a complete manifest, where form does not matter.
    """

    path: Path
    value: Any
    source: Source | None
    text: str
    raw: str
    functions: tuple[str, ...]
    line: int
    before: str
    after: str
    inside: bool
    plain_field: bool

    @property
    def name(self) -> str:
        return dotted(self.path)

    @property
    def formatting_only(self) -> bool:
        return all(name in FORMATTING for name in self.functions)


def uses(template: str, rendering: Rendering, values: Values) -> list[Use]:
    manifest = re.search(r"^kind:", template, re.M) and re.search(r"^apiVersion:", template, re.M)
    blocks = _block_lines(template)
    found = []
    for item in rendering.printed[:10_000]:
        # A comment of the manifest may hold any text.
        comment = template[template.rfind("\n", 0, item.at) + 1 : item.at].lstrip().startswith("#")
        if len(item.paths) == 1 and item.paths[0] and not comment:
            found.append(_use(template, item, values, bool(manifest), blocks))
    return found


def _use(template: str, item: Printed, values: Values, manifest: bool, blocks: set[int]) -> Use:
    path = item.paths[0]
    start = template.rfind("\n", 0, item.at) + 1
    end = template.find("\n", item.end)
    before, after = (
        template[start : item.at],
        template[item.end : end if end >= 0 else len(template)],
    )
    line = template.count("\n", 0, item.at)
    quoted = (before.count('"') - before.count('\\"')) % 2 == 1 or before.count("'") % 2 == 1
    text = item.text.strip()
    if not quoted and len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    lead = re.sub(r"^\s*(-\s+)*([\w./-]+:\s*)?(-\s+)*", "", before)
    beside = bool(lead.strip() or after.strip()) and not after.lstrip().startswith("#")
    in_block = line in blocks
    return Use(
        path, values.get(*path), values.sources.get(path), text, item.text, item.functions, line + 1,
        before, after, quoted or in_block or beside,
        manifest and not (quoted or in_block or beside) and text == item.text.strip(),
    )  # fmt: skip


def _block_lines(template: str) -> set[int]:
    """Lines (from 0) that lie in a YAML block scalar."""
    inside: set[int] = set()
    depth: int | None = None
    for number, line in enumerate(template.split("\n")):
        indent = len(line) - len(line.lstrip())
        if depth is not None:
            if not line.strip() or indent > depth or line.lstrip().startswith("{{"):
                inside.add(number)
                continue
            depth = None
        if re.search(r"[:-]\s+[|>][-+0-9]{0,2}\s*$", line):
            depth = indent
    return inside


def whole_number(use: Use) -> int | None:
    """The whole number that was written, exactly; None when it is none."""
    if isinstance(use.value, bool) or use.value is None:
        return None
    if isinstance(use.value, str):
        return int(use.value) if re.fullmatch(r"-?[0-9]{1,40}", use.value) else None
    text = use.source.text.replace("_", "") if use.source else ""
    if re.fullmatch(r"[+-]?(0|[1-9][0-9]{0,39})", text):
        return int(text)
    exact = go_numbers.parse_int(text)
    if exact is not None:
        return exact
    return int(use.value) if isinstance(use.value, float) and use.value.is_integer() else None


def parsed(text: str, *, whole: bool) -> int | float | None:
    """What std::stoull (or stof) reads from the text; None: it throws."""
    match = (_STOI if whole else _STOF).match(text[:400])
    if match is None:
        return None
    if whole:
        return int(match[1])
    value = float(Decimal(match[1]))
    return value if abs(value) != float("inf") else None


def fraction(use: Use) -> float | None:
    if isinstance(use.value, float) and not isinstance(use.value, bool):
        return use.value
    return go_numbers.parse_float(use.value) if isinstance(use.value, str) else None


def text_matters(use: Use) -> bool:
    """The value is a name, no quantity: by its key, or because other text is glued to it."""
    glued = re.search(r"[:/@][\"']?$", use.before) is not None and not re.search(r"\s$", use.before)
    return _TEXT_KEY.search(str(use.path[-1])) is not None or (glued and "=" not in use.before[-2:])


def env_value(use: Use) -> bool:
    if (
        not re.fullmatch(r"\s*value:\s*", use.before)
        or use.after.strip()
        or use.raw.strip() != use.text
    ):
        return False
    try:
        return bool(use.text) and not isinstance(resolve(use.text), str)
    except ValuesError:
        return True


def default_replaced(use: Use) -> bool:
    if not {"default", "coalesce"} & set(use.functions):
        return False
    if use.value is False:
        return use.text != "false"
    return isinstance(use.value, float) and use.value == 0 and parsed(use.text, whole=False) != 0


def right_text(use: Use) -> str | None:
    """The text that the value should have."""
    if isinstance(use.value, bool):
        return "true" if use.value else "false"
    number = whole_number(use)
    if number is not None:
        return str(number)
    if isinstance(use.value, float):
        return use.source.text if use.source else go_numbers.shortest(use.value)
    return use.value if isinstance(use.value, str) else None
