"""Servers for conformance tests; `built` and `plain` are those of tests/serving."""

from __future__ import annotations

import re

import pytest

from engineroom.names import LaneName, RuntimeName
from engineroom.pipeline.serve import serve
from tests.conformance.boundary import asked, boundary_job, engine, minimal
from tests.conformance.front import Front
from tests.conformance.jobs import FEATURES, LANES_OF, job_on_the_checkpoint
from tests.conftest import stop_all
from tests.serving.conftest import built, plain, servers

__all__ = ["asked", "boundary_job", "built", "engine", "minimal", "plain", "servers"]


@pytest.fixture(scope="session")
def features_job(quantized):
    """The tiny model with everything switched on that the reference runtime computes."""
    return job_on_the_checkpoint(quantized("fp8"), "features", {"features": FEATURES})


@pytest.fixture(scope="session")
def features_servers(features_job):
    """front (bls, ensemble, llmapi, vllm) -> Serving, started on first use."""
    open_ = {}

    def get(front):
        lane = LaneName(LANES_OF[front])
        if lane not in open_:
            target = next(t.target.id for t in features_job.targets if t.target.lane is lane)
            context = serve(features_job, target, runtime=RuntimeName.REFERENCE)
            open_[lane] = (context, context.__enter__())
        return open_[lane][1]

    yield get
    stop_all(open_.values())
    for _, serving in open_.values():
        # Requests that the server never let go of keep it from ending by itself.
        log = serving.server.log.read_text(errors="replace")
        left = re.findall(r"Model '(\w+)' .* has (\d+) in-flight", log)
        if "Exit timeout expired" in log:  # a busy machine may just unload slowly
            assert not [model for model, count in left[-4:] if int(count)], left[-4:]


@pytest.fixture(scope="session")
def fronts(features_servers):
    """front -> Front, on the server with all features."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = Front(name, features_servers(name).server.endpoints)
        return made[name]

    yield get
    for front in made.values():
        front.grpc.close()
