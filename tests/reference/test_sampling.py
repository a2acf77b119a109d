"""What a request may ask of the sampler, against plain transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.reference.running import (
    ENDS,
    ask,
    begin,
    encode,
    plain,
    plain_generate,
    plain_logits,
    start,
)

pytestmark = pytest.mark.slow
PROMPT = "A generator is"
PROMPTS = ["The import statement", '{"name": "', "[1, 2, ", PROMPT]


@pytest.fixture(scope="module")
def runtime():
    import sys

    from tests.reference.conftest import FOLDERS, template_folder

    with pytest.MonkeyPatch.context() as patch:
        for name in FOLDERS:
            patch.syspath_prepend(template_folder(name))
        running = start(max_batch_size=8)
        yield running
        running.stop()
        running.check()
    assert "engineroom_reference" in sys.modules


@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_repetition_penalty_as_transformers_defines_it(runtime, penalty):
    differs = 0
    for prompt in PROMPTS:
        want = plain_generate(prompt, 20, repetition_penalty=penalty)
        assert ask(runtime, prompt=prompt, max_tokens=20, repetition_penalty=penalty).ids() == want
        differs += want != plain_generate(prompt, 20)
    assert differs > 1


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 4.0},
        {"frequency_penalty": 3.0},
        {"frequency_penalty": -2.0, "presence_penalty": 0.2, "repetition_penalty": 1.2},
    ],
)
def test_penalties_by_their_formula(runtime, options):
    """Once, and for each occurrence, in the prompt and the answer; written out as a loop."""
    ids, made = encode(PROMPT), []
    for _ in range(20):
        logits = plain_logits(ids + made)[-1].tolist()
        for token in set(ids + made):
            factor = options.get("repetition_penalty", 1.0)
            value = logits[token] * factor if logits[token] < 0 else logits[token] / factor
            value -= options.get("presence_penalty", 0.0)
            value -= options.get("frequency_penalty", 0.0) * (ids + made).count(token)
            logits[token] = value
        best = int(np.argmax(np.array(logits, np.float32)))
        if best in ENDS:
            break
        made.append(best)
    assert len(made) > 5
    assert ask(runtime, prompt=PROMPT, max_tokens=20, **options).ids() == made
    assert ask(runtime, prompt=PROMPT, max_tokens=20).ids() != made


def test_embedding_bias_moves_the_choice(runtime):
    bias = np.zeros(2048, np.float32)
    bias[1234] = 1000
    assert ask(runtime, prompt=PROMPT, max_tokens=3, embedding_bias=bias).ids() == [1234] * 3


def test_log_probs_and_logits_are_those_of_transformers(runtime):
    wanted = {"log_probs": True, "context_logits": True, "generation_logits": True}
    answer = ask(runtime, prompt=PROMPT, max_tokens=16, streaming=True, **wanted)
    ids, made = encode(PROMPT), answer.ids()
    logits = plain_logits(ids + made)
    logs = torch.log_softmax(logits, -1)
    want = [float(logs[len(ids) - 1 + i, token]) for i, token in enumerate(made)]
    assert len(made) == 16
    assert np.allclose(answer.log_probs(), want, atol=1e-3)
    assert answer.last().cumulative_logprob == pytest.approx(sum(answer.log_probs()), abs=1e-5)
    context = [c.context_logits for c in answer.chunks if c.context_logits is not None]
    assert [array.shape for array in context] == [(len(ids), 2048)]
    assert np.allclose(context[0], logits[: len(ids)], atol=1e-3)
    generated = np.concatenate([c.generation_logits for c in answer.chunks if c.token_ids])
    assert generated.shape == (16, 2048)
    assert np.allclose(generated, logits[len(ids) - 1 : -1], atol=1e-3)


def test_the_end_token_counts_for_the_sum_only(runtime):
    first = ask(runtime, prompt=PROMPT, max_tokens=1, log_probs=True)
    answer = ask(runtime, prompt=PROMPT, max_tokens=9, end_ids=first.ids(), log_probs=True)
    assert (answer.ids(), answer.log_probs(), answer.last().finish_reason) == ([], [], "stop")
    assert answer.last().cumulative_logprob == pytest.approx(first.log_probs()[0])


def test_log_probs_are_after_temperature_and_masks(runtime):
    first = ask(runtime, prompt=PROMPT, max_tokens=1).ids()
    answer = ask(
        runtime, prompt=PROMPT, max_tokens=1, log_probs=True, temperature=0.5, top_k=1,
        bad_token_sequences=[first],
    )  # fmt: skip
    logits = plain_logits(encode(PROMPT))[-1] / 0.5
    logits[first[0]] = -torch.inf
    logs = torch.log_softmax(logits, -1)
    assert answer.ids() == [int(logs.argmax())]
    assert answer.log_probs() == pytest.approx([float(logs.max())], abs=1e-3)


def _kept(warpers, logits):
    scores = logits[None]
    for warper in warpers:
        scores = warper(None, scores)
    return scores[0]


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.7), (3, None), (5, 0.5), (0, 0.05), (0, 1.0)])
def test_top_k_and_top_p_keep_what_transformers_keeps(top_k, top_p):
    from engineroom_reference.sampling import Sampler
    from runtime_api import Request
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    logits = torch.tensor([2.0, -1.0, 1.5, 0.0, 1.2, -3.0, 0.5, 1.9])
    warpers = [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p not in (None, 1.0) else []
    want = torch.softmax(_kept(warpers, logits), -1)
    sample = Sampler(Request(temperature=1.0, top_k=top_k, top_p=top_p, seed=4), 0)
    drawn = np.bincount([sample(logits) for _ in range(4000)], minlength=8) / 4000
    assert set(np.flatnonzero(drawn)) == set(np.flatnonzero(want.numpy() > 0.001))
    # Four standard deviations of a share near one half.
    assert np.abs(drawn - want.numpy()).max() < 4 * (0.25 / 4000) ** 0.5


@pytest.mark.parametrize("options", [{"top_k": 1}, {"temperature": 0}, {"top_p": 0.0}])
def test_greedy_wins_over_other_settings(runtime, options):
    want = plain_generate(PROMPT, 12)
    fields = {"temperature": 2.0, "seed": 9, **options}
    assert ask(runtime, prompt=PROMPT, max_tokens=12, **fields).ids() == want


@pytest.mark.parametrize("least", [1, 9])
def test_min_tokens_holds_back_ends_as_transformers_does(runtime, least):
    ends = [plain_generate(PROMPT, 4)[-1], *ENDS]  # ends on its own after three tokens
    want = plain()[0].generate(
        input_ids=torch.tensor([encode(PROMPT)]), min_new_tokens=least, max_new_tokens=16,
        attention_mask=torch.ones(1, len(encode(PROMPT))), do_sample=False, eos_token_id=ends,
        pad_token_id=0,
    )[0, len(encode(PROMPT)) :].tolist()  # fmt: skip
    got = ask(runtime, prompt=PROMPT, max_tokens=16, min_tokens=least, end_ids=ends)
    # transformers keeps the end token.
    assert got.ids() == (want[:-1] if want[-1] in ends else want)
    assert len(got.ids()) >= least
    assert (len(got.ids()) == 3) == (least == 1)
    same = ask(runtime, prompt=PROMPT, max_tokens=16, min_tokens=least, end_ids=ENDS,
               stop_token_sequences=[ends[:1]])  # fmt: skip
    assert len(same.ids()) >= least


def test_stop_words_before_min_tokens_do_not_count(runtime):
    whole = ask(runtime, prompt=PROMPT, max_tokens=24)
    words = [w for w in whole.text().split() if whole.text().count(w) == 1 and len(w) > 2]
    early = ask(runtime, prompt=PROMPT, max_tokens=24, stop=words[:1])
    assert early.text() == whole.text()[: whole.text().index(words[0])]
    assert early.last().stop_reason == words[0]
    for streaming in (False, True):
        late = ask(
            runtime, prompt=PROMPT, max_tokens=24, stop=words[:1], streaming=streaming,
            min_tokens=len(early.ids()) + 1,
        )  # fmt: skip
        assert late.text() == whole.text()


def test_stop_words_by_text_cut_the_text_streamed_or_not(runtime):
    whole = ask(runtime, prompt=PROMPT, max_tokens=24).text()
    for word in (whole[7:11], whole[12:13], whole[-3:], "@@never@@"):
        want = whole.split(word)[0]
        for streaming in (False, True):
            answer = ask(runtime, prompt=PROMPT, max_tokens=24, stop=[word], streaming=streaming)
            assert answer.text() == want, word


def test_stop_sequences_by_ids_end_after_themselves(runtime):
    made = ask(runtime, prompt=PROMPT, max_tokens=12).ids()
    answer = ask(runtime, prompt=PROMPT, max_tokens=12, stop_token_sequences=[[5, 6], made[3:6]])
    assert (answer.ids(), answer.last().finish_reason) == (made[:6], "stop")


def test_bad_sequences_as_transformers_defines_them(runtime):
    first = plain_generate(PROMPT, 12)
    for bad in ([first[:1]], [first[2:4], first[6:7]], [[encode(PROMPT)[-1], first[0]]]):
        want = plain_generate(PROMPT, 12, bad_words_ids=bad)
        assert want != first
        assert ask(runtime, prompt=PROMPT, max_tokens=12, bad_token_sequences=bad).ids() == want


def test_bad_words_as_text_are_not_written(runtime):
    whole = ask(runtime, prompt=PROMPT, max_tokens=20).text()
    word = next(w for w in whole.split() if w.isalpha() and len(w) > 3)
    assert word in whole
    assert word not in ask(runtime, prompt=PROMPT, max_tokens=20, bad=[word]).text()


def test_bad_words_that_leave_nothing_are_an_error(runtime):
    answer = ask(
        runtime,
        prompt=PROMPT,
        bad_token_sequences=[[i] for i in range(1024)],
        guide=_yes_guide(),
    )
    assert answer.last().finish_reason == "error"
    assert "bad words" in answer.last().stop_reason


def _yes_guide():
    from runtime_api import Guide

    return Guide("regex", "[a-z]")


def test_greedy_sequences_are_equal_and_sampled_ones_have_their_own_seeds(runtime):
    greedy = ask(runtime, prompt=PROMPT, max_tokens=12, n=3)
    assert [greedy.ids(i) for i in range(3)] == [plain_generate(PROMPT, 12)] * 3
    sampling = {"prompt": PROMPT, "max_tokens": 12, "temperature": 1.5, "top_k": 40}
    several = ask(runtime, n=3, seed=2**64 - 2, **sampling)
    alone = [ask(runtime, seed=seed, **sampling) for seed in (2**64 - 2, 2**64 - 1, 0)]
    assert [several.ids(i) for i in range(3)] == [one.ids() for one in alone]
    assert len({one.text() for one in alone}) == 3
    finals = [chunk for chunk in several.chunks if chunk.final]
    assert sorted(chunk.index for chunk in finals) == [0, 1, 2]
    assert {chunk.prompt_tokens for chunk in finals} == {len(encode(PROMPT))}


def test_stream_interval_sends_every_third_token():
    running = start(stream_interval=3)
    try:
        fields = {"prompt": PROMPT, "max_tokens": 11, "end_ids": [], "with_text": False}
        answer = ask(running, streaming=True, **fields)
        assert [len(chunk.token_ids) for chunk in answer.chunks] == [1, 2, 3, 3, 2]
        assert answer.ids() == ask(running, **fields).ids()
        text = ask(running, prompt=PROMPT, max_tokens=11, streaming=True)
        assert text.text() == ask(running, prompt=PROMPT, max_tokens=11).text()
    finally:
        running.stop()


def test_perf_times_are_in_order_and_end_counts_are_given(runtime):
    answer = begin(runtime, prompt=PROMPT, max_tokens=5, end_ids=[], perf=True).wait()
    perf = answer.last().perf
    times = [perf.arrival_ns, perf.first_scheduled_ns, perf.first_token_ns, perf.last_token_ns]
    assert times == sorted(times)
    assert times[3] > times[2]
    assert answer.last().prompt_tokens == len(encode(PROMPT))
    assert (perf.draft_tokens, perf.accepted_draft_tokens) == (0, 0)
