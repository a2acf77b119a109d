"""The client against the real server: every front over HTTP and gRPC, options, errors, leaving."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from engineroom.catalog import Catalog
from engineroom.catalog.request_fields import contracts_of, load_request_fields
from engineroom.errors import ExternalToolError, UsageError
from engineroom.lanes import LANES
from engineroom.names import LaneName
from engineroom.pipeline import Reporter, generate
from engineroom.pipeline.generate import find_front
from engineroom.runner import chat, client
from tests.conftest import TINY, run_cli

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("client-docs")]
PROMPT, QUESTION, ENDS = 'The "for" statement is used to', "What colour is grass?", [2, 0]
FRONTS = {
    "bls": ("engine", "tensorrt_llm_bls"), "ensemble": ("engine", "ensemble"),
    "llmapi": ("llmapi", "tensorrt_llm"), "vllm": ("vllm", "vllm_model"),
}  # fmt: skip
# Both protocols, streamed and not; the other two pairs in the full form.
WAYS = [
    pytest.param("http", False, marks=pytest.mark.full), ("http", True),
    ("grpc", False), pytest.param("grpc", True, marks=pytest.mark.full),
]  # fmt: skip


def address(lane_servers, front: str, protocol: str) -> str:
    ports = lane_servers(FRONTS[front][0]).server.endpoints
    return ports.url if protocol == "http" else f"127.0.0.1:{ports.grpc}"


def ask(lane_servers, front: str, protocol: str = "http", **facts):
    url = address(lane_servers, front, protocol)
    return generate(url, protocol=protocol, model=FRONTS[front][1], **facts)


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(("protocol", "stream"), WAYS)
def test_text_equals_plain_transformers(lane_servers, plain, front, protocol, stream):
    pieces: list[str] = []

    class Echo(Reporter):
        def answer(self, text: str) -> None:
            pieces.append(text)

    made = ask(
        lane_servers, front, protocol, prompt=PROMPT, max_tokens=16, stream=stream, reporter=Echo()
    )
    assert made.answer.text == plain.text(plain.ids(PROMPT, 16, ENDS))
    assert (made.lane, made.model, made.protocol) == (*FRONTS[front], protocol)
    assert "".join(pieces) == made.answer.text
    assert (made.answer.events > 8) is stream


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("lane", ["engine", "llmapi", "vllm"])
def test_the_front_is_found_by_its_inputs(lane_servers, lane, protocol):
    ports = lane_servers(lane).server.endpoints
    url = ports.url if protocol == "http" else f"127.0.0.1:{ports.grpc}"
    found = client.connect(url, protocol)
    made, info = find_front(found)
    assert made.name == lane
    assert info.name == {"engine": "tensorrt_llm_bls"}.get(lane, LANES[LaneName(lane)].client.model)
    with pytest.raises(UsageError, match="has no model `nope`"):
        find_front(found, "nope")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("front", ["bls", "ensemble", "llmapi", "vllm"])
def test_chat_by_the_server_or_by_the_folder(lane_servers, plain, front, protocol):
    prompt = chat.apply(TINY, [{"role": "user", "content": QUESTION}])
    want = plain.text(plain.ids(prompt, 40, ENDS))
    assert want == "Grass is green."
    messages = [{"role": "user", "content": QUESTION}]
    here = ask(
        lane_servers, front, protocol, prompt=QUESTION, tokenizer=TINY, max_tokens=40, stream=True
    )
    assert here.answer.text == want
    assert here.tokens == 7
    if front == "vllm":
        with pytest.raises(UsageError, match="has no input `messages`"):
            ask(lane_servers, front, protocol, messages=messages)
    else:
        there = ask(lane_servers, front, protocol, messages=messages, max_tokens=40)
        assert there.answer.text == want


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("front", ["bls", "llmapi", "vllm"])
def test_options_reach_the_model(lane_servers, plain, front, protocol):
    whole = plain.text(plain.ids(PROMPT, 16, ENDS))
    word = whole[6:9]
    cut = ask(
        lane_servers, front, protocol, prompt=PROMPT, max_tokens=16, options={"stop": (word,)}
    )
    assert cut.answer.text == whole.split(word)[0]
    hot = {"temperature": 0.9, "top_k": 50, "seed": 5}
    first, again, other = (
        ask(lane_servers, front, protocol, prompt=PROMPT, options=options).answer.text
        for options in (hot, hot, {**hot, "seed": 6})
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(("protocol", "stream"), WAYS)
@pytest.mark.parametrize("front", ["bls", "ensemble", "llmapi", "vllm"])
def test_usage(lane_servers, plain, front, protocol, stream):
    options = {"return_prompt_tokens": True, "return_completion_tokens": True}
    made = ask(
        lane_servers, front, protocol, prompt=PROMPT, max_tokens=9, stream=stream, options=options
    )
    prompt_tokens = len(plain.tokenizer.encode(PROMPT))
    assert made.usage == {"prompt_tokens": prompt_tokens, "completion_tokens": 9}
    assert made.tokens == 9


@pytest.mark.parametrize(("protocol", "stream"), WAYS)
@pytest.mark.parametrize("front", ["bls", "llmapi"])
def test_log_probs_are_one_a_token(lane_servers, front, protocol, stream):
    made = ask(
        lane_servers, front, protocol, prompt=PROMPT, max_tokens=9, stream=stream,
        options={"return_log_probs": True},
    )  # fmt: skip
    values = made.answer.outputs["output_log_probs"]
    assert len(values) == 9
    assert all(value <= 0 for value in values)


@pytest.mark.parametrize(("protocol", "stream"), WAYS)
@pytest.mark.parametrize("front", ["bls", "llmapi", "vllm"])
def test_several_sequences(lane_servers, front, protocol, stream):
    options = {"n": 3, "temperature": 1.0, "top_k": 50, "seed": 3}
    made = ask(
        lane_servers, front, protocol, prompt=PROMPT, max_tokens=12, stream=stream, options=options
    )
    assert len(made.answer.texts) == 3
    assert len(set(made.answer.texts)) > 1
    again = ask(lane_servers, front, "grpc", prompt=PROMPT, max_tokens=12, options=options)
    assert again.answer.texts == made.answer.texts


def test_cumulative_streams_are_shown_once(lane_servers, plain):
    made = ask(
        lane_servers, "llmapi", prompt=PROMPT, max_tokens=16, stream=True,
        sets={"stream_cumulative": "true"},
    )  # fmt: skip
    assert made.answer.text == plain.text(plain.ids(PROMPT, 16, ENDS))
    assert made.answer.events > 8


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("front", "wrong", "right"),
    [
        ("bls", "sampling_param_max_tokens", "max_tokens"),
        ("ensemble", "max_new_tokens", "max_tokens"),
        ("llmapi", "max_tokens", "sampling_param_max_tokens"),
        ("vllm", "top_k", "sampling_parameters.top_k"),
    ],
)
def test_unknown_names_are_refused_with_the_right_one(lane_servers, front, protocol, wrong, right):
    with pytest.raises(UsageError, match=f"has no input `{wrong}`.*calls it `{right}`"):
        ask(lane_servers, front, protocol, prompt=PROMPT, sets={wrong: "3"})


@pytest.mark.parametrize("front", ["bls", "ensemble", "llmapi", "vllm"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_servers_own_error_is_shown(lane_servers, front, protocol):
    with pytest.raises(ExternalToolError, match=r"the server answered .*1024"):
        ask(lane_servers, front, protocol, prompt=PROMPT, max_tokens=99999)


def test_triton_reads_keys_below_parameters_as_inputs(lane_servers, plain):
    """What the rule about request names takes for granted."""
    url = address(lane_servers, "llmapi", "http")
    body = {"text_input": PROMPT, "parameters": {"sampling_param_max_tokens": 3}, "max_tokens": 9}
    request = urllib.request.Request(
        url + "/v2/models/tensorrt_llm/generate", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["text_output"] == plain.text(plain.ids(PROMPT, 3, ENDS))


@pytest.mark.parametrize("front", FRONTS)
def test_the_table_of_names_is_what_the_server_declares(lane_servers, front):
    lane, name = FRONTS[front]
    catalog = Catalog()
    table = load_request_fields(catalog)
    dialect = LANES[LaneName(lane)].client.dialect
    info = client.connect(address(lane_servers, front, "grpc"), "grpc").model(name)
    assert set(info.inputs) <= table.known(dialect, contracts_of(catalog, dialect))
    for rows, declared in ((table.inputs, info.inputs), (table.outputs, info.outputs)):
        for row in rows:
            # What we say that our repositories add is there; logits are off in this spec, and an
            # output of a feature that is off is not declared.
            off = rows is table.outputs and row.id.endswith("_logits")
            if dialect in row.ours and not off:
                assert set(row.names(dialect)) & set(declared), (front, row.id)


def active(lane_servers) -> float:
    port = lane_servers("llmapi").server.endpoints.metrics
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("nv_trt_llm_request_metrics{") and 'request_type="active"' in line
    )


def comes_to(lane_servers, count: int, seconds: float = 10) -> bool:
    """Whether the gauge of active requests shows `count` within the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if active(lane_servers) == count:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_ctrl_c_cancels_the_request_and_ends_with_130(lane_servers, protocol):
    argv = ["generate", PROMPT, "--max-tokens", "900", "--url",
            address(lane_servers, "llmapi", protocol), "--protocol", protocol,
            "--set", "sampling_param_end_id=[-1]"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "engineroom", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.read(1)
    # The gauge follows a request by its period: 0 must mean that it ended, not that it is not seen yet.
    assert comes_to(lane_servers, 1)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=30)
    assert first
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    assert len(rest) < 2500  # far from 900 tokens
    assert comes_to(lane_servers, 0)


def test_the_command_line(lane_servers, plain, tmp_path):
    url = address(lane_servers, "llmapi", "grpc")
    grpc = ("--protocol", "grpc", "--url", url)
    want = plain.text(plain.ids(PROMPT, 8, ENDS))
    (tmp_path / "prompt.txt").write_text(PROMPT)
    done = run_cli(
        "generate", "--prompt-file", str(tmp_path / "prompt.txt"), "--max-tokens", "8", "--usage",
        "--finish-reason", "--format", "json", *grpc,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["text"], made["lane"], made["usage"]["completion_tokens"]) == (want, "llmapi", 8)
    assert made["outputs"]["finish_reason"] == "length"
    done = run_cli("generate", PROMPT, "--set", "sampling_param_top_k=x", *grpc)
    assert done.returncode == 2
    assert "`sampling_param_top_k` (INT32) takes a whole number, got `x`" in done.stderr
    done = run_cli("generate", PROMPT, "--temperature", "-1", *grpc)
    assert done.returncode == 3
    assert "sampling_param_temperature" in done.stderr
    assert "Traceback" not in done.stderr
