"""Answers from responses, values of the command line, addresses. No server."""

from __future__ import annotations

import pytest

from engineroom.cli import generate_input
from engineroom.errors import ExternalToolError, UsageError
from engineroom.runner.client import connect
from engineroom.runner.client_answer import Collector
from engineroom.runner.client_request import Guide


# ---- answers
def test_a_collector_joins_texts_and_outputs():
    collector = Collector("t", frozenset({"p"}), frozenset({"n"}))
    assert collector.add({"t": "a", "p": [0.1], "n": 1, "why": ""}) == "a"
    assert collector.add({"t": "b", "p": 0.2, "n": 2, "why": "stop"}) == "b"
    answer = collector.answer(0.1, 0.2)
    assert (answer.text, answer.texts, answer.events) == ("ab", ("ab",), 2)
    assert answer.outputs == {"p": [0.1, 0.2], "n": 3, "why": "stop"}


def test_a_collector_keeps_sequences_apart():
    collector = Collector("t")
    assert collector.add({"t": "x", "sequence_index": 1}) == ""
    assert collector.add({"t": "a", "sequence_index": 0}) == "a"
    collector.add({"t": "y", "sequence_index": 1})
    assert collector.answer(0, 0).texts == ("a", "xy")
    collector = Collector("t")
    collector.add({"t": ["a", "b"]})
    collector.add({"t": ["c", ""]})
    assert collector.answer(0, 0).texts == ("ac", "b")


def test_a_cumulative_stream_is_shown_once():
    collector = Collector("t", cumulative=True)
    assert [collector.add({"t": text}) for text in ("a", "abc", "abc")] == ["a", "bc", ""]
    assert collector.answer(0, 0).text == "abc"


@pytest.mark.parametrize("value", [None, 3, [], [None], ["a", 1], {}])
def test_an_answer_without_text(value):
    with pytest.raises(ExternalToolError, match="no text in `t`"):
        Collector("t").add({"t": value})


# ---- the command line's own input
def test_messages_of_the_command_line(tmp_path):
    path = tmp_path / "m.json"
    path.write_text('[{"role": "system", "content": "be brief"}]')
    assert generate_input.messages(["user=a=b"], path) == [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "a=b"},
    ]  # fmt: skip
    assert generate_input.messages(None, None) is None
    for wrong in ("hello", "bot=x", "=x"):
        with pytest.raises(UsageError, match="is no message"):
            generate_input.messages([wrong], None)
    for text in (
        "[]",
        "{}",
        "x",
        '[{"role": "user"}]',
        '[{"role": "user", "content": 1}]',
        "[" * 9999,
    ):
        path.write_text(text)
        with pytest.raises(UsageError):
            generate_input.messages(None, path)


def test_assignments_and_guides(tmp_path):
    assert generate_input.assignments(["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    for wrong in (["a"], ["=b"], ["a=1", "a=2"]):
        with pytest.raises(UsageError):
            generate_input.assignments(wrong)
    schema = tmp_path / "s.json"
    schema.write_text('{"type": "object"}')
    assert generate_input.guide(schema, None, None) == Guide("json_schema", '{"type": "object"}')
    assert generate_input.guide(None, "a+", None) == Guide("regex", "a+")
    assert generate_input.guide(None, None, schema).kind == "ebnf_grammar"
    assert generate_input.guide(None, None, None) is None
    with pytest.raises(UsageError, match="one of"):
        generate_input.guide(schema, "a", None)
    schema.write_text("[1]")
    with pytest.raises(UsageError, match="is an object"):
        generate_input.guide(schema, None, None)
    schema.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        generate_input.guide(schema, None, None)
    with pytest.raises(UsageError, match="no such file"):
        generate_input.prompt(None, tmp_path / "absent")
    with pytest.raises(UsageError, match="name one"):
        generate_input.prompt("x", schema)


# ---- addresses
@pytest.mark.parametrize(
    "url", ["", "localhost", "h:0", "h:99999", "http://h", "a b:1", "ftp://h:1", "h:1/x"]
)
def test_odd_grpc_addresses(url):
    with pytest.raises(UsageError) as caught:
        connect(url, "grpc")
    assert caught.value.where.key == "--url"


def test_nobody_answers_over_grpc():
    with pytest.raises(ExternalToolError, match=r"no answer from 127\.0\.0\.1:9"):
        connect("127.0.0.1:9", "grpc").model("m")
    with pytest.raises(UsageError, match="no protocol `tcp`"):
        connect("127.0.0.1:9", "tcp")
