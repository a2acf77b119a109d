"""How `check` and `lint` print findings. Imported when used."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import typer

from engineroom.cli.options import FindingsFormat
from engineroom.errors import Where
from engineroom.types import Finding


def show_findings(
    fmt: FindingsFormat,
    findings: Sequence[Finding],
    where: Callable[[Finding], Where],
    data: dict[str, Any],
) -> None:
    """Findings as text with a count, as JSON (`data`), or as SARIF."""
    if fmt is FindingsFormat.JSON:
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    if fmt is FindingsFormat.SARIF:
        from engineroom.pipeline.sarif import sarif

        typer.echo(json.dumps(sarif(findings, where), indent=2, ensure_ascii=False))
        return
    for f in findings:
        head = f"{f.severity.value.upper():5} {f.code}  {where(f)}"
        typer.echo(head + (f"  ({f.target})" if f.target else ""))
        typer.echo(f"      {f.reason}\n      fix: {f.fix}\n      source: {f.source}")
    counts = {s: sum(f.severity.value == s for f in findings) for s in ("error", "warn", "info")}
    typer.echo(", ".join(f"{n} {s}" for s, n in counts.items()))


def show_explanation(fmt: FindingsFormat, facts: dict[str, str]) -> None:
    """One code: the rule, its reason and source."""
    if fmt is FindingsFormat.JSON:
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    for name, text in facts.items():
        typer.echo(f"{name + ':':10} {text}")
