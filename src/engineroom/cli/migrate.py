"""`engineroom migrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engineroom.cli.options import CatalogDir
from engineroom.names import ExitCode


def command(
    repo: Annotated[
        Path, typer.Argument(metavar="REPO", help="Old model repository, with one folder a model.")
    ],
    engine: Annotated[
        Path | None, typer.Option("--engine", metavar="DIR", help="The engine's folder.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint", metavar="DIR",
            help="Folder of the TensorRT-LLM checkpoint, or of the Hugging Face one.",
        ),
    ] = None,
    build_script: Annotated[
        Path | None,
        typer.Option("--build-script", metavar="FILE", help="Shell script; read, never run."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Hugging Face folder or hub id, if not the one that the files name."),
    ] = None,
    sku: Annotated[str | None, typer.Option("--sku", help="GPU SKU of the new service.")] = None,
    stack: Annotated[
        str | None, typer.Option("--stack", help="Triton release, or TensorRT-LLM version.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the new service.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder to write (default: engineroom-out/migrate-REPO)."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Write --out again though files there were changed; others are kept."),
    ] = False,
    catalog: CatalogDir = None,
) -> int:  # fmt: skip
    """Take an inflight_batcher_llm setup to the llmapi lane: a spec, and the fate of every setting."""
    from engineroom.cli.migrate_text import show
    from engineroom.pipeline.migrate import migrate

    folder = out or Path("engineroom-out") / f"migrate-{repo.absolute().name or 'repository'}"
    done = migrate(
        repo,
        engine=engine,
        checkpoint=checkpoint,
        build_script=build_script,
        model=model,
        sku=sku,
        stack=stack,
        name=name,
        out=folder,
        catalog=catalog,
        force=force,
    )
    show(done)
    return int(ExitCode.OK if done.passes else ExitCode.FINDINGS)
