"""`engineroom init`."""

from __future__ import annotations

from typing import Annotated

import typer

from engineroom.cli.options import SPEC_DEFAULT, CatalogDir, DryRun, SpecFile
from engineroom.errors import UsageError, Where


def command(
    model: Annotated[str, typer.Option("--model", help="Local folder or hub id.")],
    sku: Annotated[str, typer.Option("--sku", help="GPU SKU id, e.g. h100-sxm.")],
    lane: Annotated[str, typer.Option("--lane", help="llmapi, engine or vllm.")] = "llmapi",
    stack: Annotated[str, typer.Option("--stack", help="Triton release.")] = "26.07",
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            help="Calibration text: JSONL, text file or hub name (default: calibration.jsonl where "
            "it is there, else a hub dataset).",
        ),
    ] = None,
    file: SpecFile = SPEC_DEFAULT,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    catalog: CatalogDir = None,
    dry_run: DryRun = False,
) -> None:
    """Write a commented spec that passes `check`."""
    from engineroom.catalog import Catalog
    from engineroom.names import LaneName
    from engineroom.pipeline.init import init_spec
    from engineroom.runner.files import write_text

    if lane not in {str(item) for item in LaneName}:
        raise UsageError(
            f"no lane `{lane}`", where=Where(key="--lane"), hint="llmapi, engine or vllm"
        )
    if file.exists() and not (force or dry_run):
        raise UsageError(
            "the file exists already",
            where=Where(file.as_posix()),
            hint="use --force, or another --file",
        )
    text = init_spec(
        Catalog(catalog),
        model=model,
        sku=sku,
        lane=LaneName(lane),
        stack=stack,
        dataset=dataset,
        spec_dir=file.resolve().parent,
    )
    if dry_run:
        typer.echo(text, nl=False)
        return
    write_text(file, text)
    typer.echo(f"wrote {file.as_posix()}; next: `engineroom check -f {file.as_posix()}`", err=True)
