"""What reaches the engine: exact tensors of the features that the reference runtime cannot compute."""

from __future__ import annotations

import threading
import time
import uuid

import numpy as np
import pytest

from tests.conformance import wire
from tests.conformance.conftest import job_on_the_checkpoint
from tests.conformance.front import PROTOCOLS, Front
from tests.conformance.recording import add_draft_model, recording

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("boundary")]
PROMPT = "The import statement"
FEATURES = {
    "guided_decoding": "xgrammar", "context_logits": True, "generation_logits": True, "lora": {},
    "speculative": {"mode": "draft_target", "draft_model": "/x", "max_draft_tokens": 3},
}  # fmt: skip
LIMITS = {"max_batch_size": 8, "max_beam_width": 4}
both = pytest.mark.parametrize("protocol", PROTOCOLS)
fronts_of_it = pytest.mark.parametrize("front", ["bls", "ensemble"])


def one(kind, value):
    """A number where the engine's config takes the second dimension off, by `reshape`."""
    return (kind, [1], [value])


def cell(kind, value):
    """A value where it does not."""
    return (kind, [1, 1], [[value]])


@pytest.fixture(scope="module")
def boundary_job(quantized):
    return job_on_the_checkpoint(
        quantized("fp8"), "boundary", {"features": FEATURES, "priority_levels": 3},
        limits=LIMITS, lanes=("llmapi", "engine"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def engine(boundary_job):
    with recording(boundary_job, "engine", change=add_draft_model) as made:
        yield made


@pytest.fixture
def asked(engine):
    """(front, protocol, fields) -> (answer, [(model, {tensor: (dtype, shape, values)})])."""
    fronts = {}

    def ask(name, protocol, stream=False, **fields):
        if name not in fronts:
            fronts[name] = Front(name, engine.server.endpoints)
        engine.take()
        answer = fronts[name].ask(protocol, stream, prompt=PROMPT, max_tokens=5, **fields)
        calls = [
            (
                entry["model"],
                {k: (t["dtype"], t["shape"], t["values"]) for k, t in entry["tensors"].items()},
            )
            for entry in engine.take()
        ]
        return answer, calls

    yield ask
    for front in fronts.values():
        front.grpc.close()


@pytest.fixture(scope="module")
def minimal(plain):
    """What every request sends: the prompt, its length, the limit, and the model's two end ids."""
    ids = plain.tokenizer(PROMPT).input_ids
    return {
        "input_ids": ("int32", [1, len(ids)], [ids]),
        "input_lengths": one("int32", len(ids)),
        "request_output_len": one("int32", 5),
        "end_id": one("int32", 2),
        "stop_words_list": ("int32", [1, 2, 1], [[[0], [1]]]),
    }


def answer_text(plain, place: int = 0, count: int = 5) -> str:
    """The double answers with the prompt's ids, from `place` on and round again."""
    ids = plain.tokenizer(PROMPT).input_ids
    return plain.text([ids[(place + k) % len(ids)] for k in range(count)])


@fronts_of_it
@both
def test_nothing_asked_nothing_sent(asked, engine, minimal, plain, front, protocol):
    """The exact set, whole and streamed; streamed at a pace, each token is an event of its own."""
    answer, calls = asked(front, protocol)
    assert calls == [("tensorrt_llm", minimal)]
    assert answer.text == answer_text(plain)
    answer, calls = asked(front, protocol, True)
    assert calls == [("tensorrt_llm", {**minimal, "streaming": one("bool", True)})]
    assert answer.text == answer_text(plain)
    assert len([event for event in answer.events if event]) == 5


def test_only_wanted_outputs_are_requested(engine, plain):
    front = Front("bls", engine.server.endpoints)
    for fields, more in (
        ({}, []),
        ({"log_probs": True}, ["cum_log_probs", "output_log_probs"]),
        ({"counts": True}, ["num_input_tokens", "num_output_tokens"]),
        ({"context_logits": True}, ["context_logits"]),
        ({"n": 2}, ["sequence_index"]),
    ):
        engine.take()
        front.grpc.ask(front.model, front.body(prompt=PROMPT, max_tokens=2, **fields))
        (entry,) = engine.take()
        assert entry["requested_outputs"] == sorted(["output_ids", "sequence_length", *more])
    front.grpc.close()


NUMBERS = {
    "min_tokens": (3, "min_tokens", "int32"),
    "top_k": (7, "runtime_top_k", "int32"),
    "top_p": (0.5, "runtime_top_p", "float32"),
    "temperature": (0.25, "temperature", "float32"),
    "length_penalty": (1.5, "len_penalty", "float32"),
    "repetition_penalty": (1.25, "repetition_penalty", "float32"),
    "presence_penalty": (0.5, "presence_penalty", "float32"),
    "frequency_penalty": (-0.5, "frequency_penalty", "float32"),
    "seed": (2**63 + 5, "seed", "uint64"),
    "runtime_top_p_min": (0.125, "runtime_top_p_min", "float32"),
    "runtime_top_p_decay": (0.75, "runtime_top_p_decay", "float32"),
    "runtime_top_p_reset_ids": (11, "runtime_top_p_reset_ids", "int32"),
}


@fronts_of_it
@both
def test_numbers_reach_the_engine_under_its_names(asked, minimal, front, protocol):
    fields = {name: value for name, (value, _, _) in NUMBERS.items()}
    _, calls = asked(front, protocol, raw=fields)
    want = {tensor: one(kind, value) for value, tensor, kind in NUMBERS.values()}
    assert calls == [("tensorrt_llm", {**minimal, **want})]


@fronts_of_it
@both
def test_beams(asked, minimal, plain, front, protocol):
    raw = {"beam_width": 3, "length_penalty": 0.5, "beam_search_diversity_rate": 0.25}
    _, calls = asked(front, protocol, n=3, raw=raw)
    want = {
        "beam_width": one("int32", 3),
        "num_return_sequences": one("int32", 3),
        "len_penalty": one("float32", 0.5),
        "beam_search_diversity_rate": one("float32", 0.25),
    }
    assert calls == [("tensorrt_llm", {**minimal, **want})]


@fronts_of_it
@both
def test_beams_come_back_in_their_order(engine, asked, plain, front, protocol):
    ask = Front(front, engine.server.endpoints)
    body = ask.body(prompt=PROMPT, max_tokens=5, raw={"beam_width": 3})
    if protocol == "http":
        answer = wire.http_generate(engine.server.endpoints.http, ask.model, body)
    else:
        (answer,) = ask.grpc.ask(ask.model, body)
        assert answer.shapes["text_output"] == [1, 3]
    assert answer["text_output"].tolist() == [answer_text(plain, place) for place in range(3)]
    with pytest.raises(wire.Refused, match=r"beam_width.*max_beam_width 4"):
        ask.ask(protocol, prompt=PROMPT, max_tokens=5, raw={"beam_width": 5})
    with pytest.raises(wire.Refused, match="beam_width"):
        ask.ask(protocol, True, prompt=PROMPT, max_tokens=5, raw={"beam_width": 2})
    ask.grpc.close()


@fronts_of_it
@both
def test_lora_by_its_task_id(asked, minimal, front, protocol):
    """An adapter that the engine has: the id alone."""
    _, calls = asked(front, protocol, raw={"lora_task_id": 2**40 + 7})
    assert calls == [("tensorrt_llm", {**minimal, "lora_task_id": one("uint64", 2**40 + 7)})]


@fronts_of_it
def test_lora_of_the_first_request(asked, minimal, front):
    """Id, weights and config; BF16 weights, which JSON cannot carry, over gRPC alone."""
    weights = np.arange(12, dtype=np.float32).reshape(2, 6) / 8
    config = np.array([[0, 0, 4], [1, 1, 4]], np.int32)
    raw = {"lora_task_id": 9, "lora_weights": weights, "lora_config": config}
    _, calls = asked(front, "grpc", raw=raw)
    want = {
        "lora_task_id": one("uint64", 9),
        "lora_weights": ("bfloat16", [1, 2, 6], [weights.tolist()]),
        "lora_config": ("int32", [1, 2, 3], [config.tolist()]),
    }
    assert calls == [("tensorrt_llm", {**minimal, **want})]
    del raw["lora_config"]
    with pytest.raises(wire.Refused, match="lora_config is missing"):
        asked(front, "grpc", raw=raw)


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


@fronts_of_it
@both
def test_kv_retention(asked, minimal, front, protocol):
    raw = {
        "retention_token_range_starts": [0, 4], "retention_token_range_ends": [4, 8],
        "retention_token_range_priorities": [90, 10],
        "retention_token_range_durations_ms": [1000, 50],
        "retention_decode_priority": 40, "retention_decode_duration_ms": 700,
    }  # fmt: skip
    _, calls = asked(front, protocol, raw=raw)
    want = {
        name: ("int32", [1, 2], [value]) if isinstance(value, list) else cell("int32", value)
        for name, value in raw.items()
    }
    assert calls == [("tensorrt_llm", {**minimal, **want})]


@fronts_of_it
@both
def test_guides(asked, minimal, front, protocol):
    for kind, guide in (("json_schema", '{"type": "object"}'), ("regex", "[aé]+"), ("json", None)):
        raw = {"guided_decoding_guide_type": kind}
        if guide is not None:
            raw["guided_decoding_guide"] = guide
        _, calls = asked(front, protocol, raw=raw)
        want = {name: cell("BYTES", value) for name, value in raw.items()}
        assert calls == [("tensorrt_llm", {**minimal, **want})]


@fronts_of_it
def test_word_lists(asked, minimal, plain, front):
    """int32 [1, 2, length]: ids in a line and each word's end; end ids that the engine lacks first."""
    encode = lambda text: plain.tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    _, ((_, tensors),) = asked(front, "grpc", stop=["the end"], bad=["bad"])
    for name, word, before in (
        ("stop_words_list", "the end", [[0]]),
        ("bad_words_list", "bad", []),
    ):
        kind, shape, ((ids, ends),) = tensors[name]
        used = [end for end in ends if end >= 0]
        found = [ids[a:b] for a, b in zip([0, *used], used, strict=False)]
        assert kind == "int32"
        assert shape == [1, 2, len(ids)]
        assert ends[len(used) :] == [-1] * (len(ids) - len(used))
        assert found[: len(before)] == before
        spelled = found[len(before) :]
        assert encode(word) in spelled
        assert encode(" " + word) in spelled
        assert all(word in plain.tokenizer.decode(sequence) for sequence in spelled)


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
