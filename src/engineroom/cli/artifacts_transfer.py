"""`engineroom artifacts export` and `import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from engineroom.cli.options import CatalogDir, Format, OutDir, OutputFormat


def export_command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="ARTEFACT...",
            help="Names of `artifacts list`, target ids, or the beginning of a key.",
            show_default=False,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="A folder, FILE.tar, oci://HOST/NAME[:TAG] or hf://OWNER/NAME[@REVISION].",
        ),
    ],
    needs: Annotated[
        bool, typer.Option("--needs", help="Also what they were made from (checkpoint, package).")
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The spec that target ids are of.")
    ] = None,
    out: OutDir = None,
    fmt: Format = OutputFormat.TABLE,
    catalog: CatalogDir = None,
) -> None:
    """Write artefacts as an OCI image layout with checksums and SBOMs."""
    from engineroom.cli.artifacts import jobs_for, workspace_of
    from engineroom.cli.console import reporter
    from engineroom.pipeline.artifacts_export import chosen, export

    jobs = jobs_for([file] if file else [], catalog, out)
    workspace = workspace_of(out, jobs)
    picked = chosen(workspace, words, jobs[0] if jobs else None, needs=needs)
    _show(fmt, workspace, export(workspace, picked, to, reporter=reporter()), to=to)


def import_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PLACE",
            help="A layout folder, FILE.tar, oci://HOST/NAME[:TAG|@DIGEST] or hf://OWNER/NAME.",
            show_default=False,
        ),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="REF", help="Only this reference or name; repeatable."),
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option("--digest", metavar="sha256:…", help="Refuse any manifest but this one."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The spec whose workspace it is.")
    ] = None,
    out: OutDir = None,
    fmt: Format = OutputFormat.TABLE,
    catalog: CatalogDir = None,
) -> None:
    """Take exported artefacts into a workspace; every byte is verified before they appear."""
    from engineroom.cli.artifacts import jobs_for, workspace_of
    from engineroom.cli.console import reporter
    from engineroom.pipeline.artifacts_import import import_

    workspace = workspace_of(out, jobs_for([file] if file else [], catalog, out))
    moved = import_(workspace, source, only=only or (), digest=digest, reporter=reporter())
    _show(fmt, workspace, moved)


def _show(fmt: OutputFormat, workspace: Path, moved: list[Any], **more: str) -> None:
    from engineroom.cli.console import show

    data = [one.as_dict() for one in moved]
    content = {"schema_version": 1, "workspace": workspace.as_posix(), **more, "artefacts": data}
    columns = ("name", "ref", "digest", "outcome")
    show(fmt, content, columns, [tuple(row[column] for column in columns) for row in data])
