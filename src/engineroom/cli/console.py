"""What verbs print: tables or JSON on stdout, progress on stderr. Rich is imported when used."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from engineroom.cli.options import LogFormat, OutputFormat, state

if TYPE_CHECKING:
    from engineroom.pipeline import Job


def show(
    fmt: OutputFormat, data: Any, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """`data` as JSON, or the rows as a table."""
    if fmt is OutputFormat.JSON:
        typer.echo(json_text(data))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    # Piped output has no width of its own: lines must not be cut for a reader that is no terminal.
    Console(width=None if sys.stdout.isatty() else 200, markup=False).print(table)


def json_text(data: Any) -> str:
    """One JSON document that any stream takes."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):  # a C locale, or a file name that is not UTF-8
        text = json.dumps(data, indent=2)
    return text


def job_for(file: Path, catalog: Path | None, out: Path | None = None) -> Job:
    """A job whose progress goes to stderr."""
    from dataclasses import replace

    from engineroom.pipeline import open_job

    job = open_job(file, catalog=catalog, out=out, reporter=reporter())
    return replace(job, run_id=state.run_id)


def reporter() -> Any:
    """Progress to stderr, as text or JSON lines."""
    from engineroom.pipeline import Reporter

    class JsonReporter(Reporter):
        """One JSON object a line."""

        def _line(self, **facts: Any) -> None:
            typer.echo(json.dumps({"level": "info", "run_id": state.run_id, **facts}), err=True)

        def note(self, text: str) -> None:
            self._line(message=text)

        def progress(self, phase: str, done: int, total: int) -> None:
            self._line(phase=phase, done=done, total=total)

        def line(self, text: str) -> None:
            self._line(output=text)

    class TextReporter(Reporter):
        """Lines, and a bar that is redrawn in place on a terminal."""

        def __init__(self) -> None:
            self.phase, self.open = "", False

        def _end(self) -> None:
            if self.open:
                typer.echo("", err=True)
                self.open = False

        def note(self, text: str) -> None:
            self._end()
            typer.echo(f"· {text}", err=True)

        def progress(self, phase: str, done: int, total: int) -> None:
            if phase != self.phase:
                self._end()
                self.phase = phase
            if not sys.stderr.isatty():
                if done in (0, total):
                    typer.echo(f"  {phase} {f'{done}/{total}' if total else '…'}", err=True)
                return
            filled = 30 * done // total if total else 0
            bar = f"{'━' * filled}{'╌' * (30 - filled)} {done}/{total}" if total else "…"
            typer.echo(f"\r  {phase:<10} {bar}", nl=False, err=True)
            self.open = True

        def answer(self, text: str) -> None:
            self._end()
            typer.echo(text, nl=False, err=True)
            sys.stderr.flush()

        def line(self, text: str) -> None:
            self._end()
            # A tool's escape sequences and carriage returns are its own terminal's affair.
            shown = "".join(c if c.isprintable() or c == "\t" else " " for c in text)
            typer.echo(f"  | {shown}", err=True)

    return JsonReporter() if state.log_format is LogFormat.JSON else TextReporter()
