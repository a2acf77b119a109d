"""`lint` on request bodies: JSON files, curl calls, and what it must not say anything about."""

from __future__ import annotations

import json

import pytest

from engineroom.pipeline import lint
from engineroom.reading.requests import curl_requests, is_body

CODE = "request-name-is-no-input"


def found(report) -> dict[str, tuple[str, str]]:
    return {f.key: (str(f.severity), f.fix) for f in report.findings if f.code == CODE}


def write(folder, name: str, data) -> object:
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data), "utf-8")
    return path


SCRIPT = r"""#!/bin/sh
# curl in a comment of no consequence
for i in 1 2; do
  curl -s -X POST "$URL/v2/models/ensemble/generate" -d '{"text_input": "it",
    "max_new_tokens": 20, "temprature": 0.5}' | jq .
done
curl localhost:8000/v2/models/tensorrt_llm/versions/1/generate_stream --data-raw \
  '{"text_input": "hi", "sampling_param_max_tokens": 5, "stream": true}' && echo done
curl localhost:8000/v2/models/m/generate -d @body.json
curl localhost:8000/v2/models/m/generate -d "{\"text_input\": \"$PROMPT\"}"
curl localhost:8000/v2/health/ready
curl --json='{"text_input": "x", "max_tokens": 1}' localhost:8000/v2/models/tensorrt_llm_bls/generate
"""


def test_curl_calls_of_a_script():
    calls = curl_requests(SCRIPT)
    assert [(c["model"], c["endpoint"]) for c in calls] == [
        ("ensemble", "generate"), ("tensorrt_llm", "generate_stream"), ("m", "generate"),
        ("tensorrt_llm_bls", "generate"),
    ]  # fmt: skip
    assert calls[0]["body"] == {"text_input": "it", "max_new_tokens": 20, "temprature": 0.5}
    assert calls[2]["body"] == {"text_input": "$PROMPT"}


def test_a_script_is_judged_call_by_call(tmp_path):
    report = lint([write(tmp_path, "ask.sh", SCRIPT)])
    assert found(report) == {
        "body.max_new_tokens": ("error", "write `max_tokens`"),
        "body.temprature": ("warn", "write `temperature`"),
        "body.stream": ("error", "write `streaming`"),
    }
    assert {f.file for f in report.findings} == {str(tmp_path / "ask.sh")}


def test_a_json_body(tmp_path):
    good = {"text_input": "x", "sampling_param_max_tokens": 5, "parameters": {"streaming": True}}
    assert found(lint([write(tmp_path, "a.json", good)])) == {}
    assert found(lint([write(tmp_path, "b.json", {**good, "max_tokens": 5})])) == {
        "body.max_tokens": ("error", "write `sampling_param_max_tokens`")
    }
    nested = {"text_input": "x", "max_tokens": 5, "parameters": {"sampling_param_stop": "a"}}
    assert found(lint([write(tmp_path, "c.json", nested)])) == {
        "body.parameters.sampling_param_stop": ("error", "write `stop_words`")
    }


def test_the_lane_decides_where_it_is_said(tmp_path):
    body = write(tmp_path, "a.json", {"text_input": "x", "max_tokens": 5, "stream": True})
    assert found(lint([body])) == {}
    assert set(found(lint([body], lane="llmapi"))) == {"body.max_tokens", "body.stream"}
    assert found(lint([body], lane="engine")) == {}


def test_the_models_own_config_decides(tmp_path):
    folder = tmp_path / "repository/ensemble"
    folder.mkdir(parents=True)
    config = 'name: "ensemble" platform: "ensemble" max_batch_size: 8\n' + "".join(
        f'input {{ name: "{name}" data_type: TYPE_STRING dims: [ 1 ] }}\n'
        for name in ("text_input", "max_tokens", "our_own")
    )
    (folder / "config.pbtxt").write_text(config)
    call = (
        'curl h:1/v2/models/ensemble/generate -d \'{"text_input": "x", "our_own": 1, "top_k": 3}\''
    )
    script = write(tmp_path, "ask.sh", call)
    assert set(found(lint([tmp_path / "repository", script]))) == {"body.top_k"}
    assert set(found(lint([script]))) == {"body.our_own"}


def test_vllm_reads_parameters_unless_the_object_is_there(tmp_path):
    def ask(body):
        text = f"curl h:1/v2/models/vllm_model/generate -d '{json.dumps(body)}'"
        return set(found(lint([write(tmp_path, "ask.sh", text)])))

    assert ask({"text_input": "x", "temperature": 0, "parameters": {"max_tokens": 3}}) == set()
    assert ask({"text_input": "x", "max_new_tokens": 3}) == {"body.max_new_tokens"}
    given = {"text_input": "x", "sampling_parameters": json.dumps({"max_tokens": 3})}
    assert ask(given) == set()
    assert ask({**given, "temperature": 0}) == {"body.temperature"}
    wrong = {"text_input": "x", "sampling_parameters": json.dumps({"max_new_tokens": 3})}
    assert ask(wrong) == {"body.sampling_parameters.max_new_tokens"}


def test_a_command_line(tmp_path):
    call = 'curl h:1/v2/models/ensemble/generate -d \'{"text_input": "x", "max_new_tokens": 1}\''
    assert set(found(lint(command=call))) == {"body.max_new_tokens"}


def test_facts(tmp_path):
    facts = write(
        tmp_path, "facts.json", {"request_bodies": [{"model": "ensemble", "body": {"stop": ["a"]}}]}
    )
    assert found(lint(facts=facts)) == {
        "request_bodies[0].body.stop": ("error", "write `stop_words`")
    }


@pytest.mark.parametrize(
    "text",
    [
        "curl", "curl -d", "curl 'x", "curl h/v2/models/m/generate -d", "curl h/v2/models/m/generate -d '[1]'",
        "curl h/v2/models/m/generate -d '" + "[" * 5000 + "'", "curl " * 2000, "",
        "curl h/v2/models//generate -d '{}'", "xcurl h/v2/models/m/generate -d '{}'",
    ],
)  # fmt: skip
def test_odd_scripts_hold_no_request(text):
    assert curl_requests(text) == []


@pytest.mark.parametrize("data", [None, [], {}, {"text_input": 1}, {"model": "x", "prompt": "y"}])
def test_what_is_no_body(data):
    assert not is_body(data)
