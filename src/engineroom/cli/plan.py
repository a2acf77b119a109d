"""`engineroom plan`."""

from __future__ import annotations

from engineroom.cli.options import (
    SPEC_DEFAULT,
    CatalogDir,
    Format,
    OutputFormat,
    SpecFile,
    TargetId,
)


def command(
    file: SpecFile = SPEC_DEFAULT,
    target: TargetId = None,
    fmt: Format = OutputFormat.TABLE,
    catalog: CatalogDir = None,
) -> None:
    """Memory of every target, and which lane to use: is an engine build worth its complexity here."""
    from engineroom.cli.advice_text import advice_lines
    from engineroom.cli.console import job_for, show
    from engineroom.pipeline import advise, plan

    job = job_for(file, catalog)
    plans = plan(job, target)
    advice = advise(job, target)
    mib = 1024 * 1024
    rows = []
    for p in plans:
        c = p.capacity
        fits = "; ".join(
            f"{x.profile}: {x.concurrent_sequences} x {x.tokens_per_sequence} tokens ({x.bound_by})"
            for x in p.profiles
        )
        rows.append(
            (
                p.target,
                c.memory_mib if c else None,
                f"{c.weight_bytes / mib:.0f}" if c else "unknown",
                f"{c.free_bytes / mib:.0f}" if c else None,
                c.kv_bytes_per_token if c else None,
                c.kv_tokens if c else None,
                fits,
            )
        )
    columns = ("target", "MiB", "weights MiB", "free MiB", "KV B/token", "KV tokens", "at once")
    data = {
        "schema_version": 1,
        "run_id": job.run_id,
        "catalog_digest": job.catalog.digest,
        "plans": [p.as_dict() for p in plans],
        "advice": [a.as_dict() for a in advice],
    }
    show(fmt, data, columns, rows)
    if fmt is OutputFormat.TABLE:
        from typer import echo

        for text in dict.fromkeys(a for p in plans for a in p.assumptions):
            echo(f"assumed: {text}")
        for line in advice_lines(advice):
            echo(line)
