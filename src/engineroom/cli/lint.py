"""`engineroom lint`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engineroom.cli.options import (
    CatalogDir,
    Explain,
    FailFrom,
    FailOn,
    FindingsFormat,
    FindingsOut,
)
from engineroom.names import ExitCode, LaneName, Stage


def command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH...",
            help="Model repository, engine or checkpoint folder, LLM arguments, build script, Helm "
            "values, node object.",
            show_default=False,
        ),
    ] = None,
    facts: Annotated[
        Path | None,
        typer.Option("--facts", metavar="FILE", help="JSON or YAML of what no artefact says."),
    ] = None,
    words: Annotated[
        str | None,
        typer.Option("--command", help="A trtllm-build or curl command line, in quotes."),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Only this topic (may be repeated).")
    ] = None,
    stage: Annotated[
        Stage | None, typer.Option("--stage", help="The verdict is asked for this stage.")
    ] = None,
    stack: Annotated[
        str | None, typer.Option("--stack", help="Triton release, or TensorRT-LLM version.")
    ] = None,
    sku: Annotated[str | None, typer.Option("--sku", help="GPU SKU of the catalog.")] = None,
    lane: Annotated[LaneName | None, typer.Option("--lane", help="engine, llmapi or vllm.")] = None,
    fmt: FindingsOut = FindingsFormat.TABLE,
    fail_on: FailFrom = FailOn.ERROR,
    explain: Explain = None,
    catalog: CatalogDir = None,
) -> int:
    """Judge what somebody else made: what the real server would do with it, and why."""
    from engineroom.cli.findings import show_explanation, show_findings
    from engineroom.cli.options import state
    from engineroom.errors import UsageError, Where
    from engineroom.pipeline.check import explain as explained
    from engineroom.pipeline.check import worst
    from engineroom.pipeline.lint import lint

    if explain is not None:
        show_explanation(fmt, explained(explain, catalog))
        return int(ExitCode.OK)
    if not paths and facts is None and words is None:
        raise UsageError("nothing to lint", hint="name a PATH, --facts FILE or --command '…'")
    report = lint(
        paths or [],
        facts=facts,
        command=words,
        topics=topic or [],
        stage=stage,
        stack=stack,
        sku=sku,
        lane=lane,
        catalog=catalog,
    )
    data = {"schema_version": 1, "run_id": state.run_id, **report.as_dict()}
    show_findings(fmt, report.findings, lambda f: Where(f.file, f.line, f.key), data)
    return int(ExitCode.FINDINGS) if worst(report.findings, str(fail_on)) else int(ExitCode.OK)
