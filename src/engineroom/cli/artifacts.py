"""`engineroom artifacts`: what a workspace holds, whether it is whole, and moving it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engineroom.cli.artifacts_transfer import export_command, import_command
from engineroom.cli.options import (
    CatalogDir,
    FailFrom,
    FailOn,
    FindingsFormat,
    FindingsOut,
    Format,
    OutDir,
    OutputFormat,
)
from engineroom.names import ExitCode

if TYPE_CHECKING:
    from engineroom.pipeline import Job

app = typer.Typer(
    help="Artefacts of a workspace: list, verify, collect garbage, export and import.",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
)
app.command("export")(export_command)
app.command("import")(import_command)

OptionalSpec = Annotated[
    Path | None, typer.Option("--file", "-f", help="The spec whose targets are looked at.")
]
Specs = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", help="A spec of this workspace; repeat it for each."),
]


def workspace_of(out: Path | None, jobs: list[Job]) -> Path:
    """The workspace: `--out`, or the spec's own.

    Raises:
        UsageError: neither names one.
    """
    from engineroom.errors import UsageError

    if out is not None:
        return out.absolute()
    places = sorted({job.out for job in jobs})
    if len(places) != 1:
        raise UsageError(
            "which workspace?" if not places else "these specs have different workspaces",
            hint="name it with --out DIR, or a spec of it with -f FILE",
        )
    return places[0]


def jobs_for(specs: list[Path], catalog: Path | None, out: Path | None) -> list[Job]:
    from engineroom.cli.console import job_for

    return [job_for(file, catalog, out) for file in specs]


@app.command("list")
def list_command(
    file: Specs = None,
    out: OutDir = None,
    fmt: Format = OutputFormat.TABLE,
    catalog: CatalogDir = None,
) -> None:
    """Everything in a workspace; with a spec, which of its targets use it."""
    import datetime

    from engineroom.cli.console import show
    from engineroom.cli.sizes import age, size
    from engineroom.pipeline.artifacts import entries
    from engineroom.pipeline.artifacts_usage import usage

    jobs = jobs_for(file or [], catalog, out)
    workspace = workspace_of(out, jobs)
    found = entries(workspace)
    used = usage(found, jobs)
    now = datetime.datetime.now(datetime.timezone.utc)
    rows, data = [], []
    for entry in found:
        by = list(used.of(entry))
        facts = {**entry.as_dict(), "used_by": by}
        created = entry.created
        facts["age_seconds"] = max(0, int((now - created).total_seconds())) if created else None
        data.append(facts)
        precision = "/".join(p or "?" for p in entry.formats()) if any(entry.formats()) else ""
        version = " ".join(filter(None, (facts["runtime"], facts["runtime_version"])))
        rows.append(
            (
                entry.name,
                entry.kind or f"unreadable: {entry.problem}",
                version,
                facts["sku"],
                precision,
                size(entry.size_bytes),
                age(facts["age_seconds"]),
                _short(by),
            )
        )
    content = {
        "schema_version": 1,
        "workspace": workspace.as_posix(),
        "artefacts": data,
        "total_bytes": sum(entry.size_bytes for entry in found),
        "notes": list(used.notes),
    }
    columns = ("name", "kind", "runtime", "sku", "weights/kv", "size", "age", "used by")
    show(fmt, content, columns, rows)
    for note in used.notes:
        typer.echo(f"· {note}", err=True)


def _short(by: list[str]) -> str:
    """The first user and how many more: names must stay whole in a table. JSON has them all."""
    if not by:
        return ""
    first = by[0].rpartition("/")[2] if by[0].startswith("artifacts/") else by[0]
    return first + (f" +{len(by) - 1}" if len(by) > 1 else "")


@app.command("verify")
def verify_command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PATH]...", help="Folders of artefacts.", show_default=False),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Everything in the workspace (the default).")
    ] = False,
    file: OptionalSpec = None,
    out: OutDir = None,
    fmt: FindingsOut = FindingsFormat.TABLE,
    fail_on: FailFrom = FailOn.ERROR,
    catalog: CatalogDir = None,
) -> int:
    """Hash every file again, and hold artefacts against SKU, stack, repository and spec."""
    from engineroom.catalog import Catalog
    from engineroom.checks import order
    from engineroom.cli.findings import show_findings
    from engineroom.cli.options import state
    from engineroom.errors import UsageError, Where
    from engineroom.pipeline.artifacts_verify import verify
    from engineroom.pipeline.check import worst
    from engineroom.types import Finding

    if everything and paths:
        raise UsageError("--all and a PATH: which?", hint="leave one of them out")
    jobs = jobs_for([file] if file else [], catalog, out)
    workspace = Path.cwd() if paths and not jobs and out is None else workspace_of(out, jobs)
    facts = jobs[0].catalog if jobs else Catalog(catalog)
    verdicts = verify(workspace, facts, paths=paths or (), job=jobs[0] if jobs else None)
    findings = order(f for verdict in verdicts for f in verdict.findings)

    def where(finding: Finding) -> Where:
        if finding.file is None and jobs:
            return jobs[0].place_of(finding)
        return Where(finding.file, finding.line, finding.key)

    data = {
        "schema_version": 1,
        "run_id": state.run_id,
        "workspace": workspace.as_posix(),
        "artefacts": [verdict.as_dict() for verdict in verdicts],
        "findings": [f.as_dict() for f in findings],
    }
    if fmt is FindingsFormat.TABLE:
        for verdict in verdicts:
            typer.echo(f"{verdict.verdict:5} {verdict.entry.name}  ({verdict.entry.kind})")
    show_findings(fmt, findings, where, data)
    return int(ExitCode.FINDINGS) if worst(findings, str(fail_on)) else int(ExitCode.OK)


@app.command("gc")
def gc_command(
    file: Specs = None,
    out: OutDir = None,
    keep: Annotated[
        int, typer.Option("--keep", min=0, help="Keep this many of the newest unused of a place.")
    ] = 0,
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", metavar="DAYS", min=0, help="Only what is older than this."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove; without it, only say what would be removed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed (the default).")
    ] = False,
    fmt: Format = OutputFormat.TABLE,
    catalog: CatalogDir = None,
) -> int:
    """Remove what no spec and no repository uses, and what killed runs left."""
    from engineroom.cli.console import show
    from engineroom.cli.options import SPEC_DEFAULT
    from engineroom.cli.sizes import size
    from engineroom.errors import UsageError
    from engineroom.pipeline.artifacts_gc import collect, plan

    if yes and dry_run:
        raise UsageError("--yes and --dry-run: which?", hint="leave one of them out")
    jobs = jobs_for(file or [SPEC_DEFAULT], catalog, out)
    workspace = workspace_of(out, jobs)
    planned = plan(workspace, jobs, keep=keep, older_than_days=older_than)
    done = collect(workspace, planned) if yes else None
    rows = [
        (item.name, size(item.size_bytes), item.reason, (done or {}).get(item.name, "would go"))
        for item in planned.items
    ]
    freed = planned.freed_bytes if done is None else planned.freed_by(done)
    content = {
        "schema_version": 1,
        "workspace": workspace.as_posix(),
        "dry_run": not yes,
        "items": [
            {**item.as_dict(), "outcome": (done or {}).get(item.name, "planned")}
            for item in planned.items
        ],
        "freed_bytes": freed,
        "kept": planned.kept,
        "notes": list(planned.notes),
    }
    if rows or fmt is OutputFormat.JSON:
        show(fmt, content, ("name", "size", "why", "outcome"), rows)
    if fmt is OutputFormat.TABLE:
        word = "frees" if done is None else "freed"
        typer.echo(f"{word} {size(freed)} of {size(planned.total_bytes)}")
        if done is None and planned.items:
            typer.echo("nothing was removed; add --yes to remove it")
    for note in planned.notes:
        typer.echo(f"· {note}", err=True)
    failed = any(word.startswith("failed") for word in (done or {}).values())
    return int(ExitCode.FINDINGS) if failed else int(ExitCode.OK)
