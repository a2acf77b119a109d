"""The LLM API's growing outputs as chunks: deltas, stop words, and when a sequence has ended."""

from __future__ import annotations

import datetime
from types import SimpleNamespace

import pytest


def test_times_that_have_not_happened_are_not_known():
    from trtllm_output import _nanoseconds

    assert _nanoseconds(datetime.timedelta(0)) is None
    assert _nanoseconds(datetime.timedelta(days=1, microseconds=7)) == 86400 * 10**9 + 7000


@pytest.mark.parametrize(
    ("entries", "want"),
    [
        ([-0.5, -0.25], [-0.5, -0.25]),
        ([{7: SimpleNamespace(logprob=-0.5), 8: SimpleNamespace(logprob=-0.1)},
          {9: SimpleNamespace(logprob=-0.25)}], [-0.5, -0.25]),
        ([{7: -0.5}, {9: -0.25}, {1: 0.0}], [-0.5, -0.25]),
    ],
)  # fmt: skip
def test_log_probs_in_each_release_s_form(entries, want):
    from trtllm_output import log_probs

    assert log_probs(entries, [7, 9]) == want


class Step:
    """A RequestOutput after a step: (text, ids, finish reason, stop reason) of each sequence."""

    def __init__(self, *sequences, finished=False):
        self.finished, self.context_logits = finished, None
        self.outputs = [
            SimpleNamespace(
                text=text, token_ids=list(range(10, 10 + count)), finish_reason=reason, stop_reason=stop,
                cumulative_logprob=None, logprobs=[], generation_logits=None,
            )
            for text, count, reason, stop in sequences
        ]  # fmt: skip


def progress(steps, **fields):
    from runtime_api import Request
    from trtllm_output import Progress

    it = Progress(Request(prompt="x", **fields), SimpleNamespace(), [2, 0])
    got = []
    for step in steps:
        for chunk in it.chunks(step):
            got.append((chunk.index, chunk.text, chunk.finish_reason, chunk.stop_reason))
    return got, it


def test_the_beginning_of_a_stop_word_is_held_back_and_never_sent():
    steps = [
        Step(("go ", 1, None, None)),
        Step(("go EN", 2, None, None)),
        Step(("go END", 3, None, None)),
    ]
    got, it = progress(steps, stop=["END"], streaming=True)
    assert got == [(0, "go ", None, None), (0, "", None, None), (0, "", "stop", "END")]
    assert (it.over, it.finished) == (True, False)  # so that the runtime aborts it


def test_what_was_held_back_is_sent_when_it_is_no_stop_word():
    steps = [Step(("EN", 1, None, None)), Step(("ENT", 2, "length", None), finished=True)]
    got, _ = progress(steps, stop=["END"], streaming=True)
    assert got == [(0, "", None, None), (0, "ENT", "length", None)]


def test_a_stop_word_that_upstream_saw_and_cut_off():
    steps = [Step(("a EN", 2, None, None)), Step(("a ", 1, "stop", "END"), finished=True)]
    got, _ = progress(steps, stop=["END"], streaming=True)
    assert got == [(0, "a ", None, None), (0, "", "stop", "END")]


def test_a_stop_word_inside_a_whole_answer():
    got, _ = progress([Step(("a END b", 4, "length", None), finished=True)], stop=["END"])
    assert got == [(0, "a ", "stop", "END")]


def test_an_end_id_is_no_stop_reason():
    got, _ = progress([Step(("a", 1, "stop", 0), finished=True)])
    assert got == [(0, "a", "stop", None)]
    got, _ = progress([Step(("a", 1, "stop", 9), finished=True)])
    assert got == [(0, "a", "stop", "9")]


def test_sequences_that_ended_before_the_last_one_have_a_reason_too():
    """Upstream names it for the sequence that the last response was about."""
    steps = [
        Step(("a", 1, None, None), ("x", 1, None, None)),
        Step(("ab", 2, None, None), ("x", 1, None, None)),
        Step(("ab", 2, None, None), ("xyz", 3, "length", None), finished=True),
    ]
    got, it = progress(steps, n=2, streaming=True, max_tokens=3)
    assert got == [
        (0, "a", None, None), (1, "x", None, None), (0, "b", None, None),
        (0, "", "stop", None), (1, "yz", "length", None),
    ]  # fmt: skip
    assert it.over


def test_a_cancelled_request_ends_with_one_chunk():
    got, _ = progress(
        [Step(("a", 1, "cancelled", None), ("b", 1, "cancelled", None), finished=True)], n=2
    )
    assert got == [(0, "", "cancelled", None)]
