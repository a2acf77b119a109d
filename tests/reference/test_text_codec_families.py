"""Streamed text equals the whole text: every tokenizer family, eight scripts, random strings.

The oracles are `tokenizers` (decode of the whole, and its own DecodeStream) and transformers; the
codec's stages share no code with them.
"""

from __future__ import annotations

import json
import random
import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from tests.reference import tokenizers_for_tests as zoo

BYTE = re.compile(r"<0x[0-9A-F]{2}>")
SHORT, FULL = 60, 1000
FALLBACK = [name for name in zoo.FAMILIES if name.startswith("byte fallback")]
STAGED = [name for name in zoo.FAMILIES if "window" not in name]


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Family to a folder with its tokenizer.json, written once."""
    root, made = tmp_path_factory.mktemp("tokenizers"), {}

    def folder(family):
        if family not in made:
            made[family] = root / str(len(made))
            made[family].mkdir()
            zoo.tokenizer(family).save(str(made[family] / "tokenizer.json"))
        return str(made[family])

    return folder


def chunks(ids, source):
    """The ids in steps of one, of a fixed interval, or of random sizes (some empty)."""
    kind = source.randrange(3)
    interval, at = source.randint(2, 9), 0
    while at < len(ids):
        size = (1, interval, source.randint(0, 5))[kind]
        yield ids[at : at + size]
        at += size


def with_noise(ids, tokenizer, source):
    """Special tokens in the middle, tokens out of nowhere, an id that no token has, a cut."""
    ids, size = list(ids), tokenizer.get_vocab_size()
    extra = [
        tokenizer.token_to_id(text) for text in ("<|im_end|>", zoo.CALL, *zoo.ODD, zoo.UNKNOWN)
    ]
    extra = [token for token in extra if token is not None]
    for _ in range(source.choice([0, 0, 1, 3])):
        token = source.choice([*extra, source.randrange(size), size + 5])
        ids.insert(source.randint(0, len(ids)), token)
    return ids[: source.randint(0, len(ids))] if source.random() < 0.4 else ids


def check_strings(codec, tokenizer, script, count, seed):
    from text_codec import TextStream

    source = random.Random(f"{script} {seed}")
    for number in range(count):
        text = zoo.random_text(script, source)
        encoded = tokenizer.encode(text, add_special_tokens=False).ids
        ids, skip = with_noise(encoded, tokenizer, source), source.random() < 0.5
        whole = tokenizer.decode(ids, skip_special_tokens=skip)
        stream = TextStream(codec, skip)
        pieces = [stream.push(chunk) for chunk in chunks(ids, source)]
        streamed = "".join(pieces) + stream.finish()
        assert streamed.encode() == whole.encode(), (number, text, ids, skip)
        assert codec.decode(ids, skip) == whole


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_streamed_is_whole(family, folders):
    from text_codec import TokenCodec

    codec = TokenCodec(folders(family))
    for script in zoo.SCRIPTS:
        check_strings(codec, zoo.tokenizer(family), script, SHORT, seed=1)


@pytest.mark.full
@pytest.mark.parametrize("script", zoo.SCRIPTS)
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_streamed_is_whole_in_full(family, script, folders):
    from text_codec import TokenCodec

    check_strings(TokenCodec(folders(family)), zoo.tokenizer(family), script, FULL, seed=2)


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_every_cut_of_a_stream(family, folders):
    """What was emitted is the front of the whole, however the stream goes on or ends.

    And nothing is held back but an incomplete character, a run of byte tokens and, with an
    end-of-word mark, the space that a next word would bring.
    """
    from text_codec import TextStream, TokenCodec

    codec, tokenizer = TokenCodec(folders(family)), zoo.tokenizer(family)
    source = random.Random(3)
    for script in zoo.SCRIPTS:
        for _ in range(8):
            ids = with_noise(
                tokenizer.encode(zoo.random_text(script, source)).ids, tokenizer, source
            )
            stream, sent = TextStream(codec, False), ""
            for end, token in enumerate(ids, 1):
                sent += stream.push([token])
                whole = tokenizer.decode(ids[:end], skip_special_tokens=False)
                assert whole.startswith(sent)
                piece = tokenizer.id_to_token(token) or "<0x00>"
                open_run = family in FALLBACK and BYTE.fullmatch(piece)
                open_run = open_run or (family == "BPE with </w>" and piece == "x</w>y")
                if not open_run and not whole.endswith("\ufffd"):
                    assert sent == whole
                rest = TextStream(codec, False)
                assert rest.push(ids[:end]) + rest.finish() == whole


@pytest.mark.parametrize("family", STAGED)
def test_same_as_decode_stream(family, folders):
    """tokenizers' own stream, on whole strings; it never says what is left at the end."""
    from text_codec import TextStream, TokenCodec

    codec, tokenizer = TokenCodec(folders(family)), zoo.tokenizer(family)
    source, compared = random.Random(4), 0
    for script in zoo.SCRIPTS:
        for _ in range(30):
            ids = tokenizer.encode(zoo.random_text(script, source), add_special_tokens=False).ids
            if "\ufffd" in tokenizer.decode(ids, skip_special_tokens=False):
                continue
            other, stream = DecodeStream(skip_special_tokens=False), TextStream(codec, False)
            theirs = "".join(other.step(tokenizer, token) or "" for token in ids)
            ours = "".join(stream.push([token]) for token in ids) + stream.finish()
            assert ours == theirs
            compared += 1
    assert compared > 150


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_tokens(folders, data):
    """Tokens in no order that text would give: broken byte runs, marks alone, unknown ids."""
    from text_codec import TextStream, TokenCodec

    family = data.draw(st.sampled_from(STAGED))
    tokenizer = zoo.tokenizer(family)
    size = tokenizer.get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size), max_size=30))
    skip, step = data.draw(st.booleans()), data.draw(st.integers(1, 4))
    stream = TextStream(TokenCodec(folders(family)), skip)
    pieces = [stream.push(ids[i : i + step]) for i in range(0, len(ids), step)]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids, skip_special_tokens=skip)


def byte_ids(tokenizer, data):
    return [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in data]


@pytest.mark.parametrize("family", FALLBACK)
def test_a_broken_byte_run(family, folders):
    """One broken byte makes U+FFFD of the whole run: its characters wait for its end, not longer."""
    from text_codec import TextStream, TokenCodec

    codec, tokenizer = TokenCodec(folders(family)), zoo.tokenizer(family)
    call = tokenizer.token_to_id(zoo.CALL)
    stream = TextStream(codec)
    assert stream.push(byte_ids(tokenizer, "中".encode())) == ""
    assert stream.push([call]) == "中" + zoo.CALL
    assert stream.push(byte_ids(tokenizer, "文".encode())) == ""
    assert stream.push(byte_ids(tokenizer, b"\xff")) == "\ufffd" * 4
    assert stream.push(byte_ids(tokenizer, b"a")) == "\ufffd"
    assert stream.push([call]) == zoo.CALL
    assert stream.push(byte_ids(tokenizer, "é".encode()[:1])) == ""
    assert stream.finish() == "\ufffd"


@pytest.mark.parametrize("family", FALLBACK)
def test_a_stream_without_an_end(family, folders):
    """Where finish() is never called, a whole character goes out at once."""
    from text_codec import TextStream, TokenCodec

    codec, tokenizer = TokenCodec(folders(family)), zoo.tokenizer(family)
    stream = TextStream(codec, ends=False)
    pieces = [stream.push([token]) for token in byte_ids(tokenizer, "中é!".encode())]
    assert pieces == ["", "", "中", "", "é", "!"]
    assert stream.push(byte_ids(tokenizer, b"\xe4\xff")) == "\ufffd" * 2


@pytest.mark.parametrize("family", ["byte-level BPE", "WordPiece", "byte fallback BPE (Llama 2)"])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_clean_up_in_the_config_changes_nothing(family, clean, skip, folders, tmp_path):
    """The codec is transformers without clean-up, whatever tokenizer_config.json says."""
    from text_codec import TextStream, TokenCodec

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=zoo.tokenizer(family), clean_up_tokenization_spaces=clean
    )
    wrapped.save_pretrained(tmp_path)
    codec, source = TokenCodec(str(tmp_path)), random.Random(6)
    for _ in range(100):
        ids = wrapped.encode(zoo.random_text("latin", source) + " can n't , do not .")
        stream = TextStream(codec, skip)
        streamed = "".join(stream.push([token]) for token in ids) + stream.finish()
        assert streamed == wrapped.decode(
            ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
        )


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "BertTokenizer"])
def test_folder_without_tokenizer_json(kind, tmp_path):
    """Vocabulary files alone: transformers opens them, and its decode is the whole text."""
    from text_codec import TextStream, TokenCodec

    if kind == "GPT2Tokenizer":
        model = json.loads(zoo.tokenizer("byte-level BPE").to_str())["model"]
        (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
        merges = [" ".join(pair) for pair in model["merges"]]
        (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    else:
        vocab = zoo.tokenizer("WordPiece").get_vocab()
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(vocab)]
        (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    codec, plain = TokenCodec(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
    source = random.Random(8)
    for script in zoo.SCRIPTS:
        for _ in range(20):
            ids, skip = plain.encode(zoo.random_text(script, source)), source.random() < 0.5
            stream = TextStream(codec, skip)
            streamed = "".join(stream.push(chunk) for chunk in chunks(ids, source))
            whole = plain.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert streamed + stream.finish() == whole


def test_python_tokenizer_goes_through_the_window(tmp_path, monkeypatch):
    """ByT5 has no tokenizer.json: transformers decodes, one byte a token."""
    from text_codec import TextStream, TokenCodec

    ByT5Tokenizer().save_pretrained(tmp_path)
    codec, plain = TokenCodec(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
    source = random.Random(7)
    for script in zoo.SCRIPTS:
        for _ in range(20):
            ids = plain.encode(zoo.random_text(script, source), add_special_tokens=False)
            stream = TextStream(codec)
            streamed = "".join(stream.push(chunk) for chunk in chunks(ids, source))
            assert streamed + stream.finish() == plain.decode(ids, skip_special_tokens=True)
    # A byte that never becomes a character is held to the end, at linear cost.
    decoded, decode = [], codec.decode
    monkeypatch.setattr(
        codec, "decode", lambda ids, skip: decoded.append(len(ids)) or decode(ids, skip)
    )
    stream = TextStream(codec)
    for _ in range(2000):
        assert stream.push([0xE4 + 3]) == ""
    assert stream.finish() == decode([0xE4 + 3] * 2000)
    assert sum(decoded) <= 20 * 2000


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_work_per_token_does_not_grow(family, folders, monkeypatch):
    """Tokens handed to decoders for a stream of 4,000: linear, and none at all with stages."""
    from text_codec import TextStream, TokenCodec

    codec, tokenizer = TokenCodec(folders(family)), zoo.tokenizer(family)
    decoded, decode = [], codec.decode
    monkeypatch.setattr(
        codec, "decode", lambda ids, skip: decoded.append(len(ids)) or decode(ids, skip)
    )
    ids = tokenizer.encode(" ".join(zoo.corpus()[::7])).ids[:2000]
    # The hard end: nothing but one token that never makes a whole character.
    hard = tokenizer.token_to_id("<0xE4>") or tokenizer.token_to_id("ä") or ids[0]
    for stream_ids in (ids, [hard] * 2000):
        stream = TextStream(codec)
        for token in stream_ids:
            stream.push([token])
        stream.finish()
    assert sum(decoded) <= (0 if family in STAGED else 20 * 4000)


def microseconds_per_token(codec, ids):
    """CPU time, the best of nine streams of these ids, a token a push."""
    from text_codec import TextStream

    seconds = []
    for _ in range(9):
        stream, begun = TextStream(codec), time.thread_time()
        for token in ids:
            stream.push([token])
        stream.finish()
        seconds.append(time.thread_time() - begun)
    return min(seconds) / len(ids) * 1e6


@pytest.mark.full
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_time_per_token_does_not_grow(family, folders):
    """A stream of 2,000 tokens costs per token what one of 250 does (-s prints it)."""
    from text_codec import TokenCodec

    codec, tokenizer = TokenCodec(folders(family)), zoo.tokenizer(family)
    ids = tokenizer.encode(" ".join(zoo.corpus()[::7])).ids[:2000]
    assert len(ids) == 2000
    short, long = (microseconds_per_token(codec, part) for part in (ids[:250], ids))
    print(f"| {family} | {short:.1f} | {long:.1f} |")
    assert long < 3 * short
