"""The spec: what it accepts, and how it says no."""

from __future__ import annotations

import json
import time
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from engineroom.errors import ExitCode, SpecError, UsageError
from engineroom.spec import parse_spec
from engineroom.spec.load import json_schema
from engineroom.spec.yaml_lines import MAX_NODES, parse
from tests.conftest import ROOT, spec_data

GOOD = """\
schema_version: 1
name: demo
model:
  source: some/model
precision: {weights: fp8, kv_cache: fp8}
calibration:
  dataset: text.jsonl
targets:
  - sku: l4
    stack: 26.10
  - sku: h100-sxm
    lane: engine
    stack: {trtllm: 1.2.1, image: registry/image:tag}
    tensor_parallel: 2
"""


def problems(text: str) -> list[tuple[str, int | None, str | None, str, str | None]]:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, Path("f.yaml"))
    assert caught.value.exit_code == ExitCode.USAGE
    return [
        (p.where.file, p.where.line, p.where.key, p.message, p.hint) for p in caught.value.problems
    ]


def test_good_spec_and_target_ids():
    loaded = parse_spec(GOOD, Path("f.yaml"))
    # An unquoted 26.10 is a release, not the number 26.1.
    assert [t.id for t in loaded.spec.targets] == [
        "llmapi-l4-tp1pp1-26-10",
        "engine-h100-sxm-tp2pp1-trtllm-1-2-1",
    ]
    assert loaded.spec.serving.kv_cache_free_gpu_mem_fraction == 0.90
    assert str(loaded.where("targets[1].stack")) == "f.yaml:13: `targets[1].stack`"


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "message", "hint"),
    [
        ("tensor_parallel: 2", "tensor_paralel: 2", 14, "targets[1].tensor_paralel",
         "unknown key `tensor_paralel`", "did you mean `tensor_parallel`?"),
        ("weights: fp8", "weights: fp9", 5, "precision.weights", "'fp9' is not one of", "did you mean `fp8`?"),
        ("source: some/model", "source: 5", 4, "model.source", "valid string; found 5", "write text"),
        ("tensor_parallel: 2", "tensor_parallel: two", 14, "targets[1].tensor_parallel",
         "found 'two'", "whole number without quotes"),
        ("tensor_parallel: 2", 'tensor_parallel: "2"', 14, "targets[1].tensor_parallel",
         "found '2'", "whole number without quotes"),
        ("name: demo", "name: 'a\"\\n${x}'", 2, "name", "lower case letters", "Kubernetes"),
        ("  source: some/model", "  revision: main", 3, "model.source", "the key `source` is missing", "add it"),
        ("name: demo", "name: demo\nname: other", 3, "name", "written twice", "remove"),
        ("schema_version: 1", "schema_version: 2", 1, "schema_version", "newer than this", "upgrade"),
        ("sku: l4", "sku: [l4", 10, None, "YAML syntax", "mend the line"),
        ("sku: l4\n", "sku: l4\n\tstack: 1\n", 10, None, "YAML syntax", "mend the line"),
        ("image: registry/image:tag", "image: 'a b'", 13, "targets[1].stack.image", "not allowed here", "must match"),
        ("stack: 26.10", "stack: [26]", 10, "targets[0].stack", "found list", "write"),
    ],
)  # fmt: skip
def test_errors_name_file_line_key_and_fix(old, new, line, key, message, hint):
    found = problems(GOOD.replace(old, new, 1))
    match = [p for p in found if p[2] == key]
    assert match, found
    assert match[0][0] == "f.yaml"
    assert match[0][1] == line
    assert message in match[0][3]
    assert hint in match[0][4]


def test_all_problems_are_reported_at_once():
    text = GOOD.replace("fp8, kv", "fp9, kv").replace("tensor_parallel", "tensor_paralel")
    assert {p[2] for p in problems(text)} == {"precision.weights", "targets[1].tensor_paralel"}


def test_repeated_targets_are_refused():
    text = GOOD + "  - {sku: l4, stack: 26.10}\n"
    assert "targets[2] repeats targets[0]" in problems(text)[0][3]


@pytest.mark.parametrize(
    "text", ["", "- a\n", "a: &x [*x]\n", "? [a]\n: 1\n", "a: 1\n---\nb: 2\n", "\x01"]
)
def test_yaml_that_is_no_spec(text):
    assert problems(text)[0][0] == "f.yaml"


def test_alias_bomb_is_refused():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert f"more than {MAX_NODES} values" in problems("\n".join(levels))[0][3]


def test_yaml_is_1_2():
    """Norway is a country, 010 is ten, and a quoted number is text."""
    data = parse('a: no\nb: on\nc: 010\nd: "5"\ne: 1_000\nf: .5\ng: ~', "f").data
    assert data == {"a": "no", "b": "on", "c": 10, "d": "5", "e": "1_000", "f": 0.5, "g": None}


def test_profile_needs_one_kind_of_load():
    profile = {"input_tokens": {"p50": 1, "p95": 2}, "output_tokens": {"p50": 3, "p95": 2}}
    text = yaml.safe_dump(spec_data(workload={"chat": profile}))
    assert "p95 (2) is below p50 (3)" in problems(text)[0][3]
    profile["output_tokens"]["p95"] = 3
    text = yaml.safe_dump(spec_data(workload={"chat": profile}))
    assert "exactly one of `concurrency` and `requests_per_second`" in problems(text)[0][3]


def test_committed_schema_is_the_code():
    """`make schema` writes it again."""
    committed = json.loads((ROOT / "docs/schemas/spec-v1.json").read_text())
    assert committed == json_schema()


def test_schema_agrees_with_the_parser():
    schema = json_schema()
    jsonschema.validate(spec_data(), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spec_data(nmae="x"), schema)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_spec_error_never_a_crash(text):
    with pytest.raises(SpecError):
        parse_spec(text)


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=8), x, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(
        ["name", "model", "precision", "targets", "workload", "serving", "deploy", "slo"]
    ),
)
def test_any_value_at_any_key_is_a_spec_error_or_a_spec(value, key):
    text = yaml.safe_dump(spec_data(**{key: value}), allow_unicode=True)
    try:
        parse_spec(text)
        found = []
    except SpecError as error:
        found = error.problems
    assert all(p.where is not None and p.where.file for p in found)


@pytest.mark.parametrize(
    "text",
    [
        "[" + "a," * 490_000 + "]",
        "".join(f"k{i}: v\n" for i in range(90_000)),
        "".join(f"k{i}: &a{i} v\n" for i in range(60_000)),
    ],
    ids=["flow", "keys", "anchors"],
)
def test_far_too_many_values_are_refused_early(text):
    """PyYAML composed all of them first, which took up to nine seconds."""
    started = time.process_time()
    with pytest.raises(UsageError, match=f"more than {MAX_NODES} values"):
        parse(text, "f.yaml")
    assert time.process_time() - started < 3
