"""Wrong, hostile and oversized requests: one error that names the field, in both fronts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.engine_models.conftest import ON, parameters
from tests.engine_models.triton_double import Request, model, numbers, text

OK = {"text_input": text("Hello"), "max_tokens": numbers(4)}
FLAG = np.ones((1, 1), np.bool_)


def floats(value):
    return numbers(value, kind=np.float32)


WRONG = [
    ({"max_tokens": numbers(0)}, "max_tokens must be at least 1, got 0"),
    ({"max_tokens": numbers(-5)}, "max_tokens must be at least 1, got -5"),
    ({"max_tokens": None}, "max_tokens is missing"),
    ({"max_tokens": numbers(1, 2)}, "max_tokens has 2 rows, the prompt has 1"),
    ({"text_input": None}, "text_input is missing"),
    ({"text_input": text("")}, "text_input has no tokens"),
    ({"text_input": text(b"\xff\xfe")}, "text_input is not UTF-8"),
    ({"text_input": text(["a", "b"])}, "text_input must have one text a row, got 2"),
    ({"messages": text("[]")}, "send text_input or messages, not both"),
    ({"temperature": floats(float("nan"))}, "temperature must be a finite number, got nan"),
    ({"temperature": floats(float("inf"))}, "temperature must be a finite number, got inf"),
    ({"temperature": floats(-1)}, "temperature must be at least 0.0, got -1.0"),
    ({"top_p": floats(1.5)}, "top_p must be at most 1.0, got 1.5"),
    ({"top_k": numbers(-1)}, "top_k must be at least 0"),
    ({"repetition_penalty": floats(0)}, "repetition_penalty must be at least"),
    ({"presence_penalty": floats(float("-inf"))}, "presence_penalty must be a finite number"),
    ({"length_penalty": floats(float("nan"))}, "length_penalty must be a finite number"),
    ({"min_tokens": numbers(-1)}, "min_tokens must be at least 0"),
    ({"end_id": numbers(-2)}, "end_id must be at least -1"),
    ({"beam_width": numbers(0)}, "beam_width must be at least 1"),
    ({"beam_width": numbers(5)}, "beam_width 5 is above max_beam_width 4"),
    ({"beam_width": numbers(2), "num_return_sequences": numbers(3)}, "num_return_sequences 3 is"),
    ({"num_return_sequences": numbers(0)}, "num_return_sequences must be at least 1"),
    ({"num_return_sequences": numbers(10**6)}, "num_return_sequences must be at most 256"),
    ({"stop_words": text(["x"] * 10_000)}, "stop_words has 10000 words; at most 256 are taken"),
    ({"stop_words": text("x" * 5000)}, "stop_words has 5000 bytes; at most 4096 are taken"),
    ({"stop_words": text(["x" * 4000] * 20)}, "stop_words is longer than 65536 characters"),
    ({"bad_words": text(b"\x80")}, "bad_words is not UTF-8"),
    ({"embedding_bias_words": text(["a", "b"]), "embedding_bias_weights": floats(1)},
     "embedding_bias_weights must have one weight a word: 2 words, 1 weights"),
    ({"embedding_bias_words": text("a"), "embedding_bias_weights": floats(float("nan"))},
     "embedding_bias_weights must have finite numbers only"),
    ({"guided_decoding_guide_type": text("xml")}, "guided_decoding_guide_type 'xml' is none of"),
    ({"guided_decoding_guide_type": text("structural_tag"), "guided_decoding_guide": text("{}")},
     "guided_decoding_guide_type 'structural_tag' is none of json, json_schema, regex"),
    ({"guided_decoding_guide_type": text("regex")}, "guided_decoding_guide is missing"),
    ({"guided_decoding_guide": text("a")}, "needs guided_decoding_guide_type"),
    ({"guided_decoding_guide_type": text("json_schema"), "guided_decoding_guide": text("{")},
     "guided_decoding_guide is not JSON"),
    ({"guided_decoding_guide_type": text("json_schema"),
      "guided_decoding_guide": text("[" * 100_000)}, "guided_decoding_guide is not JSON"),
    ({"retention_token_range_starts": np.array([[0, 1]], np.int32)},
     "retention_token_range_ends is missing"),
    ({"retention_token_range_starts": np.array([[0, 1]], np.int32),
      "retention_token_range_ends": np.array([[1]], np.int32),
      "retention_token_range_priorities": np.array([[1, 2]], np.int32)},
     "retention inputs differ in length"),
    ({"retention_token_range_starts": numbers(0), "retention_token_range_ends": numbers(1),
      "retention_token_range_priorities": numbers(101)}, "priorities must lie in 0..100"),
    ({"lora_weights": np.ones((1, 2, 3), np.float16)}, "lora_task_id is missing"),
    ({"decoder_text_input": text("x")}, "decoder_text_input is not implemented by this model"),
    ({"prompt_vocab_size": numbers(3)}, "prompt_vocab_size is not implemented by this model"),
]  # fmt: skip
MESSAGES = [
    ("x", "messages is not JSON"),
    ("[" * 100_000, "messages is not JSON"),
    ("{}", "messages must be a JSON list"),
    ("[]", "messages must be a JSON list"),
    ('["hi"]', "messages[0] has no role"),
    ('[{"role": "user", "content": 3}]', "messages[0].content is not text"),
    (json.dumps([{"role": "user", "content": "x"}] * 2000), "messages has 2000 messages"),
]
SWITCHED = {
    "messages": text('[{"role": "user", "content": "x"}]'), "bad_words": text("x"),
    "return_log_probs": FLAG, "num_return_sequences": numbers(2), "beam_width": numbers(2),
    "return_num_input_tokens": FLAG, "return_num_output_tokens": FLAG,
    "return_perf_metrics": FLAG, "return_context_logits": FLAG, "return_generation_logits": FLAG,
    "guided_decoding_guide_type": text("json"), "lora_task_id": numbers(0, kind=np.uint64),
    "num_draft_tokens": numbers(3), "lookahead_window_size": numbers(3),
    "retention_decode_priority": numbers(3),
}  # fmt: skip
PRE = {
    "text_input": "QUERY", "max_tokens": "REQUEST_OUTPUT_LEN", "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT", "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS", "end_id": "END_ID", "pad_id": "PAD_ID",
    "decoder_text_input": "DECODER_QUERY",
}  # fmt: skip


def engine(_):
    raise AssertionError("a wrong request reached the engine")


@pytest.fixture(params=["tensorrt_llm_bls", "preprocessing"])
def ask(request, model_files):
    """(fields, parameters) to the error's text."""
    front = request.param

    def call(fields, **changes):
        with model(front, parameters(**changes), engine) as instance:
            if front == "preprocessing":
                wanted = Request(**{PRE.get(name, name): array for name, array in fields.items()})
                [response] = instance.execute([wanted])
            else:
                wanted = Request(**fields)
                instance.execute([wanted])
                [response] = wanted.sender.wait()
        assert response.has_error(), response.names()
        return response.error().message()

    return call


def merged(changes):
    return {name: array for name, array in {**OK, **changes}.items() if array is not None}


def test_wrong_fields_are_named(ask):
    for changes, message in WRONG:
        got = ask(merged(changes))
        assert got.startswith("[engineroom] "), (changes, got)
        assert message in got, (changes, got)


def test_wrong_messages_are_named(ask):
    for value, message in MESSAGES:
        got = ask({"messages": text(value), "max_tokens": numbers(4)})
        assert message in got, (value[:40], got)


def test_long_prompts_are_refused_with_both_numbers(ask):
    words = text("word " * 400)
    got = ask({**OK, "text_input": words}, max_input_len="100")
    assert "text_input has " in got
    assert "above max_input_len 100" in got
    assert "below max_seq_len 256" in ask({**OK, "text_input": words}, max_input_len="0")


@pytest.mark.parametrize("name", SWITCHED)
def test_what_is_switched_off_is_refused_by_name(ask, name):
    from request_fields import SWITCHES

    feature = SWITCHES[name][0]
    fields = merged({name: SWITCHED[name], **({"text_input": None} if name == "messages" else {})})
    got = ask(fields, features=json.dumps({**ON, feature: False}))
    assert (
        got == f"[engineroom] {name}: this server was rendered with serving.features.{feature} off"
    )


def test_every_feature_with_an_input_is_tested(model_files):
    from request_fields import SWITCHES

    assert {SWITCHES[name][0] for name in SWITCHED} == set(ON)
    assert {feature for feature, _ in SWITCHES.values()} == set(ON)


def test_neutral_values_of_what_is_off_are_fine(bls):
    from tests.engine_models.triton_double import answer

    off = json.dumps(dict.fromkeys(ON, False))
    neutral = {
        "return_log_probs": ~FLAG, "num_return_sequences": numbers(1), "beam_width": numbers(1),
        "return_perf_metrics": ~FLAG,
    }  # fmt: skip
    [[response]], _ = bls(lambda _: [answer([40])], Request(**OK, **neutral), features=off)
    assert not response.has_error()
