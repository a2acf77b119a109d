"""A running server per lane, shared by a worker's tests."""

from __future__ import annotations

import pytest

from engineroom.names import RuntimeName
from engineroom.pipeline import build
from engineroom.pipeline.quantize import find
from engineroom.pipeline.serve import serve
from tests.conftest import stop_all
from tests.independent.generation import Plain

TARGETS = {"llmapi": "llmapi-l4-tp1pp1-26-07", "engine": "engine-h100-sxm-tp1pp1-26-07"}


@pytest.fixture(scope="session")
def built(quantized):
    job = quantized("fp8")
    build(job, allow_plan=True)
    return job


@pytest.fixture(scope="session")
def servers(built):
    """lane -> Serving, started on first use, stopped at the end."""
    open_ = {}

    def get(lane):
        if lane not in open_:
            context = serve(built, TARGETS[lane], runtime=RuntimeName.REFERENCE)
            open_[lane] = (context, context.__enter__())
        return open_[lane][1]

    yield get
    stop_all(open_.values())


@pytest.fixture(scope="session")
def plain(built):
    return Plain(find(built).path / "hf")
