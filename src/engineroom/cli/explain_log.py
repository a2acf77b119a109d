"""`engineroom explain-log`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from engineroom.cli.options import CatalogDir, FailFrom, FailOn, Format, OutputFormat
from engineroom.errors import UsageError
from engineroom.names import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from engineroom.pipeline.explain_log import Known


def command(
    file: Annotated[
        str | None, typer.Argument(help="A log, or - for standard input.", show_default=False)
    ] = None,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="ID", help="Print what is known of one line.")
    ] = None,
    fmt: Format = OutputFormat.TABLE,
    fail_on: FailFrom = FailOn.ERROR,
    catalog: CatalogDir = None,
) -> int:
    """What known lines of a log mean: subject, cause, next step and source, root cause first."""
    from engineroom.cli.console import show
    from engineroom.pipeline.explain_log import explain_log

    if explain is not None:
        if file is not None:
            raise UsageError("--explain prints a row and reads no log", hint="drop one of the two")
        return _row(explain, fmt, catalog)
    if file is None:
        raise UsageError("no log is named", hint="engineroom explain-log FILE, or - for stdin")
    result = explain_log(file, catalog=catalog)
    if fmt is OutputFormat.JSON:
        show(fmt, result.as_dict(), (), ())
    else:
        for known in result.known:
            _print(known)
        for item in result.unknown:
            typer.echo(f"UNKNOWN  line {item.line}{_times(item.count)}\n      {item.text}")
        severities = [known.severity.value for known in result.known]
        counts = ", ".join(f"{severities.count(s)} {s}" for s in ("error", "warn", "info"))
        more = f", {result.omitted} more lines not shown" if result.omitted else ""
        typer.echo(f"{result.lines} lines: {counts}, {len(result.unknown)} unknown{more}")
    return int(ExitCode.FINDINGS) if result.fails(str(fail_on)) else int(ExitCode.OK)


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def _print(known: Known) -> None:
    data = known.as_dict()
    of = data["consequence_of"]
    head = (
        f"{known.severity.value.upper():5} {data['id']}  line {data['line']}{_times(data['count'])}"
    )
    typer.echo(head + (f"  (consequence of {of['id']}, line {of['line']})" if of else ""))
    for label, name in (
        ("what", "text"), ("subject", "subject"), ("cause", "cause"),
        ("next step", "next_step"), ("source", "source"),
    ):  # fmt: skip
        typer.echo(f"      {label}: {data[name]}")


def _row(name: str, fmt: OutputFormat, catalog: Path | None) -> int:
    from engineroom.catalog import log_lines
    from engineroom.cli.console import show

    row = log_lines.find(log_lines.load(catalog), name)
    data = row.model_dump(mode="json")
    if fmt is OutputFormat.JSON:
        show(fmt, {"schema_version": 1, **data}, (), ())
    else:
        for key, value in data.items():
            typer.echo(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
    return int(ExitCode.OK)
