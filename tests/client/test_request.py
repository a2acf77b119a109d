"""Building a request: names by lane, types by the model, one clear error for the rest. No server."""

from __future__ import annotations

import json

import pytest

from engineroom.catalog import Catalog
from engineroom.catalog.request_fields import contracts_of, load_request_fields
from engineroom.errors import UsageError
from engineroom.lanes import LANES
from engineroom.names import LaneName
from engineroom.runner.client_model import ModelInfo, TensorInfo, model_info
from engineroom.runner.client_request import Ask, Guide, build

CATALOG = Catalog()
TABLE = load_request_fields(CATALOG)
KINDS = {"TYPE_STRING": "BYTES"}


def model(lane: str, name: str) -> ModelInfo:
    """A model as a server would describe it: the newest contract's tensors and our additions."""
    newest = contracts_of(CATALOG, lane)[-1].data
    if lane == "vllm":
        tensors = newest["backend"]["inputs"]
    else:
        facts = newest["triton"]
        tensors = (facts["llmapi"] if lane == "llmapi" else facts["inflight_batcher_llm"][name])[
            "inputs"
        ]
    batch = [-1] if lane == "engine" else []
    rows = [
        {
            "name": t["name"],
            "datatype": KINDS.get(
                t["data_type"], (t["data_type"] or "TYPE_FP16").removeprefix("TYPE_")
            ),
            "shape": [*batch, *(t["dims"] or [-1])],
        }
        for t in tensors
    ]
    ours = [("messages", "BYTES", [1])]
    if lane == "llmapi":
        ours += [("sampling_param_bad", "BYTES", [-1]), ("sampling_param_n", "INT32", [1]),
                 ("guided_decoding_guide", "BYTES", [1]), ("guided_decoding_guide_type", "BYTES", [1])]  # fmt: skip
    if lane != "vllm":
        rows += [{"name": n, "datatype": d, "shape": [*batch, *s]} for n, d, s in ours]
    return model_info(name, {"inputs": rows}, "test")


ENGINE = model("engine", "tensorrt_llm_bls")
LLMAPI = model("llmapi", "tensorrt_llm")
VLLM = model("vllm", "vllm_model")
INFOS = {"engine": ENGINE, "llmapi": LLMAPI, "vllm": VLLM}


def made(lane: str, **facts):
    facts = {"prompt": "hi", **facts}
    return build(INFOS[lane], LANES[LaneName(lane)].client, TABLE, Ask(**facts))


OPTIONS = {"max_tokens": 9, "temperature": 1, "top_k": 5, "seed": 7, "stop": ("a", "b"), "n": 2}


def test_the_same_options_under_each_lanes_names():
    assert made("engine", options={**OPTIONS, "bad": ("x",)}, stream=True) == {
        "text_input": "hi", "stream": True, "max_tokens": 9, "temperature": 1.0, "top_k": 5,
        "seed": 7, "stop_words": ["a", "b"], "num_return_sequences": 2, "bad_words": ["x"],
    }  # fmt: skip
    assert made("llmapi", options={**OPTIONS, "bad": ("x",)}, stream=True) == {
        "text_input": "hi", "streaming": True, "sampling_param_max_tokens": 9,
        "sampling_param_temperature": 1.0, "sampling_param_top_k": 5, "sampling_param_seed": 7,
        "sampling_param_stop": ["a", "b"], "sampling_param_n": 2, "sampling_param_bad": ["x"],
    }  # fmt: skip
    body = made("vllm", options={**OPTIONS, "bad": ("x",)}, stream=True)
    assert json.loads(body.pop("sampling_parameters")) == {
        "max_tokens": 9, "temperature": 1, "top_k": 5, "seed": 7, "stop": ["a", "b"], "n": 2,
        "bad_words": ["x"],
    }  # fmt: skip
    assert body == {"text_input": "hi", "stream": True, "exclude_input_in_output": True}


def test_options_that_ask_for_nothing_are_not_sent():
    options = {"max_tokens": 9, "temperature": None, "stop": (), "return_log_probs": False}
    assert made("engine", options=options) == {"text_input": "hi", "max_tokens": 9}
    assert made("llmapi", options={"temperature": 0.0, "seed": 0})["sampling_param_seed"] == 0


def test_messages():
    messages = [{"role": "user", "content": "東京?"}]
    body = made("engine", prompt=None, messages=messages)
    assert json.loads(body["messages"]) == messages
    assert "text_input" not in body
    with pytest.raises(UsageError, match="not both"):
        made("engine", prompt="x", messages=messages)
    with pytest.raises(UsageError, match="has no input for it"):
        made("vllm", prompt=None, messages=messages)


def test_guides():
    guide = Guide("regex", "[a-c]+")
    for lane in ("engine", "llmapi"):
        body = made(lane, guide=guide)
        assert body["guided_decoding_guide_type"] == "regex"
        assert body["guided_decoding_guide"] == "[a-c]+"
    body = made("vllm", guide=Guide("json_schema", '{"type": "object"}'))
    outputs = json.loads(body["sampling_parameters"])["structured_outputs"]
    assert json.loads(outputs) == {"json": '{"type": "object"}'}


def test_adapters_by_name_or_number():
    assert made("engine", options={"lora": "3"})["lora_task_id"] == 3
    assert made("llmapi", options={"lora": "french"})["lora_name"] == "french"
    body = made("vllm", options={"lora": "french"})
    assert json.loads(body["sampling_parameters"]) == {"lora_name": "french"}
    with pytest.raises(UsageError, match="knows adapters by number"):
        made("engine", options={"lora": "french"})


def test_an_option_without_an_input_names_the_lanes_that_have_it():
    with pytest.raises(UsageError) as caught:
        made("llmapi", options={"beam_width": 2})
    assert caught.value.where.key == "--beam-width"
    assert "engine: `beam_width`" in caught.value.message


def test_set_is_typed_by_the_model():
    body = made(
        "engine",
        sets={"seed": "18446744073709551615", "top_p": "0.5", "return_log_probs": "true",
              "stop_words": '["a", "b"]', "end_id": "-1"},
    )  # fmt: skip
    assert body["seed"] == 2**64 - 1
    assert (body["top_p"], body["return_log_probs"]) == (0.5, True)
    assert (body["stop_words"], body["end_id"]) == (["a", "b"], -1)
    assert made("llmapi", sets={"sampling_param_stop": "x"})["sampling_param_stop"] == "x"
    body = made("vllm", sets={"sampling_parameters.min_p": "0.1"})
    assert json.loads(body["sampling_parameters"]) == {"min_p": 0.1}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("top_k", "x", "(INT32) takes a whole number, got `x`"),
        ("top_k", "1.5", "(INT32) takes a whole number, got `1.5`"),
        ("top_k", "true", "(INT32) takes a whole number"),
        ("top_k", "2147483648", "takes -2147483648 to 2147483647"),
        ("top_k", "[1, 2]", "takes one value, got 2"),
        ("seed", "-1", "takes 0 to 18446744073709551615"),
        ("temperature", "NaN", "takes a finite number"),
        ("temperature", "1e999", "takes a finite number"),
        ("temperature", "1e39", "takes a finite number"),
        ("temperature", "hot", "(FP32) takes a number"),
        ("stream", "1", "(BOOL) takes true or false, got `1`"),
        ("stream", "yes", "(BOOL) takes true or false, got `yes`"),
        ("stop_words", "[1]", "(BYTES) takes text, got `1`"),
        ("top_k", "[" * 2000, "takes a whole number"),
    ],
)
def test_a_wrong_type_names_the_input(name, text, says):
    with pytest.raises(UsageError) as caught:
        made("engine", sets={name: text})
    assert caught.value.message.startswith(f"`{name}`")
    assert says in caught.value.message
    assert caught.value.where.key == f"--set {name}"


def test_a_name_that_is_not_declared_is_refused():
    with pytest.raises(UsageError) as caught:
        made("llmapi", sets={"max_tokens": "3"})
    assert "Triton would ignore it" in caught.value.message
    assert caught.value.hint == "write --set sampling_param_max_tokens=…"
    with pytest.raises(UsageError, match=r"calls it `sampling_parameters\.top_k`"):
        made("vllm", sets={"top_k": "3"})
    with pytest.raises(UsageError, match=r"has no input `sampling_parameters\.nope`"):
        made("vllm", sets={"sampling_parameters.nope": "3"})


def test_nothing_is_set_twice():
    with pytest.raises(UsageError, match="`max_tokens` is set twice"):
        made("engine", options={"max_tokens": 3}, sets={"max_tokens": "4"})
    with pytest.raises(UsageError, match="`text_input` is set twice"):
        made("engine", sets={"text_input": "x"})


def test_a_model_that_does_not_say_types_takes_anything():
    info = ModelInfo("m", {n: TensorInfo(n) for n in ("text_input", "max_tokens", "top_k")})
    body = build(info, LANES[LaneName.ENGINE].client, TABLE, Ask(prompt="x", sets={"top_k": "y"}))
    assert body["top_k"] == "y"


def test_switches_of_a_repository():
    config = {"parameters": {"features": {"string_value": '{"chat": false, "lora": true}'}}}
    info = ModelInfo("m", {}, config=config)
    assert info.switched_off("chat")
    assert not info.switched_off("lora")
    assert not info.switched_off("other")
    for text in ("x", "[]", ""):
        other = {"parameters": {"features": {"string_value": text}}}
        assert not ModelInfo("m", {}, config=other).switched_off("chat")
    assert not ModelInfo("m", {}).switched_off("chat")
