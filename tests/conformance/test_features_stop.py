"""What ends an answer or is kept out of it: stop words, end ids, bad words, min_tokens."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.conformance.front import FRONTS, PROTOCOLS
from tests.conformance.mix import PROMPTS

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("features")]
ENDS = [2, 0]
COUNT = 24
both = pytest.mark.parametrize("protocol", PROTOCOLS)
every = pytest.mark.parametrize("front", FRONTS)


@pytest.fixture(scope="module")
def greedy(plain):
    """prompt -> (ids, text, [text after each id])."""
    made = {}

    def get(prompt):
        if prompt not in made:
            ids = plain.ids(prompt, COUNT, ENDS)
            made[prompt] = ids, plain.text(ids), [plain.text(ids[: k + 1]) for k in range(len(ids))]
        return made[prompt]

    return get


def spaced_word(greedy) -> tuple[str, str]:
    """(prompt, word): a word that the answer has as one token with a space before it."""
    for prompt in PROMPTS:
        _, text, so_far = greedy(prompt)
        for before, after in itertools.pairwise(so_far[4:]):
            piece = after[len(before) :]
            word = piece[1:]
            if piece.startswith(" ") and len(word) > 1 and word.isalpha() and word not in before:
                assert word in text
                return prompt, word
    raise AssertionError("no answer has such a word")


def spanning_word(greedy) -> tuple[str, str]:
    """(prompt, word): the end of one token and the beginning of the next, which no token is."""
    for prompt in PROMPTS:
        _, text, so_far = greedy(prompt)
        for k in range(5, len(so_far) - 2):
            at = len(so_far[k])
            word = text[at - 2 : at + 2]
            inside = so_far[k + 1][at:]
            if (
                len(inside) > 2
                and word.isascii()
                and word.isprintable()
                and text.find(word) == at - 2
            ):
                return prompt, word
    raise AssertionError("no answer has such a place")


@every
@both
def test_stop_word_with_another_spelling_in_context(fronts, greedy, front, protocol):
    """The word stands in the answer with a space before it: another token than the word alone.

    The ensemble ends by the tokens, and its answer still has the word (docs/serving.md)."""
    prompt, word = spaced_word(greedy)
    text = greedy(prompt)[1]
    end = text.index(word) + (len(word) if front == "ensemble" else 0)
    for stream in (False, True):
        answer = fronts(front).ask(
            protocol, stream, prompt=prompt, max_tokens=COUNT, stop=["§§", word]
        )
        assert answer.text == text[:end]


@pytest.mark.parametrize("front", ["bls", "llmapi", "vllm"])
@both
def test_stop_word_across_tokens(fronts, greedy, front, protocol):
    """It ends within a token, its first half is in the event before: neither half is ever sent."""
    prompt, word = spanning_word(greedy)
    text = greedy(prompt)[1]
    for stream in (False, True):
        answer = fronts(front).ask(protocol, stream, prompt=prompt, max_tokens=COUNT, stop=[word])
        assert answer.text == text[: text.index(word)]
    assert len(answer.events) > 3


@every
@both
def test_several_stop_words(fronts, greedy, front, protocol):
    """The first in the text counts, not the first of the list; one that is not there changes nothing."""
    prompt, word = spaced_word(greedy)
    text = greedy(prompt)[1]
    end = text.index(word) + (len(word) if front == "ensemble" else 0)
    later = text[text.index(word) + len(word) + 2 :][:4]
    assert later
    for stop, want in (([later, word], text[:end]), (["§§", "zzzz"], text)):
        for stream in (False, True):
            asked = {"prompt": prompt, "max_tokens": COUNT, "stop": stop}
            got = fronts(front).ask(protocol, stream, **asked).text
            assert got == want or (front == "ensemble" and got == want.rstrip("\ufffd"))


@every
@both
def test_every_end_id_of_the_model_ends(fronts, plain, front, protocol):
    """The model has the ids 2 and 0; a biased prompt makes either, and neither becomes text."""
    chat = plain.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What colour is grass?"}],
        tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    ended = plain.ids(chat, 60, ENDS)
    further = plain.ids(chat, 60, [0])  # what follows if 2 did not end it
    assert len(further) > len(ended)
    assert further[len(ended)] == 2
    for stream in (False, True):
        assert fronts(front).ask(protocol, stream, prompt=chat, max_tokens=60).text == plain.text(
            ended
        )


@pytest.mark.parametrize("front", ["bls", "ensemble"])
@both
def test_an_end_id_that_the_engine_takes_as_a_stop_word(fronts, plain, front, protocol):
    """The engine has one end id; with 0 as that one, the model's other, 2, must end the answer too."""
    chat = plain.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What colour is grass?"}],
        tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    want = plain.text(plain.ids(chat, 60, ENDS))
    for stream in (False, True):
        got = fronts(front).ask(protocol, stream, prompt=chat, max_tokens=60, end_ids=0)
        assert got.text == want
    without = fronts(front).ask(protocol, prompt=chat, max_tokens=60, end_ids=-1).text
    assert without.startswith(want)
    assert len(without) > len(want)


@every
@both
def test_end_ids_of_the_request(fronts, greedy, plain, front, protocol):
    """The answer ends where the given id comes up, and its token is not part of it."""
    prompt = PROMPTS[0]
    ids = greedy(prompt)[0]
    end = next(token for k, token in enumerate(ids) if k > 4 and token not in ids[:k])
    want = plain.text(ids[: ids.index(end)])
    given = [1999, end] if front in ("llmapi", "vllm") else end
    assert 1999 not in ids
    for stream in (False, True):
        got = fronts(front).ask(protocol, stream, prompt=prompt, max_tokens=COUNT, end_ids=given)
        # A stop token id is part of vLLM's ids, and this stand-in's text has it.
        assert got.text in (
            [want, plain.text(ids[: ids.index(end) + 1])] if front == "vllm" else [want]
        )


def banned(tokenizer, words):
    """Own rule: no word may be completed, as it is or with a space before it."""
    sequences = [tokenizer.encode(s, add_special_tokens=False) for w in words for s in (w, " " + w)]

    def change(logits, ids, made):
        for sequence in sequences:
            rest = sequence[:-1]
            if not rest or ids[-len(rest) :] == rest:
                logits[sequence[-1]] = -np.inf

    return change


@every
@both
def test_bad_words(fronts, plain, greedy, front, protocol):
    prompt, word = spaced_word(greedy)
    start = plain.tokenizer(prompt).input_ids
    words = [word, "§§"]
    want = plain.text(plain.greedy(start, COUNT, ENDS, banned(plain.tokenizer, words)))
    assert f" {word}" in greedy(prompt)[1]
    assert f" {word}" not in want
    for stream in (False, True):
        answer = fronts(front).ask(protocol, stream, prompt=prompt, max_tokens=COUNT, bad=words)
        assert answer.text.rstrip("\ufffd") == want.rstrip("\ufffd")


@every
@both
def test_min_tokens(fronts, plain, front, protocol):
    """End ids are kept out until then; afterwards they end the answer as ever."""
    chat = plain.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What colour is grass?"}],
        tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    start, least = plain.tokenizer(chat).input_ids, 12

    def change(logits, ids, made):
        if made < least:
            logits[ENDS] = -np.inf

    ids = plain.greedy(start, 30, ENDS, change)
    assert len(plain.ids(chat, 30, ENDS)) < least <= len(ids)
    for stream in (False, True):
        answer = fronts(front).ask(
            protocol, stream, prompt=chat, max_tokens=30, min_tokens=least, counts=True
        )
        assert answer.text == plain.text(ids)
        assert answer.output_tokens == [len(ids)]
