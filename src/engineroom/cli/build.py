"""`engineroom build`."""

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
    """Build every target: an engine (or its plan), or an LLM-API package."""
    from engineroom.cli.console import job_for, show
    from engineroom.pipeline import build
    from engineroom.pipeline.build import Artefact

    job = job_for(file, catalog, out)
    results = build(job, target, dry_run=dry_run)
    data, rows = [], []
    for item in results:
        if isinstance(item, Artefact):
            row = {
                "target": item.target.target.id,
                "kind": item.kind,
                "path": item.path.as_posix(),
                "digest": item.manifest["digest"],
                "reused": item.reused,
            }
            data.append(row)
            rows.append(tuple(row.values()))
        else:
            data.append(item)
            words = [" ".join(step["argv"]) or step["name"] for step in item["steps"]]
            rows.append((item["target"], "would run", "; ".join(words), "", ""))
    show(
        fmt,
        {"schema_version": 1, "artefacts": data},
        ("target", "kind", "path", "digest", "reused"),
        rows,
    )
