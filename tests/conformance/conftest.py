"""Servers for conformance tests; `built` and `plain` are those of tests/serving."""

from __future__ import annotations

import shutil

import pytest
import yaml

from engineroom.names import LaneName, RuntimeName
from engineroom.pipeline import build, open_job
from engineroom.pipeline.serve import serve
from tests.conformance.front import Front
from tests.serving.conftest import built, plain, servers

__all__ = ["built", "plain", "servers"]
FEATURES = {
    "guided_decoding": "xgrammar", "context_logits": True, "generation_logits": True,
    "perf_metrics": True,
}  # fmt: skip
LIMITS = {"max_batch_size": 16, "max_seq_len": 512}
SKUS = {"llmapi": "l4", "engine": "h100-sxm", "vllm": "l4"}
LANES_OF = {"bls": "engine", "ensemble": "engine", "llmapi": "llmapi", "vllm": "vllm"}


def job_on_the_checkpoint(base, name, serving, *, limits=LIMITS, lanes=SKUS, **changes):
    """A job on a copy of the session's checkpoint, built; its files are apart from all others'."""
    data = yaml.safe_load((base.loaded.folder / "engineroom.yaml").read_text())
    data["targets"] = [
        {"sku": SKUS[lane], "lane": lane, "stack": "26.07", **changes, "limits": limits}
        for lane in lanes
    ]
    data["serving"] = serving
    path = base.loaded.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data))
    out = base.out.with_name(f"out-{name}")
    shutil.copytree(base.out / "checkpoints", out / "checkpoints", dirs_exist_ok=True)
    job = open_job(path, out=out)
    build(job, allow_plan=True)
    return job


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
    for context, _ in open_.values():
        context.__exit__(None, None, None)


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
