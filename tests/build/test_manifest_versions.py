"""Manifests of version 1 stay readable; newer ones are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from engineroom.errors import UsageError
from engineroom.runner import files, manifest
from engineroom.runner.verified import Verified

V1 = Path(__file__).parent / "data/manifest-v1/engine"
"""Written by engineroom at 378cbab, before version 2, from a double's output: no engine."""


def test_version_1_is_read_in_full():
    content = manifest.load(V1, "engine")
    assert content["schema_version"] == 1
    assert content["limits"]["max_seq_len"] == 1024
    assert set(content["files"]) == {"build-plan.json", "config.json", "rank0.engine"}
    assert manifest.load_quick(V1, "engine", Verified(None)) == content


def test_version_1_in_the_form_of_the_newest():
    content = manifest.load(V1, "engine")
    facts = manifest.facts_of(content)
    assert {k: facts[k] for k in ("profile", "executor", "image", "inputs")} == {
        "profile": None, "executor": None, "image": None, "inputs": None,
    }  # fmt: skip
    assert facts["attachments"] == []
    assert facts["stack"] == content["stack"]


def test_damage_of_version_1_is_seen(tmp_path):
    shutil.copytree(V1, tmp_path / "a")
    (tmp_path / "a/rank0.engine").write_text("other")
    with pytest.raises(UsageError, match="differs from its digest"):
        manifest.load(tmp_path / "a", "engine")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (3, "schema_version 3 is newer than 2, the newest that this engineroom"),
        (0, "schema_version 0 is not 1 or 2"),
        (True, "schema_version True is not 1 or 2"),
        ("1", "schema_version '1' is not 1 or 2"),
        (None, "schema_version None is not 1 or 2"),
    ],
)
def test_other_versions_are_refused(tmp_path, version, words):
    shutil.copytree(V1, tmp_path / "a")
    path = tmp_path / "a/manifest.json"
    content = {**json.loads(path.read_text()), "schema_version": version}
    content["seal"] = files.sha256_json({k: v for k, v in content.items() if k != "seal"})
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=words) as caught:
        manifest.load(tmp_path / "a", "engine")
    assert caught.value.where.file == str(path)
    assert (caught.value.hint is not None) is (version == 3)
