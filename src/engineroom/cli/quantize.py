"""`engineroom quantize`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from engineroom.cli.options import (
    SPEC_DEFAULT,
    CatalogDir,
    DryRun,
    Format,
    OutDir,
    OutputFormat,
    SpecFile,
)


def command(
    file: SpecFile = SPEC_DEFAULT,
    out: OutDir = None,
    fmt: Format = OutputFormat.TABLE,
    evaluate: Annotated[
        bool, typer.Option(help="Measure perplexity before and after on held-out text.")
    ] = True,
    catalog: CatalogDir = None,
    dry_run: DryRun = False,
) -> None:
    """Make the checkpoint (ModelOpt PTQ), or reuse a verified one."""
    from engineroom.cli.console import job_for, show
    from engineroom.pipeline import quantize
    from engineroom.pipeline.quantize import Checkpoint

    job = job_for(file, catalog, out)
    result = quantize(job, dry_run=dry_run, evaluate=evaluate)
    if not isinstance(result, Checkpoint):
        show(fmt, result, ("what", "value"), list(result.items()))
        return
    facts: dict[str, Any] = result.manifest
    ppl = facts.get("perplexity")
    shown = (
        f"{ppl['before']} -> {ppl['after']} ({ppl['change_percent']:+.2f} %, {ppl['verdict']}, {ppl['method']})"
        if ppl and "before" in ppl
        else "not measured"
    )
    rows = [
        ("checkpoint", result.path.as_posix()),
        ("reused", result.reused),
        ("weights", f"{facts['weights']['format']}, {facts['weights']['granularity']}"),
        ("kv cache", f"{facts['kv_cache']['format']}, scales {facts['kv_cache']['scales']}"),
        ("layouts", ", ".join(facts["layouts"])),
        ("perplexity", shown),
        ("digest", facts["digest"]),
    ]
    show(fmt, {"checkpoint": result.path.as_posix(), "manifest": facts}, ("what", "value"), rows)
