"""The model file and its replies, on doubles of Triton and of a runtime.

One file, because each case goes through the same pair of doubles, which are a third of it.
"""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from tests.llmapi.conftest import Request, Sender

P = "sampling_param_"


class Handle:
    def __init__(self, runtime, on_chunk):
        self.runtime, self.on_chunk, self.cancels = runtime, on_chunk, 0

    def cancel(self):
        self.cancels += 1
        if self.cancels == 1:
            self.runtime.give(self, finish_reason="cancelled")


class Runtime:
    """Keeps what was submitted; tests give the chunks."""

    def __init__(self):
        self.requests, self.handles, self.error = [], [], None

    def start(self, model, args):
        self.model, self.args = model, args

    def stop(self):
        pass

    def stats(self):
        from runtime_api import Stats

        return Stats()

    def submit(self, request, on_chunk):
        if self.error:
            raise self.error
        self.requests.append(request)
        self.handles.append(Handle(self, on_chunk))
        return self.handles[-1]

    @staticmethod
    def give(handle, text="", ids=(), **more):
        from runtime_api import Chunk

        handle.on_chunk(Chunk(list(ids), text, **more))


FEATURES = dict.fromkeys(
    ("sequences", "usage", "perf_metrics", "log_probs", "context_logits", "generation_logits",
     "chat"), True,
)  # fmt: skip


@pytest.fixture
def make(monkeypatch, tmp_path):
    """A model of given parameters, and its runtime."""
    made = []

    def build(*, decoupled=True, features=None, **parameters):
        import model

        runtime = Runtime()
        monkeypatch.setattr(model, "make_runtime", lambda name: runtime)
        ended: list = []
        monkeypatch.setattr(
            model, "Exporter",
            lambda *a: SimpleNamespace(
                request_ended=lambda *counts: ended.append(counts), close=lambda: None, made_of=a
            ),
        )  # fmt: skip
        monkeypatch.setattr(model, "CANCEL_PERIOD", 0.01)
        monkeypatch.setattr(model.gc, "freeze", lambda: None)
        (tmp_path / "1").mkdir(exist_ok=True)
        document = {
            "model": str(tmp_path), "max_seq_len": 64, "max_batch_size": 2,
            "triton_config": {"max_batch_size": 0, "decoupled": decoupled},
        }  # fmt: skip
        (tmp_path / "1/model.yaml").write_text(json.dumps(document))
        values = {
            "runtime": "tensorrt_llm", "stop_ids": "generation_config",
            "features": json.dumps(FEATURES if features is None else features), **parameters,
        }  # fmt: skip
        config = {"decoupled": decoupled, "parameters": {
            key: {"string_value": value} for key, value in values.items()}}  # fmt: skip
        one = model.TritonPythonModel()
        one.initialize({
            "model_config": json.dumps(config), "model_repository": str(tmp_path),
            "model_version": "1", "model_name": "m", "model_instance_name": "m_0_1",
        })  # fmt: skip
        made.append(one)
        return SimpleNamespace(model=one, runtime=runtime, ended=ended)

    yield build
    for one in made:
        one.finalize()


def ask(it, **inputs):
    ident = inputs.pop("ident", "")
    request = Request(ident=ident, **{"text_input": "hi", **inputs})
    it.model.execute([request])
    return request.sender


def until(condition):
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_one_answer_has_nothing_that_was_not_asked_for(make):
    it = make()
    sender = ask(it)
    handle = it.runtime.handles[0]
    it.runtime.give(handle, "a", [1])
    assert sender.sent == []
    it.runtime.give(handle, "b", [2], finish_reason="length", prompt_tokens=4)
    assert sender.texts() == [["ab"]]
    assert sender.ended
    assert set(sender.sent[0][0].tensors) == {"text_output"}
    assert it.ended == [(4, 2)]
    assert it.model.running == {}


def test_streamed_text_is_a_delta_and_on_request_cumulative(make):
    it = make()
    for cumulative, want in ((False, [["a"], ["é"], ["!"]]), (True, [["a"], ["aé"], ["aé!"]])):
        sender = ask(it, streaming=True, stream_cumulative=cumulative)
        handle = it.runtime.handles[-1]
        assert it.runtime.requests[-1].streaming
        it.runtime.give(handle, "a", [1])
        it.runtime.give(handle, "", [2])  # an unfinished character
        it.runtime.give(handle, "é", [3])
        it.runtime.give(handle, "!", [4], finish_reason="stop")
        assert sender.texts() == want
        assert [flags for _, flags in sender.sent] == [0, 0, 1]


def test_several_sequences_each_have_their_place(make):
    it = make()
    sender = ask(
        it, streaming=True, return_finish_reason=True, return_num_output_tokens=True,
        return_log_probs=True, **{P + "n": 2},
    )  # fmt: skip
    handle, give = it.runtime.handles[0], it.runtime.give
    give(handle, "a", [1], index=0, log_probs=[-1.0])
    give(handle, "x", [2, 3], index=1, log_probs=[-2.0, -3.0])
    give(handle, "b", [4], index=0, finish_reason="stop", log_probs=[-4.0])
    assert not sender.ended
    give(handle, "y", [5], index=1, finish_reason="length", log_probs=[-5.0])
    assert sender.texts() == [["a", ""], ["", "x"], ["b", ""], ["", "y"]]
    tables = [r.tensors["output_log_probs"].tolist() for r, _ in sender.sent]
    assert tables == [[[-1], [0]], [[0, 0], [-2, -3]], [[-4], [0]], [[0], [-5]]]
    last = sender.sent[-1][0].tensors
    assert sender.ended
    assert last["finish_reason"].tolist() == [b"stop", b"length"]
    assert last["num_output_tokens"].tolist() == [2, 3]
    assert all("finish_reason" not in r.tensors for r, _ in sender.sent[:-1])
    assert it.ended == [(None, 5)]


def test_performance_outputs_have_the_contracts_types(make, catalog):
    from runtime_api import Perf

    it = make()
    sender = ask(it, **{P + "return_perf_metrics": True})
    perf = Perf(
        arrival_ns=10**18, first_scheduled_ns=2, first_token_ns=3, last_token_ns=4, kv_total_blocks=9,
        kv_new_blocks=6, kv_reused_blocks=3, kv_missed_blocks=1, acceptance_rate=0.5,
        accepted_draft_tokens=7, draft_tokens=14,
    )  # fmt: skip
    it.runtime.give(it.runtime.handles[0], "a", [1], finish_reason="length", perf=perf)
    got = sender.sent[0][0].tensors
    kinds = {"TYPE_INT32": np.int32, "TYPE_INT64": np.int64, "TYPE_FP32": np.float32}
    outputs = {
        t["name"]: t["data_type"]
        for t in catalog.contract("1.2.1").family("llmapi")["outputs"]
        if t["data_type"] != "TYPE_STRING" and t["name"] != "cumulative_logprob"
    }
    assert {name: got[name].dtype for name in outputs} == {
        name: kinds[kind] for name, kind in outputs.items()
    }
    assert got["kv_cache_hit_rate"].tolist() == [0.75]
    assert got["arrival_time_ns"].tolist() == [10**18]
    assert got["total_draft_tokens"].tolist() == [14]


def test_what_the_runtime_does_not_know_is_absent(make):
    from runtime_api import Perf

    it = make()
    sender = ask(
        it, return_cumulative_logprob=True, return_stop_reason=True, return_num_input_tokens=True,
        **{P + "return_perf_metrics": True},
    )  # fmt: skip
    it.runtime.give(
        it.runtime.handles[0], "a", [1], finish_reason="length", perf=Perf(arrival_ns=5)
    )  # fmt: skip
    got = sender.sent[0][0].tensors
    assert set(got) == {"text_output", "stop_reason", "arrival_time_ns"}
    assert got["stop_reason"].tolist() == [b""]


def test_logits(make):
    it = make()
    sender = ask(it, return_context_logits=True, return_generation_logits=True, **{P + "n": 2})
    row = np.arange(3, dtype=np.float64)
    give, handle = it.runtime.give, it.runtime.handles[0]
    give(handle, "a", [1], generation_logits=row[None], context_logits=np.ones((4, 3)))
    give(handle, "b", [2], finish_reason="stop", generation_logits=row[None] * 2)
    give(handle, "c", [2], index=1, finish_reason="stop", generation_logits=row[None] * 3)
    got = sender.sent[0][0].tensors
    assert got["context_logits"].shape == (4, 3)
    assert got["context_logits"].dtype == got["generation_logits"].dtype == np.float32
    assert got["generation_logits"].tolist() == [[[0, 1, 2], [0, 2, 4]], [[0, 3, 6], [0, 0, 0]]]


def test_the_prompt_is_repeated_only_when_asked(make):
    it = make()
    sender = ask(it, streaming=True, **{P + "exclude_input_from_output": False})
    it.runtime.give(it.runtime.handles[0], "a", [1])
    it.runtime.give(it.runtime.handles[0], "b", [1], finish_reason="stop")
    assert sender.texts() == [["hia"], ["b"]]


@pytest.mark.parametrize("how", ["runtime", "chunk"])
def test_what_the_runtime_refuses_is_the_requests_fault_with_its_tensors(make, how):
    from runtime_api import RequestError

    it = make()
    if how == "runtime":
        it.runtime.error = RequestError("top_k is too large")
    sender = ask(it)
    if how == "chunk":
        handle = it.runtime.handles[0]
        it.runtime.give(
            handle, finish_reason="error", stop_reason="top_k is too large", invalid=True
        )
    assert sender.error().text == "[engineroom] sampling_param_top_k: top_k is too large"
    assert sender.error().code == "INVALID_ARG"
    assert (it.model.running, it.ended) == ({}, [])


def test_an_engine_that_fails_is_not_the_requests_fault(make):
    it = make()
    sender = ask(it)
    it.runtime.give(it.runtime.handles[0], finish_reason="error", stop_reason="it died")
    assert (sender.error().text, sender.error().code) == ("[engineroom] it died", None)
    it.runtime.error = OSError("gone")
    sender = ask(it)
    assert sender.error().text == "[engineroom] OSError: gone"
    assert it.model.running == {}


def test_a_bad_request_in_a_batch_disturbs_no_other(make):
    it = make()
    bad, good = Request(text_input="x", **{P + "top_k": -1}), Request(text_input="y")
    it.model.execute([bad, good])
    assert "top_k must be at least 0" in bad.sender.error().text
    assert it.runtime.requests[0].prompt == "y"


def test_a_client_that_left_is_noticed_without_a_token(make):
    it = make()
    stays, leaves = ask(it), ask(it)
    leaves.left = True
    until(lambda: leaves.ended)
    assert (leaves.error().code, it.runtime.handles[1].cancels) == ("CANCELLED", 1)
    assert not stays.sent
    assert len(it.model.running) == 1
    it.runtime.give(it.runtime.handles[0], "a", [1], finish_reason="stop")
    time.sleep(0.05)  # the double asserts that an ended request is never asked about
    assert it.ended == [(None, 1)]


def test_stop_cancels_every_request_of_that_id(make):
    it = make()
    first, second, other = ask(it, ident="a"), ask(it, ident="a"), ask(it, ident="b")
    stopper = ask(it, ident="a", stop=True)
    assert stopper.texts() == [[""]]
    assert stopper.ended
    assert first.error().code == second.error().code == "CANCELLED"
    assert not other.sent
    assert set(it.model.ids) == {"b"}
    assert "request id" in ask(it, stop=True).error().text
    assert ask(it, ident="unknown", stop=True).ended


def test_a_sender_that_fails_ends_its_request_alone(make):
    it = make()
    sender, other = ask(it, streaming=True), ask(it, streaming=True)
    sender.broken = True
    it.runtime.give(it.runtime.handles[0], "a", [1])
    assert it.runtime.handles[0].cancels == 1
    it.runtime.give(it.runtime.handles[1], "b", [1], finish_reason="stop")
    assert other.texts() == [["b"]]
    assert it.model.running == {}


def test_without_decoupling_one_answer_and_no_stream(make):
    it = make(decoupled=False)
    assert "serving.streaming: true" in ask(it, streaming=True).error().text
    sender = ask(it)
    it.runtime.give(it.runtime.handles[0], "a", [1])
    it.runtime.give(it.runtime.handles[0], "b", [2], finish_reason="stop")
    assert sender.texts() == [["ab"]]


def test_a_full_queue_says_so(make):
    it = make(max_queue_size="1")
    senders = [ask(it) for _ in range(3)]  # max_batch_size 2 + 1
    refused = ask(it)
    assert (refused.error().code, "3 requests" in refused.error().text) == ("UNAVAILABLE", True)
    it.runtime.give(it.runtime.handles[0], "a", [1], finish_reason="stop")
    assert not ask(it).sent
    assert not senders[1].sent


def test_messages_become_a_prompt_without_added_tokens(make, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({
            "bos_token": "<s>",
            "chat_template": "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}"
            "{% endfor %}",
        })
    )  # fmt: skip
    it = make()
    request = Request(messages=json.dumps([{"role": "user", "content": "hi"}]))
    it.model.execute([request])
    asked = it.runtime.requests[0]
    assert (asked.prompt, asked.add_special_tokens) == ("<s>[user] hi", False)
    wrong = Request(messages="[" * 50_000)
    it.model.execute([wrong])
    assert "messages is not JSON" in wrong.sender.error().text


def test_end_ids_of_the_repository_and_of_the_request(make):
    it = make(stop_ids="[5, 7]")
    ask(it)
    ask(it, **{P + "end_id": [9]})
    ask(it, **{P + "end_id": [-1]})
    assert [r.end_ids for r in it.runtime.requests] == [[5, 7], [9], []]


def test_gpus_of_an_instance(make, monkeypatch):
    import os

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("TRTLLM_VISIBLE_DEVICES", "")
    it = make(gpu_device_ids="0,1;2,3")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == os.environ["TRTLLM_VISIBLE_DEVICES"] == "2,3"
    assert it.model.exporter.made_of[-1] == 1  # the label that keeps instances apart
    from model import instance_gpus

    with pytest.raises(ValueError, match="2 groups: none for instance m_0_2"):
        instance_gpus("0;1", "m_0_2")


def test_many_threads_at_once(make):
    """Requests end, are stopped and are looked at by the watcher all at the same time."""
    it = make()
    senders = [Sender() for _ in range(200)]

    def work(part):
        for k, sender in enumerate(senders[part::4]):
            it.model.execute([Request(sender, ident=str(k % 5), text_input="x", streaming=True)])
            handle = next(h for h in it.runtime.handles if h.on_chunk.sender is sender)
            it.runtime.give(handle, "a", [1])
            if k % 3 == 0:
                it.model.execute([Request(ident=str(k % 5), stop=True)])
            it.runtime.give(handle, "b", [2], finish_reason="stop")

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(sender.ended for sender in senders)
    until(lambda: it.model.running == {})
    assert dict(it.model.ids) == {}
