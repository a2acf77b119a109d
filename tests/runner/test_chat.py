"""Chat templates run in a sandbox and give what transformers gives."""

from __future__ import annotations

import json
import shutil

import pytest
from transformers import AutoTokenizer

from engineroom.errors import UsageError
from engineroom.runner import chat
from tests.conftest import TINY

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": 'Say "hé" <b>'}]


def test_same_text_as_transformers():
    want = AutoTokenizer.from_pretrained(TINY).apply_chat_template(
        MESSAGES, tokenize=False, add_generation_prompt=True
    )
    assert chat.apply(TINY, MESSAGES) == want


def folder(tmp_path, template, **config):
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": template, **config})
    )
    return tmp_path


def test_template_in_the_config_and_special_tokens(tmp_path):
    path = folder(
        tmp_path, "{{ bos_token }}{{ messages[0].content }}", bos_token={"content": "<s>"}
    )
    assert chat.apply(path, MESSAGES) == "<s>Be brief."


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ raise_exception('no system role') }}",
        "{{ 1 / 0 }}",
        "{% for",
    ],
)
def test_unsafe_and_broken_templates_are_usage_errors(tmp_path, template):
    with pytest.raises(UsageError) as caught:
        chat.apply(folder(tmp_path, template), MESSAGES)
    assert "chat template" in caught.value.message


def test_no_template(tmp_path):
    with pytest.raises(UsageError, match="no chat template"):
        chat.apply(tmp_path, MESSAGES)
