"""Known log lines as rows (`deploy/support/log_lines/*.yaml`): a pattern, and what it leaves unsaid.

One file per origin. A row of an overlay replaces the shipped row of the same id, whatever its file is
called; a new id is added.

Logs are hostile input, so a pattern that could backtrack for long is refused when it is loaded: every
repeat is bounded, no repeat encloses a group that may match several times, and `contains`, a plain
text of the line, is searched before the pattern is tried.
"""

from __future__ import annotations

import difflib
import re
import string
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from engineroom.catalog import resources
from engineroom.catalog.models import Row, Sources
from engineroom.errors import CatalogError, UsageError, Where
from engineroom.names import Severity
from engineroom.spec import yaml_lines
from engineroom.spec.load import read_text

FOLDER = "deploy/support/log_lines"
MAX_REPEAT = 400
"""Upper bound of a repeat in a pattern, in characters."""

MAX_OPEN_REPEATS = 4
"""How many repeats of one pattern may match almost any character (`.` or a negated class)."""

ABSENT = "(not in the line)"
"""What a template shows for a group that took no part in the match."""

_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
T = TypeVar("T", bound=Row)


def _bounded(pattern: str) -> str:
    """The pattern, when each of its repeats is bounded and none is nested."""
    open_repeats, in_class, i, item = 0, False, 0, ""
    while i < len(pattern):
        char = pattern[i]
        if char == "\\":
            item, i = "open" if pattern[i + 1 : i + 2] in ("S", "D", "W") else "class", i + 2
            continue
        if in_class:
            in_class = char != "]"
        elif char == "[":
            in_class, item = True, "open" if pattern[i + 1 : i + 2] == "^" else "class"
        elif char in "*+":
            raise ValueError(f"`{char}` at {i} has no bound: write {{0,{MAX_REPEAT}}} or less")
        elif char == "{" and (found := _REPEAT.match(pattern, i)):
            upper = found[2] if found[2] is not None else found[1]
            if not upper or int(upper) > MAX_REPEAT:
                raise ValueError(f"the repeat at {i} must end at {MAX_REPEAT} or less")
            if item == ")":
                raise ValueError(f"the repeat at {i} encloses a group: only `?` may follow `)`")
            open_repeats += item == "open"
            i = found.end()
            continue
        elif char == "?":
            pass  # optional, lazy, or part of `(?:`: matches at most once
        elif char == ".":
            item = "open"
        else:
            item = char
        i += 1
    if open_repeats > MAX_OPEN_REPEATS:
        raise ValueError(f"{open_repeats} repeats of any character; {MAX_OPEN_REPEATS} are allowed")
    return pattern


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles), AfterValidator(_bounded)]
Words = Annotated[str, Field(min_length=10)]


class LogLine(Row):
    """One known line.

    Attributes:
        contains: a text every such line has; at least three characters.
        pattern: searched in the line, prefixes included; named groups are the values.
        previous_line: the pattern spans the line before and this one, joined by a line feed.
        subject: names what the message omits; `{group}` stands for a value, as in `cause` and
            `next_step`.
        keys: keys of the spec, of config.pbtxt, the engine or the chart that the line is about.
        consequence_of: ids of lines whose appearance explains this one.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    origin: Literal[
        "triton", "python_backend", "tensorrtllm_backend", "tensorrt_llm", "tensorrt", "modelopt",
        "hugging_face", "cuda", "mpi", "nccl", "container_runtime", "kubernetes", "helm", "os",
    ]  # fmt: skip
    contains: Annotated[str, Field(min_length=3)]
    pattern: Pattern
    previous_line: bool = False
    severity: Severity
    subject: Words
    cause: Words
    next_step: Words
    source: Sources
    verified_on: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    confidence: Literal["high", "medium", "low"]
    keys: tuple[str, ...] = ()
    consequence_of: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _agrees(self) -> LogLine:
        if self.contains not in self.pattern.replace("\\", ""):
            raise ValueError("`contains` is not a text of `pattern`")
        groups = set(self.regex.groupindex)
        for name in ("subject", "cause", "next_step"):
            for _, key, spec, conversion in string.Formatter().parse(getattr(self, name)):
                if key is not None and (key not in groups or spec or conversion):
                    raise ValueError(f"`{name}` uses {{{key}}}, which is no group of the pattern")
        return self

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def match(self, line: str, previous: str = "") -> dict[str, int | str] | None:
        """The values of a line that this row knows, or None. Whole numbers become int."""
        if self.contains not in line:
            return None
        found = self.regex.search(f"{previous}\n{line}" if self.previous_line else line)
        if found is None:
            return None
        return {k: _typed(v) for k, v in found.groupdict().items() if v is not None}

    def fill(self, template: str, values: dict[str, int | str]) -> str:
        """A template with the values of one match."""
        return template.format_map(dict.fromkeys(self.regex.groupindex, ABSENT) | values)


class LogLineFile(Row):
    """`deploy/support/log_lines/<name>.yaml`."""

    schema_version: Literal[1]
    lines: Annotated[tuple[LogLine, ...], Field(min_length=1)]


def _typed(text: str) -> int | str:
    return int(text) if re.fullmatch(r"0|[1-9]\d{0,17}", text) else text.strip()


def load(overlay: Path | None = None) -> tuple[LogLine, ...]:
    """Every row, shipped and overlaid, in the order of their files.

    Raises:
        CatalogError: a file breaks the schema, repeats an id, or names an unknown or circular
            `consequence_of`.
    """
    rows: dict[str, LogLine] = {}
    places: dict[str, Where] = {}
    for root in resources.catalog_roots(overlay):
        here: dict[str, Where] = {}
        for path in resources.find_files((root,), FOLDER, ".yaml").values():
            document = yaml_lines.parse(read_text(path, "catalog file"), path.as_posix())
            for i, row in enumerate(_validated(document).lines):
                where = document.where(("lines", i, "id"))
                if row.id in here:
                    raise CatalogError(f"the id `{row.id}` is also at {here[row.id]}", where=where)
                here[row.id], rows[row.id] = where, row
        places |= here
    for row in rows.values():
        _check_causes(row, rows, places[row.id])
    return tuple(rows.values())


def _validated(document: yaml_lines.Document) -> LogLineFile:
    try:
        return LogLineFile.model_validate(document.data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise CatalogError(
            first["msg"],
            where=document.where(tuple(first["loc"])),
            hint="the rows of deploy/support/log_lines/ are examples",
        ) from None


def _check_causes(row: LogLine, rows: dict[str, LogLine], where: Where) -> None:
    seen: set[str] = set()
    todo: list[Any] = list(row.consequence_of)
    while todo:
        name = todo.pop()
        if name not in rows:
            raise CatalogError(f"`consequence_of` names the unknown row `{name}`", where=where)
        if name == row.id:
            raise CatalogError("`consequence_of` leads back to the row itself", where=where)
        if name not in seen:
            seen.add(name)
            todo += rows[name].consequence_of


def find(rows: tuple[LogLine, ...], name: str) -> LogLine:
    """A row by id.

    Raises:
        UsageError: no such row; the hint has the nearest ids.
    """

    for row in rows:
        if row.id == name:
            return row
    near = difflib.get_close_matches(name, [row.id for row in rows], n=3, cutoff=0.4)
    raise UsageError(
        f"no known log line `{name}`",
        where=Where(key="--explain"),
        hint=("did you mean " + " or ".join(f"`{item}`" for item in near) + "?")
        if near
        else "docs/explain-log.md lists them",
    )
