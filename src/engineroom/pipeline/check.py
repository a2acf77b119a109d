"""`check`: every verdict before any GPU minute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engineroom.catalog import Catalog
from engineroom.checks import TargetContext, check_target, codes, order
from engineroom.checks.evidence import judge
from engineroom.errors import FindingsError, UsageError, Where
from engineroom.names import Severity
from engineroom.pipeline import adapters, target_evidence
from engineroom.pipeline.job import Job
from engineroom.runner import model_source, texts
from engineroom.types import Finding

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def check(job: Job, *, artefacts: bool = True) -> list[Finding]:
    """All findings of all targets, worst first.

    Args:
        artefacts: judge checkpoints and engines in the workspace too. A verb that is about to make
            them anew must not be stopped by an old one.

    Raises:
        SpecError, UsageError: the spec names a model folder, SKU, stack or file that is not there.
    """
    findings: list[Finding] = []
    with job.located():
        adapter_facts = adapters.facts(job)
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
            adapters=adapter_facts,
            tokenizer_json=has_tokenizer_json(job),
        )
        findings += check_target(context)
        findings += item.lane.findings(job.loaded.spec, item.target, item.sku, item.stack)
    with job.located():
        if job.local_model is not None:
            model_source.tensor_shapes(job.local_model)  # damage is found before a model is loaded
        _tokenizer_folder(job)
        _calibration_file(job)
    for evidence in target_evidence.contexts(job, artefacts=artefacts):
        findings += judge(evidence)[0]
    return order(findings)


def _calibration_file(job: Job) -> None:
    """A dataset that is plainly a file must be there now, not after the model has loaded."""
    calibration = job.loaded.spec.calibration
    if calibration is None:
        return
    if not texts.is_hub_name(calibration.dataset, job.loaded.folder):
        texts.read_documents(calibration.dataset, job.loaded.folder)


def _tokenizer_folder(job: Job) -> None:
    name = job.loaded.spec.model.tokenizer
    where = Where(key="model.tokenizer")
    if name and not model_source.user_path(name, job.loaded.folder, where).is_dir():
        raise UsageError(
            f"`{name}` is no folder",
            where=where,
            hint="name a local tokenizer folder, or drop the key to use the model's own",
        )


def has_tokenizer_json(job: Job) -> bool | None:
    """Whether the tokenizer that will be served has that file; None when no tokenizer is here."""
    name = job.loaded.spec.model.tokenizer
    folder = job.local_model
    if name:
        folder = model_source.user_path(name, job.loaded.folder, Where(key="model.tokenizer"))
    if folder is None or not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    return (folder / _TOKENIZER_FILES[0]).is_file()


def require_no_errors(job: Job) -> list[Finding]:
    """The findings, when none is an error.

    Raises:
        FindingsError: names each error with its fix.
    """
    findings = check(job, artefacts=False)
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


def worst(findings: Sequence[Finding], fail_on: str) -> bool:
    """True when a finding fails the run.

    Args:
        fail_on: ``error``; ``warn`` (errors and warnings); ``unknown`` (these, and whatever no source
            answers).
    """
    if fail_on not in ("error", "warn", "unknown"):
        raise UsageError(f"--fail-on {fail_on}: use error, warn or unknown")
    limit = Severity.ERROR if fail_on == "error" else Severity.WARN
    return any(
        f.severity.rank <= limit.rank or (fail_on == "unknown" and f.code.startswith("unknown-"))
        for f in findings
    )


def explain(name: str, catalog: Path | None = None) -> dict[str, str]:
    """What a finding code says, why, and where that was read.

    Raises:
        UsageError: no such code; the hint has the nearest.
    """
    return codes.explained(name, Catalog(catalog))
