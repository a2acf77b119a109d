"""Requests that are wrong, huge or hostile: one error that begins with the field, and no harm."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.reference.conftest import FOLDERS, template_folder
from tests.reference.running import ask, begin, start

pytestmark = pytest.mark.slow
NAN, INFINITE = float("nan"), float("inf")


@pytest.fixture(scope="module")
def runtime():
    with pytest.MonkeyPatch.context() as patch:
        for name in FOLDERS:
            patch.syspath_prepend(template_folder(name))
        running = start(max_batch_size=4)
        yield running
        assert running.stats().kv_used == 0
        running.stop()
        running.check()


REFUSED = [
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": None}),
    ("prompt", {"prompt": "x " * 5000}),
    ("prompt", {"prompt": "x" * 10_000_000}),
    ("prompt_ids", {"prompt_ids": []}),
    ("prompt_ids", {"prompt_ids": [5000]}),
    ("prompt_ids", {"prompt_ids": [-1]}),
    ("prompt_ids", {"prompt_ids": [1.5]}),
    ("prompt_ids", {"prompt_ids": [7] * 1020}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": -1}),
    ("max_tokens", {"max_tokens": 2.5}),
    ("prompt", {"max_tokens": 2**31 - 1}),
    ("max_tokens", {"max_tokens": 2**40}),
    ("min_tokens", {"min_tokens": -1}),
    ("min_tokens", {"min_tokens": 17}),
    ("n", {"n": 0}),
    ("n", {"n": 5}),
    ("n", {"n": 2**31 - 1}),
    ("beam_width", {"beam_width": 2}),
    ("beam_width", {"beam_width": 0}),
    ("best_of", {"best_of": 2}),
    ("temperature", {"temperature": NAN}),
    ("temperature", {"temperature": INFINITE}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": "hot"}),
    ("top_k", {"top_k": -1}),
    ("top_k", {"top_k": 2**31}),
    ("top_p", {"top_p": 1.01}),
    ("top_p", {"top_p": NAN}),
    ("top_p_min", {"top_p_min": 0.5}),
    ("repetition_penalty", {"repetition_penalty": 0.0}),
    ("repetition_penalty", {"repetition_penalty": NAN}),
    ("frequency_penalty", {"frequency_penalty": INFINITE}),
    ("presence_penalty", {"presence_penalty": NAN}),
    ("seed", {"seed": -1}),
    ("seed", {"seed": 2**64}),
    ("priority", {"priority": 1.5}),
    ("stop", {"stop": ["x"] * 10_000}),
    ("stop", {"stop": ["x" * 70_000]}),
    ("stop", {"stop": [""]}),
    ("stop", {"stop": ["x"], "with_text": False}),
    ("bad", {"bad": ["x"] * 1025}),
    ("stop_token_sequences", {"stop_token_sequences": [[1]] * 10_000}),
    ("stop_token_sequences", {"stop_token_sequences": [[]]}),
    ("stop_token_sequences", {"stop_token_sequences": [[2048]]}),
    ("bad_token_sequences", {"bad_token_sequences": [[1, -3]]}),
    ("end_ids", {"end_ids": [2048]}),
    ("embedding_bias", {"embedding_bias": np.zeros(7)}),
    ("embedding_bias", {"embedding_bias": np.full(2048, NAN)}),
    ("media", {"media": [b"image"]}),
    ("logits_post_processor", {"logits_post_processor": "name"}),
]


@pytest.mark.parametrize(("field", "fields"), REFUSED, ids=lambda value: str(value)[:40])
def test_refusals_begin_with_the_field(runtime, field, fields):
    from runtime_api import RequestError

    began = time.monotonic()
    with pytest.raises(RequestError) as caught:
        begin(runtime, **{"prompt": None if "prompt_ids" in fields else "a", **fields})
    assert str(caught.value).startswith(field + " ")
    assert caught.value.field == field
    assert len(str(caught.value)) < 300
    assert time.monotonic() - began < 2


def test_lora_is_refused_by_name(runtime):
    from runtime_api import Lora, RequestError

    with pytest.raises(RequestError, match=r"^lora "):
        begin(runtime, prompt="a", lora=Lora(3, "name"))


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e-30},
        {"temperature": 1e30},
        {"temperature": 1e-300, "top_k": 2},
        {"repetition_penalty": 1e-30},
        {"repetition_penalty": 1e38},
        {"presence_penalty": 1e300},
        {"presence_penalty": -1e300, "frequency_penalty": -1e300},
        {"frequency_penalty": 1e38, "temperature": 1e-20, "top_p": 1e-9},
        {"embedding_bias": np.full(2048, 3e38, np.float32), "temperature": 1e-9},
        {"top_k": 2**31 - 1, "seed": 2**64 - 1},
        {"top_p": 1e-30},
    ],
    ids=str,
)
def test_extreme_values_still_give_tokens_of_the_vocabulary(runtime, fields):
    answer = ask(runtime, prompt="A generator", max_tokens=6, end_ids=[], log_probs=True, **fields)
    assert answer.last().finish_reason == "length"
    assert len(answer.ids()) == 6
    assert all(0 <= token < 2048 for token in answer.ids())
    assert not any(np.isnan(answer.log_probs()))


def test_a_thousand_stop_words_are_cheap(runtime):
    words = [f"w{i}-" + "a" * 50 for i in range(1000)]
    plain = ask(runtime, prompt="a", max_tokens=40, end_ids=[], streaming=True)
    began = time.monotonic()
    answer = ask(runtime, prompt="a", max_tokens=40, end_ids=[], streaming=True, stop=words,
                 stop_token_sequences=[[5, i] for i in range(1000)],
                 bad_token_sequences=[[6, i, 9] for i in range(1000)])  # fmt: skip
    assert answer.text() == plain.text()
    assert time.monotonic() - began < 5


def test_others_in_flight_are_untouched(runtime):
    from runtime_api import RequestError

    want = ask(runtime, prompt="A generator is", max_tokens=60, end_ids=[]).ids()
    answer = begin(runtime, prompt="A generator is", max_tokens=60, end_ids=[])
    for _, fields in REFUSED:
        with pytest.raises(RequestError):
            begin(runtime, **{"prompt": None if "prompt_ids" in fields else "a", **fields})
    assert answer.wait().ids() == want
