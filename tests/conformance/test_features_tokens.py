"""How tokens are chosen and what is said about them: sampling, penalties, n, log probs, logits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance import wire
from tests.conformance.front import FRONTS, PROTOCOLS, VOCABULARY
from tests.conformance.mix import PROMPTS

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("features")]
ENDS = [2, 0]
COUNT = 10
PROMPT = PROMPTS[0]
both = pytest.mark.parametrize("protocol", PROTOCOLS)
every = pytest.mark.parametrize("front", FRONTS)
tensors = pytest.mark.parametrize("front", ["bls", "ensemble", "llmapi"])
HOT = {"prompt": PROMPT, "max_tokens": COUNT, "temperature": 1.2, "top_k": 50}
CLOSE = 0.02
"""Of logits; a step in E4M3 of the KV cache that rounds the other way moves them by less."""


def log_softmax(rows):
    rows = rows.astype(np.float64)
    top = rows.max(-1, keepdims=True)
    return rows - top - np.log(np.exp(rows - top).sum(-1, keepdims=True))


@pytest.fixture(scope="module")
def known(plain):
    """(prompt ids, new ids, logits of the prompt, logits of the new ids) by plain transformers."""
    prompt = plain.tokenizer(PROMPT).input_ids
    ids = plain.ids(PROMPT, COUNT, ENDS)
    assert len(ids) == COUNT
    logits = plain.logits(prompt + ids)
    return prompt, ids, logits[: len(prompt)], logits[len(prompt) - 1 : -1]


@every
@both
def test_a_seed_decides(fronts, plain, front, protocol):
    ask = fronts(front)
    asked = [{**HOT, "protocol": protocol, "seed": seed} for seed in (1, 2, 3, 4, 1, 2, 3, 4)]
    texts = [answer.text for answer in ask.many(asked)]
    assert texts[:4] == texts[4:]
    assert len(set(texts)) == 4
    greedy = plain.text(plain.ids(PROMPT, COUNT, ENDS))
    assert ask.ask(protocol, **{**HOT, "top_k": 1, "seed": 9}).text == greedy
    assert ask.ask(protocol, **{**HOT, "top_k": 0, "top_p": 0.0001, "seed": 9}).text == greedy


@tensors
def test_top_k_and_temperature_bound_what_is_sampled(fronts, front):
    """Each token is one of the three likeliest, and its log prob that of the heated distribution."""
    asked = [
        {"protocol": "grpc", "prompt": PROMPT, "max_tokens": COUNT, "temperature": 2.0, "top_k": 3,
         "seed": seed, "log_probs": True, "generation_logits": True}
        for seed in range(4)
    ]  # fmt: skip
    ranks = set()
    for answer in fronts(front).many(asked):
        heated = log_softmax(answer.generation_logits[0] / 2.0)
        assert len(heated) == len(answer.log_probs[0])
        for row, value in zip(heated, answer.log_probs[0], strict=True):
            rank = int((row > value + 1e-4).sum())
            assert np.abs(row - value).min() < 1e-4
            ranks.add(rank)
    assert ranks == {0, 1, 2}


@every
@both
@pytest.mark.parametrize(
    "penalty", [{"repetition_penalty": 1.7}, {"presence_penalty": 3.0}, {"frequency_penalty": 2.0}]
)
def test_penalties(fronts, plain, front, protocol, penalty):
    """TensorRT-LLM's rules: over prompt and answer, a repetition divides or multiplies by the sign."""
    repetition = penalty.get("repetition_penalty", 1.0)
    presence, frequency = (penalty.get(f"{k}_penalty", 0.0) for k in ("presence", "frequency"))

    def change(logits, ids, made):
        for token in set(ids):
            value = logits[token]
            value = value / repetition if value >= 0 else value * repetition
            logits[token] = value - presence - frequency * ids.count(token)

    prompt = "[1, 2, "
    ids = plain.greedy(plain.tokenizer(prompt).input_ids, COUNT, ENDS, change)
    want = plain.text(ids)
    assert want != plain.text(plain.ids(prompt, COUNT, ENDS))
    for stream in (False, True):
        got = fronts(front).ask(protocol, stream, prompt=prompt, max_tokens=COUNT, **penalty)
        assert got.text.rstrip("\ufffd") == want.rstrip("\ufffd")


@every
@both
def test_n_sequences(fronts, front, protocol):
    """Sequence i of seed s is the answer of seed s + i; no two are mixed up, whole or streamed."""
    ask = fronts(front)
    alone = [ask.ask(protocol, **HOT, seed=30 + i).text for i in range(3)]
    assert len(set(alone)) == 3
    for stream in (False, True):
        if front == "ensemble" and (protocol, stream) == ("http", False):
            continue  # n responses, which `generate` cannot carry: docs/serving.md
        answer = ask.ask(protocol, stream, **HOT, seed=30, n=3)
        assert answer.texts == alone


@every
@both
def test_log_probs(fronts, plain, known, front, protocol):
    _, ids, _, logits = known
    want = log_softmax(logits)[range(COUNT), ids]
    for stream in (False, True):
        answer = fronts(front).ask(
            protocol, stream, prompt=PROMPT, max_tokens=COUNT, log_probs=True
        )
        assert answer.text.rstrip("\ufffd") == plain.text(ids).rstrip("\ufffd")
        assert answer.log_probs[0] == pytest.approx(want, abs=CLOSE)
        assert answer.cumulative == pytest.approx([want.sum()], abs=CLOSE * 2)
        if front == "vllm":
            assert answer.token_ids == [ids]


@tensors
@both
def test_logits(fronts, known, front, protocol):
    prompt, _, context, generation = known
    for stream in (False, True):
        answer = fronts(front).ask(
            protocol, stream, prompt=PROMPT, max_tokens=COUNT, context_logits=True,
            generation_logits=True,
        )  # fmt: skip
        assert answer.context_logits.shape == (len(prompt), VOCABULARY)
        np.testing.assert_allclose(answer.context_logits, context, atol=CLOSE)
        np.testing.assert_allclose(answer.generation_logits[0], generation, atol=CLOSE)
    if protocol == "grpc":
        with_context = [e for e in answer.events if "context_logits" in e]
        assert len(with_context) == 1
        batch = [] if front == "llmapi" else [1]
        assert with_context[0].shapes["context_logits"] == [*batch, len(prompt), VOCABULARY]
        shapes = [e.shapes["generation_logits"] for e in answer.events if "generation_logits" in e]
        assert sum(shape[-2] for shape in shapes) == COUNT
        assert {tuple(shape[:-2]) for shape in shapes} == {(*batch, 1)}


@pytest.mark.parametrize("front", ["bls", "ensemble"])
@both
def test_embedding_bias(fronts, plain, front, protocol):
    """A word's weight on every token that spells it, alone or after a space or a line break."""
    word, weight = "import", 6.0
    line = plain.tokenizer.encode("\n", add_special_tokens=False)
    spelled = {
        token
        for text in (word, f" {word}", f"\n{word}")
        for token in plain.tokenizer.encode(text, add_special_tokens=False)[
            len(line) if text[0] == "\n" else 0 :
        ]
    }

    def change(logits, ids, made):
        logits[list(spelled)] += weight

    start = plain.tokenizer(PROMPT).input_ids
    want = plain.text(plain.greedy(start, COUNT, ENDS, change))
    assert want != plain.text(plain.ids(PROMPT, COUNT, ENDS))
    raw = {"embedding_bias_words": [word], "embedding_bias_weights": [weight]}
    for stream in (False, True):
        answer = fronts(front).ask(protocol, stream, prompt=PROMPT, max_tokens=COUNT, raw=raw)
        assert answer.text.rstrip("\ufffd") == want.rstrip("\ufffd")


@pytest.mark.parametrize("front", ["bls", "ensemble"])
def test_embedding_bias_without_weights_is_refused(fronts, front):
    with pytest.raises(wire.Refused, match="embedding_bias_weights"):
        fronts(front).ask(prompt=PROMPT, max_tokens=2, raw={"embedding_bias_words": ["x"]})
