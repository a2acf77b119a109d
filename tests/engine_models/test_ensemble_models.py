"""preprocessing and postprocessing: what an ensemble's steps exchange."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine_models.conftest import parameters
from tests.engine_models.triton_double import Request, model, numbers, text


@pytest.fixture
def pre(model_files):
    with model("preprocessing", parameters()) as instance:
        yield lambda **inputs: instance.execute([Request(**inputs)])[0]


@pytest.fixture
def post(model_files):
    """Answers of several calls, handed over together."""
    with model("postprocessing", parameters()) as instance:
        yield lambda *requests: instance.execute(list(requests))


def tokens(ident, *rows, index=None):
    width = max(map(len, rows))
    ids = np.zeros((1, len(rows), width), np.int32)
    for place, row in zip(ids[0], rows):
        place[: len(row)] = row
    lengths = np.array([[len(row) for row in rows]], np.int32)
    more = {} if index is None else {"SEQUENCE_INDEX": numbers(index)}
    return Request(ident, TOKENS_BATCH=ids, SEQUENCE_LENGTH=lengths, **more)


def said(responses):
    assert not [r.error().message() for r in responses if r.has_error()]
    return "".join(r.array("OUTPUT")[0, 0].decode() for r in responses)


def test_preprocessing_makes_only_what_is_needed(pre, codec):
    got = pre(QUERY=text("Hello"), REQUEST_OUTPUT_LEN=numbers(7))
    assert got.names() == {
        "INPUT_ID", "REQUEST_INPUT_LEN", "REQUEST_OUTPUT_LEN", "OUT_END_ID", "STOP_WORDS_IDS",
    }  # fmt: skip
    ids = codec.encode("Hello")
    assert got.array("INPUT_ID").tolist() == [ids]
    assert got.array("REQUEST_INPUT_LEN").tolist() == [[len(ids)]]
    assert got.array("REQUEST_OUTPUT_LEN").tolist() == [[7]]
    assert got.array("OUT_END_ID").tolist() == [[2]]
    assert got.array("STOP_WORDS_IDS").tolist() == [[[0], [1]]]
    got = pre(
        QUERY=text("Hello"), REQUEST_OUTPUT_LEN=numbers(7), END_ID=numbers(-1),
        BAD_WORDS_DICT=text("x"), EMBEDDING_BIAS_WORDS=text("y"),
        EMBEDDING_BIAS_WEIGHTS=numbers(1.5, kind=np.float32),
    )  # fmt: skip
    assert got.names() == {
        "INPUT_ID", "REQUEST_INPUT_LEN", "REQUEST_OUTPUT_LEN", "BAD_WORDS_IDS", "EMBEDDING_BIAS",
    }  # fmt: skip
    assert got.array("EMBEDDING_BIAS")[0, codec.encode("y", False)[0]] == 1.5


def test_short_rows_are_filled_up(pre, codec):
    rows = codec.encode("one two three"), codec.encode("four")
    got = pre(
        QUERY=text("one two three", "four"), REQUEST_OUTPUT_LEN=numbers(1, 2), PAD_ID=numbers(9, 9)
    )
    ids = got.array("INPUT_ID")
    assert ids[0].tolist() == rows[0]
    assert ids[1].tolist() == rows[1] + [9] * (len(rows[0]) - len(rows[1]))
    assert got.array("REQUEST_INPUT_LEN").reshape(-1).tolist() == [len(row) for row in rows]


def test_streams_do_not_mix(post, codec):
    """Events of several streams and sequences in one hand-over."""
    one, two = codec.encode("né 東京", False), codec.encode("🐱 cat", False)
    keys = [("a", 0, one), ("a", 1, two), ("b", None, two)]
    calls, owners = [], []
    for i in range(max(len(one), len(two))):
        for key in keys:
            if i < len(key[2]):
                calls.append(tokens(key[0], [key[2][i]], index=key[1]))
                owners.append(key)
    answers = post(*calls)
    for key in keys:
        assert said([a for a, owner in zip(answers, owners) if owner is key]) == codec.decode(
            key[2]
        )


def test_without_an_id_a_part_of_a_character_is_an_error(post, codec):
    ids = codec.encode("🐱", False)
    assert len(ids) > 1, "the cat is one token"
    [answer] = post(tokens("", ids[:1]))
    assert "send a request id" in answer.error().message()
    [answer] = post(tokens("", codec.encode("cat", False)[:1]))
    assert not answer.has_error()


def test_whole_answers(post, codec):
    rows = codec.encode("one", False), codec.encode("two 東", False)
    [answer] = post(tokens("x", *rows))
    assert [x.decode() for x in answer.array("OUTPUT")[0]] == ["one", "two 東"]
    [answer] = post(tokens("y", [*rows[1], 2]))
    assert said([answer]) == "two 東"
