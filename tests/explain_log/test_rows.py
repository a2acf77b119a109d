"""Every known line is recognised with its values and subject; its near miss is not taken for it."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.explain_log.common import FIXTURES, cases, explain, ids, rows

PARAMS = [pytest.param(case, id=case["id"]) for case in cases()]


def test_each_row_has_one_fixture_with_a_near_miss():
    counts = Counter(case["id"] for case in cases())
    assert {row.id for row in rows()} == set(counts)
    assert set(counts.values()) == {1}
    assert all(case["near_miss"] and case["log"] for case in cases())
    assert len(counts) >= 36


def test_fixture_files_follow_the_data_files():
    from engineroom.catalog.resources import data_root

    data = {path.name for path in (data_root() / "deploy/support/log_lines").glob("*.yaml")}
    assert {path.name for path in FIXTURES.glob("*.yaml")} == data


@pytest.mark.parametrize("case", PARAMS)
def test_fixture(case):
    found = explain("\n".join(case["log"]))
    assert not found.unknown
    known = next(known for known in found.known if known.row.id == case["id"])
    assert known.line == len(case["log"]) if known.row.previous_line else known.line >= 1
    assert known.values == case["values"]
    data = known.as_dict()
    assert case["subject"] in data["subject"]
    for field in ("subject", "cause", "next_step"):
        left = re.sub(r"\$\{[\w…]+\}", "", data[field])  # a placeholder that is meant as such
        assert "{" not in left
        assert "}" not in left


@pytest.mark.parametrize("case", PARAMS)
def test_near_miss(case):
    found = explain("\n".join(case["near_miss"]))
    assert case["id"] not in ids(found)
    if case["near_answer"] == "unknown":
        assert found.unknown
        assert not found.known
    else:
        assert case["near_answer"] in ids(found)


def test_values_are_in_the_subject_or_the_advice():
    """A group that is extracted and never shown is a group too many."""
    silent = {
        (row.id, group)
        for row in rows()
        for group in row.regex.groupindex
        if f"{{{group}}}" not in row.subject + row.cause + row.next_step
    }
    # Shown in the JSON only: they are in the line itself and say nothing about the subject.
    assert silent <= {
        ("engine-config-unreadable", "line"),
        ("engine-config-unreadable", "column"),
        ("k8s-no-gpu", "available"),
        ("k8s-no-memory", "available"),
        ("k8s-image-pull", "reason"),
        ("k8s-startup-failed", "reason"),
        ("llm-args-extra-key", "value"),
        ("fmha-architecture", "file"),
        ("trtllm-nccl-error", "file"),
        ("trtllm-nccl-error", "line"),
        ("prompt-over-max-num-tokens", "query"),
        ("gpus-per-node", "pp"),
    }


def test_sources_are_public_places():
    for row in rows():
        for source in row.source:
            assert re.search(
                r"[\w.-]+/[\w.-]+ (issues?|pull requests?) #|@ [0-9a-f]{8}|[Dd]ocumentation|guide|API"
                r"|modelopt 0\.|huggingface_hub|tritonserver 2\.|open-mpi|openpmix|release|signal\(7\)"
                r"|kubernetes/kubernetes|figures of a report",
                source,
            ), (row.id, source)
            assert "engineroom" not in source
