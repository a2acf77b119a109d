"""`engineroom doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engineroom.cli.options import (
    CatalogDir,
    FailFrom,
    FailOn,
    Format,
    OutDir,
    OutputFormat,
    TargetId,
    state,
)
from engineroom.errors import UsageError
from engineroom.names import ExitCode

if TYPE_CHECKING:
    from engineroom.pipeline.doctor import Diagnosis


def command(
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Judge against this spec (default: look only)."),
    ] = None,
    target: TargetId = None,
    stack: Annotated[
        str | None,
        typer.Option("--stack", metavar="YY.MM", help="Triton release to judge against."),
    ] = None,
    require_gpu: Annotated[
        bool, typer.Option("--require-gpu", help="Exit 4 when there is no GPU.")
    ] = False,
    write_preflight: Annotated[
        Path | None,
        typer.Option(
            "--write-preflight",
            metavar="FILE",
            help="Look at nothing; write the check of one target as a file that a pod can run.",
        ),
    ] = None,
    fmt: Format = OutputFormat.TABLE,
    fail_on: FailFrom = FailOn.ERROR,
    out: OutDir = None,
    catalog: CatalogDir = None,
) -> int:
    """This machine (GPUs, driver, memory, disk, packages), judged against a spec's targets."""
    from engineroom.cli.console import show
    from engineroom.pipeline.doctor import doctor
    from engineroom.pipeline.doctor import write_preflight as write

    if write_preflight is not None:
        if file is None or stack is not None:
            raise UsageError(
                "--write-preflight needs --file and no --stack",
                hint="engineroom doctor --write-preflight preflight.py --file engineroom.yaml",
            )
        item = write(write_preflight, file, target=target, catalog=catalog)
        data = {"schema_version": 1, "file": str(write_preflight), "target": item.target.id}
        show(fmt, data, ("file", "target"), [(write_preflight, item.target.id)])
        return int(ExitCode.OK)
    result = doctor(file, target=target, stack=stack, catalog=catalog, out=out)
    if fmt is OutputFormat.JSON:
        show(fmt, {"schema_version": 1, "run_id": state.run_id, **result.as_dict()}, (), ())
    else:
        _print(result)
    if require_gpu and not result.has_gpu:
        typer.echo("error: this machine shows no GPU (--require-gpu)", err=True)
        return int(ExitCode.MISSING)
    return int(ExitCode.FINDINGS) if result.fails(str(fail_on)) else int(ExitCode.OK)


def _print(result: Diagnosis) -> None:
    for line in result.summary():
        typer.echo(line)
    for f in result.findings:
        head = f"{f.severity.value.upper():5} {f.code}  `{f.key}`"
        typer.echo(head + (f"  ({f.target})" if f.target else ""))
        typer.echo(f"      {f.reason}\n      fix: {f.fix}\n      source: {f.source}")
    for name, verdict in result.targets.items():
        typer.echo(f"{name}: {verdict}")
    typer.echo(f"verdict: {result.verdict}")
