"""Word lists, stop words on text, embedding bias, chat templates."""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pytest

from tests.conftest import TINY
from tests.reference import tokenizers_for_tests as zoo


@pytest.fixture(params=zoo.FAMILIES)
def family(request, model_files, tmp_path):
    from text_codec import TokenCodec

    zoo.tokenizer(request.param).save(str(tmp_path / "tokenizer.json"))
    return TokenCodec(str(tmp_path))


def sequences(row):
    """As the engine reads them from the layout."""
    assert row.array.dtype == np.int32
    ids, ends = row.array[0].tolist()
    ends = [end for end in ends if end >= 0]
    found = [tuple(ids[start:end]) for start, end in zip([0, *ends], ends)]
    assert found == [tuple(ids) for ids in row.sequences()]
    return found


def test_words_are_listed_as_they_come_in_a_text(family):
    """Wherever the word stands in a text, its tokens there are one of the listed sequences."""
    from word_lists import WordLists

    # Two of the small tokenizers have no "h".
    spelled = (w for w in ("the", "to") if w in family.decode(family.encode(w, False), False))
    word = next(spelled)
    row = WordLists(family).row([word])
    listed = sequences(row)
    assert len(listed) == len(set(listed))
    for ids in listed:
        assert word in family.decode(ids, False)
    for before in ("", "say ", "say\n"):
        whole = family.encode(before + word, False)
        found = [ids for ids in listed if tuple(whole[-len(ids) :]) == ids]
        assert found, (before, whole, listed)


def test_layout(model_files):
    from word_lists import WordRow, pack

    got = pack([WordRow([(5, 6), (7,)]), None, WordRow([(9,)])])
    assert got.dtype == np.int32
    assert got.tolist() == [
        [[5, 6, 7], [2, 3, -1]],
        [[0, 0, 0], [-1, -1, -1]],
        [[9, 0, 0], [1, -1, -1]],
    ]
    assert pack([None, None]) is None


def test_sequences_come_first_and_once(codec):
    from word_lists import WordLists

    words = WordLists(codec)
    listed = sequences(words.row(["cat", "cat", "dog"], [(0,), (7, 8)]))
    assert listed[:2] == [(0,), (7, 8)]
    assert len(listed) == len(set(listed))
    assert words.row([], []) is None


def test_embedding_bias(codec):
    from word_lists import WordLists, vocabulary_size

    size = vocabulary_size(str(TINY))
    assert size == json.loads((TINY / "config.json").read_text())["vocab_size"]
    bias = WordLists(codec).bias([" the", "x"], [2.5, -1.0], size)
    assert bias.dtype == np.float32
    assert bias.shape == (size,)
    biased = {int(i) for i in np.flatnonzero(bias)}
    assert set(codec.encode(" the", False)) <= biased
    assert bias[codec.encode("x", False)[0]] == -1.0
    with pytest.raises(ValueError, match="embedding_bias_words"):
        WordLists(codec).bias(["the"], [1.0], 3)


def first_complete(text, words):
    """The text before the stop word that ends first; of those the one that starts first."""
    ends = [(text.find(w) + len(w), text.find(w)) for w in words if w in text]
    return text[: min(ends)[1]] if ends else text


def test_stop_text_does_not_depend_on_the_pieces(model_files):
    from stop_text import StopText

    source = random.Random(4)
    for _ in range(3000):
        text = "".join(source.choice("ab\u00e9") for _ in range(source.randint(0, 20)))
        words = [
            "".join(source.choice("ab\u00e9") for _ in range(source.randint(1, 5)))
            for _ in range(source.randint(1, 3))
        ]
        stop, out, at = StopText(words), "", 0
        while at < len(text):
            step = source.randint(1, 4)
            out += stop.push(text[at : at + step])
            at += step
        found = stop.found
        out += stop.finish()
        assert out == first_complete(text, words), (text, words)
        assert (found is not None) == any(word in text for word in words)


def test_stop_text_sends_early_and_never_takes_back(model_files):
    from stop_text import StopText

    stop = StopText(["END"])
    assert [stop.push(x) for x in ("abc", "E", "xE", "N", "D", "more")] == [
        "abc", "", "Ex", "", "", "",
    ]  # fmt: skip
    assert stop.found == "END"


def messages(*pairs):
    return json.dumps([{"role": role, "content": content} for role, content in pairs])


def test_chat_template_is_the_models_own(model_files):
    """The same prompt as transformers makes, and its ids."""
    from chat_template import ChatTemplate
    from text_codec import TokenCodec
    from transformers import AutoTokenizer

    plain = AutoTokenizer.from_pretrained(TINY)
    talk = [("system", "Be brief."), ("user", 'a "b" <é> 東京'), ("assistant", "ok"), ("user", "?")]
    prompt = ChatTemplate(str(TINY)).prompt(messages(*talk))
    chat = json.loads(messages(*talk))
    assert prompt == plain.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = TokenCodec(str(TINY)).encode(prompt, False)
    want = plain.apply_chat_template(chat, add_generation_prompt=True, tokenize=True)
    assert ids == (want if isinstance(want, list) else want["input_ids"])


def folder_with(tmp_path, template, **config):
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "the model has no chat template; send text_input"),
        ("{% for x in", "the chat template is broken"),
        ("{{ raise_exception('no tools') }}", "chat template failed: no tools"),
        ("{{ ''.__class__.__mro__ }}", "chat template failed"),
        ("{{ messages.append(1) }}", "chat template failed"),
    ],
)
def test_templates_that_fail_are_said_so(model_files, tmp_path, template, message):
    from chat_template import ChatTemplate

    with pytest.raises(ValueError, match="messages: ") as caught:
        ChatTemplate(folder_with(tmp_path, template)).prompt(messages(("user", "x")))
    assert message in str(caught.value)


def test_special_tokens_and_named_templates(model_files, tmp_path):
    from chat_template import ChatTemplate

    named = [
        {"name": "tools", "template": "no"},
        {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"},
    ]
    config = {"chat_template": named, "bos_token": {"content": "<s>"}}
    prompt = ChatTemplate(folder_with(tmp_path, None, **config)).prompt(messages(("user", "hi")))
    assert prompt == "<s>hi"


def test_no_second_bos_with_messages(model_files, tmp_path):
    """The tokenizer adds BOS to text; the template has written it already, or did not want it."""
    from engine_prompt import PromptMaker
    from request_fields import Fields
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    from tests.engine_models.conftest import parameters
    from tests.engine_models.triton_double import numbers, text

    bos = "<|im_start|>"
    folder = folder_with(tmp_path, "{{ bos_token }}{{ messages[0].content }}", bos_token=bos)
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    number = tokenizer.token_to_id(bos)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, number)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    make = PromptMaker(parameters(tokenizer_dir=folder))
    chat = {"messages": text(messages(("user", "hi"))), "max_tokens": numbers(4)}
    raw = {"text_input": text("hi"), "max_tokens": numbers(4)}
    assert make(Fields(arrays=chat)).rows == make(Fields(arrays=raw)).rows
    assert make(Fields(arrays=raw)).rows[0].count(number) == 1
