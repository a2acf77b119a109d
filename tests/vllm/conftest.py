"""The session's FP8 checkpoint, packaged for the vllm lane and served by the stand-in."""

from __future__ import annotations

import pytest

from engineroom.names import RuntimeName
from engineroom.pipeline import build, open_job
from engineroom.pipeline.quantize import find
from engineroom.pipeline.serve import serve
from tests.conftest import FORMATS, spec_data, write_spec
from tests.independent.generation import Plain

TARGET = {"sku": "l4", "lane": "vllm", "stack": "26.07", "limits": {"max_batch_size": 8}}

NAME = "vllm-l4-tp1pp1-26-07"


@pytest.fixture(scope="session")
def built(quantized, tmp_path_factory):
    """A job with a vllm target on the checkpoint that the other lanes' tests use: the same key."""
    made = quantized("fp8")
    # The engine lane's target is part of the key: its checkpoint is written beside the other.
    data = spec_data(precision=FORMATS["fp8"], targets=[*spec_data()["targets"], TARGET])
    job = open_job(write_spec(tmp_path_factory.mktemp("vllm"), data), out=made.out)
    assert find(job).path == find(made).path
    build(job, NAME)
    return job


@pytest.fixture(scope="session")
def served(built):
    with serve(built, NAME, runtime=RuntimeName.REFERENCE) as serving:
        yield serving


@pytest.fixture(scope="session")
def plain(built):
    return Plain(find(built).path / "hf")
