"""Guided decoding: answers that match their guide, by jsonschema and re, also when sampled and streamed."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from tests.conformance import wire
from tests.conformance.front import FRONTS, PROTOCOLS
from tests.conformance.mix import PROMPTS

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("features")]
both = pytest.mark.parametrize("protocol", PROTOCOLS)
every = pytest.mark.parametrize("front", FRONTS)
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2},
        "on": {"type": "boolean"},
    },
    "required": ["id", "tags", "on"],
    "additionalProperties": False,
}
REGEX = "(red|green){2}-[0-9]{3}"
GRAMMAR = 'root ::= "<" word ("," word)? ">"\nword ::= "ab" | "cd" | "ef"\n'
SAMPLED = {"temperature": 1.5, "top_k": 40}


def fits(kind: str, text: str) -> bool:
    if kind == "json_schema":
        jsonschema.validate(json.loads(text), SCHEMA)
        return True
    pattern = REGEX if kind == "regex" else "<(ab|cd|ef)(,(ab|cd|ef))?>"
    return re.fullmatch(pattern, text) is not None


@every
@both
@pytest.mark.parametrize(
    ("kind", "guide"),
    [("json_schema", json.dumps(SCHEMA)), ("regex", REGEX), ("ebnf_grammar", GRAMMAR)],
)
def test_answers_match_their_guide(fronts, front, protocol, kind, guide):
    asked = [
        {
            "protocol": protocol, "prompt": PROMPTS[i], "max_tokens": 80, "guide": (kind, guide),
            "stream": i % 2 == 1, **({**SAMPLED, "seed": i} if i > 1 else {}),
        }
        for i in range(6)
    ]  # fmt: skip
    free = {**asked[0], "max_tokens": 20}
    del free["guide"]
    *answers, unguided = fronts(front).many([*asked, free])
    for answer in answers:
        assert fits(kind, answer.text), answer.text
    assert len({answer.text for answer in answers}) > 1
    assert not re.match(r"[{<]|red|green", unguided.text)


@pytest.mark.parametrize("front", ["bls", "ensemble", "llmapi"])
@both
def test_a_guide_goes_with_what_else_is_asked(fronts, front, protocol):
    """n sequences, each with its own grammar state, and counts of their tokens."""
    stream = front == "ensemble"
    asked = {
        "protocol": protocol, "stream": stream, "prompt": PROMPTS[0], "max_tokens": 40,
        "guide": ("regex", REGEX), "counts": True, **SAMPLED,
    }  # fmt: skip
    answer = fronts(front).ask(**asked, n=3, seed=5)
    assert all(fits("regex", text) for text in answer.texts), answer.texts
    assert len(set(answer.texts)) > 1
    alone = fronts(front).many([{**asked, "seed": 5 + i} for i in range(3)])
    assert answer.texts == [one.text for one in alone]
    # The engine lane's count is one number a request.
    assert sum(answer.output_tokens) == sum(one.output_tokens[0] for one in alone)


@every
@both
def test_what_is_no_guide_is_refused_by_name(fronts, front, protocol):
    # The vllm backend reads all of its guides from one JSON text.
    named = "structured_outputs|guide" if front == "vllm" else "guided_decoding_guide"
    for kind, guide in (("regex", "("), ("ebnf_grammar", "root ::= missing")):
        for stream in (False, True):
            with pytest.raises(wire.Refused, match=named):
                fronts(front).ask(protocol, stream, prompt="x", max_tokens=9, guide=(kind, guide))
