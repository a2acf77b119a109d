"""A request as a whole: its times and KV blocks, blocks reused, cancellation, switches, event sizes."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engineroom.names import RuntimeName
from engineroom.pipeline.serve import serve
from tests.conformance import wire
from tests.conformance.front import FRONTS, PROTOCOLS, Front
from tests.conformance.jobs import LANES_OF, job_on_the_checkpoint
from tests.conformance.mix import PROMPTS, gauges, settled
from tests.conformance.stubs import stubs
from tests.conftest import stop_all

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("features")]
ENDS = [2, 0]
BLOCK = 32  # tokens of a KV block: TensorRT-LLM's default
both = pytest.mark.parametrize("protocol", PROTOCOLS)
tensors = pytest.mark.parametrize("front", ["bls", "ensemble", "llmapi"])
LONG = {"prompt": "[1, 2, ", "max_tokens": 450, "min_tokens": 450}


def fresh_prompt(plain, tokens: int, salt: str) -> str:
    """A text of exactly so many tokens that no request had before."""
    text = f"{salt} {time.monotonic_ns()}"
    while len(plain.tokenizer(text).input_ids) < tokens:
        text += " a"
    assert len(plain.tokenizer(text).input_ids) == tokens
    return text


def wait_for_active(ask: Front) -> None:
    end = time.monotonic() + 10
    while not gauges(ask.endpoints.metrics)["request active"]:
        assert time.monotonic() < end, "nothing runs"
        time.sleep(0.02)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@tensors
@both
def test_times_and_blocks(fronts, plain, front, protocol):
    for tokens, stream in ((70, False), (65, True), (64, False)):
        prompt = fresh_prompt(plain, tokens, f"{front} {protocol}")
        before = time.time_ns()
        perf = fronts(front).ask(protocol, stream, prompt=prompt, max_tokens=6, perf=True).perf
        after = time.time_ns()
        times = [
            perf[f"{name}_ns"]
            for name in (
                "arrival_time",
                "first_scheduled_time",
                "first_token_time",
                "last_token_time",
            )
        ]
        assert before <= times[0] <= times[1] < times[2] < times[3] <= after
        blocks = -(-tokens // BLOCK)
        assert perf["kv_cache_reused_blocks"] == 0
        assert perf["kv_cache_alloc_total_blocks"] == blocks
        assert perf["kv_cache_alloc_new_blocks"] <= blocks
        assert perf["total_draft_tokens"] == perf["total_accepted_draft_tokens"] == 0


@tensors
@both
def test_kv_blocks_are_reused(fronts, plain, front, protocol):
    """Full blocks of a common beginning, never the prompt's last token, and the text is the same."""
    ask = fronts(front)

    def reused(prompt):
        answer = ask.ask(protocol, prompt=prompt, max_tokens=4, perf=True)
        assert answer.text.rstrip("\ufffd") == plain.text(plain.ids(prompt, 4, ENDS)).rstrip(
            "\ufffd"
        )
        return answer.perf["kv_cache_reused_blocks"]

    shared = fresh_prompt(plain, 80, f"reuse {front} {protocol}")
    assert reused(shared) == 0
    assert reused(shared) == 79 // BLOCK == 2
    assert reused(shared + " and something else") == 80 // BLOCK
    exact = fresh_prompt(plain, 2 * BLOCK, f"exact {front} {protocol}")
    assert reused(exact) == 0
    assert reused(exact) == 1
    # Another first token: another beginning, and nothing to reuse.
    assert reused("Z" + shared) == 0


@pytest.mark.parametrize("front", ["bls", "llmapi"])
@both
def test_cancelled_by_leaving(fronts, front, protocol):
    """Eight streams whose clients go after some events: nothing runs any more, no block is held."""
    ask = fronts(front)
    started = time.monotonic()
    ask.ask(protocol, True, **LONG)
    alone = time.monotonic() - started
    threads = [
        threading.Thread(target=lambda: ask.ask(protocol, True, take=12, **LONG)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    wait_for_active(ask)
    for thread in threads:
        thread.join()
    left = time.monotonic()
    now = settled(ask.endpoints.metrics, 20)
    assert now["request active"] == now["request waiting"] == now["kv used"] == 0, now
    # Eight at once would take longer than one; a margin, as the machine may be busy.
    assert time.monotonic() - left < max(alone, 1.0)


@both
def test_cancelled_by_leaving_vllm(fronts, features_servers, protocol):
    """The stand-in has no gauges: its process must be idle while the streams would still run."""
    ask = fronts("vllm")
    (stub,) = stubs(features_servers("vllm").server.pid)["vllm_model"]
    asked = {**LONG, "max_tokens": 490, "min_tokens": 490}
    with ThreadPoolExecutor(12) as pool:
        jobs = [pool.submit(ask.ask, protocol, True, take=8, **asked) for _ in range(12)]
        assert all(len(job.result().events) == 8 for job in jobs)
    time.sleep(0.7)
    before = cpu_seconds(stub)
    time.sleep(0.5)
    assert cpu_seconds(stub) - before < 0.1


@both
def test_cancelled_by_stop(fronts, protocol):
    """llmapi: a `stop` request with the id ends the stream with an error that says so."""
    ask = fronts("llmapi")
    found = []

    def run():
        try:
            ask.ask(protocol, True, request_id=f"end me {protocol}", **LONG)
        except wire.Refused as error:
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    wait_for_active(ask)
    ask.ask(protocol, raw={"stop": True}, request_id="another", prompt="x")
    assert thread.is_alive()
    ask.ask(protocol, raw={"stop": True}, request_id=f"end me {protocol}", prompt="x")
    thread.join(5)
    assert not thread.is_alive()
    assert len(found) == 1
    assert "cancelled" in found[0]
    now = settled(ask.endpoints.metrics, 5)
    assert now["request active"] == now["kv used"] == 0


@pytest.mark.parametrize("front", ["bls", "ensemble"])
@both
def test_a_stop_to_the_engine_ends_the_request(fronts, front, protocol):
    """`stop` with the id, sent to `tensorrt_llm` itself, as clients of upstream's repositories do.

    The only way with the ensemble: Triton tells a step that runs nothing of a client that has left."""
    ask, ident = fronts(front), f"end {front} {protocol}"
    found = []

    def run():
        try:
            found.append(ask.ask(protocol, True, request_id=ident, **LONG).events)
        except wire.Refused as error:
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    wait_for_active(ask)
    body = {"input_ids": [1], "input_lengths": 1, "request_output_len": 1, "stop": True}
    ask.grpc.ask("tensorrt_llm", body, request_id=ident)
    stopped = time.monotonic()
    thread.join(10)
    assert not thread.is_alive()
    assert time.monotonic() - stopped < 5
    assert len(found) == 1
    assert isinstance(found[0], str) or len(found[0]) < LONG["max_tokens"] - 50
    now = settled(ask.endpoints.metrics, 5)
    assert now["request active"] == now["kv used"] == 0


# ---- a server with everything switched off, and with several tokens an event
OFF = {
    "chat": False, "bad_words": False, "log_probs": False, "sequences": False, "usage": False,
    "perf_metrics": False, "kv_retention": False,
}  # fmt: skip
INTERVAL = 4
# Neutral field -> (switch, value); "raw" by the engine lane's names.
SWITCHED = {
    "messages": ("chat", '[{"role": "user", "content": "x"}]'),
    "bad": ("bad_words", ["x"]),
    "log_probs": ("log_probs", True),
    "n": ("sequences", 2),
    "counts": ("usage", True),
    "perf": ("perf_metrics", True),
    "context_logits": ("context_logits", True),
    "generation_logits": ("generation_logits", True),
    "guide": ("guided_decoding", ("regex", "a")),
}
SWITCHED_RAW = {
    "ensemble": {
        "beam_width": ("sequences", 2), "lora_task_id": ("lora", 1),
        "retention_decode_priority": ("kv_retention", 50),
        "lookahead_window_size": ("speculative", 2),
    },
    "bls": {"num_draft_tokens": ("speculative", 2), "lora_task_id": ("lora", 1)},
    "llmapi": {
        "sampling_param_best_of": ("sequences", 2), "lora_id": ("lora", 1),
        "lora_name": ("lora", "x"), "image_url": ("multimodal", "http://example.com/x.png"),
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def bare(quantized):
    """front -> Front, on a server with the features off and a stream interval."""
    job = job_on_the_checkpoint(
        quantized("fp8"), "bare", {"features": OFF, "stream_interval": INTERVAL},
        lanes=("llmapi", "engine"),
    )  # fmt: skip
    open_ = {}

    def get(name):
        lane = LANES_OF[name]
        if lane not in open_:
            target = next(t.target.id for t in job.targets if t.target.lane == lane)
            context = serve(job, target, runtime=RuntimeName.REFERENCE)
            open_[lane] = (context, context.__enter__())
        return Front(name, open_[lane][1].server.endpoints)

    yield get
    stop_all(open_.values())


@tensors
@both
def test_what_is_switched_off_is_refused_by_its_switch(bare, front, protocol):
    ask = bare(front)
    asked = {"prompt": "x", "max_tokens": 4}
    cases = [({name: value}, switch) for name, (switch, value) in SWITCHED.items()]
    raw = SWITCHED_RAW[front]
    cases += [({"raw": {name: value}}, switch) for name, (switch, value) in raw.items()]
    for more, switch in cases:
        body = {**asked, **more}
        if "messages" in more:
            del body["prompt"]
        for stream in (False, True):
            with pytest.raises(wire.Refused, match=rf"serving\.features\.{switch} off") as error:
                ask.ask(protocol, stream, **body)
            names = set(ask.body(stream, **more)) - {ask.streaming}
            assert any(name in str(error.value) for name in names), (names, error.value)
    # Asking for nothing is no use of a feature.
    assert ask.ask(protocol, **asked, n=1).texts == [ask.ask(protocol, **asked).text]


@tensors
@both
def test_stream_interval(bare, plain, front, protocol):
    """The first token comes alone or with others, then several an event; the text is the same."""
    ids = plain.ids(PROMPTS[0], 16, ENDS)
    answer = bare(front).ask(protocol, True, prompt=PROMPTS[0], max_tokens=16)
    assert answer.text.rstrip("\ufffd") == plain.text(ids).rstrip("\ufffd")
    if front != "ensemble":  # its events are the engine's, which the C++ backend makes one a token
        assert 2 < len(answer.events) <= 2 + 16 // INTERVAL


def test_every_front_is_covered():
    assert set(FRONTS) == set(LANES_OF)
