"""The reference runtime in process: every format, concurrency, cancellation, refusals."""

from __future__ import annotations

import time

import pytest

from engineroom.pipeline.quantize import find
from tests.independent.generation import Plain
from tests.reference.running import begin, start

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("formats")]
PROMPTS = ['{"name": "', "The import statement", "[1, 2, ", "Ωmega and 🐱", "A generator is"]
ENDS = [2, 0]


def collect(runtime, **fields):
    """(handle, event, chunks): the event is set at the final chunk."""
    answer = begin(runtime, **fields)
    return answer.handle, answer.done, answer.chunks


def ask(runtime, **fields):
    _, done, chunks = collect(runtime, **fields)
    assert done.wait(60)
    return chunks


@pytest.mark.parametrize("name", ["fp8", "awq", "awq128", "nvfp4", "bf16", "bf16-kv8"])
def test_every_format_decodes_like_the_independent_dequantizer(quantized, name):
    folder = find(quantized(name)).path / "hf"
    if name == "bf16":
        pytest.importorskip("transformers")
    plain = Plain(folder) if (folder / "hf_quant_config.json").exists() else None
    runtime = start(folder)
    try:
        for prompt in PROMPTS:
            chunks = ask(runtime, prompt=prompt, max_tokens=16)
            got = [token for chunk in chunks for token in chunk.token_ids]
            if plain is None:
                from transformers import AutoModelForCausalLM, AutoTokenizer

                model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
                tokens = AutoTokenizer.from_pretrained(folder)(prompt, return_tensors="pt")
                out = model.generate(
                    input_ids=tokens.input_ids, attention_mask=tokens.attention_mask,
                    max_new_tokens=16, do_sample=False, eos_token_id=ENDS, pad_token_id=0,
                )[0, tokens.input_ids.shape[1] :].tolist()  # fmt: skip
                want = [t for t in out if t not in ENDS]
            else:
                want = plain.ids(prompt, 16, ENDS)
            assert got == want, (name, prompt)
    finally:
        runtime.stop()


def test_twenty_prompts_token_for_token(quantized):
    """The runtime behind the llmapi lane: token ids, where its server gives text only."""
    from tests.serving.test_served import prompts

    folder = find(quantized("fp8")).path / "hf"
    plain, runtime = Plain(folder), start(folder)
    try:
        assert len(prompts()) == 20
        for prompt in prompts():
            chunks = ask(runtime, prompt=prompt, max_tokens=24, streaming=True)
            assert [t for c in chunks for t in c.token_ids] == plain.ids(prompt, 24, ENDS)
    finally:
        runtime.stop()


def test_cancel_and_queue(quantized):
    runtime = start(find(quantized("fp8")).path / "hf", max_batch_size=1)
    try:
        first, first_done, _ = collect(
            runtime, prompt=PROMPTS[0], max_tokens=900, end_ids=[], streaming=True
        )
        _, second_done, second = collect(runtime, prompt=PROMPTS[1], max_tokens=4)
        assert not second_done.wait(0.3)  # one at a time: it waits
        first.cancel()
        assert first_done.wait(10)
        assert second_done.wait(10)
        assert second[-1].finish_reason == "length"
    finally:
        runtime.stop()


def test_stats_follow_the_requests(quantized):
    """Two run, three wait; blocks are those of the tokens in the caches."""
    runtime = start(
        find(quantized("fp8")).path / "hf",
        max_batch_size=2,
        kv_cache_config={"tokens_per_block": 16, "enable_block_reuse": False},
    )
    try:
        idle = runtime.stats()
        assert (idle.active, idle.waiting, idle.max_active, idle.iteration) == (0, 0, 2, 0)
        assert (idle.kv_max, idle.kv_free, idle.kv_used) == (2 * 1024 // 16, 128, 0)
        prompt, seen, begun = list(range(100, 140)), [], []
        for _ in range(5):
            request = {"prompt_ids": prompt, "max_tokens": 30, "end_ids": [], "streaming": True}
            begun.append(collect(runtime, **request)[1:])
        while not all(done.is_set() for done, _ in begun):
            seen.append(runtime.stats())
            time.sleep(0.001)
        assert max(stats.waiting for stats in seen if stats.active == 2) == 3
        assert {stats.scheduled for stats in seen} <= {0, 1, 2}
        for stats in seen:
            assert stats.active + stats.waiting <= 5
            assert stats.kv_free + stats.kv_used == 128
            assert stats.context + stats.generation == stats.active
            # 40 to 69 tokens of a request are 3 to 5 blocks of 16; none before its first step.
            assert stats.kv_used <= 2 * 5
            assert stats.context_tokens == 40 * stats.context
        assert max(stats.kv_used for stats in seen) == 2 * 5
        assert [chunks[-1].prompt_tokens for _, chunks in begun] == [40] * 5
    finally:
        runtime.stop()
    after = runtime.stats()
    assert (after.active, after.waiting, after.kv_used, after.kv_free) == (0, 0, 0, 128)
    assert after.iteration >= 3 * 30  # two, two, one


def test_seeded_sampling_repeats_and_differs(quantized):
    runtime = start(find(quantized("fp8")).path / "hf")

    def text(seed):
        options = {"temperature": 1.5, "top_k": 50, "top_p": 0.95, "seed": seed}
        return "".join(c.text for c in ask(runtime, prompt=PROMPTS[4], max_tokens=24, **options))

    try:
        assert text(1) == text(1)
        assert text(1) != text(2)
    finally:
        runtime.stop()
