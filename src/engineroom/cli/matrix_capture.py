"""`engineroom matrix capture` and `engineroom matrix verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engineroom.cli.options import CatalogDir, Format, OutputFormat
from engineroom.names import ExitCode

OVERLAY = Path("engineroom-catalog")


def capture_command(
    source: Annotated[
        Path | None,
        typer.Option("--from-source", help="Parse this source tree; nothing in it is run."),
    ] = None,
    version: Annotated[
        str | None, typer.Option("--version", help="When the tree does not say it.")
    ] = None,
    commit: Annotated[
        str | None, typer.Option("--commit", help="Upstream commit of an exported tree.")
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", help="Python that has TensorRT-LLM (default: ours).")
    ] = None,
    all_models: Annotated[
        Path | None,
        typer.Option("--all-models", help="Folder of Triton families, where the tree has none."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Catalog overlay to write to.")] = OVERLAY,
    force: Annotated[bool, typer.Option("--force", help="Replace a contract there.")] = False,
    fmt: Format = OutputFormat.TABLE,
) -> int:
    """Write a TensorRT-LLM version's contract into a catalog overlay, from the real thing."""
    from engineroom.cli.console import show
    from engineroom.pipeline.matrix_capture import capture

    captured = capture(
        source=source,
        out=out,
        version=version,
        commit=commit,
        python=python,
        all_models=all_models,
        force=force,
    )
    data = captured.as_dict()
    rows = [(k, v) for k, v in data.items() if k not in ("unknown", "schema_version")]
    rows += [("unknown", f"{item['path']}: {item['reason']}") for item in captured.unknown]
    show(fmt, data, ("fact", "value"), rows)
    return int(ExitCode.OK)


def verify_command(
    captured: Annotated[Path, typer.Argument(help="A captured contract, or its overlay.")],
    against: Annotated[
        str | None, typer.Option("--against", help="Compare with this version's contract.")
    ] = None,
    catalog: CatalogDir = None,
    fmt: Format = OutputFormat.TABLE,
) -> int:
    """List how a captured contract differs from the shipped one; exit 1 when it does."""
    from engineroom.cli.console import show
    from engineroom.pipeline.matrix_capture import verify

    result = verify(captured, against=against, catalog=catalog)
    rows = [(r.kind, r.path, r.shipped, r.captured) for r in result.rows]
    show(fmt, result.as_dict(), ("kind", "path", "shipped", "captured"), rows)
    if fmt is OutputFormat.TABLE:
        typer.echo(f"{len(rows)} difference(s) from the contract of {result.against}")
        for item in result.unknown:
            typer.echo(f"not compared: {item.get('path')}: {item.get('reason')}")
    return int(ExitCode.FINDINGS if rows else ExitCode.OK)
