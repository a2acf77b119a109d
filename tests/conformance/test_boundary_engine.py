"""What reaches the engine: exact tensors of the features that the reference runtime cannot compute."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance import wire
from tests.conformance.boundary import PROMPT, answer_text, both, cell, fronts_of_it, one
from tests.conformance.front import Front

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("boundary")]


@fronts_of_it
@both
def test_nothing_asked_nothing_sent(asked, engine, minimal, plain, front, protocol):
    """The exact set, whole and streamed; streamed at a pace, each token is an event of its own."""
    answer, calls = asked(front, protocol)
    assert calls == [("tensorrt_llm", minimal)]
    assert answer.text == answer_text(plain)
    answer, calls = asked(front, protocol, True)
    assert calls == [("tensorrt_llm", {**minimal, "streaming": one("bool", True)})]
    assert answer.text == answer_text(plain)
    assert len([event for event in answer.events if event]) == 5


def test_only_wanted_outputs_are_requested(engine, plain):
    front = Front("bls", engine.server.endpoints)
    for fields, more in (
        ({}, []),
        ({"log_probs": True}, ["cum_log_probs", "output_log_probs"]),
        ({"counts": True}, ["num_input_tokens", "num_output_tokens"]),
        ({"generation_logits": True}, ["generation_logits"]),
        ({"n": 2}, ["sequence_index"]),
    ):
        engine.take()
        front.grpc.ask(front.model, front.body(prompt=PROMPT, max_tokens=2, **fields))
        (entry,) = engine.take()
        assert entry["requested_outputs"] == sorted(["output_ids", "sequence_length", *more])
    front.grpc.close()


NUMBERS = {
    "min_tokens": (3, "min_tokens", "int32"),
    "top_k": (7, "runtime_top_k", "int32"),
    "top_p": (0.5, "runtime_top_p", "float32"),
    "temperature": (0.25, "temperature", "float32"),
    "length_penalty": (1.5, "len_penalty", "float32"),
    "repetition_penalty": (1.25, "repetition_penalty", "float32"),
    "presence_penalty": (0.5, "presence_penalty", "float32"),
    "frequency_penalty": (-0.5, "frequency_penalty", "float32"),
    "seed": (2**63 + 5, "seed", "uint64"),
    "runtime_top_p_min": (0.125, "runtime_top_p_min", "float32"),
    "runtime_top_p_decay": (0.75, "runtime_top_p_decay", "float32"),
    "runtime_top_p_reset_ids": (11, "runtime_top_p_reset_ids", "int32"),
}


@fronts_of_it
@both
def test_numbers_reach_the_engine_under_its_names(asked, minimal, front, protocol):
    fields = {name: value for name, (value, _, _) in NUMBERS.items()}
    _, calls = asked(front, protocol, raw=fields)
    want = {tensor: one(kind, value) for value, tensor, kind in NUMBERS.values()}
    assert calls == [("tensorrt_llm", {**minimal, **want})]


@fronts_of_it
@both
def test_beams(asked, minimal, plain, front, protocol):
    raw = {"beam_width": 3, "length_penalty": 0.5, "beam_search_diversity_rate": 0.25}
    _, calls = asked(front, protocol, n=3, raw=raw)
    want = {
        "beam_width": one("int32", 3),
        "num_return_sequences": one("int32", 3),
        "len_penalty": one("float32", 0.5),
        "beam_search_diversity_rate": one("float32", 0.25),
    }
    assert calls == [("tensorrt_llm", {**minimal, **want})]


@fronts_of_it
@both
def test_beams_come_back_in_their_order(engine, asked, plain, front, protocol):
    ask = Front(front, engine.server.endpoints)
    body = ask.body(prompt=PROMPT, max_tokens=5, raw={"beam_width": 3})
    if protocol == "http":
        answer = wire.http_generate(engine.server.endpoints.http, ask.model, body)
    else:
        (answer,) = ask.grpc.ask(ask.model, body)
        assert answer.shapes["text_output"] == [1, 3]
    assert answer["text_output"].tolist() == [answer_text(plain, place) for place in range(3)]
    with pytest.raises(wire.Refused, match=r"beam_width.*max_beam_width 4"):
        ask.ask(protocol, prompt=PROMPT, max_tokens=5, raw={"beam_width": 5})
    with pytest.raises(wire.Refused, match="beam_width"):
        ask.ask(protocol, True, prompt=PROMPT, max_tokens=5, raw={"beam_width": 2})
    ask.grpc.close()


@fronts_of_it
@both
def test_lora_by_its_task_id(asked, minimal, front, protocol):
    """An adapter that the engine has: the id alone."""
    _, calls = asked(front, protocol, raw={"lora_task_id": 2**40 + 7})
    assert calls == [("tensorrt_llm", {**minimal, "lora_task_id": one("uint64", 2**40 + 7)})]


@fronts_of_it
def test_lora_of_the_first_request(asked, minimal, front):
    """Id, weights and config; BF16 weights, which JSON cannot carry, over gRPC alone."""
    weights = np.arange(12, dtype=np.float32).reshape(2, 6) / 8
    config = np.array([[0, 0, 4], [1, 1, 4]], np.int32)
    raw = {"lora_task_id": 9, "lora_weights": weights, "lora_config": config}
    _, calls = asked(front, "grpc", raw=raw)
    want = {
        "lora_task_id": one("uint64", 9),
        "lora_weights": ("bfloat16", [1, 2, 6], [weights.tolist()]),
        "lora_config": ("int32", [1, 2, 3], [config.tolist()]),
    }
    assert calls == [("tensorrt_llm", {**minimal, **want})]
    del raw["lora_config"]
    with pytest.raises(wire.Refused, match="lora_config is missing"):
        asked(front, "grpc", raw=raw)


@fronts_of_it
@both
def test_kv_retention(asked, minimal, front, protocol):
    raw = {
        "retention_token_range_starts": [0, 4], "retention_token_range_ends": [4, 8],
        "retention_token_range_priorities": [90, 10],
        "retention_token_range_durations_ms": [1000, 50],
        "retention_decode_priority": 40, "retention_decode_duration_ms": 700,
    }  # fmt: skip
    _, calls = asked(front, protocol, raw=raw)
    want = {
        name: ("int32", [1, 2], [value]) if isinstance(value, list) else cell("int32", value)
        for name, value in raw.items()
    }
    assert calls == [("tensorrt_llm", {**minimal, **want})]


@fronts_of_it
@both
def test_guides(asked, minimal, front, protocol):
    for kind, guide in (("json_schema", '{"type": "object"}'), ("regex", "[aé]+"), ("json", None)):
        raw = {"guided_decoding_guide_type": kind}
        if guide is not None:
            raw["guided_decoding_guide"] = guide
        _, calls = asked(front, protocol, raw=raw)
        want = {name: cell("BYTES", value) for name, value in raw.items()}
        assert calls == [("tensorrt_llm", {**minimal, **want})]


@fronts_of_it
def test_word_lists(asked, minimal, plain, front):
    """int32 [1, 2, length]: ids in a line and each word's end; end ids that the engine lacks first."""
    encode = lambda text: plain.tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    _, ((_, tensors),) = asked(front, "grpc", stop=["the end"], bad=["bad"])
    for name, word, before in (
        ("stop_words_list", "the end", [[0]]),
        ("bad_words_list", "bad", []),
    ):
        kind, shape, ((ids, ends),) = tensors[name]
        used = [end for end in ends if end >= 0]
        found = [ids[a:b] for a, b in zip([0, *used], used, strict=False)]
        assert kind == "int32"
        assert shape == [1, 2, len(ids)]
        assert ends[len(used) :] == [-1] * (len(ids) - len(used))
        assert found[: len(before)] == before
        spelled = found[len(before) :]
        assert encode(word) in spelled
        assert encode(" " + word) in spelled
        assert all(word in plain.tokenizer.decode(sequence) for sequence in spelled)
