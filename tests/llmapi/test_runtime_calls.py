"""Which calls `trtllm_runtime.py` makes, on a double of the LLM API. This is not TensorRT-LLM."""

from __future__ import annotations

import asyncio
import sys
import threading
import types

import pytest


class Output:
    def __init__(self, text, ids, reason=None):
        self.finished = reason is not None
        self.outputs = [
            types.SimpleNamespace(
                text=text,
                token_ids=ids,
                finish_reason=reason,
                stop_reason=None,
                cumulative_logprob=-1.5,
            )
        ]


class Result:
    """Yields what it is given; with `pace`, the loop waits that many seconds before each."""

    pace = 0.0

    def __init__(self, outputs):
        self.items, self.aborted = outputs, False

    def abort(self):
        self.aborted = True

    def __aiter__(self):
        return self._go()

    async def _go(self):
        for item in self.items:
            if self.pace:
                await asyncio.sleep(self.pace)
            if isinstance(item, Exception):
                raise item
            yield item


@pytest.fixture
def double(monkeypatch):
    """Records what is called; `double.outputs` is what the next request yields."""
    calls = types.SimpleNamespace(llm=None, sampling=None, generate=None, outputs=[], result=None)

    class SamplingParams:
        def __init__(self, **kw):
            if kw.get("max_tokens") == -1:
                raise ValueError("max_tokens must be positive")
            calls.sampling = kw

    class LLM:
        def __init__(self, **kw):
            calls.llm = kw

        def generate_async(self, prompt, params, streaming):
            calls.generate = (prompt, type(params).__name__, streaming)
            calls.result = Result(calls.outputs)
            return calls.result

        def shutdown(self):
            calls.shut = True

    module = types.ModuleType("tensorrt_llm")
    module.LLM, module.SamplingParams = LLM, SamplingParams
    monkeypatch.setitem(sys.modules, "tensorrt_llm", module)
    return calls


def run(double, outputs, *, merge=True, **fields):
    from runtime_api import Request, make_runtime

    double.outputs = outputs
    runtime = make_runtime("tensorrt_llm")
    runtime.merge_events = merge
    runtime.start("/model", {"backend": "pytorch", "max_batch_size": 8})
    chunks, done = [], threading.Event()

    def on_chunk(chunk):
        chunks.append(chunk)
        if chunk.final:
            done.set()

    try:
        handle = runtime.submit(Request(prompt="hi", **fields), on_chunk)
        assert done.wait(10)
    finally:
        runtime.stop()
    return handle, chunks


def test_arguments_reach_the_llm(double):
    run(double, [Output("a", [1], "stop")], max_tokens=5, top_k=3, stop=["x"], streaming=True)
    assert double.llm == {"model": "/model", "backend": "pytorch", "max_batch_size": 8}
    assert double.sampling == {
        "max_tokens": 5, "top_k": 3, "stop": ["x"], "include_stop_str_in_output": True,
    }  # fmt: skip
    assert double.generate == ("hi", "SamplingParams", True)
    assert double.shut


GROWING = [("Hé", [1, 2]), ("Hé\ufffd", [1, 2, 3]), ("Hé🐱", [1, 2, 3, 4])]
WHOLE = ("Hé🐱!", [1, 2, 3, 4, 5], "length")


@pytest.mark.parametrize(("pace", "merge"), [(0.01, True), (0.01, False), (0.0, False)])
def test_cumulative_text_becomes_deltas_and_split_characters_wait(double, monkeypatch, pace, merge):
    """At a pace that the loop keeps up with, each output is a chunk, merged or not."""
    monkeypatch.setattr(Result, "pace", pace)
    outputs = [Output(*parts) for parts in (*GROWING, WHOLE)]
    _, chunks = run(double, outputs, merge=merge, streaming=True)
    assert [c.text for c in chunks] == ["Hé", "", "🐱", "!"]
    assert [c.token_ids for c in chunks] == [[1, 2], [3], [4], [5]]
    assert chunks[-1].finish_reason == "length"
    assert chunks[-1].cumulative_logprob == -1.5


def test_outputs_that_are_there_at_once_go_out_together(double):
    _, chunks = run(double, [Output(*parts) for parts in (*GROWING, WHOLE)], streaming=True)
    assert [(c.text, c.token_ids) for c in chunks] == [("Hé🐱!", [1, 2, 3, 4, 5])]


def test_end_ids_become_end_id_and_stop_token_ids(double):
    run(double, [Output("a", [1], "stop")], end_ids=[7, 8, 9])
    assert double.sampling["end_id"] == 7
    assert double.sampling["stop_token_ids"] == [8, 9]


def test_an_aborted_request_still_ends(double):
    _, chunks = run(double, [Output("a", [1])])
    assert chunks[-1].finish_reason == "cancelled"


def test_before_1_0_the_pytorch_class_has_another_home(double, monkeypatch):
    module = sys.modules["tensorrt_llm"]
    module.__version__ = "0.21.0"
    monkeypatch.setitem(sys.modules, "tensorrt_llm._torch", types.SimpleNamespace(LLM=module.LLM))
    monkeypatch.setattr(module, "LLM", None)
    module.__path__ = []
    _, chunks = run(double, [Output("a", [1], "stop")])
    assert chunks[-1].finish_reason == "stop"


def test_errors_end_the_request(double):
    _, chunks = run(double, [Output("a", [1]), RuntimeError("engine died")])
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == (
        "error",
        "RuntimeError: engine died",
    )


def test_bad_parameters_are_the_requests_fault(double):
    """The answer comes as a chunk: whoever submits never waits."""
    _, chunks = run(double, [], max_tokens=-1)
    assert [(c.finish_reason, c.invalid) for c in chunks] == [("error", True)]
    assert "max_tokens must be positive" in chunks[0].stop_reason


def test_unknown_runtime():
    from runtime_api import make_runtime

    with pytest.raises(ValueError, match="neither"):
        make_runtime("vllm")
