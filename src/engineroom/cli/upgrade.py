"""`engineroom upgrade`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engineroom.cli.options import CatalogDir, Format, OutDir, OutputFormat
from engineroom.names import ExitCode


def command(
    old: Annotated[
        str, typer.Option("--from", help="Stack to leave: a Triton release, or a version.")
    ],
    new: Annotated[str, typer.Option("--to", help="Stack to go to, e.g. 26.07 or 1.4.0rc4.")],
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="The spec to move; without it, what any spec meets."),
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", help="Container of --to where that is a version.")
    ] = None,
    assume_from: Annotated[
        bool,
        typer.Option("--assume-from", help="Take every target to be on --from."),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Write the folder again though files there were changed; others are kept.",
        ),
    ] = False,
    out: OutDir = None,
    fmt: Format = OutputFormat.TABLE,
    catalog: CatalogDir = None,
) -> int:
    """From one release to the next within a lane: the new spec, and a report of what changes.

    Exit code 1: a setting is impossible or unknown in the new version, or `check` finds an error there.
    """
    from engineroom.cli.console import job_for, json_text
    from engineroom.errors import UsageError
    from engineroom.pipeline import upgrade

    if file is None and (image or assume_from):
        raise UsageError("--image and --assume-from need a spec", hint="add --file engineroom.yaml")
    job = None if file is None else job_for(file, catalog, out)
    result = upgrade(
        old,
        new,
        job=job,
        catalog=catalog,
        out=out,
        image=image,
        assume_from=assume_from,
        force=force,
    )
    if fmt is OutputFormat.JSON:
        typer.echo(json_text(result.as_dict()))
    else:
        from engineroom.pipeline.upgrade_spec import ANEW
        from engineroom.pipeline.upgrade_text import markdown

        typer.echo(markdown(result, kept=False))
        for path in result.paths.values():
            typer.echo(f"written: {path.as_posix()}")
        if result.comments_lost:
            typer.echo(f"warning: {ANEW}: {result.paths['spec'].as_posix()}", err=True)
    return int(ExitCode.OK if result.passes else ExitCode.FINDINGS)
