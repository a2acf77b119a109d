"""Every lane and version of TensorRT-LLM with a contract: the rendered repository loads and answers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import yaml

from engineroom.lanes import LANES
from engineroom.names import LaneName, RuntimeName
from engineroom.pipeline import build, open_job
from engineroom.pipeline.render import render
from engineroom.runner.triton import TritonServer
from tests.conformance import wire
from tests.conformance.mix import FRONTS

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("versions")]
ENGINE_VERSIONS = ["0.21.0", "1.0.0", "1.1.0", "1.2.1"]
LLMAPI_VERSIONS = [*ENGINE_VERSIONS, "1.4.0rc4"]
PROMPT, TOKENS = 'The "for" statement is used to', 12


@pytest.fixture(scope="module")
def fleet(quantized):
    """One spec with a target for each lane and version, on a checkpoint that exists."""
    base = quantized("fp8")
    data = yaml.safe_load((base.loaded.folder / "engineroom.yaml").read_text())
    data["targets"] = [
        {"sku": "h100-sxm", "lane": lane, "stack": {"trtllm": version},
         "limits": {"max_batch_size": 8}}
        for lane, versions in (("engine", ENGINE_VERSIONS), ("llmapi", LLMAPI_VERSIONS))
        for version in versions
    ]  # fmt: skip
    path = base.loaded.folder / "versions.yaml"
    path.write_text(yaml.safe_dump(data))
    job = open_job(path, out=base.out)
    build(job, allow_plan=True)
    return job


@pytest.fixture(scope="module")
def expected(built, plain):
    ids = plain.ids(PROMPT, TOKENS, [2, 0])
    return plain.text(ids)


@pytest.mark.parametrize(
    ("lane", "version"),
    [
        pytest.param(lane, v, marks=() if v in ends else pytest.mark.full)
        for lane, versions, ends in (
            ("engine", ENGINE_VERSIONS, {"1.2.1"}),
            ("llmapi", LLMAPI_VERSIONS, {"1.4.0rc4"}),
        )
        for v in versions
    ],
)
def test_loads_and_answers(fleet, expected, tmp_path, lane, version):
    target = next(
        item.target.id
        for item in fleet.targets
        if item.target.lane is LaneName(lane) and item.stack.tensorrt_llm == version
    )
    repository = render(fleet, target, runtime=RuntimeName.REFERENCE)[0]
    roots = fleet.catalog.template_roots
    with tempfile.TemporaryDirectory(prefix="engineroom-version-") as work:
        log = tmp_path / "server.log"
        with TritonServer(repository.path, Path(work), roots, log=log) as server:
            server.wait_ready(120)
            for front in ("bls", "ensemble") if lane == "engine" else ("llmapi",):
                names = FRONTS[front]
                body = {names.prompt: PROMPT, names.max_tokens: TOKENS}
                port = server.endpoints.http
                assert wire.text([wire.http_generate(port, names.model, body)]) == expected
                streamed = wire.http_stream(port, names.model, {**body, names.stream: True})
                assert len(streamed) > 4
                assert wire.text(streamed) == expected
    assert LANES[LaneName(lane)].client.model in {names.model for names in FRONTS.values()}
