"""`engineroom serve`."""

from __future__ import annotations

import json
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
)
from engineroom.errors import ExternalToolError
from engineroom.names import ExitCode, RuntimeName


def command(
    file: SpecFile = SPEC_DEFAULT,
    target: TargetId = None,
    out: OutDir = None,
    fmt: Format = OutputFormat.TABLE,
    runtime: Annotated[
        RuntimeName, typer.Option("--runtime", help="`reference` needs no GPU and is no engine.")
    ] = RuntimeName.REFERENCE,
    port: Annotated[int, typer.Option(min=0, max=65535, help="HTTP port; 0 picks one.")] = 8000,
    catalog: CatalogDir = None,
    dry_run: DryRun = False,
) -> int:
    """Serve a target on this machine until Ctrl-C: real tritonserver, reference runtime."""
    import signal
    import time

    from engineroom.cli.console import job_for, show
    from engineroom.pipeline import render, serve

    job = job_for(file, catalog, out)
    if dry_run:
        listing = render(job, target, runtime=runtime, dry_run=True)
        rows = [
            (item["target"], " ".join(item["files"])) for item in listing if isinstance(item, dict)
        ]
        show(fmt, {"schema_version": 1, "would_serve": listing}, ("target", "files"), rows)
        return int(ExitCode.OK)
    # A supervisor stops us with TERM; that is as clean a stop as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with serve(job, target, runtime=runtime, http_port=port) as serving:
            ends = serving.server.endpoints
            facts = {
                "target": serving.repository.target.target.id,
                "runtime": str(runtime),
                "model": serving.repository.target.lane.client.front(
                    job.loaded.spec.serving.fronts
                ),
                "http": ends.url,
                "grpc": f"127.0.0.1:{ends.grpc}",
                "metrics": f"http://127.0.0.1:{ends.metrics}/metrics",
                "pid": serving.server.pid,
                "ready_seconds": round(serving.ready_seconds, 1),
            }
            if fmt is OutputFormat.JSON:
                typer.echo(json.dumps(facts))
            else:
                typer.echo("\n".join(f"{key:14}{value}" for key, value in facts.items()))
                typer.echo("Ctrl-C stops it")
            while (code := serving.server.poll()) is None:
                time.sleep(0.5)
            raise ExternalToolError(f"tritonserver ended by itself with code {code}")
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
    return int(ExitCode.OK)
