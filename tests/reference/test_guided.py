"""Guided decoding: the answers parse, and what is no guide is refused by name, quickly."""

from __future__ import annotations

import json
import re
import time

import jsonschema
import pytest

from tests.reference.conftest import FOLDERS, template_folder
from tests.reference.running import ask, start

pytestmark = pytest.mark.slow
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "kind": {"enum": ["cat", "dog", 7, None]},
    },
    "required": ["name", "age", "tags", "kind"],
    "additionalProperties": False,
}
NESTED = {
    "type": "array",
    "minItems": 2,
    "maxItems": 2,
    "items": {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": "^x[0-9]{2}$"}]},
}
PROMPTS = ["A generator is", '{"name": "', "[1, 2, ", "Ωmega and 🐱"]


@pytest.fixture(scope="module")
def runtime():
    with pytest.MonkeyPatch.context() as patch:
        for name in FOLDERS:
            patch.syspath_prepend(template_folder(name))
        running = start()
        yield running
        running.stop()
        running.check()


def guided(runtime, kind, text=None, prompt=PROMPTS[0], **fields):
    from runtime_api import Guide

    return ask(runtime, prompt=prompt, guide=Guide(kind, text), **{"max_tokens": 200, **fields})


@pytest.mark.parametrize("schema", [PERSON, NESTED])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_json_schema(runtime, schema, prompt):
    for fields in ({}, {"temperature": 1.3, "seed": 5, "n": 2}):
        answer = guided(runtime, "json_schema", json.dumps(schema), prompt, **fields)
        for index in range(fields.get("n", 1)):
            assert answer.last(index).finish_reason == "stop"
            jsonschema.validate(json.loads(answer.text(index)), schema)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_any_json_is_an_object_or_an_array(runtime, prompt):
    answers = [guided(runtime, "json", None, prompt, max_tokens=160)]
    answers.append(guided(runtime, "json", "", prompt, max_tokens=160, temperature=1.0, seed=3))
    for answer in answers:
        assert answer.text()[0] in "[{"
        if answer.last().finish_reason == "stop":
            assert isinstance(json.loads(answer.text()), (dict, list))
    assert "stop" in [answer.last().finish_reason for answer in answers]


@pytest.mark.parametrize(
    "pattern",
    [
        r"[0-9]{3}-[a-z]{2,4}",
        r"(yes|no|maybe)!",
        r"\d{1,3}(\.\d{1,3}){3}",
        r"[가-힣]{2,5}",
        r"(🐱|猫){3}",
    ],
)
def test_regex(runtime, pattern):
    for fields in ({}, {"temperature": 1.5, "seed": 8}):
        answer = guided(runtime, "regex", pattern, **fields)
        assert answer.last().finish_reason == "stop"
        assert re.fullmatch(pattern, answer.text())


EBNF = """root ::= "SELECT " column (", " column)? " FROM " [a-z] [a-z]? ";"
column ::= "id" | "name" | "count(*)"
"""


def test_ebnf_grammar(runtime):
    column = r"(id|name|count\(\*\))"
    for prompt in PROMPTS:
        text = guided(runtime, "ebnf_grammar", EBNF, prompt).text()
        assert re.fullmatch(rf"SELECT {column}(, {column})? FROM [a-z][a-z]?;", text), text
    assert guided(runtime, "ebnf_grammar", 'start: "a" "b"').text() == "ab"  # Lark


def test_structural_tag_constrains_what_follows_a_trigger(runtime):
    """The trigger is a word that the model writes by itself."""
    free = ask(runtime, prompt=PROMPTS[0], max_tokens=12).text()
    word = next(w for w in free.split() if w.isalpha() and len(w) > 2)
    tag = {"begin": word, "schema": {"type": "integer", "minimum": 0, "maximum": 9}, "end": "/>"}
    guide = {"type": "structural_tag", "structures": [tag], "triggers": [word]}
    kept = guided(runtime, "structural_tag", json.dumps(guide), max_tokens=12)
    before, after = free.split(word)[0], re.escape(word)
    assert re.match(rf"{re.escape(before)}{after}[0-9]/>", kept.text()), kept.text()
    unused = json.dumps({**guide, "structures": [{**tag, "begin": "<n="}], "triggers": ["<n"]})
    assert guided(runtime, "structural_tag", unused, max_tokens=12).text() == free


def test_log_probs_are_of_the_masked_choice(runtime):
    answer = guided(runtime, "regex", "(ab|ac)x", log_probs=True, end_ids=[2])
    assert answer.text() in ("abx", "acx")
    assert all(value <= 0 for value in answer.log_probs())
    # Where the guide leaves one token, its probability is 1: the end is such a place.
    assert answer.last().cumulative_logprob == pytest.approx(sum(answer.log_probs()), abs=1e-6)
    assert answer.log_probs()[-1] == pytest.approx(0, abs=1e-6)


def test_a_guide_without_an_end_token_ends_by_itself(runtime):
    answer = guided(runtime, "regex", "abc", end_ids=[])
    assert (answer.text(), answer.last().finish_reason) == ("abc", "stop")
    other = guided(runtime, "regex", "abc", end_ids=[77])
    assert (other.text(), other.last().finish_reason) == ("abc", "stop")


def test_min_tokens_gives_way_to_a_finished_guide(runtime):
    assert guided(runtime, "regex", "abc", min_tokens=50).text() == "abc"


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json_schema", "{", "guided_decoding_guide is no valid json_schema"),
        ("json_schema", '{"type": "nonsense"}', "nonsense"),
        ("json_schema", "", "guided_decoding_guide must be given"),
        ("json_schema", None, "guided_decoding_guide must be given"),
        ("json_schema", "[" * 100_000, "limit of 65536 bytes"),
        ("json_schema", "[" * 60_000, "guided_decoding_guide is no valid"),
        (
            "json_schema",
            '{"items":' * 3000 + "{}" + "}" * 3000,
            "guided_decoding_guide is no valid",
        ),
        ("json_schema", '{"$ref": "http://example.com/schema"}', "guided_decoding_guide"),
        ("regex", "(", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", "a\ud800", "guided_decoding_guide"),
        ("ebnf_grammar", "root ::= (", "guided_decoding_guide is no valid ebnf_grammar"),
        ("ebnf_grammar", 'main ::= "a"', "root"),
        ("structural_tag", "{}", "guided_decoding_guide is no valid structural_tag"),
        ("choice", "[]", "guided_decoding_guide_type must be one of"),
        ("", "x", "guided_decoding_guide_type"),
    ],
)
def test_what_is_no_guide_is_refused_by_name(runtime, kind, text, words):
    from runtime_api import RequestError

    with pytest.raises(RequestError, match=re.escape(words)):
        guided(runtime, kind, text)


def _expensive():
    yield "regex", "(a{1,1000}){1,1000}"
    yield "regex", "(x+x+)+y" * 200
    yield "regex", "(.*a.{900})" * 20
    yield (
        "json_schema",
        json.dumps(
            {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(2000)}}
        ),
    )
    deep = {"d0": {"type": "string"}}
    for i in range(1, 200):
        deep[f"d{i}"] = {
            "type": "object",
            "properties": {k: {"$ref": f"#/$defs/d{i - 1}"} for k in "ab"},
        }
    yield "json_schema", json.dumps({"$defs": deep, "$ref": "#/$defs/d199"})
    parts = [
        {"anyOf": [{"type": "object", "properties": {f"p{i}{j}": {}}} for j in range(4)]}
        for i in range(14)
    ]
    yield "json_schema", json.dumps({"allOf": parts})
    yield "ebnf_grammar", "root ::= " + " | ".join(f'"{i}" root' for i in range(2500))


@pytest.mark.parametrize("guide", list(_expensive()), ids=lambda guide: guide[1][:20])
def test_hostile_guides_end_soon_and_do_not_stop_others(runtime, guide):
    """Each is refused, ends with an error, or is computed; none takes seconds to begin."""
    from runtime_api import Guide, Request, RequestError

    from tests.reference.running import Answer, begin

    other = begin(runtime, prompt=PROMPTS[0], max_tokens=60, end_ids=[])
    began, answer = time.monotonic(), Answer(1)
    try:
        runtime.submit(Request(prompt=PROMPTS[1], max_tokens=3, guide=Guide(*guide)), answer)
        answer.wait()
        said = answer.last().stop_reason if answer.last().finish_reason == "error" else None
    except RequestError as error:
        said = str(error)
    assert said is None or "guided_decoding_guide" in said
    assert time.monotonic() - began < 5
    assert len(other.wait().ids()) == 60
