"""What reaches the engine of speculative decoding, and in which order requests do."""

from __future__ import annotations

import threading
import time
import uuid

import numpy as np
import pytest

from tests.conformance.boundary import PROMPT, both, cell, fronts_of_it, one
from tests.conformance.front import Front
from tests.conformance.recording import recording

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("boundary")]


@fronts_of_it
@both
def test_lookahead(asked, minimal, front, protocol):
    sizes = {"window_size": 5, "ngram_size": 3, "verification_set_size": 2}
    raw = {f"lookahead_{name}": value for name, value in sizes.items()}
    _, calls = asked(front, protocol, raw=raw)
    want = {name: cell("int32", value) for name, value in raw.items()}
    assert calls == [("tensorrt_llm", {**minimal, **want})]


@both
@pytest.mark.parametrize("logits", [False, True])
def test_draft_model(asked, minimal, plain, protocol, logits):
    """Per round the draft gives 3 tokens and the target gets them; 4 tokens a round, then 1."""
    raw = {"num_draft_tokens": 3, "use_draft_logits": logits, "top_k": 1}
    answer, calls = asked("bls", protocol, raw=raw)
    ids = plain.tokenizer(PROMPT).input_ids
    models = [model for model, _ in calls]
    assert models == ["tensorrt_llm_draft", "tensorrt_llm", "tensorrt_llm"]
    draft, target, last = (tensors for _, tensors in calls)
    common = {**minimal, "runtime_top_k": one("int32", 1)}
    flag = {"return_generation_logits": one("bool", True)} if logits else {}
    assert draft == {**common, **flag, "request_output_len": one("int32", 3)}
    drafted = [ids[k % len(ids)] for k in range(3)]
    want = {"draft_input_ids": ("int32", [1, 3], [drafted])}
    if logits:  # the double's are 0, 1, 2 … in rows of 4
        rows = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
        want["draft_logits"] = ("float32", [1, 3, 4], rows.tolist())
    assert target == {**common, **want, "request_output_len": one("int32", 4)}
    # The target took 4: one is left, for which nothing is drafted.
    grown = ids + [ids[k % len(ids)] for k in range(4)]
    assert last["input_ids"] == ("int32", [1, len(grown)], [grown])
    assert last["request_output_len"] == one("int32", 1)
    assert "draft_input_ids" not in last
    assert answer.text == plain.text([*grown[len(ids) :], grown[0]])


def test_priority_orders_the_queue_of_the_engine(boundary_job):
    """Ensemble: Triton passes a request's priority to its steps. While the engine is held, requests
    of level 1 overtake those of level 3, and one without a level waits between them."""
    with recording(boundary_job, "engine", env={"STANDIN_HOLD_MS": "1500"}) as held:
        front = Front("ensemble", held.server.endpoints)
        import tritonclient.grpc as triton

        held.take()
        ids = {}
        with triton.InferenceServerClient(f"127.0.0.1:{held.server.endpoints.grpc}") as client:
            done = threading.Semaphore(0)
            client.start_stream(lambda result, error: done.release())
            # The first fills the engine; those that follow find it held.
            for level in (2, 3, 3, 0, 1, 1):
                ident = uuid.uuid4().hex
                ids[ident] = level
                inputs = front.grpc.inputs("ensemble", {"text_input": PROMPT, "max_tokens": 1})
                client.async_stream_infer("ensemble", inputs, request_id=ident, priority=level)
                time.sleep(0.05 if len(ids) > 1 else 0.5)
            for _ in ids:
                assert done.acquire(timeout=20)
            client.stop_stream()
        front.grpc.close()
        order = [ids[entry["request_id"]] for entry in held.take()]
    assert order == [2, 1, 1, 0, 3, 3]
