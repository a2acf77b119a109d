"""`engineroom check`."""

from __future__ import annotations

from typing import Annotated

import typer

from engineroom.cli.options import (
    SPEC_DEFAULT,
    CatalogDir,
    FailOn,
    Format,
    OutputFormat,
    SpecFile,
)
from engineroom.names import ExitCode


def command(
    file: SpecFile = SPEC_DEFAULT,
    fmt: Format = OutputFormat.TABLE,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="Exit 1 from here on.")
    ] = FailOn.ERROR,
    catalog: CatalogDir = None,
) -> int:
    """Every verdict before any GPU minute, with its reason, fix and source."""
    from engineroom.cli.console import job_for, show
    from engineroom.pipeline import check
    from engineroom.pipeline.check import worst

    job = job_for(file, catalog)
    findings = check(job)
    if fmt is OutputFormat.TABLE:
        for f in findings:
            place = job.loaded.where(f.key)
            head = f"{f.severity.value.upper():5} {f.code}  {place}"
            typer.echo(head + (f"  ({f.target})" if f.target else ""))
            typer.echo(f"      {f.reason}\n      fix: {f.fix}\n      source: {f.source}")
        counts = {
            s: sum(f.severity.value == s for f in findings) for s in ("error", "warn", "info")
        }
        typer.echo(", ".join(f"{n} {s}" for s, n in counts.items()))
    else:
        data = {
            "schema_version": 1,
            "run_id": job.run_id,
            "catalog_digest": job.catalog.digest,
            "findings": [f.as_dict() for f in findings],
        }
        show(fmt, data, (), ())
    return int(ExitCode.FINDINGS) if worst(findings, str(fail_on)) else int(ExitCode.OK)
