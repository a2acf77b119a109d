"""The block pool and the scheduler on a model that costs nothing: books that always balance."""

from __future__ import annotations

import hashlib
import random
import types

import numpy as np
import pytest
import torch

VOCABULARY = 23


class Cache(list):
    def get_seq_length(self):
        return len(self)


class Model:
    """Logits that depend on every token before; `passes` counts tokens that went through it."""

    config = types.SimpleNamespace(vocab_size=VOCABULARY)

    def __init__(self):
        self.passes = 0

    def new_cache(self):
        return Cache()

    def logits(self, ids, cache):
        rows = []
        for token in ids:
            cache.append(token)
            self.passes += 1
            digest = hashlib.blake2b(bytes(cache), digest_size=VOCABULARY).digest()
            rows.append([value / 64 for value in digest])
        return torch.tensor(rows)


def job(number, ids, max_tokens, sink, **fields):
    from engineroom_reference.sequence import Job
    from runtime_api import Request

    request = Request(prompt_ids=ids, max_tokens=max_tokens, with_text=False, **fields)
    return Job(request, ids, [], [], None, sink, None, number, 1)


def scheduler(blocks, size=4, reuse=True, policy="guaranteed_no_evict", batch=8):
    from engineroom_reference.blocks import BlockPool
    from engineroom_reference.scheduler import Scheduler

    return Scheduler(Model(), BlockPool(blocks, size, reuse), batch, policy)


def run(books, limit=3000):
    for _ in range(limit):
        if books.idle:
            break
        books.schedule()
        books.check()
        books.step()
        books.check()
    assert books.idle
    assert books.pool.used == 0


def alone(ids, max_tokens, **fields):
    chunks = []
    books = scheduler(64, batch=4)
    books.add(job(0, ids, max_tokens, chunks.append, **fields))
    run(books)
    return tokens(chunks)


def tokens(chunks):
    found = {}
    for chunk in chunks:
        found.setdefault(chunk.index, []).extend(chunk.token_ids)
    return found


def test_reuse_counted_by_hand():
    """Blocks of 4. The last prompt token is always computed, so of 12 shared tokens 2 blocks are
    reused by the same prompt and 3 by one that goes on."""
    from engineroom_reference.blocks import BlockPool

    pool, root = BlockPool(10, 4, reuse=True), BlockPool.root()
    prompt = list(range(12))
    first = pool.open(root, prompt)
    assert (first.total, first.new, first.reused, first.missed) == (3, 3, 0, 3)
    pool.store(first, prompt)
    same = pool.open(root, prompt)
    assert (same.total, same.new, same.reused, same.missed) == (1, 1, 2, 1)
    assert same.blocks[:2] == first.blocks[:2]
    assert pool.used == 4
    longer = pool.open(root, [*prompt, 99, 98])
    assert (longer.total, longer.reused, longer.missed) == (1, 3, 1)
    other = pool.open(BlockPool.root(lora_id=7), prompt)
    assert (other.total, other.reused) == (3, 0)
    assert pool.used == 8
    assert pool.match(BlockPool.root(media=[b"image"]), prompt) == []
    for table in (first, same, longer, other):
        pool.close(table)
    pool.check()
    assert (pool.used, pool.free, pool.reused) == (0, 10, 5)
    # A change in the first block breaks the chain, though the second is the same.
    changed = pool.open(root, [50, *prompt[1:]])
    assert changed.reused == 0


def test_the_least_recent_content_goes_first_and_its_end_before_its_beginning():
    from engineroom_reference.blocks import BlockPool

    pool, root = BlockPool(6, 4, reuse=True), BlockPool.root()
    old, young = list(range(9)), list(range(100, 109))  # 2 full blocks each, and one begun
    for prompt in (old, young):
        table = pool.open(root, prompt)
        pool.store(table, prompt)
        pool.close(table)
    assert (pool.free, len(pool.match(root, old)), len(pool.match(root, young))) == (6, 2, 2)
    table = pool.open(root, list(range(200, 211)))  # 3 blocks: 2 are plain, one is taken
    assert (table.total, table.new) == (3, 2)
    assert (len(pool.match(root, old)), len(pool.match(root, young))) == (1, 2)
    pool.check()


def test_without_reuse_nothing_is_kept():
    from engineroom_reference.blocks import BlockPool

    pool = BlockPool(4, 4)
    table = pool.open(pool.root(), list(range(8)))
    pool.store(table, list(range(8)))
    assert pool.open(pool.root(), list(range(8))).reused == 0
    assert pool.open(pool.root(), [1]) is None
    assert not pool.extend(table, 9)
    pool.check()


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
@pytest.mark.parametrize("seed", range(40))
def test_random_joins_and_cancels_leave_no_block_and_change_no_token(policy, seed):
    draw = random.Random(seed)
    books = scheduler(
        draw.choice([16, 20, 40]),
        reuse=draw.random() < 0.6,
        policy=policy,
        batch=draw.choice([4, 6]),
    )
    prefixes = [[draw.randrange(VOCABULARY) for _ in range(12)] for _ in range(2)]
    sinks, plans, jobs = [], [], []
    for number in range(14):
        ids = [*draw.choice(prefixes)[: draw.randrange(1, 13)], draw.randrange(VOCABULARY)]
        fields = {"n": draw.choice([1, 1, 2]), "priority": draw.choice([None, 0.1, 0.9])}
        if draw.random() < 0.5:
            fields |= {"temperature": 2.0, "seed": draw.randrange(99)}
        plan = (ids, draw.randrange(1, 18), fields)
        if books.most_blocks(len(ids), plan[1], fields["n"]) > books.pool.size:
            continue
        sinks.append([])
        plans.append(plan)
        jobs.append(job(number, ids, plan[1], sinks[-1].append, **fields))
    todo, cancelled = list(jobs), set()
    for _ in range(2000):
        while todo and draw.random() < 0.4:
            books.add(todo.pop(0))
        if draw.random() < 0.06:
            victim = draw.randrange(len(jobs))
            jobs[victim].cancelled.set()
            cancelled.add(victim)
        books.schedule()
        books.check()
        assert sum(len(running.open) for running in books.running) <= books._max_batch
        if policy == "guaranteed_no_evict":
            assert books.paused == 0
        books.step()
        books.check()
        if books.idle and not todo:
            break
    assert books.idle
    assert books.pool.used == 0
    survivors = 0
    for number, (ids, max_tokens, fields) in enumerate(plans):
        finals = [chunk.finish_reason for chunk in sinks[number] if chunk.final]
        if "cancelled" in finals:
            assert number in cancelled
            assert finals.count("cancelled") == 1
            assert len(finals) <= fields["n"]
            continue
        survivors += 1
        assert finals == ["length"] * fields["n"]
        assert tokens(sinks[number]) == alone(ids, max_tokens, **fields)
    assert survivors


def test_the_youngest_is_paused_and_computed_again(monkeypatch):
    """3 requests of 4 + 12 tokens need 12 blocks of 4; there are 8."""
    from engineroom_reference.scheduler import Scheduler

    paused = []
    pause = Scheduler._pause
    monkeypatch.setattr(
        Scheduler, "_pause", lambda self, job: (paused.append(job.number), pause(self, job))
    )
    books = scheduler(8, reuse=False, policy="max_utilization")
    sinks = [[], [], []]
    prompts = [[i, i + 1, i + 2, i + 3] for i in range(3)]
    for number in range(3):
        books.add(job(number, prompts[number], 12, sinks[number].append))
    run(books)
    assert paused
    assert 0 not in paused
    for number in range(3):
        assert tokens(sinks[number]) == alone(prompts[number], 12)
    # Each token went through the model again after a pause, no more.
    assert books._model.passes > 3 * (4 + 11)


def test_admission_waits_for_all_of_a_request_with_no_evict():
    books = scheduler(8, reuse=False)
    sinks = [[], []]
    for number in range(2):
        books.add(job(number, [number] * 4, 16, sinks[number].append))
    books.schedule()
    assert (len(books.running), books.waiting) == (1, 1)
    run(books)
    assert [len(tokens(sink)[0]) for sink in sinks] == [16, 16]


def test_priority_orders_admission_then_arrival():
    books = scheduler(64, batch=1)
    ended = []
    for number, priority in enumerate([0.2, None, 0.9, 0.9, 0.5]):
        books.add(job(number, [1], 1, lambda chunk, n=number: ended.append(n), priority=priority))
    run(books)
    assert ended == [2, 3, 1, 4, 0]


def test_cancelled_while_paused():
    books = scheduler(8, reuse=True, policy="max_utilization")
    sinks = [[], [], []]
    jobs = [job(i, [i] * 4, 12, sinks[i].append) for i in range(3)]
    for one in jobs:
        books.add(one)
    while not books.paused:
        books.schedule()
        books.step()
    victim = books._paused[0].number
    jobs[victim].cancelled.set()
    run(books)
    assert sinks[victim][-1].finish_reason == "cancelled"
    assert [s[-1].finish_reason for i, s in enumerate(sinks) if i != victim] == ["length"] * 2


def test_a_raising_callback_ends_its_own_request_only():
    books = scheduler(64)
    calls, sink = [], []

    def broken(chunk):
        calls.append(chunk)
        raise OSError("the response could not be sent")

    books.add(job(0, [1, 2], 8, broken, streaming=True))
    books.add(job(1, [1, 2], 8, sink.append, streaming=True))
    run(books)
    assert [chunk.finish_reason for chunk in calls] == [None, "error"]
    assert tokens(sink) == alone([1, 2], 8)


def test_logits_of_the_stand_in_model_depend_on_all_tokens():
    """Or the tests above could not see a wrong cache."""
    one, two = Model().logits([1, 2, 3], Cache()), Model().logits([4, 2, 3], Cache())
    assert not np.allclose(one[-1], two[-1])
