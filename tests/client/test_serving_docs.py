"""docs/serving.md: its tables are what the data says, its calls run, its OpenAI bodies are valid."""

from __future__ import annotations

import ast
import copy
import json
import os
import re
import shlex
import subprocess
import sys

import jsonschema
import pytest
import yaml

from engineroom.catalog import Catalog
from engineroom.cli.matrix_fields import markdown
from engineroom.planning.field_table import field_table
from engineroom.runner import chat
from tests.client.blocks import PAGE, blocks
from tests.conftest import ROOT, TINY

FEATURES = yaml.safe_load((ROOT / "deploy/support/serving_features.yaml").read_text("utf-8"))
SCHEMA = json.loads((ROOT / "docs/schemas/triton-openai-requests.json").read_text("utf-8"))
RAW, RAW_TOKENS = "The import statement", 16
QUESTION, CHAT_TOKENS = "What colour is grass?", 40
ENDS = [2, 0]


# ---- tables
def features_table() -> str:
    fronts = FEATURES["fronts"]
    lines = [
        "| feature | " + " | ".join(fronts.values()) + " |",
        "| --- |" + " --- |" * len(fronts),
    ]
    for row in FEATURES["features"]:
        cells = [
            row[front]["as"] + (f" ({row[front]['note']})" if "note" in row[front] else "")
            for front in fronts
        ]
        lines.append(f"| {row['id']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", ["features", "fields"])
def test_the_table_matches_the_data(name):
    """ENGINEROOM_UPDATE_GOLDEN=1 writes it again."""
    table = features_table()
    if name == "fields":
        table = "\n".join(markdown(field_table(Catalog()))) + "\n"
    text = PAGE.read_text("utf-8")
    before, rest = text.split(f"<!-- {name} -->\n")
    after = rest.split(f"<!-- /{name} -->")[1]
    wanted = f"{before}<!-- {name} -->\n{table}<!-- /{name} -->{after}"
    if os.environ.get("ENGINEROOM_UPDATE_GOLDEN"):
        PAGE.write_text(wanted, "utf-8")
    assert PAGE.read_text("utf-8") == wanted


def cells():
    return [
        (row["id"], front, row[front])
        for row in FEATURES["features"]
        for front in FEATURES["fronts"]
    ]


def test_every_feature_says_something_about_every_front():
    assert FEATURES["schema_version"] == 1
    for row in FEATURES["features"]:
        assert set(row) == {"id", *FEATURES["fronts"]}, row["id"]
    for feature, front, cell in cells():
        assert cell["as"] in ("computed", "boundary", "refused", "absent"), (feature, front)
        assert ("test" in cell) is (cell["as"] in ("computed", "boundary")), (feature, front)
        assert set(cell) <= {"as", "test", "note"}


def _has_test(name: str) -> bool:
    file, _, function = name.partition("::")
    path = ROOT / file
    if not path.is_file() or not file.startswith("tests/"):
        return False
    tree = ast.parse(path.read_text("utf-8"))
    return any(isinstance(n, ast.FunctionDef) and n.name == function for n in ast.walk(tree))


def test_tests_that_are_named_exist():
    for feature, front, cell in cells():
        if cell.get("test"):
            assert re.fullmatch(r"tests/\S+\.py::test_\w+", cell["test"]), (feature, front)
            assert _has_test(cell["test"]), (feature, front, cell["test"])


def test_every_computed_and_boundary_feature_names_its_test():
    assert [(f, front) for f, front, cell in cells() if cell.get("test") == ""] == []


# ---- calls
@pytest.fixture(scope="session")
def wanted(plain):
    """What each kind of call must give, by plain transformers."""

    def text(kind):
        if kind == "chat":
            prompt = chat.apply(TINY, [{"role": "user", "content": QUESTION}])
            return plain.text(plain.ids(prompt, CHAT_TOKENS, ENDS))
        return plain.text(plain.ids(RAW, RAW_TOKENS, ENDS))

    return text


def shown_text(output: str) -> str:
    """`text_output` of a JSON answer, or of the events of a stream, joined."""
    lines = [line.removeprefix("data:") for line in output.splitlines() if line.strip()]
    return "".join(json.loads(line)["text_output"] for line in lines)


def test_there_are_calls_for_every_lane_and_client():
    made = {(b.words[0], b.language) for b in blocks("run")}
    streaming = {(lane, lang) for lane in ("engine", "llmapi", "vllm") for lang in ("sh", "python")}
    assert made == streaming | {("engine-whole", "python"), ("llmapi-whole", "python")}
    python = [b.text for b in blocks("run") if b.language == "python"]
    assert sum("tritonclient.grpc" in text for text in python) == 3
    assert sum("tritonclient.http" in text for text in python) == 2


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.xdist_group("client-docs")
@pytest.mark.parametrize("block", blocks("run"), ids=lambda block: block.name)
def test_a_call_gives_the_text(lane_servers, wanted, block):
    server, kind = block.words
    ports = lane_servers(server).server.endpoints
    text = block.text.replace("localhost:8000", f"127.0.0.1:{ports.http}")
    text = text.replace("localhost:8001", f"127.0.0.1:{ports.grpc}")
    assert "localhost" not in text
    argv = ["sh", "-c", text] if block.language == "sh" else [sys.executable, "-c", text]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    got = shown_text(done.stdout) if block.language == "sh" else done.stdout.removesuffix("\n")
    assert got == wanted(kind), done.stdout
    if "generate_stream" in text:
        assert done.stdout.count("data:") > 4


# ---- the OpenAI frontend
def openai_body(text: str) -> dict:
    words = shlex.split(text.replace("\\\n", " "))
    return json.loads(words[words.index("-d") + 1])


def check_openai(kind: str, body: object) -> None:
    schema = {**SCHEMA, "$ref": f"#/$defs/{kind}"}
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(body)


@pytest.mark.parametrize("block", blocks("openai"), ids=lambda block: block.name)
def test_an_openai_body_is_valid(block):
    (kind,) = block.words
    path = {"completion": "/v1/completions", "chat": "/v1/chat/completions"}[kind]
    assert f"localhost:9000{path} " in block.text
    check_openai(kind, openai_body(block.text))


def test_openai_calls_are_marked_not_run():
    section = PAGE.read_text("utf-8").split("## OpenAI frontend")[1]
    assert section.strip().startswith("Not run:")
    assert {b.words for b in blocks("openai")} == {("completion",), ("chat",)}


GOOD = {
    "completion": {"model": "m", "prompt": "x"},
    "chat": {"model": "m", "messages": [{"role": "user", "content": "x"}]},
}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("completion", {"prompt": ["a"]}), ("completion", {"prompt": ""}), ("completion", {"n": 2}),
        ("completion", {"best_of": 2}), ("completion", {"top_k": 5}), ("completion", {"suffix": "a"}),
        ("completion", {"temperature": 3}), ("completion", {"logit_bias": {"1": 2}}),
        ("completion", {"stream_options": {"include_usage": True}}), ("completion", {"model": None}),
        ("chat", {"messages": []}), ("chat", {"messages": [{"role": "user"}]}),
        ("chat", {"messages": [{"role": "bot", "content": "x"}]}), ("chat", {"n": 2}),
        ("chat", {"top_logprobs": 2}), ("chat", {"prompt": "x"}), ("chat", {"max_new_tokens": 3}),
        ("chat", {"response_format": {"type": "json_schema"}}),
    ],
)  # fmt: skip
def test_what_the_frontend_refuses_is_not_valid(kind, change):
    check_openai(kind, GOOD[kind])
    with pytest.raises(jsonschema.ValidationError):
        check_openai(kind, {**copy.deepcopy(GOOD[kind]), **change})
