"""From a runtime's statistics to Triton's metrics, on doubles of both, which are a third of the file."""

from __future__ import annotations

import sys
import threading
import time
import types

import pytest

from tests.llmapi.test_runtime_calls import Output, Result

# One iteration as upstream's executor writes it (IterationStats, KvCacheStats, InflightBatchingStats).
ITERATION = {
    "timestamp": "", "iter": 41, "iterLatencyMS": 9.5, "numActiveRequests": 9,
    "numQueuedRequests": 4, "numCompletedRequests": 1, "maxNumActiveRequests": 16,
    "gpuMemUsage": 7_000_000_000, "cpuMemUsage": 0, "pinnedMemUsage": 0,
    "kvCacheStats": {
        "maxNumBlocks": 400, "freeNumBlocks": 300, "usedNumBlocks": 100, "tokensPerBlock": 32,
        "reusedBlocks": 11, "missedBlocks": 3, "cacheHitRate": 0.78,
    },
    "staticBatchingStats": None,
    "inflightBatchingStats": {
        "numScheduledRequests": 7, "numContextRequests": 2, "numGenRequests": 5,
        "numPausedRequests": 1, "numCtxTokens": 96, "microBatchId": 3,
    },
}  # fmt: skip
REQUEST, KV = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
BATCH, MEMORY = "nv_trt_llm_inflight_batcher_metrics", "nv_trt_llm_runtime_memory_metrics"
GENERAL = "nv_trt_llm_general_metrics"


class Server:
    """A double of `pb_utils` that holds what /metrics would show."""

    def __init__(self, broken=False):
        server = self
        self.samples, self.kinds, self.calls, self.warnings = {}, {}, 0, []
        self.counted = 0
        self.broken, self.early = broken, False

        class Family:
            GAUGE, COUNTER = "gauge", "counter"

            def __init__(self, *, name, description, kind):
                if server.broken:
                    raise RuntimeError("metrics are disabled")
                assert description
                self.name = name
                server.kinds[name] = kind

            def Metric(self, *, labels):
                return Metric(self, labels)

            def __del__(self):
                if hasattr(self, "name"):
                    # Triton's rule: every metric of a family goes first.
                    server.early |= any(key[0] == self.name for key in server.samples)

        class Metric:
            def __init__(self, family, labels):
                self.key = (family.name, tuple(sorted(labels.items())))
                server.samples[self.key] = 0

            def set(self, value):
                if server.broken:
                    raise RuntimeError("the server is gone")
                server.calls += 1
                server.samples[self.key] = value

            def increment(self, value):
                server.counted += 1
                server.samples[self.key] += value

            def __del__(self):
                server.samples.pop(self.key)

        self.MetricFamily = Family
        self.Logger = types.SimpleNamespace(log_warn=self.warnings.append)

    def value(self, family, **labels):
        return self.samples[family, tuple(sorted({"model": "m", "version": "1", **labels}.items()))]


def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def exporter(server, stats, period_ms=5):
    from metrics import Exporter

    return Exporter(server, "m", 1, stats, period_ms)


def test_an_iteration_under_the_engine_backends_names():
    from trtllm_runtime import to_stats

    server = Server()
    export = exporter(server, lambda: to_stats(ITERATION, 1_700_000_000_000_000, 13))
    want = {
        (REQUEST, "request_type"): {
            "active": 9, "max": 16, "scheduled": 7, "context": 2, "waiting": 4 + 2,
        },
        (KV, "kv_cache_block_type"): {
            "max": 400, "free": 300, "used": 100, "tokens_per": 32, "reused": 11, "fraction": 0.25,
        },
        (BATCH, "inflight_batcher_specific_metric"): {
            "total_context_tokens": 96, "generation_requests": 5, "micro_batch_id": 3,
            "paused_requests": 1,
        },
        (MEMORY, "memory_type"): {"gpu": 7e9},
        (GENERAL, "general_type"): {"timestamp": 1.7e15, "iteration_counter": 41},
    }  # fmt: skip
    got = {}
    for (family, label), values in want.items():
        got[family, label] = {kind: server.value(family, **{label: kind}) for kind in values}
    assert got == want
    series = [("bucket", {"le": b}) for b in ("10", "50", "100", "500", "1000", "+Inf")]
    for part, more in [*series, ("sum", {}), ("count", {})]:
        for kind in ("input", "output"):
            label = {"response_metric_type": f"total_{kind}_tokens", **more}
            assert server.value(f"nv_llm_{kind}_token_len_{part}", **label) == 0
    assert len(server.samples) == 5 + 6 + 4 + 1 + 2 + 2 * 8  # and nothing else
    assert {server.kinds[family] for family, _ in want} == {"gauge"}
    export.close()
    assert server.samples == {}
    assert not server.early


def test_what_an_idle_engine_last_said_of_requests_is_not_kept():
    """Upstream counts before the step and says nothing while idle."""
    from trtllm_runtime import to_stats

    stats = to_stats(ITERATION, 5, 0)
    assert (stats.active, stats.scheduled, stats.context, stats.waiting) == (0, 0, 0, 0)
    assert (stats.generation, stats.paused, stats.context_tokens) == (0, 0, 0)
    assert (stats.max_active, stats.kv_used, stats.kv_fraction) == (16, 100, 0.25)


def test_before_the_first_iteration_only_requests_are_known():
    from trtllm_runtime import to_stats

    server = Server()
    export = exporter(server, lambda: to_stats({}, None, 0))
    assert {server.value(REQUEST, request_type=kind) for kind in ("active", "waiting")} == {0}
    assert not any(name in {KV, MEMORY, GENERAL} for name, _ in server.samples)
    export.close()


def test_only_changes_are_sent_and_lengths_are_observed():
    from runtime_api import Stats

    server, now = Server(), Stats(active=1, kv_max=0, kv_used=0)
    export = exporter(server, lambda: now)
    assert server.value(KV, kv_cache_block_type="fraction") == 0.0  # no division by zero
    calls = server.calls
    assert calls == 4
    export.request_ended(12, 40)
    export.request_ended(None, None)
    export.request_ended(100, 5000)
    length = {"response_metric_type": "total_output_tokens"}
    until(lambda: server.value("nv_llm_output_token_len_count", **length) == 2)
    buckets = {
        bound: server.value("nv_llm_output_token_len_bucket", le=bound, **length)
        for bound in ("10", "50", "100", "500", "1000", "+Inf")
    }
    assert buckets == {"10": 0, "50": 1, "100": 1, "500": 1, "1000": 1, "+Inf": 2}
    assert server.value("nv_llm_output_token_len_sum", **length) == 5040
    length = {"response_metric_type": "total_input_tokens"}
    assert server.value("nv_llm_input_token_len_sum", **length) == 112
    assert server.value("nv_llm_input_token_len_bucket", le="50", **length) == 1
    assert server.value("nv_llm_input_token_len_bucket", le="100", **length) == 2
    assert server.counted <= 2 * 8  # at most once a series, however many requests ended
    assert server.calls == calls
    now = Stats(active=2, kv_max=0, kv_used=0)
    until(lambda: server.value(REQUEST, request_type="active") == 2)
    assert server.calls == calls + 1
    export.close()


def test_a_slow_runtime_or_server_never_holds_a_request():
    """`request_ended` is what a request's path calls; the rest is on the exporter's thread."""
    from runtime_api import Stats

    gate, threads = threading.Event(), []

    def stats():
        threads.append(threading.current_thread().name)
        if len(threads) > 1:
            gate.wait(10)
        return Stats(active=0)

    export = exporter(Server(), stats)
    until(lambda: len(threads) > 1)
    started = time.monotonic()
    export.request_ended(1, 1)
    assert time.monotonic() - started < 0.1
    assert threads[1:] == ["metrics"]
    gate.set()
    export.close()


@pytest.mark.parametrize("server", [Server(broken=True), types.SimpleNamespace()])
def test_without_a_metric_api_the_model_works_and_says_so_once(server):
    from runtime_api import Stats

    if not isinstance(server, Server):  # a server older than the API
        server.warnings = []
        server.Logger = types.SimpleNamespace(log_warn=server.warnings.append)
    export = exporter(server, lambda: Stats(active=0))
    export.request_ended(1, 1)
    export.close()
    assert len(server.warnings) == 1
    assert "metrics are not exported" in server.warnings[0]


def test_figures_that_can_no_longer_move_are_removed():
    from runtime_api import Stats

    server, now = Server(), Stats(active=1)
    export = exporter(server, lambda: now)
    server.broken, now = True, Stats(active=2)
    until(lambda: server.samples == {})
    assert len(server.warnings) == 1
    assert export.active is False
    export.close()


class Llm:
    """The LLM API's two ways to hand out statistics; `rpc` as in the releases that ask the worker."""

    def __init__(self, rpc):
        self._executor = types.SimpleNamespace(**({"rpc_client": object()} if rpc else {}))
        self.items, self.called, self.release = [], [], threading.Event()

    def generate_async(self, prompt, params, streaming):
        async def more():
            import asyncio

            yield Output("a", [1])
            while not self.release.is_set():
                await asyncio.sleep(0.01)
            yield Output("ab", [1, 2], "length")

        result = Result([])
        result.prompt_token_ids = [5, 6, 7]
        result._go = more
        return result

    def get_stats(self, timeout):
        self.called.append(("get_stats", threading.current_thread().name))
        items, self.items = self.items, []
        return items

    def get_stats_async(self, timeout):
        self.called.append(("get_stats_async", threading.current_thread().name))

        async def more():
            while self.items:
                yield self.items.pop(0)

        return more()

    def shutdown(self):
        pass


@pytest.mark.parametrize("rpc", [False, True])
def test_iterations_are_read_without_blocking_the_event_loop(monkeypatch, rpc):
    from runtime_api import Request, Stats, make_runtime

    llm = Llm(rpc)
    module = types.SimpleNamespace(LLM=lambda **kw: llm, SamplingParams=lambda **kw: kw)
    monkeypatch.setitem(sys.modules, "tensorrt_llm", module)
    runtime = make_runtime("tensorrt_llm")
    runtime.start("/model", {})
    chunks, done = [], threading.Event()

    def on_chunk(chunk):
        chunks.append(chunk)
        if chunk.final:
            done.set()

    try:
        time.sleep(0.25)
        assert llm.called == []  # nothing to ask for before the first request
        assert runtime.stats() == Stats(
            active=0, scheduled=0, context=0, generation=0, waiting=0, paused=0, context_tokens=0
        )
        runtime.submit(Request(prompt="hi", max_tokens=2), on_chunk)
        llm.items = [{**ITERATION, "iter": 40}, ITERATION]
        until(lambda: runtime.stats().iteration == 41)
        stats = runtime.stats()
        assert (stats.active, stats.waiting, stats.kv_used) == (9, 6, 100)
        assert abs(stats.timestamp_us / 1e6 - time.time()) < 60
        llm.release.set()
        assert done.wait(10)
        until(lambda: runtime.stats().active == 0)
        assert runtime.stats().iteration == 41
        llm.release.clear()
        handle = runtime.submit(Request(prompt="hi", max_tokens=2), lambda chunk: None)
        # No step of this request yet: the old figures are not its own, those of the cache still hold.
        until(lambda: (runtime.stats().active, runtime.stats().waiting) == (None, None))
        assert runtime.stats().kv_used == 100
        llm.release.set()
        until(lambda: handle.task.done())
    finally:
        runtime.stop()
    assert chunks[-1].prompt_tokens == 3
    name, thread = llm.called[0]
    assert name == ("get_stats" if rpc else "get_stats_async")
    # The loop is run by whoever has work for it; a blocking call is in a worker thread of its own.
    assert (thread in ("llmapi", "MainThread")) is not rpc


def test_statistics_that_fail_are_asked_for_again(monkeypatch, capfd):
    from runtime_api import Request, make_runtime

    llm = Llm(False)
    real, fail = llm.get_stats_async, [True, True]

    def sometimes(timeout):
        if fail:
            fail.pop()
            raise RuntimeError("no statistics")
        return real(timeout)

    llm.get_stats_async = sometimes
    module = types.SimpleNamespace(LLM=lambda **kw: llm, SamplingParams=lambda **kw: kw)
    monkeypatch.setitem(sys.modules, "tensorrt_llm", module)
    runtime = make_runtime("tensorrt_llm")
    runtime.start("/model", {})
    llm.items = [ITERATION]
    try:
        runtime.submit(Request(prompt="hi"), lambda chunk: None)
        until(lambda: runtime.stats().iteration == 41)
        llm.release.set()
        until(lambda: runtime.stats().active == 0)
    finally:
        runtime.stop()
    assert fail == []
    assert capfd.readouterr().err.count("Traceback") == 1  # said once
