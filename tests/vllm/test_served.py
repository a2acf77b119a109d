"""The vllm lane on the real tritonserver, with the reference runtime behind the backend's tensors.

What the stand-in is measured by is triton-inference-server/vllm_backend r26.01, src/utils/request.py.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import yaml

from engineroom.lanes import LANES
from engineroom.names import LaneName
from engineroom.pipeline.generate import generate
from engineroom.runner import client
from engineroom.runner.triton import TritonServer
from tests.vllm.conftest import NAME

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("server")]
FIELDS = LANES[LaneName.VLLM].client
HIDE = {"exclude_input_in_output": True}
ENDS = [2, 0]
PROMPTS = [
    'The "for" statement is used to', '{"name": "', "Return a list of", "Élan naïve über 東京",
    "import os\nclass", "Ωmega and 🐱",
]  # fmt: skip


def post(url, body, verb="generate"):
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v2/models/vllm_model/{verb}", data)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def ask(url, prompt, params=None, **inputs):
    body = {"text_input": prompt, **inputs}
    if params is not None:
        body["sampling_parameters"] = params if isinstance(params, str) else json.dumps(params)
    status, text = post(url, body)
    return status, json.loads(text)


@pytest.fixture(scope="session")
def url(served):
    return served.server.endpoints.url


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_text_equals_plain_transformers_streamed_and_whole(served, plain, protocol):
    endpoints = served.server.endpoints
    where = endpoints.url if protocol == "http" else f"127.0.0.1:{endpoints.grpc}"
    for prompt in PROMPTS:
        want = plain.text(plain.ids(prompt, 24, ENDS))
        texts = {
            stream: client.generate(
                where, FIELDS, prompt, 24, stream=stream, extra=HIDE, protocol=protocol
            ).text
            for stream in (True, False)
        }
        assert texts == {True: want, False: want}, prompt


def test_streamed_pieces_are_deltas(url):
    pieces = []
    answer = client.generate(
        url, FIELDS, PROMPTS[0], 16, stream=True, on_text=pieces.append, extra=HIDE
    )
    assert len(pieces) > 8
    assert "".join(pieces) == answer.text


def test_generate_command_asks_this_lane(url):
    """Our client finds the lane by its fields, hides the prompt, and reads the counts."""
    options = {"return_prompt_tokens": True, "return_completion_tokens": True}
    for stream in (True, False):
        answer = generate(url, PROMPTS[0], max_tokens=9, stream=stream, options=options)
        assert (answer.lane, answer.model) == ("vllm", "vllm_model")
        assert not answer.answer.text.startswith(PROMPTS[0])
        assert answer.usage["completion_tokens"] == 9
        assert answer.usage["prompt_tokens"] > 3


def test_prompt_is_in_front_of_whole_answers_unless_excluded(url):
    """The backend's default, and the trap: streams never have it, whole answers do."""
    params = {"max_tokens": 8}
    bare = ask(url, PROMPTS[0], params, **HIDE)[1]["text_output"]
    assert ask(url, PROMPTS[0], params)[1]["text_output"] == PROMPTS[0] + bare
    status, answer = ask(url, PROMPTS[0], params, stream=True, exclude_input_in_output=False)
    assert status != 200
    assert "exclude_input_in_output" in answer["error"]


def test_sampling_parameters_are_respected(url):
    def one(**params):
        asked = {"return_num_output_tokens": True, "return_finish_reason": True, **HIDE}
        status, answer = ask(url, PROMPTS[0], params, **asked)
        assert status == 200, answer
        return answer

    for count in (1, 7, 20):
        assert one(max_tokens=count)["num_output_tokens"] == count
    default = one()  # SamplingParams.max_tokens is 16
    assert (default["num_output_tokens"], default["finish_reason"]) == (16, "length")
    greedy = one(max_tokens=20)["text_output"]
    word = greedy[6:9]
    stopped = one(max_tokens=20, stop=[word])
    assert stopped["text_output"] == greedy[: greedy.index(word)]
    assert stopped["finish_reason"] == "stop"
    hot = {"max_tokens": 20, "temperature": 1.5, "seed": 7}
    assert one(**hot)["text_output"] == one(**hot)["text_output"]
    assert {one(**{**hot, "seed": seed})["text_output"] for seed in range(4)} != {greedy}


def test_bad_words_and_penalties_change_the_text(url):
    def one(**params):
        status, answer = ask(url, PROMPTS[0], {"max_tokens": 20, **params}, **HIDE)
        assert status == 200, answer
        return answer["text_output"]

    greedy = one()
    word = greedy.split()[1]
    assert word not in one(bad_words=[f" {word}", word]).split()
    assert one(repetition_penalty=2.0) != greedy
    assert one(temperature=0, top_k=-1) == greedy  # -1 is vLLM's word for all


@pytest.mark.parametrize("key", ["structured_outputs", "guided_decoding"])
def test_guided_decoding_by_schema_and_regex(url, key):
    """The value is JSON as text, as the backend reads it; its key differs between releases."""
    schema = {
        "type": "object", "properties": {"id": {"type": "integer", "maximum": 99}},
        "required": ["id"], "additionalProperties": False,
    }  # fmt: skip
    for guide, check in (
        ({"json": schema}, lambda text: isinstance(json.loads(text)["id"], int)),
        ({"regex": "[ab]{3}x"}, lambda text: re.fullmatch("[ab]{3}x", text)),
    ):
        params = {"max_tokens": 60, key: json.dumps(guide)}
        status, answer = ask(url, PROMPTS[0], params, **HIDE)
        assert status == 200, answer
        assert check(answer["text_output"])


def test_streamed_counts_and_log_probs_are_deltas(url):
    body = {
        "text_input": PROMPTS[0], "stream": True, "return_num_output_tokens": True,
        "return_logprobs": True, "return_finish_reason": True, "return_num_input_tokens": True,
        "sampling_parameters": '{"max_tokens": 9}',
    }  # fmt: skip
    status, text = post(url, body, "generate_stream")
    assert status == 200
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert len(events) > 3
    assert sum(event["num_output_tokens"] for event in events) == 9
    assert sum(len(json.loads(event["logprobs"])) for event in events) == 9
    reasons = [event["finish_reason"] for event in events]
    assert set(reasons[:-1]) == {"None"}  # as the backend writes a reason that is not there
    assert reasons[-1] == "length"
    counts = {event["num_input_tokens"] for event in events}
    assert len(counts) == 1  # the prompt's length is known from the first event on
    assert counts.pop() > 3


def test_request_parameters_stand_in_for_the_tensor(url):
    """Without the tensor the backend takes the request's own parameters, as curl examples send them."""
    body = {"text_input": PROMPTS[0], "parameters": {"max_tokens": 5}, **HIDE}
    status, text = post(url, {**body, "return_num_output_tokens": True})
    assert status == 200, text
    assert json.loads(text)["num_output_tokens"] == 5


def test_further_outputs(url):
    wants = {
        f"return_{name}": True
        for name in (
            "finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens",
            "num_output_tokens",
        )
    }  # fmt: skip
    answer = ask(url, PROMPTS[0], {"max_tokens": 4}, **wants, **HIDE)[1]
    probs = json.loads(answer["logprobs"])
    assert len(probs) == 4 == answer["num_output_tokens"]
    total = sum(next(iter(row.values()))["logprob"] for row in probs)
    assert answer["cumulative_logprob"] == pytest.approx(total, abs=1e-3)
    assert total < 0
    assert answer["num_input_tokens"] > 3
    plain = ask(url, PROMPTS[0], {"max_tokens": 4})[1]
    assert set(plain) == {"model_name", "model_version", "text_output"}
    several = ask(url, PROMPTS[0], {"max_tokens": 4, "n": 2, "temperature": 1.0, "seed": 1}, **HIDE)
    assert len(several[1]["text_output"]) == 2


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ("{", "sampling_parameters"),
        ("[1]", "sampling_parameters"),
        ({"max_token": 4}, "max_token"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ('{"temperature": NaN}', "temperature"),
        ({"stop": [3]}, "stop"),
        ({"n": 0}, "n must be"),
        ({"lora_name": "x"}, "lora_name"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": "{}"}, "structured_outputs"),
        ({"bad_words": 5}, "bad_words"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids"),
    ],
)
def test_bad_parameters_name_the_field_and_hurt_nobody(url, params, word):
    status, answer = ask(url, PROMPTS[0], params)
    assert status != 200
    assert word in answer["error"]
    assert "Traceback" not in answer["error"]
    assert ask(url, PROMPTS[0], {"max_tokens": 2})[0] == 200


def test_requests_at_once_equal_requests_alone(url):
    def one(prompt):
        return client.generate(url, FIELDS, prompt, 16, stream=True, extra=HIDE).text

    alone = [one(prompt) for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        assert list(pool.map(one, PROMPTS)) == alone


def test_a_stream_that_is_left_is_cancelled(served, url):
    import tritonclient.grpc as grpc

    text = grpc.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([PROMPTS[0].encode()], np.object_))
    stream = grpc.InferInput("stream", [1], "BOOL")
    stream.set_data_from_numpy(np.array([True]))
    params = grpc.InferInput("sampling_parameters", [1], "BYTES")
    params.set_data_from_numpy(np.array([b'{"max_tokens": 900, "ignore_eos": true}'], np.object_))
    answers = []
    with grpc.InferenceServerClient(f"127.0.0.1:{served.server.endpoints.grpc}") as server:
        server.start_stream(lambda result, error: answers.append((result, error)))
        server.async_stream_infer("vllm_model", [text, stream, params])
        deadline = time.monotonic() + 20
        while len(answers) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        server.stop_stream(cancel_requests=True)
    assert 3 <= len(answers) < 800
    started = time.monotonic()
    assert ask(url, PROMPTS[1], {"max_tokens": 2})[0] == 200
    assert time.monotonic() - started < 5


def test_the_server_says_what_it_serves(served, url):
    with urllib.request.urlopen(f"{url}/v2/models/vllm_model/config", timeout=10) as answer:
        config = json.load(answer)
    assert config["model_transaction_policy"]["decoupled"] is True
    assert config["parameters"]["engineroom_runtime"]["string_value"] == "reference"
    package = served.repository.artefact
    assert package.kind == "vllm-package"
    document = yaml.safe_load((package.path / "engine_args.yaml").read_text())
    written = json.loads((served.repository.path / "vllm_model/1/model.json").read_text())
    assert written.pop("model") == f"{package.path.as_posix()}/checkpoint"
    assert written == document
    assert (package.path / "checkpoint/hf_quant_config.json").is_file()


def test_stand_in_refuses_a_repository_for_vllm_itself(built, tmp_path):
    """What is rendered for deployment must not be answered by something else."""
    from engineroom.errors import ExternalToolError
    from engineroom.pipeline import render

    repository = render(built, NAME)[0]
    text = (repository.path / "vllm_model/config.pbtxt").read_text()
    assert "engineroom_runtime" not in text
    server = TritonServer(
        repository.path, tmp_path / "w", built.catalog.template_roots, log=tmp_path / "log"
    )
    with server, pytest.raises(ExternalToolError, match="rendered for `reference`"):
        server.wait_ready(60)
