"""Streamed pieces concatenate to the whole text."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tests.conftest import TINY

TEXTS = [
    "plain words, and  two  spaces ", " leading space", "漢字かな交じり文 한글", "🐱👩‍👩‍👧‍👦🇫🇷", "e\u0301 n\u0303",
    "עברית وعربية", "tabs\tand\nlines\r\n", "<|im_start|>user\nhi<|im_end|>\n", "\ufffd", "",
]  # fmt: skip


def stream(codec, ids, step):
    from text_codec import TextStream

    out = TextStream(codec)
    pieces = [out.push(ids[i : i + step]) for i in range(0, len(ids), step)]
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in codec.decode(ids)
    return "".join(pieces) + out.finish()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_pieces_make_the_text(text, step):
    from text_codec import TokenCodec

    codec = TokenCodec(str(TINY))
    ids = codec.encode(text)
    assert stream(codec, ids, step) == codec.decode(ids)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.integers(0, 2047), max_size=40), st.integers(1, 5))
def test_any_tokens_make_the_text(ids, step):
    """Including byte tokens in no valid order, and text cut in mid-character."""
    from text_codec import TokenCodec

    codec = TokenCodec(str(TINY))
    assert stream(codec, ids, step) == codec.decode(ids)


def test_agrees_with_transformers():
    from text_codec import TokenCodec

    codec, plain = TokenCodec(str(TINY)), AutoTokenizer.from_pretrained(TINY)
    for text in TEXTS:
        assert codec.encode(text) == plain.encode(text)
        ids = plain.encode(text)
        assert codec.decode(ids) == plain.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


def test_no_second_bos(tmp_path):
    """A prompt made by a chat template begins with BOS already."""
    from text_codec import TokenCodec
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    bos = "<|im_start|>"
    tokenizer.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, 1)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": bos}}))
    codec = TokenCodec(str(tmp_path))
    assert codec.encode("hi")[0] == 1
    assert codec.encode(f"{bos}hi").count(1) == 1
    assert 1 not in codec.encode("hi", False)


def test_missing_folder_is_named():
    from text_codec import TokenCodec

    with pytest.raises(FileNotFoundError, match="'/no/such'"):
        TokenCodec("/no/such")
