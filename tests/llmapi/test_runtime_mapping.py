"""A runtime request as LLM API calls, and its outputs as chunks, on the double of tests/standins."""

from __future__ import annotations

import json
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from tests.conftest import ROOT, TINY


@pytest.fixture
def double(monkeypatch):
    """The double package as `tensorrt_llm`; `.llm` is the last LLM, `.calls` its requests."""
    monkeypatch.syspath_prepend(str(ROOT / "tests/standins"))
    for name in [n for n in sys.modules if n.split(".")[0] == "tensorrt_llm"]:
        monkeypatch.delitem(sys.modules, name)
    import tensorrt_llm

    calls: list = []
    upstream = tensorrt_llm.LLM

    class LLM(upstream):
        def __init__(self, **arguments):
            self.given = arguments
            tensorrt_llm.made = self
            super().__init__(**arguments)

        def generate_async(self, inputs, sampling_params=None, lora_request=None,
                           prompt_adapter_request=None, streaming=False, priority=0.5):  # fmt: skip
            calls.append(SimpleNamespace(
                inputs=inputs, given=sampling_params.given, streaming=streaming, lora=lora_request,
                priority=priority,
            ))  # fmt: skip
            return super().generate_async(inputs, sampling_params, streaming)

    monkeypatch.setattr(tensorrt_llm, "LLM", LLM)
    yield SimpleNamespace(module=tensorrt_llm, calls=calls)
    for name in [n for n in sys.modules if n.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@pytest.fixture
def runtime(double):
    from runtime_api import make_runtime

    one = make_runtime("tensorrt_llm")
    one.start(str(TINY), {"max_batch_size": 4, "logits_post_processors": {"even": "json:dumps"}})
    yield one
    one.stop()


def chunks_of(runtime, **fields):
    from runtime_api import Request

    request = Request(**{"prompt": "a b c d", "max_tokens": 4, **fields})
    got, done = [], threading.Event()

    def on_chunk(chunk):
        got.append(chunk)
        finals = sum(item.final for item in got)
        if finals == request.n or chunk.finish_reason in ("error", "cancelled"):
            done.set()

    runtime.submit(request, on_chunk)
    assert done.wait(10)
    return got


ENDS = {"end_id": 2, "stop_token_ids": [0]}  # tests/models/tiny-llama: [2, 0]
OURS = {"detokenize": False}


def given(double, runtime, **fields):
    chunks = chunks_of(runtime, **fields)
    assert chunks[-1].finish_reason != "error", chunks[-1]
    return double.calls[-1].given


def test_the_models_own_end_ids_are_written_out(double, runtime):
    """Older releases look at the tokenizer's eos alone, and chat then never ends."""
    assert given(double, runtime) == {"max_tokens": 4, **ENDS, **OURS}
    assert given(double, runtime, end_ids=[5]) == {"max_tokens": 4, "end_id": 5, **OURS}
    assert given(double, runtime, end_ids=[]) == {"max_tokens": 4, "ignore_eos": True, **OURS}


def test_sampling_fields(double, runtime):
    same = {
        "min_tokens": 2, "temperature": 0.5, "top_k": 3, "top_p": 0.75, "top_p_min": 0.5,
        "repetition_penalty": 1.5, "frequency_penalty": 0.25, "presence_penalty": -0.25,
        "length_penalty": 0.5, "beam_search_diversity_rate": 0.5, "seed": 2**64 - 1,
    }  # fmt: skip
    assert given(double, runtime, **same) == {"max_tokens": 4, **ENDS, **OURS, **same}


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"temperature": 0.0, "top_p": 0.5}, {"top_k": 1}),
        ({"bad_token_sequences": [[7]]}, {"bad_token_ids": [7]}),
        ({"stop_token_sequences": [[9]]}, {"stop_token_ids": [9, 0]}),
        ({"n": 2, "best_of": 3}, {"n": 2, "best_of": 3}),
        ({"n": 2, "beam_width": 3, "early_stopping": True},
         {"n": 2, "best_of": 3, "use_beam_search": True, "early_stopping": 1}),
        ({"log_probs": True}, {"logprobs": 1}),
        ({"perf": True}, {"return_perf_metrics": True}),
        ({"prompt": "<|im_start|>x", "add_special_tokens": False, "media": ["an image"]},
         {"add_special_tokens": False}),
    ],
)  # fmt: skip
def test_other_fields(double, runtime, fields, want):
    assert given(double, runtime, **fields) == {"max_tokens": 4, **ENDS, **OURS, **want}


def test_nobody_asked_for_text(double, runtime):
    (chunk,) = chunks_of(runtime, with_text=False)
    assert (chunk.text, len(chunk.token_ids)) == ("", 4)
    (chunk,) = chunks_of(runtime, with_text=False, stop=["b"])
    assert (chunk.text, chunk.stop_reason) == ("", "b")


@pytest.mark.parametrize("token", ["<s>", {"content": "<s>"}])
def test_a_prompt_that_begins_with_bos_gets_no_second_one(double, tmp_path, token):
    from runtime_api import make_runtime

    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": token}))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 5}')
    runtime = make_runtime("tensorrt_llm")
    runtime.start(str(tmp_path), {})
    try:
        assert given(double, runtime, prompt="x") == {"max_tokens": 4, "end_id": 5}
        assert given(double, runtime, prompt="<s>x")["add_special_tokens"] is False
        given(double, runtime, prompt=None, prompt_ids=[1, 5])
        assert double.calls[-1].inputs == [1, 5]
    finally:
        runtime.stop()


@pytest.mark.parametrize(
    ("kind", "text", "field"),
    [("json", None, ("json_object", True)), ("json_schema", "{}", ("json", "{}")),
     ("regex", "a+", ("regex", "a+")), ("ebnf_grammar", "root ::= x", ("grammar", "root ::= x")),
     ("structural_tag", "{}", ("structural_tag", "{}"))],
)  # fmt: skip
def test_guides(double, runtime, kind, text, field):
    from runtime_api import Guide

    guide = given(double, runtime, guide=Guide(kind, text))["guided_decoding"]
    assert getattr(guide, field[0]) == field[1]


def test_a_guide_that_the_library_cannot_read_never_reaches_the_engine(
    double, runtime, monkeypatch
):
    from runtime_api import Guide

    class Grammar:
        @staticmethod
        def from_regex(text):
            if text == "(":
                raise RuntimeError("unmatched bracket\nat 1")

    monkeypatch.setitem(sys.modules, "xgrammar", SimpleNamespace(Grammar=Grammar))
    chunk = chunks_of(runtime, guide=Guide("regex", "("))[-1]
    assert (chunk.invalid, chunk.stop_reason) == (
        True, "guide is no valid regex: unmatched bracket",
    )  # fmt: skip
    assert double.calls == []
    given(double, runtime, guide=Guide("regex", "a"))


def test_an_adapter(double, runtime):
    from runtime_api import Lora

    given(double, runtime, lora=Lora(7, "fr", "/adapters/fr", "nemo"))
    lora = double.calls[-1].lora
    assert (lora.lora_name, lora.lora_int_id, lora.lora_path, lora.lora_ckpt_source) == (
        "fr", 7, "/adapters/fr", "nemo",
    )  # fmt: skip


def test_images_go_beside_the_prompt(double, runtime):
    image = object()
    given(double, runtime, media=[image])
    assert double.calls[-1].inputs == {
        "prompt": "a b c d", "multi_modal_data": {"image": [image]},
    }  # fmt: skip


def test_priority_where_the_release_takes_one(double, runtime):
    given(double, runtime, priority=0.75)
    assert double.calls[-1].priority == 0.75
    runtime._convert._known = frozenset({"inputs"})
    chunk = chunks_of(runtime, priority=0.75)[-1]
    assert (chunk.invalid, "knows no priority" in chunk.stop_reason) == (True, True)


def test_a_processor_by_its_registered_name_only(double, runtime):
    assert given(double, runtime, logits_post_processor="even")["logits_processor"] is json.dumps
    chunk = chunks_of(runtime, logits_post_processor="odd")[-1]
    assert (chunk.invalid, "'odd' is not registered; there are: even" in chunk.stop_reason) == (
        True, True,
    )  # fmt: skip
    from trtllm_runtime import _processor

    with pytest.raises(ValueError, match="logits_post_processors: x: 'json:nothing'"):
        _processor("x", "json:nothing")


@pytest.mark.parametrize("field", ["stop", "bad"])
def test_token_sequences_have_no_place(double, runtime, field):
    chunk = chunks_of(runtime, **{f"{field}_token_sequences": [[1, 2]]})[-1]
    assert chunk.invalid
    assert chunk.stop_reason.startswith(f"{field}: ")


def test_every_name_is_upstreams(catalog):
    """What is sent are fields of SamplingParams, as the double lists them from upstream's file."""
    sys.path.insert(0, str(ROOT / "tests/standins"))
    try:
        from tensorrt_llm.sampling_params import DEFAULTS
    finally:
        sys.path.remove(str(ROOT / "tests/standins"))
        for name in [n for n in sys.modules if n.split(".")[0] == "tensorrt_llm"]:
            del sys.modules[name]
    from trtllm_request import SAME

    assert set(SAME) <= set(DEFAULTS)


# ---- outputs
def test_sequences_log_probs_and_totals(double, runtime):
    chunks = chunks_of(runtime, n=2, log_probs=True)
    assert [(c.index, c.text, c.finish_reason) for c in chunks] == [
        (0, "a b c d", "length"), (1, " b c da", "length"),
    ]  # fmt: skip
    assert chunks[0].log_probs == [-1 / 8, -2 / 8, -3 / 8, -4 / 8]
    assert chunks[0].cumulative_logprob == -10 / 8
    assert chunks[0].prompt_tokens == 4


def test_logits_and_performance(double, runtime):
    chunk = chunks_of(runtime, context_logits=True, generation_logits=True, perf=True)[-1]
    assert chunk.context_logits.shape == (4, 4)
    assert chunk.generation_logits.dtype == np.float32
    assert chunk.generation_logits.tolist() == np.arange(16.0).reshape(4, 4).tolist()
    start = 1_700_000_000 * 10**9
    perf = chunk.perf
    assert (perf.arrival_ns, perf.first_scheduled_ns, perf.last_token_ns) == (
        start, start + 1000, start + 3000,
    )  # fmt: skip
    assert (perf.kv_reused_blocks, perf.kv_missed_blocks, perf.kv_hit_rate) == (1, 3, 0.25)
    assert (perf.acceptance_rate, perf.accepted_draft_tokens, perf.draft_tokens) == (0.5, 4, 8)


# ---- the loop
def test_a_request_runs_in_the_thread_that_brings_it(double, runtime):
    from runtime_api import Request

    threads: list = []
    runtime.submit(
        Request(prompt="a b", max_tokens=2), lambda c: threads.append(threading.current_thread())
    )  # fmt: skip
    assert threads == [threading.current_thread()]


def test_other_threads_results_are_taken_by_the_loops_own_thread(double, runtime):
    seen, done = [], threading.Event()
    runtime._loop.call_soon_threadsafe(
        lambda: (seen.append(threading.current_thread().name), done.set())
    )
    assert done.wait(5)
    assert seen == ["llmapi"]


def test_a_request_that_is_cancelled_before_its_turn_never_starts(double, runtime):
    from runtime_api import Request

    got: list = []
    with runtime._shared._turn:  # somebody else runs the loop
        handle = runtime.submit(Request(prompt="a"), got.append)
        handle.cancel()
        assert got == []
    until = time.monotonic() + 5
    while not got and time.monotonic() < until:
        time.sleep(0.01)
    assert [chunk.finish_reason for chunk in got] == ["cancelled"]
    assert double.calls == []


def test_many_threads_submit_at_once(double, runtime):
    from runtime_api import Request

    got: list = []
    threads = [
        threading.Thread(
            target=lambda: [
                runtime.submit(Request(prompt="a b", max_tokens=2), got.append) for _ in range(50)
            ]
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = threading.Event()
    runtime._loop.call_soon_threadsafe(lambda: runtime._loop.call_soon(done.set))
    assert done.wait(5)
    assert sum(chunk.final for chunk in got) == 200
    assert runtime.stats().active == 0


def test_images_are_decoded_within_bounds(runtime, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    import io

    import trtllm_runtime

    data = io.BytesIO()
    image.new("P", (4, 3)).save(data, "PNG")
    assert runtime.decode_image(data.getvalue()).mode == "RGB"
    monkeypatch.setattr(trtllm_runtime, "MAX_PIXELS", 11)
    with pytest.raises(ValueError, match="4 x 3 pixels"):
        runtime.decode_image(data.getvalue())
