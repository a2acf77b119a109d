"""The engine lane's fronts on the real tritonserver, with the reference stand-in behind them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serving.conftest import built, plain, servers
from tests.serving.test_served import ENDS, QUESTIONS, RAW

__all__ = ["built", "plain", "servers"]
pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("server")]
BLS, ENSEMBLE = "tensorrt_llm_bls", "ensemble"


def ask(url, model, stream=False, **body):
    """(status, text or error) of one request; streamed pieces are put together."""
    path = f"/v2/models/{model}/generate" + ("_stream" if stream else "")
    data = json.dumps({**body, "stream": stream, "id": body.pop("id", "1")}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data), timeout=60) as answer:
            raw, status = answer.read().decode(), answer.status
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]
    lines = (
        [line[6:] for line in raw.splitlines() if line.startswith("data: ")] if stream else [raw]
    )
    parts = [json.loads(line) for line in lines]
    wrong = [part["error"] for part in parts if "error" in part]
    return (500, wrong[0]) if wrong else (status, "".join(part["text_output"] for part in parts))


def test_streamed_equals_whole_equals_transformers(servers, plain):
    """Also where the limit cuts a character."""
    url = servers("engine").server.endpoints.url
    cut = 0
    for prompt in (RAW[0], RAW[5], "Which emoji: 🐱 🐶 🦊 🐻 🐼 "):
        ids = plain.ids(prompt, 12, ENDS)
        for limit in range(1, 13):
            want = plain.text(ids[:limit])
            cut += want.endswith("\ufffd")
            body = {"text_input": prompt, "max_tokens": limit}
            assert ask(url, BLS, **body) == (200, want)
            assert ask(url, BLS, stream=True, **body) == (200, want)
    assert cut, "no answer ends within a character"


def test_many_at_once_equal_alone(servers):
    url = servers("engine").server.endpoints.url

    def one(prompt):
        return ask(url, BLS, stream=True, text_input=prompt, max_tokens=16, id="the same for all")

    alone = [one(prompt) for prompt in RAW]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, RAW * 2)) == alone * 2


@pytest.mark.parametrize("model", [BLS, ENSEMBLE])
def test_chat_messages(servers, model):
    url = servers("engine").server.endpoints.url
    messages = json.dumps([{"role": "user", "content": QUESTIONS[1]}])
    for stream in (False, True):
        assert ask(url, model, stream, messages=messages, max_tokens=60) == (200, "Grass is green.")


def test_stop_word_in_text(servers):
    url = servers("engine").server.endpoints.url
    messages = json.dumps([{"role": "user", "content": QUESTIONS[1]}])
    for stream in (False, True):
        got = ask(url, BLS, stream, messages=messages, max_tokens=60, stop_words=["ee"])
        assert got == (200, "Grass is gr")


def test_prompt_is_repeated_if_asked(servers):
    url = servers("engine").server.endpoints.url
    body = {"text_input": RAW[0], "max_tokens": 8}
    for stream in (False, True):
        _, answer = ask(url, BLS, stream, **body)
        status, whole = ask(url, BLS, stream, **body, exclude_input_in_output=False)
        assert (status, whole) == (200, RAW[0] + answer)


@pytest.mark.parametrize("model", [BLS, ENSEMBLE])
def test_wrong_requests_name_the_field(servers, model):
    url = servers("engine").server.endpoints.url
    body = {"text_input": "x", "max_tokens": 4}
    for changes, message in (
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"temperature": -1.0}, "temperature must be at least 0.0"),
        ({"stop_words": ["x"] * 10_000}, "stop_words has 10000 words"),
        ({"messages": "[]"}, "send text_input or messages, not both"),
        ({"text_input": "word " * 3000}, "text_input has "),
        ({"return_context_logits": True}, "serving.features.context_logits off"),
        ({"beam_width": 3}, "beam_width 3 is above max_beam_width"),
    ):
        status, error = ask(url, model, **{**body, **changes})
        assert status == 400, error
        assert message in error
    for missing in body:
        rest = {name: value for name, value in body.items() if name != missing}
        status, error = ask(url, model, **rest)
        assert status == 400, error
        assert f"{missing} is missing" in error
    assert ask(url, model, **body)[0] == 200
