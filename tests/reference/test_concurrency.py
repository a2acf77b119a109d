"""Real threads: together as alone, cancellation at any point, reuse, pauses, a full queue."""

from __future__ import annotations

import json
import random
import threading
import time

import numpy as np
import pytest

from tests.reference.running import ask, begin, encode, start

pytestmark = pytest.mark.slow
TEXTS = ["A generator is", '{"name": "', "[1, 2, ", "Ωmega and 🐱", "import os\nclass", "東京の"]
LONG = list(range(300, 370))  # 70 tokens


def mixed(draw):
    """One request of any kind."""
    from runtime_api import Guide

    fields = {"prompt": draw.choice(TEXTS), "max_tokens": draw.randrange(4, 28)}
    if draw.random() < 0.5:
        fields |= {"temperature": 1.2, "top_p": 0.9, "seed": draw.randrange(1000)}
    if draw.random() < 0.3:
        fields |= {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3}
    if draw.random() < 0.3:
        fields |= {"bad": ["the", "is"], "min_tokens": 3}
    if draw.random() < 0.3:
        fields["stop"] = ["\n", "e"]
    if draw.random() < 0.3:
        fields["n"] = 2
    if draw.random() < 0.3:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        fields["guide"] = Guide("json_schema", json.dumps(schema))
    return fields | {"streaming": draw.random() < 0.5, "log_probs": True}


def said(answer, n):
    return [
        (answer.ids(i), answer.text(i), answer.log_probs(i), answer.last(i).cumulative_logprob)
        for i in range(n)
    ]


def test_sixteen_at_once_equal_each_alone():
    draw = random.Random(16)
    requests = [mixed(draw) for _ in range(16)]
    runtime = start(max_batch_size=6, kv_cache_config={"tokens_per_block": 8})
    try:
        want = [said(ask(runtime, **fields), fields.get("n", 1)) for fields in requests]
        answers = [begin(runtime, **fields) for fields in requests]
        got = [said(a.wait(), f.get("n", 1)) for a, f in zip(answers, requests, strict=True)]
        assert got == want
    finally:
        runtime.stop()
    runtime.check()


@pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"])
def test_random_cancellations_leave_the_others_and_the_pool_alone(policy):
    draw = random.Random(7)
    requests = [mixed(draw) for _ in range(24)]
    runtime = start(
        max_batch_size=5,
        kv_cache_config={"tokens_per_block": 4, "max_tokens": 160},
        scheduler_config={"capacity_scheduler_policy": policy},
    )
    try:
        answers = [begin(runtime, **fields) for fields in requests]
        for victim in draw.sample(range(24), 9):
            time.sleep(0.01)
            answers[victim].handle.cancel()
        for answer in answers:
            answer.wait()
        survivors = 0
        for answer, fields in zip(answers, requests, strict=True):
            reasons = {chunk.finish_reason for chunk in answer.chunks if chunk.final}
            assert "error" not in reasons
            if "cancelled" not in reasons:
                survivors += 1
                n = fields.get("n", 1)
                assert said(answer, n) == said(ask(runtime, **fields), n)
        assert survivors >= 15
        stats = runtime.stats()
        assert (stats.active, stats.waiting, stats.paused, stats.kv_used) == (0, 0, 0, 0)
    finally:
        runtime.stop()
    runtime.check()


def test_pauses_show_in_the_statistics_and_change_nothing():
    """Blocks of 4 for 72 tokens: three answers of 44 tokens cannot all stay."""
    requests = [{"prompt_ids": [300 + i] * 4, "max_tokens": 40, "end_ids": []} for i in range(3)]
    roomy = start()
    want = [ask(roomy, **fields).ids() for fields in requests]
    roomy.stop()
    tight = start(
        kv_cache_config={"tokens_per_block": 4, "max_tokens": 72},
        scheduler_config={"capacity_scheduler_policy": "max_utilization"},
    )
    try:
        answers = [begin(tight, **fields) for fields in requests]
        most = 0
        while not all(answer.done.is_set() for answer in answers):
            stats = tight.stats()
            most = max(most, stats.paused)
            assert stats.kv_used + stats.kv_free == stats.kv_max == 18
            time.sleep(0.001)
        assert most >= 1
        assert [answer.ids() for answer in answers] == want
    finally:
        tight.stop()
    tight.check()


def test_reuse_is_counted_and_changes_no_bit():
    """70 tokens in blocks of 16: 5 blocks, of which 4 are full and can be found again."""
    fields = {"prompt_ids": LONG, "max_tokens": 4, "end_ids": [], "perf": True,
              "generation_logits": True}  # fmt: skip
    runtime = start(kv_cache_config={"tokens_per_block": 16})
    try:
        cold, warm = ask(runtime, **fields), ask(runtime, **fields)
        assert runtime.stats().kv_reused == 4
        other = ask(runtime, **{**fields, "prompt_ids": LONG[:40] + [7] * 30})
    finally:
        runtime.stop()
    counts = [
        (p.kv_total_blocks, p.kv_new_blocks, p.kv_reused_blocks, p.kv_missed_blocks)
        for p in (answer.last().perf for answer in (cold, warm, other))
    ]
    # Taken from the free list, of these never used before, found again, not found.
    assert counts == [(5, 5, 0, 5), (1, 1, 4, 1), (3, 3, 2, 3)]
    assert warm.last().perf.kv_hit_rate == 0.8
    assert cold.ids() == warm.ids()
    assert np.array_equal(cold.last().generation_logits, warm.last().generation_logits)
    off = start(kv_cache_config={"tokens_per_block": 16, "enable_block_reuse": False})
    try:
        ask(off, **fields)
        again = ask(off, **fields)
    finally:
        off.stop()
    assert again.last().perf.kv_reused_blocks == 0
    assert np.array_equal(cold.last().generation_logits, again.last().generation_logits)


def test_a_full_queue_refuses_and_serves_the_rest():
    from runtime_api import RequestError

    runtime = start(max_batch_size=1, max_queue_size=2)
    try:
        gate = threading.Event()
        first = begin(runtime, prompt="a", max_tokens=200, end_ids=[])
        while not runtime.stats().active:
            time.sleep(0.001)
        waiting = [begin(runtime, prompt="b", max_tokens=2) for _ in range(2)]
        with pytest.raises(RequestError, match="queue is full: 2"):
            begin(runtime, prompt="c", max_tokens=2)
        gate.set()
        first.handle.cancel()
        for answer in waiting:
            assert answer.wait().last().finish_reason in ("length", "stop")
    finally:
        runtime.stop()


def test_cancelled_while_waiting_behind_a_full_batch():
    runtime = start(max_batch_size=1)
    try:
        first = begin(runtime, prompt="a", max_tokens=400, end_ids=[], streaming=True)
        second = begin(runtime, prompt="b", max_tokens=5)
        second.handle.cancel()
        second.handle.cancel()
        assert second.done.wait(5)
        assert not first.done.is_set()
        assert [chunk.finish_reason for chunk in second.chunks] == ["cancelled"]
        first.handle.cancel()
        first.wait()
    finally:
        runtime.stop()
    runtime.check()


def test_a_raising_callback_hurts_no_other_request():
    from runtime_api import Request

    runtime = start()
    try:
        want = ask(runtime, prompt=TEXTS[0], max_tokens=20).ids()
        other = begin(runtime, prompt=TEXTS[0], max_tokens=20)

        def broken(chunk):
            raise OSError("gone")

        runtime.submit(Request(prompt=TEXTS[1], max_tokens=20, streaming=True), broken)
        assert other.wait().ids() == want
        assert ask(runtime, prompt=TEXTS[0], max_tokens=20).ids() == want
    finally:
        runtime.stop()
    runtime.check()
    assert runtime.stats().kv_used == 0


def test_stop_answers_what_has_come_in_and_refuses_more():
    from runtime_api import RequestError

    runtime = start()
    answer = begin(runtime, prompt=TEXTS[0], max_tokens=30, end_ids=[])
    runtime.stop()
    assert len(answer.ids()) == 30
    with pytest.raises(RequestError, match="stopping"):
        begin(runtime, prompt="a")


def test_refused_policies_are_named():
    with pytest.raises(ValueError, match="static_batch"):
        start(scheduler_config={"capacity_scheduler_policy": "STATIC_BATCH"})


def test_prompt_of_the_cost_of_one_block_less_is_admitted_at_the_limit():
    """A request that fits the pool exactly runs; one token more is refused when it is submitted."""
    from runtime_api import RequestError

    kv = {"tokens_per_block": 16, "max_tokens": 32}
    runtime = start(kv_cache_config=kv)
    try:
        length = len(encode("A generator is"))
        fields = {"prompt": "A generator is", "end_ids": []}
        assert len(ask(runtime, max_tokens=32 - length, **fields).ids()) == 32 - length
        with pytest.raises(RequestError, match="max_tokens"):
            begin(runtime, max_tokens=33 - length, **fields)
    finally:
        runtime.stop()
