"""tensorrt_llm_bls: what reaches the engine, and what reaches the client."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import numpy as np
import pytest

from tests.engine_models.triton_double import Request, answer, numbers, text

PROMPT = "Hello world"


def request(ident="", *, prompt=PROMPT, max_tokens=64, **inputs):
    return Request(ident, text_input=text(prompt), max_tokens=numbers(max_tokens), **inputs)


def said(responses):
    """Text of all responses, which must be no errors."""
    assert not [r.error().message() for r in responses if r.has_error()]
    return "".join(r.array("text_output")[0, 0].decode() for r in responses)


def error(responses):
    assert len(responses) == 1
    assert responses[0].has_error(), responses[0].names()
    return responses[0].error().message()


def whole(ids, **extras):
    return lambda _: [answer(ids, **extras)]


def stream(ids, size=1):
    return lambda _: [answer(ids[i : i + size]) for i in range(0, len(ids), size)]


STREAM = {"stream": np.ones((1, 1), np.bool_)}


def test_only_what_was_sent_reaches_the_engine(bls, codec):
    ids = codec.encode(PROMPT)
    [responses], [sent] = bls(whole([40, 41]), request("abc"))
    assert sent.model_name == "tensorrt_llm"
    assert sent.request_id == "abc"
    assert set(sent.inputs) == {
        "input_ids", "input_lengths", "request_output_len", "end_id", "stop_words_list",
    }  # fmt: skip
    assert sent.inputs["input_ids"].tolist() == [ids]
    assert sent.inputs["input_lengths"].tolist() == [[len(ids)]]
    assert sent.inputs["request_output_len"].tolist() == [[64]]
    assert sent.inputs["end_id"].tolist() == [[2]]
    assert sent.inputs["stop_words_list"].tolist() == [[[0], [1]]]  # the other end id
    assert sent.outputs == ["output_ids", "sequence_length"]
    assert said(responses) == codec.decode([40, 41])


def test_every_field_has_its_engine_tensor(bls):
    inputs = {
        "top_k": numbers(5), "top_p": numbers(0.5, kind=np.float32),
        "temperature": numbers(0.7, kind=np.float32),
        "length_penalty": numbers(1.5, kind=np.float32), "min_tokens": numbers(3),
        "repetition_penalty": numbers(1.1, kind=np.float32),
        "presence_penalty": numbers(-0.5, kind=np.float32),
        "frequency_penalty": numbers(0.25, kind=np.float32),
        "seed": numbers(2**63 + 1, kind=np.uint64), "pad_id": numbers(7),
        "lora_task_id": numbers(11, kind=np.uint64),
        "lora_weights": np.ones((1, 2, 3), np.float16), "lora_config": np.ones((1, 2, 3), np.int32),
        "guided_decoding_guide_type": text("json_schema"),
        "guided_decoding_guide": text('{"type": "object"}'),
        "retention_token_range_starts": np.array([[0, 8]], np.int32),
        "retention_token_range_ends": np.array([[8, -1]], np.int32),
        "retention_token_range_priorities": np.array([[90, 10]], np.int32),
        "retention_decode_priority": numbers(20),
        "lookahead_window_size": numbers(4), "lookahead_ngram_size": numbers(3),
        "lookahead_verification_set_size": numbers(2),
    }  # fmt: skip
    _, [sent] = bls(whole([40]), request(**inputs))
    renamed = {
        "top_k": "runtime_top_k", "top_p": "runtime_top_p", "length_penalty": "len_penalty",
    }  # fmt: skip
    for name, array in inputs.items():
        got = sent.inputs[renamed.get(name, name)]
        assert got.dtype == array.dtype
        assert got.tolist() == array.tolist()
    assert not set(renamed) & set(sent.inputs)


def test_streamed_is_whole_with_characters_cut_anywhere(bls, codec):
    ids = codec.encode("naïve 東京 🐱👩‍👩‍👧 é", False)
    for cut in range(1, len(ids) + 1):
        part = ids[:cut]
        want = codec.decode(part)
        for size in (1, 3):
            [pieces], _ = bls(stream(part, size), request(**STREAM))
            assert said(pieces) == want
        [one], _ = bls(whole(part), request())
        assert said(one) == want


def test_stream_interval(bls, codec):
    ids = codec.encode("one two three four five six seven", False)
    [pieces], _ = bls(stream(ids), request(**STREAM), stream_interval="4")
    assert said(pieces) == codec.decode(ids)
    assert 1 < len(pieces) <= len(ids) // 4 + 1


def test_a_stream_without_text_has_one_event(bls):
    [pieces], _ = bls(lambda _: [answer([])], request(**STREAM))
    assert [said([piece]) for piece in pieces] == [""]


def test_the_last_token_comes_with_the_end(bls, codec):
    ids = codec.encode("one two", False)
    [pieces], _ = bls(stream(ids), request(max_tokens=len(ids), **STREAM))
    assert len(pieces) == len(ids)


def test_end_ids_end_the_text(bls, codec):
    ids = codec.encode("yes", False)
    for end in (2, 0):
        [responses], _ = bls(whole([*ids, end, 50, 51]), request())
        assert said(responses) == "yes"
    [responses], [sent] = bls(whole([*ids, 50]), request(end_id=numbers(-1)))
    assert said(responses) == codec.decode([*ids, 50])
    assert "end_id" not in sent.inputs
    assert "stop_words_list" not in sent.inputs
    _, [sent] = bls(whole(ids), request(end_id=numbers(0)))
    assert (sent.inputs["end_id"][0, 0], sent.inputs["stop_words_list"][0, 0].tolist()) == (0, [2])


def test_stop_word_found_in_text_only(bls, codec):
    """The engine's ids miss it: nothing of it is sent, and the engine is told to stop."""
    ids = codec.encode("Look at the end, it is over", False)
    assert codec.encode(" the", False)[0] in ids, "one token, of which the word is a part"
    [pieces], sent = bls(stream(ids), request("q", stop_words=text("he"), **STREAM))
    assert said(pieces) == "Look at t"
    first, stop = sent
    assert stop.inputs["stop"].tolist() == [[True]]
    assert stop.request_id == first.request_id == "q"
    [answered], _ = bls(whole(ids), request(stop_words=text(["over", "he"])))
    assert said(answered) == "Look at t"


def test_stop_word_known_to_the_engine_needs_no_cancellation(bls, codec):
    ids = codec.encode("a b", False) + codec.encode("\n", False)
    [pieces], sent = bls(stream(ids), request(stop_words=text("\n"), **STREAM))
    assert said(pieces) == "a b"
    assert len(sent) == 1


def test_text_that_only_begins_like_a_stop_word_is_sent(bls, codec):
    ids = codec.encode("STO STOR STOPX", False)
    [pieces], _ = bls(stream(ids), request(stop_words=text("STOPY"), **STREAM))
    assert said(pieces) == "STO STOR STOPX"


def test_sequences_have_their_own_streams(bls, codec):
    first, second = codec.encode("né 東京", False), codec.encode("🐱 cat", False)

    def engine(_):
        for i in range(max(len(first), len(second))):
            for index, ids in ((0, first), (1, second)):
                if i < len(ids):
                    yield answer([ids[i]], index=index)

    [pieces], [sent] = bls(engine, request(num_return_sequences=numbers(2), **STREAM))
    assert sent.inputs["num_return_sequences"].tolist() == [[2]]
    texts = ["", ""]
    for piece in pieces:
        texts[int(piece.array("sequence_index")[0, 0])] += said([piece])
    assert texts == ["né 東京", "🐱 cat"]

    def at_once(_):
        return [answer(second, index=1), answer(first, index=0)]

    [responses], _ = bls(at_once, request(num_return_sequences=numbers(2)))
    assert len(responses) == 1
    got = responses[0].array("text_output")
    assert [x.decode() for x in got[0]] == ["né 東京", "🐱 cat"]


def test_beams(bls, codec):
    rows = codec.encode("one", False), codec.encode("two three", False)
    inputs = {"beam_width": numbers(2), "return_log_probs": np.ones((1, 1), np.bool_)}
    extras = {
        "cum_log_probs": np.array([[-1, -2]], np.float32),
        "output_log_probs": np.zeros((1, 2, max(map(len, rows))), np.float32),
    }
    [responses], _ = bls(lambda _: [answer(*rows, **extras)], request(**inputs))
    assert [x.decode() for x in responses[0].array("text_output")[0]] == ["one", "two three"]
    assert responses[0].array("cum_log_probs").tolist() == [[-1, -2]]
    inputs["num_return_sequences"] = numbers(1)  # fewer than beams: the best ones
    [responses], _ = bls(lambda _: [answer(rows[0])], request(**inputs))
    assert [x.decode() for x in responses[0].array("text_output")[0]] == ["one"]
    [refused], _ = bls(whole([40]), request(**inputs, **STREAM))
    assert "stream with beam_width above 1" in error(refused)


def test_batch_rows(bls, codec):
    rows = ["one two", "three"]
    both = Request(text_input=text(*rows), max_tokens=numbers(8, 9))

    def engine(sent):
        ids, lengths = sent.inputs["input_ids"], sent.inputs["input_lengths"].reshape(-1)
        for i in reversed(range(len(ids))):
            yield answer(ids[i, : lengths[i]].tolist(), batch=i if len(ids) > 1 else None)

    [responses], [sent] = bls(engine, both)
    assert [x[0].decode() for x in responses[0].array("text_output")] == rows
    assert sent.inputs["request_output_len"].tolist() == [[8], [9]]
    assert "batch_index" in sent.outputs
    # An engine that is not decoupled takes one row a request.
    both = Request(text_input=text(*rows), max_tokens=numbers(8, 9))
    [responses], sent = bls(engine, both, decoupled=False)
    assert [x[0].decode() for x in responses[0].array("text_output")] == rows
    assert [len(one.inputs["input_ids"]) for one in sent] == [1, 1]
    [refused], _ = bls(
        engine,
        Request(
            text_input=text(*rows),
            max_tokens=numbers(8, 9),
            **{"stream": np.ones((2, 1), np.bool_)},
        ),
    )
    assert "stream takes one prompt a request" in error(refused)


def test_log_probs_are_those_of_the_tokens_that_are_sent(bls, codec):
    ids = codec.encode("The weekEND is over", False)
    values = np.arange(1, len(ids) + 1, dtype=np.float32).reshape(1, 1, -1)
    kept = next(n for n in range(1, len(ids) + 1) if "week" in codec.decode(ids[:n]))
    flags = {"return_log_probs": np.ones((1, 1), np.bool_)}
    extras = {"output_log_probs": values, "cum_log_probs": numbers(-3.0, kind=np.float32)}
    [responses], [sent] = bls(whole(ids, **extras), request(stop_words=text("END"), **flags))
    assert {"output_log_probs", "cum_log_probs"} <= set(sent.outputs)
    assert said(responses) == "The week"
    assert responses[0].array("output_log_probs").tolist() == [[list(range(1, kept + 1))]]

    def engine(_):
        for i, token in enumerate(ids):
            yield answer([token], output_log_probs=values[:, :, i : i + 1])

    [pieces], _ = bls(engine, request(stop_words=text("END"), **flags, **STREAM))
    assert said(pieces) == "The week"
    parts = [p.array("output_log_probs") for p in pieces if "output_log_probs" in p.names()]
    assert np.concatenate(parts, axis=2).reshape(-1).tolist() == list(range(1, kept + 1))


def test_outputs_are_passed_through(bls):
    flags = ("return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens",
             "return_context_logits", "return_generation_logits")  # fmt: skip
    extras = {
        "num_input_tokens": numbers(4), "num_output_tokens": numbers(2),
        "arrival_time_ns": numbers(7, kind=np.int64), "kv_cache_reused_blocks": numbers(3),
        "context_logits": np.ones((1, 4, 5), np.float32),
        "generation_logits": np.ones((1, 1, 2, 5), np.float32),
    }  # fmt: skip
    asked = {name: np.ones((1,), np.bool_) for name in flags}
    [responses], [sent] = bls(whole([40, 41], **extras), request(**asked))
    assert responses[0].names() == {"text_output", *extras}
    for name, array in extras.items():
        assert responses[0].array(name).tolist() == array.tolist()
    for name in flags:
        assert sent.inputs[name].shape == (1, 1)
    asked = {name: np.zeros((1,), np.bool_) for name in flags}
    [responses], [sent] = bls(whole([40, 41]), request(**asked))
    assert sent.outputs == ["output_ids", "sequence_length"]


def test_the_prompt_is_repeated_once_if_asked(bls, codec):
    ids = codec.encode(" and more", False)
    off = {"exclude_input_in_output": np.zeros((1, 1), np.bool_)}
    [responses], _ = bls(whole(ids), request(**off))
    assert said(responses) == PROMPT + " and more"
    [pieces], _ = bls(stream(ids), request(**off, **STREAM))
    assert said(pieces) == PROMPT + " and more"


def test_draft_model(bls, codec):
    ids = codec.encode("one two three four", False)
    prompt = codec.encode(PROMPT)

    def engine(sent):
        done = sent.inputs["input_ids"].shape[1] - len(prompt)
        count = int(sent.inputs["request_output_len"][0, 0])
        if sent.model_name == "draft":
            part = ids[done : done + count]
            logits = np.full((1, 1, len(part), 8), done, np.float32)
            return [answer(part, generation_logits=logits)]
        drafted = sent.inputs.get("draft_input_ids")
        assert drafted is None or drafted.shape[1] == count - 1
        return [answer(ids[done : done + count])]

    flags = {"num_draft_tokens": numbers(2), "use_draft_logits": np.ones((1, 1), np.bool_)}
    [responses], sent = bls(
        engine, request(max_tokens=len(ids), **flags), tensorrt_llm_draft_model_name="draft"
    )
    assert said(responses) == "one two three four"
    assert [one.model_name for one in sent[:2]] == ["draft", "tensorrt_llm"]
    assert sent[1].inputs["draft_input_ids"].tolist() == [ids[:2]]
    assert sent[1].inputs["draft_logits"].shape == (1, 2, 8)
    stopped = request(max_tokens=len(ids), stop_words=text("tw"), **flags)
    [responses], fewer = bls(engine, stopped, tensorrt_llm_draft_model_name="draft")
    assert said(responses) == "one "
    assert len(fewer) < len(sent)
    [refused], _ = bls(engine, request(**flags))
    assert "num_draft_tokens: this server has no draft model" in error(refused)


def test_errors_of_the_engine_are_passed_on(bls):
    from tests.engine_models.triton_double import InferenceResponse, TritonError

    def engine(_):
        yield answer([40])
        yield InferenceResponse(error=TritonError("out of blocks"))

    [responses], _ = bls(engine, request(**STREAM))
    assert responses[-1].error().message() == "[engineroom] out of blocks"


def test_same_id_twice_is_two_engine_requests(bls):
    both = threading.Barrier(2, timeout=5)

    def engine(_):
        both.wait()
        return [answer([40])]

    _, sent = bls(engine, request("x"), request("x"))
    first, second = (one.request_id for one in sent)
    assert first != second


@pytest.mark.parametrize("streaming", [False, True])
def test_a_client_that_is_gone_stops_the_engine(bls, streaming):
    gone = request("left", **(STREAM if streaming else {}))
    told = threading.Event()

    def engine(sent):
        if "stop" in sent.inputs:
            told.set()
            return
        yield answer([40])
        gone.sender.cancelled = True
        assert told.wait(5), "the engine was not told to stop"

    [responses], sent = bls(engine, gone)
    assert [one.request_id for one in sent] == ["left", "left"]
    assert "cancelled" in responses[-1].error().message()


def test_only_so_many_wait_for_the_engine(bls):
    """Once the first token is there, a stream makes room for the next request."""
    waiting, most, lock = [], [0], threading.Lock()

    class Slow:
        """An engine's responses: exec() returns with the first."""

        def __iter__(self):
            time.sleep(0.05)
            with lock:
                waiting.pop()
            return iter([answer([40])])

    def engine(_):
        with lock:
            waiting.append(1)
            most[0] = max(most[0], len(waiting))
        return Slow()

    requests = [request(str(i), **STREAM) for i in range(12)]
    answers, sent = bls(engine, *requests, engine_calls="3")
    assert len(answers) == len(sent) == 12
    assert most[0] == 3


class Answers:
    """Responses of one call, as an object that can be watched."""

    def __init__(self, ids):
        self._left = [answer(ids)]

    def __iter__(self):
        return self

    def __next__(self):
        if not self._left:
            raise StopIteration
        return self._left.pop()


def test_responses_of_a_call_outlive_it(bls):
    """Triton's stub drops its own reference without the GIL: it must never be the last one."""
    made = []

    def engine(_):
        answers = Answers([40])
        made.append(weakref.ref(answers))
        return answers

    bls(engine, request())
    import engine as calls

    gc.collect()
    assert made[0]() is not None
    assert len(calls._parked) == 1
    # Some time later another call lets it go, and is kept itself.
    since, kept = calls._parked.pop()
    calls._parked.append((since - calls.PARK_SECONDS - 0.1, kept))
    del kept
    calls._drop_old()
    gc.collect()
    assert made[0]() is None
    assert not calls._parked
    calls._drop_old()
