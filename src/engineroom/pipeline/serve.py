"""`serve`: the real tritonserver on a rendered repository, `reference` in the engine's place."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from engineroom.errors import MissingError, UsageError
from engineroom.lanes.launch import python_threads
from engineroom.names import RuntimeName
from engineroom.pipeline.job import Job, only_targets
from engineroom.pipeline.render import Repository, render
from engineroom.runner import manifest
from engineroom.runner.triton import TritonServer, find_wheel, work_folder


@dataclass(frozen=True)
class Serving:
    """A running server."""

    server: TritonServer
    repository: Repository
    ready_seconds: float


@contextlib.contextmanager
def serve(
    job: Job, target: str | None = None, *, runtime: RuntimeName, http_port: int = 0
) -> Iterator[Serving]:
    """Render for `runtime`, start, wait until ready; stops the server when the block ends.

    Args:
        target: id of a target; the spec's first one by default.

    Raises:
        MissingError: not Linux, no wheel, or a runtime that this machine cannot run.
        ExternalToolError: the server did not become ready.
    """
    if runtime is not RuntimeName.REFERENCE:
        raise MissingError(
            "serving with TensorRT-LLM needs its container and a GPU; engineroom starts only the reference "
            "runtime itself",
            hint="use --runtime reference here, or `engineroom deploy` for a cluster",
        )
    find_wheel()
    if not job.out.as_posix().isascii():
        raise UsageError(
            f"the workspace {job.out.as_posix()!r} is not ASCII: Triton's Python stubs run isolated, in the C "
            "locale, and cannot open other file names",
            hint="use --out with an ASCII path",
        )
    chosen = only_targets(job, target)[0]
    repository = cast(list[Repository], render(job, chosen.target.id, runtime=runtime))[0]
    manifest.load(repository.path.parent, "repository")
    work = work_folder()
    roots = job.catalog.template_roots
    try:
        log = job.out / "logs" / f"serve-{chosen.target.id}-{job.run_id}.log"
        server = TritonServer(
            repository.path,
            work,
            roots,
            log=log,
            http_port=http_port,
            python_threads=python_threads(chosen.target),
        )
        with server:
            job.reporter.note(f"tritonserver pid {server.pid}, runtime {runtime}, log {server.log}")
            yield Serving(server, repository, server.wait_ready())
    finally:
        shutil.rmtree(work, ignore_errors=True)
