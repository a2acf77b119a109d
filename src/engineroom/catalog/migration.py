"""`deploy/support/migration.yaml`: what becomes of each setting of an `inflight_batcher_llm` setup."""

from __future__ import annotations

import fnmatch
from functools import lru_cache
from typing import Annotated, Literal

from packaging.version import Version
from pydantic import AfterValidator, BeforeValidator, model_validator
from typing_extensions import Self

from engineroom.catalog.load import Catalog
from engineroom.catalog.models import Confidence, Day, Row, Sources

FILE = "deploy/support/migration.yaml"


def _release(value: str | None) -> str | None:
    if value is not None:
        Version(value)  # a ValueError of its own
    return value


Release = Annotated[str, AfterValidator(_release)]
Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)
]


class FateRow(Row):
    """Settings that share a fate.

    Attributes:
        keys: exact names, or globs.
        new: where it is said now.
        by: ids of the file's sources.
        first, last: releases whose template has the parameter.
    """

    keys: Names
    fate: Literal["kept", "renamed", "moved", "re-defaulted", "impossible"]
    what: str
    by: Names
    new: str | None = None
    todo: str = ""
    first: Release | None = None
    last: Release | None = None

    def has(self, key: str) -> bool:
        return any(key == name or fnmatch.fnmatchcase(key, name) for name in self.keys)


class SourceRow(Row):
    """Where facts were read; rows name it by its id."""

    id: str
    source: Sources
    verified_on: Day
    confidence: Confidence


class FlagRows(Row):
    tools: Names
    rows: tuple[FateRow, ...]


class MigrationFile(Row):
    schema_version: Literal[1]
    sources: tuple[SourceRow, ...]
    parameters: tuple[FateRow, ...]
    fields: tuple[FateRow, ...]
    engine: tuple[FateRow, ...]
    flags: tuple[FlagRows, ...]
    variables: tuple[FateRow, ...]

    @model_validator(mode="after")
    def _sources_known(self) -> Self:
        known = {row.id for row in self.sources}
        rows = [*self.parameters, *self.fields, *self.engine, *self.variables]
        for row in [*rows, *(r for group in self.flags for r in group.rows)]:
            for name in row.by:
                if name not in known:
                    raise ValueError(f"`{row.keys[0]}`: no source `{name}`")
        return self


class Fates:
    """Look-ups; the first row that has the key counts."""

    def __init__(self, file: MigrationFile) -> None:
        self.file = file
        self._sources = {row.id: "; ".join(row.source) for row in file.sources}

    def source(self, row: FateRow) -> str:
        return self.named(*row.by)

    def named(self, *names: str) -> str:
        """Texts of the file's `sources` by name."""
        return "; ".join(self._sources[name] for name in names)

    def parameter(self, key: str) -> FateRow | None:
        return _first(self.file.parameters, key)

    def field(self, path: str) -> FateRow | None:
        return _first(self.file.fields, path)

    def engine(self, path: str) -> FateRow | None:
        return _first(self.file.engine, path)

    def variable(self, name: str) -> FateRow | None:
        return _first(self.file.variables, name)

    def flag(self, tool: str, name: str) -> FateRow | None:
        for group in self.file.flags:
            if tool in group.tools:
                return _first(group.rows, name)
        return None

    @property
    def tools(self) -> tuple[str, ...]:
        """Programs whose calls are read."""
        return tuple(tool for group in self.file.flags for tool in group.tools)


def _first(rows: tuple[FateRow, ...], key: str) -> FateRow | None:
    exact = next((row for row in rows if key in row.keys), None)
    return exact or next((row for row in rows if row.has(key)), None)


@lru_cache(maxsize=8)
def load_migration(catalog: Catalog) -> Fates:
    """Raises CatalogError when the file, or an overlay's, is not of its schema."""
    return Fates(catalog._single(FILE, MigrationFile))
