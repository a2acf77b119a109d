"""`engineroom up`."""

from __future__ import annotations

import json
from pathlib import Path
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
from engineroom.names import ExitCode, RuntimeName

STAGES = ("check", "plan", "quantize", "build", "render", "serve", "generate", "deploy")


def command(
    file: SpecFile = SPEC_DEFAULT,
    out: OutDir = None,
    fmt: Format = OutputFormat.TABLE,
    runtime: Annotated[
        RuntimeName,
        typer.Option(
            "--runtime", help="`reference`: no GPU; transformers stand where the engine would."
        ),
    ] = RuntimeName.TENSORRT_LLM,
    question: Annotated[
        str, typer.Option(help="Asked of every lane.")
    ] = "What is the capital of France?",
    max_tokens: Annotated[int, typer.Option(min=1)] = 48,
    catalog: CatalogDir = None,
    dry_run: DryRun = False,
) -> int:
    """The whole chain: check, plan, quantize, build, render, serve, generate, deploy (dry run)."""
    from engineroom.cli.console import job_for, show
    from engineroom.pipeline import up

    job = job_for(file, catalog, out)
    if dry_run:
        from engineroom.pipeline.check import require_no_errors

        require_no_errors(job)
        typer.echo(json.dumps({"stages": STAGES, "targets": [t.target.id for t in job.targets]}))
        return int(ExitCode.OK)
    summary = up(job, runtime=runtime, question=question, max_tokens=max_tokens)
    rows: list[tuple[Any, ...]] = []
    for stage in summary.stages:
        stood = sorted({r["lane"] for r in stage.artefacts if r["stood_in"]})
        paths = list(dict.fromkeys(_short(r["path"]) for r in stage.artefacts))
        real = stage.real + (f" [{runtime} stood in: {', '.join(stood)}]" if stood else "")
        rows.append((stage.name, stage.status, f"{stage.seconds:.1f}", "\n".join(paths), real))
    data = summary.as_dict(job)
    show(fmt, data, ("stage", "result", "seconds", "artefact", "what was real"), rows)
    if fmt is OutputFormat.TABLE:
        for answer in summary.answers:
            typer.echo(f"{runtime}: {answer.answer.text.strip()!r} [{answer.timing()}]")
        typer.echo(f"summary: {(Path(job.out) / 'summary.json').as_posix()}")
    return int(ExitCode.OK) if summary.ok else int(ExitCode.EXTERNAL)


def _short(path: str) -> str:
    """Digests make paths longer than a terminal; the summary has them whole."""
    parts = path.split("/")
    return path if len(path) < 48 else "/".join([*parts[:-1], parts[-1][:12] + "…"])
