"""Starts a repository on the real tritonserver, with the stand-in where its engine would be."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from engineroom.catalog.resources import data_root
from engineroom.runner.triton import TritonServer

STANDINS = Path(__file__).resolve().parents[1] / "standins"
ECHO = Path(__file__).parent / "echo"
FLOOR = Path(__file__).parent / "floor/model.py"
TOKENS = 16


@contextlib.contextmanager
def serve(
    repository: Path, *, log: Path, env: dict[str, str] | None = None, upstream: bool = False
) -> Iterator[TritonServer]:
    """A ready server; it is stopped, and its folder removed, when the block ends.

    Args:
        upstream: whether the files import mpi4py and Pillow, which they do not use here.
    """
    work = Path(tempfile.mkdtemp(prefix="overhead-"))
    modules = [STANDINS / "tensorrt_llm"]
    if upstream:
        modules += [STANDINS / "upstream_needs" / name for name in ("PIL", "mpi4py")]
    try:
        server = TritonServer(
            repository,
            work,
            (data_root() / "model_repo_templates",),
            log=log,
            engine_backend=STANDINS / "tensorrtllm",
            modules=modules,
            env={"STANDIN_TOKENS": str(TOKENS), **(env or {})},
        )
        with server:
            server.wait_ready(180)
            yield server
    finally:
        shutil.rmtree(work, ignore_errors=True)
