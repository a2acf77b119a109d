"""`engineroom deploy`."""

from __future__ import annotations

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


def command(
    file: SpecFile = SPEC_DEFAULT,
    target: TargetId = None,
    out: OutDir = None,
    fmt: Format = OutputFormat.TABLE,
    catalog: CatalogDir = None,
    dry_run: DryRun = False,
) -> None:
    """Render and validate the Helm release of every target (--dry-run; installing comes later)."""
    from engineroom.cli.console import job_for, show
    from engineroom.pipeline import deploy

    job = job_for(file, catalog, out)
    releases = deploy(job, target, dry_run=dry_run)
    data = [
        {"target": r.target.target.id, "path": r.path.as_posix(), "objects": list(r.objects)}
        for r in releases
    ]
    rows = [(d["target"], d["path"], ", ".join(d["objects"])) for d in data]
    show(fmt, {"schema_version": 1, "releases": data}, ("target", "release", "objects"), rows)
