"""The rows' schema refuses what would be slow, vague or dangling; overlays add and replace rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from engineroom.catalog import log_lines
from engineroom.errors import CatalogError, UsageError
from tests.explain_log.common import rows

ROW = {
    "id": "my-line",
    "origin": "triton",
    "severity": "error",
    "contains": "frobnicator",
    "pattern": r"frobnicator (?P<name>\w{1,40}) is missing",
    "subject": "the frobnicator {name}",
    "cause": "It was never installed.",
    "next_step": "Install {name} again.",
    "source": ["example/example issue #1"],
    "verified_on": "2026-11-29",
    "confidence": "low",
}


def overlay(root: Path, *changes: dict, name: str = "mine.yaml") -> Path:
    folder = root / log_lines.FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{**ROW, **change} for change in changes]
    (folder / name).write_text(yaml.safe_dump({"schema_version": 1, "lines": lines}))
    return root


def test_shipped_rows():
    assert len(rows()) >= 36
    origins = {row.origin for row in rows()}
    assert {"triton", "python_backend", "tensorrtllm_backend", "tensorrt_llm", "modelopt", "mpi",
            "nccl", "kubernetes", "helm"} <= origins  # fmt: skip
    assert len({row.id for row in rows()}) == len(rows())


def test_an_overlay_adds_a_row(tmp_path):
    added = log_lines.load(overlay(tmp_path, {}))
    assert len(added) == len(rows()) + 1
    row = log_lines.find(added, "my-line")
    values = row.match("the frobnicator cpu0 is missing")
    assert values == {"name": "cpu0"}
    assert row.fill(row.subject, values) == "the frobnicator cpu0"
    assert row.match("the frobnicator is missing") is None


def test_an_overlay_replaces_a_row_whatever_its_file_is_called(tmp_path):
    replaced = log_lines.load(overlay(tmp_path, {"id": "port-in-use"}))
    assert len(replaced) == len(rows())
    assert log_lines.find(replaced, "port-in-use").subject == ROW["subject"]


def test_a_file_of_the_same_name_keeps_the_other_shipped_rows(tmp_path):
    assert len(log_lines.load(overlay(tmp_path, {}, name="triton.yaml"))) == len(rows()) + 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pattern": r"frobnicator .*"}, "no bound"),
        ({"pattern": r"frobnicator \w+"}, "no bound"),
        ({"pattern": r"frobnicator (?P<name>\w{1,})"}, "must end at"),
        ({"pattern": r"frobnicator (?P<name>.{0,4000})"}, "must end at"),
        ({"pattern": r"frobnicator (?P<name>(?:a{1,9}){1,9})"}, "encloses a group"),
        ({"pattern": r"frobnicator (?P<name>.{1,9}).{1,9}\S{1,9}[^a]{1,9}.{1,9}"}, "any character"),
        ({"pattern": r"frobnicator (?P<name>"}, "regular expression"),
        ({"pattern": r"frob (?P<name>\w)"}, "`contains`"),
        ({"contains": "fr"}, "at least 3"),
        ({"subject": "the frobnicator {other}"}, "{other}"),
        ({"cause": "the frobnicator {name.x}"}, "{name.x}"),
        ({"severity": "bad"}, "Input should be"),
        ({"source": []}, "at least 1"),
        ({"verified_on": "yesterday"}, "pattern"),
        ({"colour": "red"}, "Extra inputs"),
        ({"consequence_of": ["nobody"]}, "unknown row"),
        ({"consequence_of": ["my-line"]}, "leads back"),
    ],
)
def test_bad_rows(tmp_path, change, words):
    with pytest.raises(CatalogError) as caught:
        log_lines.load(overlay(tmp_path, change))
    assert words in caught.value.message
    assert caught.value.where.file.endswith("mine.yaml")
    assert caught.value.where.line


def test_twice_the_same_id(tmp_path):
    with pytest.raises(CatalogError, match="also at"):
        log_lines.load(overlay(tmp_path, {}, {}))


def test_a_circle_of_consequences(tmp_path):
    changes = ({"consequence_of": ["other"]}, {"id": "other", "consequence_of": ["my-line"]})
    with pytest.raises(CatalogError, match="leads back"):
        log_lines.load(overlay(tmp_path, *changes))


def test_a_typo_in_an_id_is_answered():
    with pytest.raises(UsageError) as caught:
        log_lines.find(rows(), "port-in-uze")
    assert "`port-in-use`" in caught.value.hint


def test_groups_that_took_no_part_are_named():
    row = log_lines.find(rows(), "kv-cache-below-one-sequence")
    values = row.match(
        "maxTokensInPagedKvCache must be large enough to process at least 1 sequence to completion"
    )
    assert values == {}
    assert log_lines.ABSENT in row.fill(row.subject, values)


def test_no_two_rows_have_the_same_text():
    for name in ("cause", "next_step", "subject"):
        texts = [getattr(row, name) for row in rows()]
        assert len(set(texts)) == len(texts), name


def test_rows_match_on_texts_without_escapes():
    """The block search runs on raw bytes: JSON would have escaped quotes and non-ASCII text."""
    for row in rows():
        assert re.fullmatch(r"[ -~]+", row.contains)
        assert not set(row.contains) & set('"\\\t')


def test_keys_of_the_spec_exist():
    """A key that begins like a section of the spec must be one; others belong to other files."""
    from engineroom.spec.load import json_schema

    schema = json_schema()

    def known(path):
        nodes = [schema]
        for part in path:
            nodes = [option for node in nodes for option in _options(node, schema)]
            nodes = [
                node["properties"][part] for node in nodes if part in node.get("properties", {})
            ]
            if not nodes:
                return False
        return True

    sections = set(schema["properties"]) - {"name", "schema_version"}
    wrong = {
        (row.id, key)
        for row in rows()
        for key in row.keys
        if key.split(".")[0].removesuffix("[]") in sections
        if not known(key.replace("[]", "").split("."))
    }
    assert not wrong
    assert sum(key.startswith("targets[].") for row in rows() for key in row.keys) > 20


def _options(node, schema):
    """The object schemas that a node may stand for: references, alternatives, array items."""
    if "$ref" in node:
        return _options(schema["$defs"][node["$ref"].rsplit("/", 1)[1]], schema)
    parts = [*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())]
    if "items" in node:
        parts.append(node["items"])
    return [node, *(option for part in parts for option in _options(part, schema))]
