"""Tensors of a request to what the runtime gets, and errors that name the tensor."""

from __future__ import annotations

import json

import numpy as np
import pytest

from engineroom.lanes.llmapi.tensors import ADDITIONS, switches, tensors
from engineroom.spec.serving import Features
from tests.llmapi.conftest import Request

ON = dict.fromkeys(
    ("sequences", "chat", "bad_words", "log_probs", "usage", "perf_metrics", "context_logits",
     "generation_logits", "guided_decoding", "lora", "multimodal"), True,
)  # fmt: skip
ADAPTERS = [
    {"name": "fr", "id": 7, "path": "/adapters/fr"}, {"name": "de", "id": 9, "path": "/adapters/de"},
]  # fmt: skip
P = "sampling_param_"


def read(features=ON, *, args=None, **inputs):
    from inputs import Limits, Reader

    args = {"max_seq_len": 1024, "max_batch_size": 8, "max_beam_width": 4} if args is None else args
    return Reader(Limits(args), features, ADAPTERS).read(Request(**inputs))


def refused(match, features=ON, **inputs):
    with pytest.raises(ValueError, match=match) as info:
        read(features, **{"text_input": "hi", **inputs})
    return str(info.value)


def test_every_declared_input_is_read_and_nothing_else(catalog):
    """The model's table and the lane's declarations cannot drift apart."""
    from inputs import Limits, Reader

    known = set(Reader(Limits({}), ON)._table)
    declared = set()
    for version in ("0.21.0", "1.0.0", "1.1.0", "1.2.1", "1.4.0rc4"):
        family = catalog.contract(version).family("llmapi")
        declared |= {t["name"] for t in tensors(family, "inputs", Features())}
    assert declared == known


def test_features_of_the_table_are_the_specs():
    """A row's switch is the one that the model refuses by."""
    from input_table import FEATURES, gated
    from inputs import Limits

    assert set(FEATURES) <= set(switches(Features()))
    off = gated(Limits({}), {})
    named = {row.name: row.feature for row in ADDITIONS if row.side == "inputs" and row.feature}
    assert set(named) | {P + "best_of"} == set(off)
    for name, feature in named.items():
        value = np.array([2], np.int64) if name != "messages" else np.array([b"x"], np.object_)
        with pytest.raises(ValueError, match=rf"^{name}: .*serving\.features\.{feature} off"):
            off[name](None, name, value)


@pytest.mark.parametrize("value", [False, 0, "", 1])
def test_a_switched_off_input_may_say_that_it_wants_nothing(value):
    name = {False: "return_log_probs", "": "messages"}.get(value, P + "n")
    if value == 0 and value is not False:
        return
    assert read({}, text_input="hi", **{name: value}).prompt == "hi"


def test_all_fields_reach_the_request():
    wanted = read(
        text_input="hi", streaming=True, request_priority=0.75,
        **{
            P + "max_tokens": 9, P + "min_tokens": 2, P + "temperature": 0.5, P + "top_k": 4,
            P + "top_p": 0.5, P + "top_p_min": 0.25, P + "repetition_penalty": 1.5,
            P + "frequency_penalty": -0.5, P + "presence_penalty": 0.25, P + "length_penalty": 1.0,
            P + "seed": np.array([2**63 + 5], np.uint64), P + "stop": ["a", "", "é"],
            P + "bad": ["b"], P + "n": 2, P + "end_id": [5, 6],
        },
    )  # fmt: skip
    assert wanted.fields == {
        "max_tokens": 9, "min_tokens": 2, "temperature": 0.5, "top_k": 4, "top_p": 0.5,
        "top_p_min": 0.25, "repetition_penalty": 1.5, "frequency_penalty": -0.5,
        "presence_penalty": 0.25, "length_penalty": 1.0, "seed": 2**63 + 5, "stop": ["a", "é"],
        "bad": ["b"], "n": 2, "end_ids": [5, 6], "streaming": True, "priority": 0.75,
    }  # fmt: skip
    from runtime_api import Request as RuntimeRequest

    RuntimeRequest(prompt="hi", **wanted.fields)  # takes them all


def test_outputs_that_are_asked_for_and_what_the_runtime_collects_for_them():
    flags = (
        "return_finish_reason", "return_log_probs", "return_num_input_tokens", "return_context_logits",
        "return_cumulative_logprob",
    )  # fmt: skip
    wanted = read(text_input="hi", **dict.fromkeys(flags, True))
    assert wanted.returns == (
        "finish_reason", "output_log_probs", "num_input_tokens", "context_logits",
        "cumulative_logprob",
    )  # fmt: skip
    assert wanted.fields == {"log_probs": True, "context_logits": True}
    wanted = read(text_input="hi", **{P + "return_perf_metrics": True})
    assert wanted.fields == {"perf": True}
    assert "kv_cache_reused_block" in wanted.returns
    assert len(wanted.returns) == 12
    assert read(text_input="hi", **dict.fromkeys(flags, False)).returns == ()


def test_beams():
    wanted = read(
        text_input="hi", **{P + "n": 2, P + "best_of": 3, P + "use_beam_search": True}
    )  # fmt: skip
    assert wanted.fields == {"n": 2, "best_of": 3, "beam_width": 3}
    refused("max_beam_width 4", **{P + "n": 5, P + "use_beam_search": True})
    refused(P + "best_of 1 is below sampling_param_n 2", **{P + "n": 2, P + "best_of": 1})
    refused("known only at the end", streaming=True, **{P + "n": 2, P + "best_of": 3})
    refused("known only at the end", streaming=True, **{P + "use_beam_search": True})


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (P + "temperature", float("nan"), "finite"),
        (P + "temperature", float("inf"), "finite"),
        (P + "temperature", -0.5, "at least 0"),
        (P + "top_p", 1.5, "at most 1"),
        (P + "top_k", -1, "at least 0"),
        (P + "max_tokens", 0, "at least 1"),
        (P + "max_tokens", 1025, "max_seq_len 1024"),
        (P + "min_tokens", -3, "at least 0"),
        (P + "min_tokens", 17, "above sampling_param_max_tokens 16"),
        (P + "n", 0, "at least 1"),
        (P + "n", 9, "max_batch_size 8"),
        (P + "repetition_penalty", 0.0, "above 0"),
        (P + "repetition_penalty", -1.0, "above 0"),
        ("request_priority", 1.5, "at most 1"),
        (P + "max_tokens", [1, 2], "one value, got 2"),
        (P + "stop", [f"w{i}" for i in range(10_000)], "10000 words, at most 256"),
        (P + "stop", ["x" * 5000], "5000 bytes"),
        (P + "bad", ["x" * 4000] * 20, "65536"),
        (P + "stop", [b"\xc3"], "UTF-8"),
        (P + "end_id", [-1, 4], "or -1 alone"),
        (P + "end_id", [], "or -1 alone"),
        ("guided_decoding_guide_type", "nonsense", "json, json_schema"),
        ("guided_decoding_guide", "{}", "guided_decoding_guide_type is missing"),
        ("lora_ckpt_source", "zip", "hf or nemo"),
        ("lora_name", "nobody", "'nobody': no adapter of this model; it has fr, de"),
        ("image_url", ["https://a/"] * 17, "17 addresses, at most 16"),
    ],
)
def test_a_bad_value_is_refused_by_name(name, value, why):
    message = refused(why, **{name: value})
    assert name in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"text_input": [b"\xff\xfe"]}, "text_input is not UTF-8"),
        ({"text_input": ["a", "b"]}, "text_input must have one prompt, got 2"),
        ({"text_input": []}, "text_input must have one prompt, got 0"),
        ({"text_input": ""}, "text_input is empty"),
        ({}, "text_input is missing"),
        ({"text_input": "a", "messages": "[]"}, "not both"),
        ({"text_input": "x" * 70_000}, "70000 bytes, which cannot fit into max_seq_len 1024"),
    ],
)
def test_prompts(inputs, why):
    with pytest.raises(ValueError, match=why):
        read(**inputs)


@pytest.mark.parametrize("kind", ["json_schema", "structural_tag"])
@pytest.mark.parametrize("guide", ["not json", "[" * 50_000, "5"])
def test_a_guide_that_is_no_json_is_refused(kind, guide):
    refused(
        "guided_decoding_guide", guided_decoding_guide_type=kind, guided_decoding_guide=guide
    )  # fmt: skip


def test_guides():
    from runtime_api import Guide

    wanted = read(text_input="x", guided_decoding_guide="a+", guided_decoding_guide_type="regex")
    assert wanted.fields["guide"] == Guide("regex", "a+")
    assert read(text_input="x", guided_decoding_guide_type="json").fields["guide"] == Guide("json")
    refused("guided_decoding_guide is missing", guided_decoding_guide_type="regex")


def test_an_adapter_by_any_of_its_facts_and_no_other_folder():
    from runtime_api import Lora

    fr = Lora(7, "fr", "/adapters/fr", None)
    seven = np.array([7], np.uint64)
    assert read(text_input="x", lora_name="fr").fields["lora"] == fr
    assert read(text_input="x", lora_id=seven).fields["lora"] == fr
    both = read(text_input="x", lora_id=seven, lora_name="fr", lora_path="/adapters/fr")
    assert both.fields["lora"] == fr
    assert read(text_input="x", lora_name="fr", lora_ckpt_source="nemo").fields[
        "lora"
    ].ckpt_source == "nemo"  # fmt: skip
    refused("lora_path '/etc'", lora_name="fr", lora_path="/etc")
    refused("lora_id 7", lora_id=seven, lora_name="de")


def test_stop_needs_no_prompt():
    assert read(stop=True).stop


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("does not compute top_k", "sampling_param_top_k: does not compute top_k"),
        ("prompt of 9 tokens + max_tokens 2", "text_input, sampling_param_max_tokens: prompt of"),
        ("sampling_param_top_k is odd: top_k", "sampling_param_top_k is odd: top_k"),
        ("it failed", "it failed"),
    ],
)
def test_a_runtimes_words_are_the_clients_tensors(text, want):
    from inputs import client_message

    assert client_message(text).startswith(want)


def test_a_field_that_the_runtime_names_wins():
    from inputs import client_message
    from runtime_api import RequestError

    assert client_message(RequestError("guide: bad seed", field="guide")) == (
        "guided_decoding_guide: guide: bad seed"
    )


def test_switches_of_a_spec():
    found = switches(Features())
    assert (found["chat"], found["lora"], found["guided_decoding"]) == (True, False, False)
    assert json.loads(json.dumps(switches(Features(guided_decoding="xgrammar"))))[
        "guided_decoding"
    ]  # fmt: skip
