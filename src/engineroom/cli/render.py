"""`engineroom render`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from engineroom.cli.options import (
    SPEC_DEFAULT,
    CatalogDir,
    DryRun,
    Format,
    OutDir,
    OutputFormat,
    SpecFile,
    TargetId,
)
from engineroom.names import RuntimeName

if TYPE_CHECKING:
    from engineroom.lanes.launch import LaunchPlan


def started_by(plan: LaunchPlan) -> str:
    """A launch plan as one line for a terminal; `launch.json` has the words themselves."""
    variables = [f"{name}={value}" for name, value in plan.env.items()]
    return " ".join([*variables, shlex.join(plan.argv)])


def command(
    file: SpecFile = SPEC_DEFAULT,
    target: TargetId = None,
    out: OutDir = None,
    fmt: Format = OutputFormat.TABLE,
    runtime: Annotated[
        RuntimeName, typer.Option("--runtime", help="What will compute the tokens.")
    ] = RuntimeName.TENSORRT_LLM,
    artefact_root: Annotated[
        str | None,
        typer.Option(help="The workspace's path as the server will see it (default: here)."),
    ] = None,
    catalog: CatalogDir = None,
    dry_run: DryRun = False,
) -> None:
    """Render the Triton model repository of every target."""
    from engineroom.cli.console import job_for, show
    from engineroom.pipeline import render
    from engineroom.pipeline.render import Repository

    job = job_for(file, catalog, out)
    results = render(job, target, runtime=runtime, artefact_root=artefact_root, dry_run=dry_run)
    data, rows = [], []
    for item in results:
        if isinstance(item, Repository):
            row = {
                "target": item.target.target.id,
                "runtime": str(item.runtime),
                "repository": item.path.as_posix(),
                "artefact": item.artefact.kind,
                "digest": item.digest,
            }
            data.append({**row, "launch": item.launch.as_dict()})
            rows.append(tuple(row.values()))
            if item.runtime is not RuntimeName.REFERENCE:
                job.reporter.note(f"start {row['target']} with: {started_by(item.launch)}")
        else:
            data.append(item)
            rows.append((item["target"], "would write", " ".join(item["files"]), "", ""))
    columns = ("target", "runtime", "repository", "artefact", "digest")
    show(fmt, {"schema_version": 1, "repositories": data}, columns, rows)
