"""`engineroom matrix`: the support facts, and what changes between two versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engineroom.cli.matrix_capture import capture_command, verify_command
from engineroom.cli.matrix_fields import fields_command
from engineroom.cli.options import CatalogDir, Format, OutputFormat
from engineroom.names import ExitCode, LaneName, StrEnum

if TYPE_CHECKING:
    from engineroom.pipeline.matrix import ReleaseDiff
    from engineroom.pipeline.matrix_affected import SpecDiff

app = typer.Typer(
    help="The support matrix: what runs where, and what changes between two versions.",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
)


app.command("capture")(capture_command)
app.command("verify")(verify_command)
app.command("fields")(fields_command)


class DiffFailOn(StrEnum):
    NEVER = "never"
    AFFECTED = "affected"


@app.command("show")
def show_command(
    sku: Annotated[
        list[str] | None,
        typer.Option("--sku", help="A GPU SKU, or a compute capability such as 9.0; repeatable."),
    ] = None,
    lane: Annotated[LaneName | None, typer.Option("--lane", help="Only this lane.")] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="Only this weight format.")
    ] = None,
    kv_cache: Annotated[
        str | None, typer.Option("--kv-cache", help="Only this KV-cache format.")
    ] = None,
    stack: Annotated[
        str | None, typer.Option("--stack", help="Triton release (default: the newest).")
    ] = None,
    trtllm: Annotated[
        str | None, typer.Option("--trtllm", help="TensorRT-LLM version instead of a stack.")
    ] = None,
    fmt: Format = OutputFormat.TABLE,
    catalog: CatalogDir = None,
) -> None:
    """Support of formats by lane, version and GPU, each verdict with its source."""
    # The pipeline package brings every verb along; this one has to answer at once.
    from engineroom.catalog import Catalog
    from engineroom.cli.matrix_text import matrix_lines
    from engineroom.planning.support_matrix import Query, support_matrix

    facts = Catalog(catalog)
    query = Query(tuple(sku or ()), lane, weights, kv_cache, stack, trtllm)
    cells = support_matrix(facts, query)
    if fmt is OutputFormat.JSON:
        _json(facts.digest, cells=[cell.as_dict() for cell in cells])
    else:
        for line in matrix_lines(cells, facts.precision.legend):
            typer.echo(line)


@app.command("diff")
def diff_command(
    old: Annotated[str, typer.Argument(help="Triton release to leave, e.g. 26.02.")],
    new: Annotated[str, typer.Argument(help="Triton release to go to, e.g. 26.07.")],
    trtllm: Annotated[
        bool, typer.Option("--trtllm", help="The two are TensorRT-LLM versions.")
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Only what touches this spec.")
    ] = None,
    fail_on: Annotated[
        DiffFailOn,
        typer.Option("--fail-on", help="affected: exit 1 if a setting is removed or re-defaulted."),
    ] = DiffFailOn.NEVER,
    fmt: Format = OutputFormat.TABLE,
    catalog: CatalogDir = None,
) -> int:
    """What is removed, renamed, moved, re-defaulted or added between two versions."""
    from engineroom.cli.matrix_text import diff_lines, spec_lines
    from engineroom.errors import UsageError
    from engineroom.pipeline.matrix import diff_releases

    if file is None:
        if fail_on is DiffFailOn.AFFECTED:
            raise UsageError("--fail-on affected needs a spec", hint="add --file engineroom.yaml")
        from engineroom.catalog import Catalog

        facts = Catalog(catalog)
        _print(fmt, facts.digest, diff_releases(facts, old, new, trtllm=trtllm), None, diff_lines)
        return int(ExitCode.OK)
    from engineroom.cli.console import job_for
    from engineroom.pipeline.matrix_spec import diff_spec

    job = job_for(file, catalog)
    change = diff_releases(job.catalog, old, new, trtllm=trtllm)
    touched = diff_spec(job, change)
    _print(fmt, job.catalog.digest, change, touched, lambda c: [*spec_lines(c, touched)])
    failed = fail_on is DiffFailOn.AFFECTED and touched.failing
    return int(ExitCode.FINDINGS) if failed else int(ExitCode.OK)


def _print(
    fmt: OutputFormat, digest: str, change: ReleaseDiff, touched: SpecDiff | None, lines: Any
) -> None:
    if fmt is OutputFormat.JSON:
        spec = {} if touched is None else touched.as_dict()
        _json(digest, **change.as_dict(), **spec)
    else:
        for line in lines(change):
            typer.echo(line)


def _json(digest: str, **data: Any) -> None:
    from engineroom.cli.console import json_text

    typer.echo(json_text({"schema_version": 1, "catalog_digest": digest, **data}))
