"""Servers for the calls of docs/serving.md: each lane, streaming and not, on a checkpoint that exists."""

from __future__ import annotations

import pytest
import yaml

from engineroom.names import RuntimeName
from engineroom.pipeline import build, open_job
from engineroom.pipeline.serve import serve
from tests.conftest import stop_all
from tests.serving.conftest import built, plain

__all__ = ["built", "plain"]
SKUS = {"engine": "h100-sxm", "llmapi": "l4", "vllm": "l4"}


@pytest.fixture(scope="session")
def lane_servers(built):
    """name -> Serving, started on first use; a name ending in ``-whole`` is rendered not to stream."""
    jobs, open_ = {}, {}

    def job(streaming):
        # All lanes in one spec: what the checkpoint holds depends on the lanes that are asked for.
        data = yaml.safe_load((built.loaded.folder / "engineroom.yaml").read_text())
        data["targets"] = [
            {"sku": sku, "lane": lane, "stack": "26.07", "limits": {"max_batch_size": 8}}
            for lane, sku in SKUS.items()
        ]
        data["serving"] = {"streaming": streaming}
        path = built.loaded.folder / f"client-{'stream' if streaming else 'whole'}.yaml"
        path.write_text(yaml.safe_dump(data))
        made = open_job(path, out=built.out)
        build(made, allow_plan=True)
        return made

    def get(name):
        if name not in open_:
            lane, _, whole = name.partition("-")
            streaming = not whole
            if streaming not in jobs:
                jobs[streaming] = job(streaming)
            made = jobs[streaming]
            target = next(item.target.id for item in made.targets if item.target.lane == lane)
            context = serve(made, target, runtime=RuntimeName.REFERENCE)
            open_[name] = (context, context.__enter__())
        return open_[name][1]

    yield get
    stop_all(open_.values())
