"""The llmapi lane on the real tritonserver with the reference runtime: what the doubles cannot show."""

from __future__ import annotations

import json
import math
import threading
import time

import numpy as np
import pytest
import torch

from tests.conformance import wire
from tests.serving.conftest import built, plain, servers
from tests.serving.test_served import ENDS, RAW, post

__all__ = ["built", "plain", "servers"]
pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("server")]
MODEL, PATH = "tensorrt_llm", "/v2/models/tensorrt_llm/generate"
P = "sampling_param_"


@pytest.fixture(scope="module")
def url(servers):
    return servers("llmapi").server.endpoints.url


def ask(url, **body):
    status, answer = post(url, PATH, {"text_input": RAW[0], P + "max_tokens": 12, **body})
    assert status == 200, answer
    return answer


def test_log_probs_equal_an_independent_computation(url, plain):
    ids = plain.ids(RAW[0], 12, ENDS)
    answer = ask(url, return_log_probs=True, return_cumulative_logprob=True)
    prompt = plain.tokenizer.encode(RAW[0])
    logits = torch.from_numpy(plain.logits(prompt + ids)).double()
    rows = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
    want = [float(row[token]) for row, token in zip(rows, ids, strict=True)]
    got = answer["output_log_probs"]
    assert len(got) == len(want)
    assert np.allclose(got, want, atol=1e-3)
    assert math.isclose(answer["cumulative_logprob"], sum(want), abs_tol=1e-2)


def test_usage_and_performance(url, plain):
    before = time.time_ns()
    answer = ask(
        url, return_num_input_tokens=True, return_num_output_tokens=True,
        **{P + "return_perf_metrics": True},
    )  # fmt: skip
    assert answer["num_input_tokens"] == len(plain.tokenizer.encode(RAW[0]))
    assert answer["num_output_tokens"] == len(plain.ids(RAW[0], 12, ENDS))
    times = [
        answer[f"{name}_time_ns"]
        for name in ("arrival", "first_scheduled", "first_token", "last_token")
    ]
    assert times == sorted(times)
    assert times[0] < times[-1]
    assert before - 10**9 < times[0] < time.time_ns() + 10**9
    blocks = answer["kv_cache_alloc_total_blocks"]
    assert blocks >= 1
    assert 0 <= answer["kv_cache_hit_rate"] <= 1
    assert answer["kv_cache_alloc_new_blocks"] + answer["kv_cache_reused_block"] == blocks


def test_only_what_was_asked_for_comes(url):
    assert set(ask(url)) - {"model_name", "model_version"} <= {"text_output"}


def test_chat_has_one_bos_and_ends(url, plain):
    messages = [{"role": "user", "content": "What colour is grass?"}]
    body = {"messages": json.dumps(messages), P + "max_tokens": 60, "return_num_input_tokens": True,
            "return_finish_reason": True}  # fmt: skip
    status, answer = post(url, PATH, body)
    assert status == 200, answer
    assert answer["text_output"] == "Grass is green."
    assert answer["finish_reason"] == "stop"
    ids = plain.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert answer["num_input_tokens"] == len(ids)
    status, answer = post(url, PATH, {"text_input": "x", **body})
    assert (status, "not both" in answer["error"]) == (400, True)
    status, answer = post(url, PATH, {P + "max_tokens": 2})
    assert (status, "text_input is missing" in answer["error"]) == (400, True)


def test_a_delta_by_default_and_all_so_far_on_request(servers, url):
    port = servers("llmapi").server.endpoints.http
    whole = ask(url)["text_output"]
    body = {"text_input": RAW[0], P + "max_tokens": 12, "streaming": True}
    pieces = [wire.text([event]) for event in wire.http_stream(port, MODEL, body)]
    assert "".join(pieces) == whole
    sofar = [
        wire.text([event])
        for event in wire.http_stream(port, MODEL, {**body, "stream_cumulative": True})
    ]
    assert sofar[-1] == whole
    assert len(sofar) == len(pieces) > 4
    assert ["".join(pieces[: k + 1]) for k in range(len(pieces))] == sofar


def test_sequences(url):
    answer = ask(
        url, return_finish_reason=True, return_num_output_tokens=True,
        **{P + "n": 3, P + "temperature": 1.0, P + "seed": 5},
    )  # fmt: skip
    assert len(answer["text_output"]) == 3
    assert len(set(answer["text_output"])) > 1
    assert len(answer["finish_reason"]) == len(answer["num_output_tokens"]) == 3


def running(servers):
    import urllib.request

    port = servers("llmapi").server.endpoints.metrics
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("nv_trt_llm_request_metrics{")
        and ('"active"' in line or '"waiting"' in line)
    )


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def long_request(grpc):
    """More tokens than any test waits for."""
    values = {
        "text_input": ("BYTES", np.array([RAW[7].encode()], np.object_)),
        P + "max_tokens": ("INT32", np.array([900], np.int32)),
        P + "end_id": ("INT32", np.array([-1], np.int32)),
        "streaming": ("BOOL", np.array([True])),
    }
    out = []
    for name, (kind, array) in values.items():
        item = grpc.InferInput(name, [1], kind)
        item.set_data_from_numpy(array)
        out.append(item)
    return out


def test_clients_that_leave_free_their_places(servers):
    """Also the places of those that still wait: the HTTP endpoint tells nobody, gRPC does."""
    import tritonclient.grpc as grpc

    port = servers("llmapi").server.endpoints.grpc
    until(lambda: running(servers) == 0)
    clients = [grpc.InferenceServerClient(f"127.0.0.1:{port}") for _ in range(10)]  # 8 run, 2 wait
    for client in clients:
        client.start_stream(lambda result, error: None)
        client.async_stream_infer(MODEL, long_request(grpc))
    until(lambda: running(servers) >= 10)
    for client in clients:
        client.stop_stream(cancel_requests=True)
        client.close()
    until(lambda: running(servers) == 0)


def test_a_stop_request_ends_those_of_its_id(servers):
    import tritonclient.grpc as grpc

    ports = servers("llmapi").server.endpoints
    got: list = []
    done = threading.Event()

    def answer(result, error):
        got.append((result, error))
        if error is not None:
            done.set()

    def inputs(**values):
        out = []
        for name, (kind, value) in values.items():
            item = grpc.InferInput(name, [1], kind)
            item.set_data_from_numpy(np.array([value], np.object_ if kind == "BYTES" else None))
            out.append(item)
        return out

    with grpc.InferenceServerClient(f"127.0.0.1:{ports.grpc}") as client:
        client.start_stream(answer)
        client.async_stream_infer(MODEL, long_request(grpc), request_id="one")
        until(lambda: len(got) > 2)
        with grpc.InferenceServerClient(f"127.0.0.1:{ports.grpc}") as other:
            answers: list = []
            other.start_stream(lambda result, error: answers.append((result, error)))
            other.async_stream_infer(
                MODEL, inputs(text_input=("BYTES", b"-"), stop=("BOOL", True)), request_id="one"
            )
            other.stop_stream()
        assert [error for _, error in answers] == [None]
        assert done.wait(10)
        client.stop_stream()
    assert "cancelled" in str(got[-1][1]).lower()
    assert len(got) < 300
    until(lambda: running(servers) == 0)


def test_media_and_logits_are_switched(url):
    for name, value, feature in (
        ("image_url", "https://a.example/x.png", "multimodal"),
        ("guided_decoding_guide_type", "json", "guided_decoding"),
        ("return_context_logits", True, "context_logits"),
        ("lora_name", "fr", "lora"),
    ):
        status, answer = post(url, PATH, {"text_input": "x", name: value})
        assert status == 400
        assert f"{name}: " in answer["error"]
        assert f"serving.features.{feature} off" in answer["error"]
