"""`engineroom build`."""

from __future__ import annotations

from typing import Annotated

import typer

from engineroom.cli.options import (
    SPEC_DEFAULT,
    CatalogDir,
    DryRun,
    Format,
    OutDir,
    OutputFormat,
    SpecFile,
    TargetId,
    finite,
)

ExecutorName = Annotated[
    str,
    typer.Option(
        "--executor",
        help="Where commands run: local (tools on PATH), docker (the image of the stack), or "
        "kubernetes (a Job on a node of the SKU).",
    ),
]
ExecutorOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--executor-option",
        metavar="KEY=VALUE",
        help="A setting of the executor, such as retries=0; may be repeated.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=1,
        callback=finite,
        help="Time limit of each command.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        metavar="N",
        min=1,
        help="Targets at once, as far as host memory allows (default: 1 on this machine).",
    ),
]


def command(
    file: SpecFile = SPEC_DEFAULT,
    target: TargetId = None,
    out: OutDir = None,
    fmt: Format = OutputFormat.TABLE,
    catalog: CatalogDir = None,
    executor: ExecutorName = "local",
    executor_option: ExecutorOptions = None,
    timeout: Timeout = None,
    jobs: Jobs = None,
    dry_run: DryRun = False,
) -> None:
    """Build every target: an engine (or its plan), or an LLM-API package."""
    from engineroom.cli.console import job_for, show
    from engineroom.pipeline import build
    from engineroom.pipeline.build import Artefact
    from engineroom.runner.executors import make

    where = make(executor, **_options(executor_option or []))
    job = job_for(file, catalog, out)
    results = build(job, target, dry_run=dry_run, executor=where, timeout=timeout, jobs=jobs)
    data, rows = [], []
    for item in results:
        if isinstance(item, Artefact):
            row = {
                "target": item.target.target.id,
                "kind": item.kind,
                "path": item.path.as_posix(),
                "digest": item.manifest["digest"],
                "reused": item.reused,
            }
            data.append(row)
            rows.append(tuple(row.values()))
        else:
            data.append(item)
            words = [" ".join(step["argv"]) or step["name"] for step in item["steps"]]
            rows.append((item["target"], "would run", "; ".join(words), "", ""))
    show(
        fmt,
        {"schema_version": 1, "artefacts": data},
        ("target", "kind", "path", "digest", "reused"),
        rows,
    )


def _options(pairs: list[str]) -> dict[str, str]:
    """``KEY=VALUE`` words as a mapping.

    Raises:
        UsageError: a word without ``=``, or a key twice.
    """
    from engineroom.errors import UsageError, Where

    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or key in found:
            raise UsageError(
                f"`{pair}` is given twice" if key in found else f"`{pair}` is no KEY=VALUE",
                where=Where(key="--executor-option"),
                hint="write e.g. --executor-option retries=0",
            )
        found[key] = value
    return found
