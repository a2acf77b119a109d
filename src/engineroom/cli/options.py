"""Options that several verbs share, and the state of one invocation. Cheap to import."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from engineroom.names import StrEnum


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


class FindingsFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    SARIF = "sarif"


class FailOn(StrEnum):
    """`unknown` is the strictest: what no source answers counts too, whatever its severity."""

    ERROR = "error"
    WARN = "warn"
    UNKNOWN = "unknown"


@dataclass
class State:
    """Set by the root callback, read by verbs and the error printer."""

    log_format: LogFormat = LogFormat.TEXT
    run_id: str = field(default_factory=lambda: _run_id())


def _run_id() -> str:
    import uuid

    return uuid.uuid4().hex[:16]


state = State()


def finite(seconds: float | None) -> float | None:
    """Callback of a time limit: an open range lets infinity through, and NaN in some versions.

    Raises:
        UsageError: it is no finite number.
    """
    if seconds is not None and not math.isfinite(seconds):
        from engineroom.errors import UsageError, Where

        raise UsageError(
            f"{seconds} is no time limit: it is a finite number of seconds",
            where=Where(key="--timeout"),
            hint="leave it out for the default",
        )
    return seconds


SpecFile = Annotated[Path, typer.Option("--file", "-f", help="The spec file.", show_default=True)]
SPEC_DEFAULT = Path("engineroom.yaml")
CatalogDir = Annotated[
    Path | None,
    typer.Option("--catalog", help="Overlay of the shipped facts (or ENGINEROOM_CATALOG)."),
]
OutDir = Annotated[
    Path | None, typer.Option("--out", help="Workspace (default: engineroom-out/<name>).")
]
Format = Annotated[OutputFormat, typer.Option("--format", help="Output on stdout.")]
FindingsOut = Annotated[FindingsFormat, typer.Option("--format", help="Output on stdout.")]
FailFrom = Annotated[
    FailOn,
    typer.Option("--fail-on", help="Exit 1 from here on; unknown is strictest."),
]
Explain = Annotated[
    str | None,
    typer.Option("--explain", metavar="CODE", help="Say what a code means, why, and its source."),
]
TargetId = Annotated[
    str | None, typer.Option("--target", help="Only this target, by id (see `plan`).")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")]
