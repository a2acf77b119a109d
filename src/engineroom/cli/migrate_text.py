"""What `engineroom migrate` prints: how many settings became what, and what is left to do."""

from __future__ import annotations

import typer

from engineroom.types.migration import Fate, Migration


def show(done: Migration) -> None:
    """Counts and paths on stdout."""
    setup = done.setup
    typer.echo(f"{len(setup.models)} models, {len(setup.leaves)} settings; {setup.generation}")
    counts = [f"{sum(s.fate is fate for s in done.settings)} {fate}" for fate in Fate]
    typer.echo("settings: " + ", ".join(counts))
    for finding in done.findings:
        if finding["severity"] in ("error", "warn"):
            typer.echo(f"{str(finding['severity']).upper()} {finding['code']}: {finding['reason']}")
            typer.echo(f"      fix: {finding['fix']}")
    for text in done.missing:
        typer.echo(f"TO FILL IN: {text}")
    for path in done.paths.values():
        typer.echo(f"wrote {path}")
    if done.passes:
        typer.echo(f"next: engineroom check -f {done.paths['spec']}")
    else:
        typer.echo(f"the new spec does not pass `check` yet: see {done.paths['report_md']}")
