"""`check`: every verdict before any GPU minute."""

from __future__ import annotations

from engineroom.checks import TargetContext, check_target, order
from engineroom.errors import FindingsError, UsageError
from engineroom.names import Severity
from engineroom.pipeline.job import Job
from engineroom.runner import texts
from engineroom.types import Finding


def check(job: Job) -> list[Finding]:
    """All findings of all targets, worst first.

    Raises:
        SpecError, UsageError: the spec names a model folder, SKU, stack or file that is not there.
    """
    findings: list[Finding] = []
    for item in job.targets:
        context = TargetContext(
            spec=job.loaded.spec,
            index=item.index,
            target=item.target,
            sku=item.sku,
            stack=item.stack,
            contract=item.contract,
            model=job.shape,
            catalog=job.catalog,
        )
        findings += check_target(context)
        findings += item.lane.findings(job.loaded.spec, item.target, item.sku, item.stack)
    _calibration_file(job)
    return order(findings)


def _calibration_file(job: Job) -> None:
    """A dataset that is plainly a file must be there now, not after the model has loaded."""
    calibration = job.loaded.spec.calibration
    if calibration is None:
        return
    name = calibration.dataset
    is_path = name.endswith((".jsonl", ".json", ".txt", ".md")) or name.startswith((".", "/", "~"))
    if is_path:
        with job.located():
            texts.read_documents(name, job.loaded.folder)


def require_no_errors(job: Job) -> list[Finding]:
    """The findings, when none is an error.

    Raises:
        FindingsError: names each error with its fix.
    """
    findings = check(job)
    errors = [f for f in findings if f.severity is Severity.ERROR]
    if errors:
        lines = [
            f"  {f.code} at `{f.key}` ({f.target}): {f.reason}\n    fix: {f.fix}" for f in errors
        ]
        raise FindingsError(
            f"`engineroom check` finds {len(errors)} error(s):\n" + "\n".join(lines),
            hint="mend the spec; `engineroom check` lists everything with its sources",
        )
    return findings


def worst(findings: list[Finding], fail_on: str) -> bool:
    """True when a finding is at or above `fail_on` (``error`` or ``warn``)."""
    try:
        limit = Severity(fail_on)
    except ValueError:
        raise UsageError(f"--fail-on {fail_on}: use error or warn") from None
    return any(f.severity.rank <= limit.rank for f in findings)
