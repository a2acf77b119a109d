"""Text of tokens, against the decoders of the `tokenizers` package and Python's own."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, pre_tokenizers

from engineroom.catalog import Catalog
from engineroom.checks.evidence import Context, judge
from engineroom.errors import UsageError
from engineroom.names import Topic
from engineroom.reading import Evidence, token_text

TEXTS = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("aé\u0301你한😀\u200d\ufeff שלום "),
    ),
    max_size=30,
)
LLAMA = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)


def cut(data: bytes, seed: int) -> list[bytes]:
    chooser = random.Random(seed)
    at, parts = 0, []
    while at < len(data):
        step = chooser.randint(1, 4)
        parts.append(data[at : at + step])
        at += step
    return parts


def test_the_byte_alphabet_is_that_of_byte_level_bpe() -> None:
    assert set(token_text.byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(token_text.byte_alphabet().values()) == list(range(256))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 999))
def test_byte_level_pieces_stream_to_what_the_decoder_gives(data: bytes, seed: int) -> None:
    letters = {byte: letter for letter, byte in token_text.byte_alphabet().items()}
    parts = cut(data, seed)
    pieces = ["".join(letters[byte] for byte in part) for part in parts]
    stream = token_text.of_pieces(pieces, "bpe").stream()
    assert stream.text == decoders.ByteLevel().decode(pieces)
    assert stream == token_text.of_hex([part.hex() for part in parts], None).stream()
    assert len(stream.deltas) == len(pieces)


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.integers(0, 999))
def test_no_part_of_a_character_is_sent(text: str, seed: int) -> None:
    stream = token_text.of_hex([p.hex() for p in cut(text.encode(), seed)], None).stream()
    assert (stream.text, stream.flush) == (text, "")
    assert "\ufffd" in text or not any("\ufffd" in delta for delta in stream.deltas)


@settings(max_examples=200, deadline=None)
@given(TEXTS.filter(lambda t: "▁" not in t), st.integers(0, 999))
def test_sentencepiece_pieces_stream_to_what_the_decoder_gives(text: str, seed: int) -> None:
    chooser = random.Random(seed)
    pieces = ["▁"]
    for letter in text:
        if letter != " " and chooser.random() < 0.4:
            pieces += [f"<0x{byte:02X}>" for byte in letter.encode()]
        else:
            pieces.append(letter.replace(" ", "▁"))
    stream = token_text.of_pieces(pieces, "sentencepiece").stream()
    assert stream.text == text == LLAMA.decode(pieces)


def test_a_run_of_byte_pieces_that_breaks_off_shows_each_byte() -> None:
    pieces = ["▁a", "<0xF0>", "<0x9F>", "b", "<0xE4>"]
    stream = token_text.of_pieces(pieces, "sentencepiece").stream()
    assert stream.deltas == ("a", "", "", "\ufffd\ufffdb", "")
    assert stream.text == LLAMA.decode(pieces) == "a\ufffd\ufffdb\ufffd"


def test_accumulated_responses_that_take_text_back_have_no_deltas() -> None:
    assert token_text.of_accumulated(["a b", "a b.", "a b. c"]) is not None
    assert token_text.of_accumulated(["a ,", "a, b"]) is None


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=4), min_size=1, max_size=4)
)
def test_word_list_is_read_back_as_the_engine_reads_it(rows: list[list[list[int]]]) -> None:
    tensor = np.array(token_text.word_list(rows), dtype=np.int32)
    assert tensor.shape[:2] == (len(rows), 2)
    assert tensor.shape[2] == max([1, *(sum(map(len, row)) for row in rows)])
    for row, (ids, ends) in zip(rows, tensor):
        starts = [0, *ends]
        read = [list(ids[a:b]) for a, b in zip(starts, ends) if b >= 0]
        assert read == [word for word in row if word]


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 4), max_size=3))
def test_ids_are_found_as_a_plain_search_finds_them(hay: list[int], needle: list[int]) -> None:
    places = [i for i in range(len(hay)) if needle and hay[i : i + len(needle)] == needle]
    assert token_text.IdText(hay).find(needle) == (places[0] if places else -1)


def test_bytes_not_in_hex_are_named() -> None:
    evidence = Evidence.model_validate({"stream": {"token_bytes_hex": ["E4", "zz"]}})
    with pytest.raises(UsageError) as error:
        judge(Context(evidence, Catalog()), (Topic.STREAMING_DETOK,))
    assert error.value.where is not None
    assert error.value.where.key == "stream.token_bytes_hex"


def test_long_streams_and_many_words_are_judged_quickly() -> None:
    parts = {
        "tokenizer": {"encodes": {f"w{i}": [7] * (i % 50 + 2) + [i] for i in range(1000)}},
        "requests": [{"stop_words": [f"w{i}" for i in range(1000)]}],
        "stream": {"token_ids": [7] * 200_000, "token_texts": ["a"] * 200_000,
                   "one_response_per_token": True},
    }  # fmt: skip
    evidence = Evidence.model_validate(parts)
    begun = time.process_time()
    judge(Context(evidence, Catalog()), (Topic.STOP_WORDS, Topic.STREAMING_DETOK))
    assert time.process_time() - begun < 5
