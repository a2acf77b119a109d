"""What a front answers: text whole, streamed and cumulative, chat, the prompt's echo, counts, reasons."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.conformance import wire
from tests.conformance.front import FRONTS, PROTOCOLS
from tests.conformance.mix import PROMPTS
from tests.conftest import TINY

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("features")]
ENDS = [2, 0]
COUNT = 16
MESSAGES = [
    {"role": "user", "content": "What colour is grass?"},
    {"role": "assistant", "content": "Grass is green."},
    {"role": "user", "content": "What is the capital of Japan?"},
]
both = pytest.mark.parametrize("protocol", PROTOCOLS)
every = pytest.mark.parametrize("front", FRONTS)
chatty = pytest.mark.parametrize("front", ["bls", "ensemble", "llmapi"])


def expected(plain, prompt: str, count: int = COUNT) -> tuple[list[int], str]:
    """(new ids, text) by plain transformers."""
    ids = plain.ids(prompt, count, ENDS)
    return ids, plain.text(ids)


@every
@both
def test_whole_answers(fronts, plain, front, protocol):
    asked = [{"protocol": protocol, "prompt": p, "max_tokens": COUNT} for p in PROMPTS]
    answers = fronts(front).many(asked)
    assert [answer.text for answer in answers] == [expected(plain, p)[1] for p in PROMPTS]
    assert all(len(answer.events) == 1 for answer in answers)


@every
@both
def test_streamed_answers(fronts, plain, front, protocol):
    """Deltas: put together they are the whole text, and no event has more than its part."""
    asked = [
        {"protocol": protocol, "prompt": p, "max_tokens": COUNT, "stream": True} for p in PROMPTS
    ]
    for prompt, answer in zip(PROMPTS, fronts(front).many(asked), strict=True):
        ids, text = expected(plain, prompt)
        if front == "ensemble":  # a character that the stream ends in is not sent
            text = text.rstrip("\ufffd")
        assert answer.text == text
        pieces = [str(event["text_output"][0]) for event in answer.events if event]
        assert 1 < len([p for p in pieces if p]) <= len(ids)
        assert max(map(len, pieces)) < len(text)


@both
def test_cumulative_streams(fronts, plain, protocol):
    """llmapi: each event has all of the text so far, as upstream's model sends it."""
    answer = fronts("llmapi").ask(
        protocol, True, prompt=PROMPTS[0], max_tokens=COUNT, raw={"stream_cumulative": True}
    )
    texts = [str(event["text_output"][0]) for event in answer.events]
    text = expected(plain, PROMPTS[0])[1]
    assert texts[-1] == text
    assert len(texts) > 4
    assert all(b.startswith(a) for a, b in itertools.pairwise(texts))
    assert len(texts[0]) < len(text) / 2


@chatty
@both
def test_chat(fronts, plain, front, protocol):
    """The template's own special tokens, once each: the prompt's length is the tokenizer's count."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    prompt = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    given = tokenizer(prompt, add_special_tokens=False).input_ids
    text = expected(plain, prompt, 40)[1]
    assert "Tokyo" in text
    for stream in (False, True):
        answer = fronts(front).ask(
            protocol, stream, messages=json.dumps(MESSAGES), max_tokens=40, counts=True
        )
        assert answer.text == text
        assert answer.input_tokens == len(given)


@chatty
@both
def test_chat_messages_and_a_prompt_are_refused(fronts, front, protocol):
    with pytest.raises(wire.Refused, match="text_input or messages"):
        fronts(front).ask(protocol, prompt="x", messages=json.dumps(MESSAGES), max_tokens=4)


@every
@both
def test_echo(fronts, plain, front, protocol):
    """The prompt stands before the answer only where it is asked for, streamed as well."""
    text = expected(plain, PROMPTS[5])[1]
    asked = {"prompt": PROMPTS[5], "max_tokens": COUNT}
    assert fronts(front).ask(protocol, **asked, echo=True).text == PROMPTS[5] + text
    assert fronts(front).ask(protocol, **asked, echo=False).text == text
    if front in ("bls", "llmapi"):
        assert fronts(front).ask(protocol, True, **asked, echo=True).text == PROMPTS[5] + text
    if front == "vllm":  # the backend's own rule
        with pytest.raises(wire.Refused, match="exclude_input_in_output"):
            fronts(front).ask(protocol, True, **asked, echo=True)


@every
@both
def test_token_counts(fronts, plain, front, protocol):
    """Of an answer that the limit ends, and of one that an end id ends, which is not counted."""
    ended = plain.tokenizer.apply_chat_template(
        MESSAGES[:1], tokenize=False, add_generation_prompt=True
    )
    for prompt, limit in ((PROMPTS[0], 9), (ended, 60)):
        ids = plain.ids(prompt, limit, ENDS)
        assert (len(ids) == limit) is (prompt != ended)
        for stream in (False, True):
            answer = fronts(front).ask(
                protocol, stream, prompt=prompt, max_tokens=limit, counts=True
            )
            assert answer.input_tokens == len(plain.tokenizer(prompt).input_ids)
            assert answer.output_tokens == [len(ids)]


@pytest.mark.parametrize("front", ["llmapi", "vllm"])
@both
def test_reasons(fronts, plain, front, protocol):
    ended = plain.tokenizer.apply_chat_template(
        MESSAGES[:1], tokenize=False, add_generation_prompt=True
    )
    word = expected(plain, PROMPTS[0])[1].split()[2]
    cases = (
        ({"prompt": PROMPTS[0], "max_tokens": 5}, "length", ""),
        ({"prompt": ended, "max_tokens": 60}, "stop", ""),
        ({"prompt": PROMPTS[0], "max_tokens": 30, "stop": ["§", word]}, "stop", word),
    )
    for asked, finish, stop in cases:
        for stream in (False, True):
            answer = fronts(front).ask(protocol, stream, **asked, reasons=True)
            assert answer.finish == [finish], asked
            if front == "llmapi":
                assert answer.stop == [stop], asked


@every
def test_alone_equals_in_company(fronts, front):
    """Sampled and greedy requests side by side give what each gives alone."""
    asked = [
        {
            "prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": 6 + i, "stream": i % 2 == 0,
            "protocol": PROTOCOLS[i % 2],
            **({"temperature": 0.9, "top_k": 30, "seed": i} if i % 3 else {}),
        }
        for i in range(16)
    ]  # fmt: skip
    alone = [fronts(front).ask(**one).text for one in asked]
    assert [answer.text for answer in fronts(front).many(asked)] == alone
