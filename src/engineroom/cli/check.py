"""`engineroom check`."""

from __future__ import annotations

from engineroom.cli.options import (
    SPEC_DEFAULT,
    CatalogDir,
    Explain,
    FailFrom,
    FailOn,
    FindingsFormat,
    FindingsOut,
    SpecFile,
)
from engineroom.names import ExitCode


def command(
    file: SpecFile = SPEC_DEFAULT,
    fmt: FindingsOut = FindingsFormat.TABLE,
    fail_on: FailFrom = FailOn.ERROR,
    explain: Explain = None,
    catalog: CatalogDir = None,
) -> int:
    """Every verdict before any GPU minute, with its reason, fix and source."""
    from engineroom.cli.console import job_for
    from engineroom.cli.findings import show_explanation, show_findings
    from engineroom.pipeline.check import check, worst
    from engineroom.pipeline.check import explain as explained

    if explain is not None:
        show_explanation(fmt, explained(explain, catalog))
        return int(ExitCode.OK)
    job = job_for(file, catalog)
    findings = check(job)
    data = {
        "schema_version": 1,
        "run_id": job.run_id,
        "catalog_digest": job.catalog.digest,
        "findings": [f.as_dict() for f in findings],
    }
    show_findings(fmt, findings, job.place_of, data)
    return int(ExitCode.FINDINGS) if worst(findings, str(fail_on)) else int(ExitCode.OK)
