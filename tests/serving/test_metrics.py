"""`/metrics` of the real tritonserver while the llmapi lane works: families, labels, values."""

from __future__ import annotations

import re
import shutil
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from engineroom.lanes import LANES
from engineroom.names import LaneName, RuntimeName
from engineroom.pipeline.render import render
from engineroom.runner import client
from engineroom.runner.triton import TritonServer, work_folder
from tests.serving.conftest import TARGETS

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("server")]
FIELDS = LANES[LaneName.LLMAPI].client
RUNNING = 8  # targets[].limits.max_batch_size of the spec
AT_ONCE, TOKENS, PROMPT = 20, 48, "[1, 2, "
REQUEST, KV = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
BATCH, GENERAL = "nv_trt_llm_inflight_batcher_metrics", "nv_trt_llm_general_metrics"
LENGTHS = ("nv_llm_input_token_len", "nv_llm_output_token_len")
# Upstream's custom_metrics_reporter.cc: family -> (its label, the label's values).
EXPECTED = {
    REQUEST: ("request_type", {"active", "max", "scheduled", "context", "waiting"}),
    KV: ("kv_cache_block_type", {"max", "free", "used", "tokens_per", "reused", "fraction"}),
    BATCH: (
        "inflight_batcher_specific_metric",
        {"total_context_tokens", "generation_requests", "micro_batch_id", "paused_requests"},
    ),
    GENERAL: ("general_type", {"timestamp", "iteration_counter"}),
}
# What the endpoint picker of the Gateway API inference extension reads for `triton-tensorrt-llm`.
PICKER = [
    (REQUEST, "waiting"), (REQUEST, "scheduled"), (KV, "fraction"), (KV, "tokens_per"), (KV, "max"),
]  # fmt: skip


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def scrape(server: TritonServer) -> tuple[list[Sample], dict[str, str]]:
    """(samples of ours, {family: type})."""
    url = f"http://127.0.0.1:{server.endpoints.metrics}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    types = dict(re.findall(r"^# TYPE (nv_(?:trt_)?llm_\w+) (\w+)$", text, re.MULTILINE))
    found = []
    for name, labels, value in re.findall(
        r"^(nv_(?:trt_)?llm_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE
    ):
        found.append(Sample(name, dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)))
    return found, types


def gauges(samples: list[Sample], family: str) -> dict[str, float]:
    label = EXPECTED[family][0]
    return {s.labels[label]: s.value for s in samples if s.name == family}


@pytest.fixture(scope="module")
def server(built) -> Iterator[TritonServer]:
    """A server of its own: its counters start at 0, and its model can be unloaded."""
    repository = render(built, TARGETS["llmapi"], runtime=RuntimeName.REFERENCE)[0]
    work = work_folder()
    log = built.out / "logs" / "serve-metrics.log"
    try:
        options = ["--model-control-mode=explicit", "--load-model=tensorrt_llm"]
        roots = built.catalog.template_roots
        with TritonServer(repository.path, work, roots, log=log, extra_args=options) as started:
            yield started
    finally:
        shutil.rmtree(work, ignore_errors=True)


@pytest.fixture(scope="module")
def load(server) -> list[list[Sample]]:
    """Scrapes taken while more requests were under way than can run."""
    server.wait_ready(120)
    scrapes, stop = [scrape(server)[0]], threading.Event()

    def watch():
        while not stop.wait(0.02):
            scrapes.append(scrape(server)[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            url = server.endpoints.url
            asked = [
                pool.submit(client.generate, url, FIELDS, PROMPT, TOKENS, stream=True)
                for _ in range(AT_ONCE)
            ]
            assert all(answer.result().text for answer in asked)
    finally:
        stop.set()
        watcher.join()
    return scrapes


def settled(server) -> list[Sample]:
    deadline = time.monotonic() + 10
    while True:
        samples, _ = scrape(server)
        counts = [s.value for s in samples if s.name.endswith("_len_count")]
        idle = gauges(samples, REQUEST)["active"] == 0 and counts == [AT_ONCE, AT_ONCE]
        if idle or time.monotonic() > deadline:
            return samples
        time.sleep(0.05)


def test_families_types_and_labels(server, load):
    samples, types = scrape(server)
    # Upstream's histograms, as the series they consist of: Triton's own cost each request a call.
    series = [f"{name}_{part}" for name in LENGTHS for part in ("bucket", "sum", "count")]
    assert types == {**dict.fromkeys(EXPECTED, "gauge"), **dict.fromkeys(series, "counter")}
    for family, (label, values) in EXPECTED.items():
        ours = [s for s in samples if s.name == family]
        assert {s.labels[label] for s in ours} == values
        assert len(ours) == len(values)
        for sample in ours:
            assert sample.labels == {
                "model": "tensorrt_llm", "version": "1", label: sample.labels[label],
            }  # fmt: skip
    for family, kind in zip(LENGTHS, ("total_input_tokens", "total_output_tokens"), strict=True):
        buckets = [s for s in samples if s.name == f"{family}_bucket"]
        assert len(buckets) == 6
        assert {s.labels["le"] for s in buckets} == {"10", "50", "100", "500", "1000", "+Inf"}
        assert {s.labels["response_metric_type"] for s in buckets} == {kind}


def test_the_endpoint_picker_finds_its_five_before_the_first_request(load):
    first = load[0]
    found = {(family, kind): gauges(first, family).get(kind) for family, kind in PICKER}
    blocks = -(-1024 // 32)  # of a request of max_seq_len
    assert list(found.values()) == [0, 0, 0, 32, RUNNING * blocks]


def test_values_under_load(load):
    assert len(load) > 10
    peak = {"scheduled": 0.0, "used": 0.0}
    for samples in load:
        requests, kv, batch = (gauges(samples, family) for family in (REQUEST, KV, BATCH))
        assert requests["max"] == RUNNING
        assert 0 <= requests["scheduled"] <= RUNNING
        assert 0 <= requests["waiting"] <= AT_ONCE
        assert 0 <= kv["used"] <= kv["max"]
        assert 0 <= kv["fraction"] <= 1
        assert batch["paused_requests"] == kv["reused"] == 0
        peak["scheduled"] = max(peak["scheduled"], requests["scheduled"])
        peak["used"] = max(peak["used"], kv["used"])
    assert peak["scheduled"] == RUNNING
    # Twenty at once, eight run; at the start more wait, until the first step admits them.
    full = [r for r in (gauges(s, REQUEST) for s in load) if r["scheduled"] == RUNNING]
    assert any(4 <= r["waiting"] <= AT_ONCE - RUNNING for r in full)
    # At least a block for each running request, at most those of prompt and answer.
    assert RUNNING <= peak["used"] <= RUNNING * -(-(16 + TOKENS) // 32)
    # Gauges are set one by one, so a scrape may fall between two; most do not.
    whole = sum(
        kv["free"] + kv["used"] == kv["max"] and kv["fraction"] == kv["used"] / kv["max"]
        for kv in (gauges(samples, KV) for samples in load)
    )
    assert whole > len(load) / 2


def test_idle_again(server, load, plain):
    samples = settled(server)
    assert gauges(samples, REQUEST) == {
        "active": 0, "max": RUNNING, "scheduled": 0, "context": 0, "waiting": 0,
    }  # fmt: skip
    kv = gauges(samples, KV)
    assert (kv["used"], kv["free"], kv["fraction"]) == (0, kv["max"], 0)
    general = gauges(samples, GENERAL)
    assert general["iteration_counter"] >= TOKENS
    assert 0 <= time.time() - general["timestamp"] / 1e6 < 120
    sums = {s.name: s.value for s in samples if s.name.endswith("_sum")}
    prompt, answer = plain.tokenizer.encode(PROMPT), plain.ids(PROMPT, TOKENS, [2, 0])
    assert sums == {
        "nv_llm_input_token_len_sum": AT_ONCE * len(prompt),
        "nv_llm_output_token_len_sum": AT_ONCE * len(answer),
    }


def test_unloading_removes_them(server, load):
    """Last: the model is gone after it."""
    url = f"{server.endpoints.url}/v2/repository/models/tensorrt_llm/unload"
    urllib.request.urlopen(urllib.request.Request(url, b"{}", method="POST"), timeout=60).close()
    deadline = time.monotonic() + 20
    while any(sample.name.startswith("nv_trt_") for sample in scrape(server)[0]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not any("llm" in sample.name for sample in scrape(server)[0])
    assert server.stop() == 0
