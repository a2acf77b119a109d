"""The support tables: every row validates, has a source, and says what that source says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import BaseModel

from engineroom.catalog import Catalog
from engineroom.catalog.load import in_range
from engineroom.catalog.support import NO_TABLE
from engineroom.errors import InternalError
from engineroom.names import LaneName, Support
from engineroom.spec import yaml_lines
from tests.conftest import ROOT

TABLES = (
    "precision", "lanes", "drivers", "mig", "attention", "writers", "constraints",
)  # fmt: skip
FOLDERS = ("build/skus", "build/recipes", "deploy/stacks", "deploy/support")


def files() -> list[Path]:
    found = [p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.yaml"))]
    # serving_features.yaml names the tests that prove its rows, not sources.
    return [p for p in found if "log_lines" not in p.parts and p.name != "serving_features.yaml"]


def sourced(node: Any) -> Iterator[dict[str, Any]]:
    """Every mapping of a file that has a source."""
    if isinstance(node, dict):
        if "source" in node:
            yield node
        for value in node.values():
            yield from sourced(value)
    elif isinstance(node, list):
        for value in node:
            yield from sourced(value)


@pytest.mark.parametrize("path", files(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_rows_say_who_says_so(path: Path):
    rows = list(sourced(yaml_lines.parse(path.read_text("utf-8"), path.name).data))
    assert rows
    for row in rows:
        sources = [row["source"]] if isinstance(row["source"], str) else row["source"]
        assert sources
        for source in sources:
            assert len(source) > 10, source
            assert "engineroom" not in source.lower()
            assert "ourselves" not in source.lower()
        if "cells" in row:  # the table has date and confidence
            continue
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", row["verified_on"])
        assert row["confidence"] in ("high", "medium", "low", "unknown")


def rows(model: BaseModel) -> Iterator[BaseModel]:
    yield model
    for name in type(model).model_fields:
        value = getattr(model, name)
        parts = value.values() if isinstance(value, dict) else value
        for part in parts if isinstance(parts, tuple | list) or isinstance(value, dict) else ():
            if isinstance(part, BaseModel):
                yield from rows(part)


@pytest.mark.parametrize("name", TABLES)
def test_version_ranges_parse_and_count_release_candidates(catalog, name):
    table = getattr(catalog, name)
    models = table.values() if isinstance(table, dict) else [table]
    ranges = [
        value
        for model in models
        for row in rows(model)
        for field in ("versions", "tensorrt_llm", "modelopt", "transformers")
        if isinstance(value := getattr(row, field, None), str) and not value[:1].isdigit()
    ]
    if name in ("drivers", "mig"):
        assert not ranges
        return
    assert ranges
    for text in ranges:
        for specifier in SpecifierSet(text):
            assert specifier.operator in (">=", "<"), text  # <=1.2 would exclude 1.2.1
            Version(specifier.version)


def test_constraint_rows(catalog):
    assert len(catalog.constraints) >= 65
    row = catalog.constraint("kv-reuse-needs-paged-fmha")
    assert (row.lane, row.effect) == ("engine", "reject")
    assert row.when[0].parameter == "enable_kv_cache_reuse"
    assert row.when[0].equals is True
    assert (row.requires[0].flag, row.requires[0].equals) == ("use_paged_context_fmha", "enable")
    assert in_range("1.2.1", row.versions)
    assert not in_range("1.3.0rc1", row.versions)
    with pytest.raises(InternalError):
        catalog.constraint("kv-reuse")


def test_constraint_values(catalog):
    assert catalog.constraint("awq-group-sizes").values == (64, 128)
    assert catalog.constraint("nvfp4-block-16").requires[0].multiple_of == 16
    assert catalog.constraint("head-size-multiple-of-8").requires[0].multiple_of == 8
    assert set(catalog.constraint("batch-scheduler-policy").values) == {
        "max_utilization", "guaranteed_no_evict",
    }  # fmt: skip
    words = catalog.constraint("backend-bool-words").values
    assert "1" in words
    assert not {"yes", "enable", "on", "t", "TruE"} & set(words)
    for version, hit in (("0.11.0", True), ("0.12.0rc1", False), ("0.12.0", False)):
        assert in_range(version, catalog.constraint("llama3-rope-from-0-12").versions) is hit


def test_constraint_subjects_are_documented(catalog):
    """The head of the file lists the facts that conditions may name."""
    head = (ROOT / "deploy/support/constraints.yaml").read_text().split("schema_version")[0]
    used = {
        condition.fact
        for row in catalog.constraints.values()
        for condition in (*row.when, *row.requires, *row.forbids)
        if condition.fact
    }
    missing = {fact for fact in used if not re.search(rf"\b{fact}\b", head)}
    assert not missing


CELLS = [
    # lane, version, axis, format, capability, support, part of a source
    ("engine", "0.9.0", "weights", "fp8", "9.0", Support.YES, "README"),
    ("engine", "0.9.0", "weights", "fp8", "8.0", Support.NO, "README"),
    ("engine", "0.10.0", "weights", "w4a16_awq", "7.0", Support.NO, "README"),
    ("engine", "0.12.0", "weights", "w8a8_sq", "7.5", Support.NO, "SM75"),
    ("engine", "0.13.0", "weights", "fp16", "7.5", Support.YES, "README"),
    ("engine", "0.14.0", "weights", "fp16", "7.5", Support.NO, "#2620"),
    ("engine", "0.14.0", "weights", "fp16", "7.0", Support.YES, "README"),
    ("engine", "0.15.0", "weights", "fp16", "7.0", Support.NO, "0.15.0 removes it"),
    ("engine", "0.16.0", "weights", "fp16", "10.0", Support.NO, "0.17.0"),
    ("engine", "0.17.0", "weights", "nvfp4", "10.0", Support.YES, "0.17.0"),
    ("engine", "1.2.1", "weights", "w8a8_sq", "10.0", Support.NO, "builder.py @ 008b2b8d"),
    ("engine", "1.2.1", "weights", "w4a8_awq", "8.9", Support.YES, "support-matrix"),
    ("engine", "1.2.1", "weights", "w4a8_awq", "8.6", Support.NO, "support-matrix"),
    ("llmapi", "1.2.1", "weights", "w8a8_sq", "9.0", Support.NO, "get_quant_method"),
    ("llmapi", "1.2.1", "weights", "nvfp4", "12.1", Support.YES, "DGX Spark"),
    ("llmapi", "1.2.1", "weights", "w4a16_awq", "12.0", Support.NO, "hardware matrix"),
    ("llmapi", "1.4.0rc4", "weights", "w4a16_awq", "12.0", Support.UNKNOWN, "#11561"),
    ("llmapi", "1.4.0rc4", "weights", "mxfp4", "9.0", Support.YES, "gpt-oss"),
    ("llmapi", "1.2.1", "weights", "fp8_block_scales", "8.9", Support.UNKNOWN, "0.21.0"),
    ("llmapi", "1.0.0", "weights", "bf16", "10.3", Support.NO, "B300"),
    ("llmapi", "1.1.0", "weights", "bf16", "10.3", Support.YES, "hardware matrix"),
    ("llmapi", "1.2.1", "kv_cache", "int8", "9.0", Support.NO, "_VALID_KV_CACHE_DTYPES"),
    ("llmapi", "1.2.1", "kv_cache", "fp8", "8.0", Support.YES, "hardware matrix"),
    ("llmapi", "1.2.1", "kv_cache", "nvfp4", "10.0", Support.YES, "#6244"),
    ("llmapi", "1.2.1", "kv_cache", "nvfp4", "12.0", Support.NO, "#10241"),
    ("llmapi", "0.21.0", "kv_cache", "nvfp4", "10.0", Support.UNKNOWN, "#7988"),
]


@pytest.mark.parametrize(("lane", "version", "axis", "fmt", "cc", "support", "source"), CELLS)
def test_precision_cell_and_its_source(catalog, lane, version, axis, fmt, cc, support, source):
    cell = catalog.precision_cell(LaneName(lane), version, axis, fmt, cc)
    assert cell.support is support
    assert source in "; ".join(cell.sources)


def test_unlisted_is_unknown(catalog):
    for cc, fmt in (("11.0", "fp8"), ("9.0", "no-such-format")):
        cell = catalog.precision_cell(LaneName.LLMAPI, "1.2.1", "weights", fmt, cc)
        assert cell.support is Support.UNKNOWN
    cell = catalog.precision_cell(LaneName.ENGINE, "1.4.0rc4", "weights", "fp8", "9.0")
    assert (cell.support, cell.sources) == (Support.UNKNOWN, (NO_TABLE,))


def test_precision_cells_cover_the_formats(catalog):
    cells = list(catalog.precision_cells(LaneName.LLMAPI, "1.2.1", "8.9"))
    assert len({(c.axis, c.fmt) for c in cells}) == len(cells)
    assert {c.fmt for c in cells if c.axis == "kv_cache"} == {
        "fp16", "bf16", "int8", "fp8", "nvfp4",
    }  # fmt: skip


def test_one_table_for_each_lane_and_version(catalog):
    for version in ("0.9.0", "0.16.0", "0.17.0", "0.20.0rc1", "0.21.0", "1.1.0rc2", "1.3.0rc27"):
        for lane in ("engine", "llmapi"):
            hits = [
                t
                for t in catalog.precision.tables
                if t.lane == lane and in_range(version, t.versions)
            ]
            none = (lane == "engine" and version == "1.3.0rc27") or (
                lane == "llmapi" and version in ("0.9.0", "0.16.0")
            )
            assert len(hits) == (0 if none else 1), (lane, version)


# ---- attention and writers
def mode(catalog: Catalog, name: str, cc: str) -> str:
    row = next(r for r in catalog.attention.kv_compute if r.id == name)
    return row.modes.get(cc, "unknown")


def test_kv_stored_or_computed(catalog):
    assert mode(catalog, "llmapi-fp8-context", "8.0") == "stored"
    assert mode(catalog, "llmapi-fp8-context", "8.9") == "computed"
    assert mode(catalog, "llmapi-fp8-generation", "8.9") == "stored"
    assert mode(catalog, "engine-fp8-context-first", "8.9") == "stored"
    assert mode(catalog, "engine-int8-generation", "9.0") == "stored"
    assert mode(catalog, "llmapi-nvfp4-context", "12.0") == "absent"
    assert mode(catalog, "llmapi-fp8-context", "12.0") == "unknown"
    assert {r.compute for r in catalog.attention.kv_compute if r.kv_cache == "nvfp4"} == {"fp8"}


def test_one_attention_backend_row_per_version(catalog):
    for version in ("0.21.0", "1.0.0rc1", "1.2.1", "1.4.0rc4"):
        found = [
            r
            for r in catalog.attention.backends
            if r.lane == "llmapi" and in_range(version, r.versions)
        ]
        assert len(found) == 1
        assert found[0].default == "TRTLLM"


def test_attention_backends_agree_with_the_contracts(catalog):
    for version in catalog.contract_versions:
        allowed = catalog.contract(version).llm_fields["attn_backend"].get("allowed")
        row = next(
            r
            for r in catalog.attention.backends
            if r.lane == "llmapi" and in_range(version, r.versions)
        )
        if allowed:
            assert set(row.values) == set(allowed)


@pytest.mark.parametrize(
    ("modelopt", "transformers", "fits"),
    [
        ("0.47.0", "4.53.3", False),  # Model-Optimizer PR #1800
        ("0.47.0", "4.57.3", True),
        ("0.46.0", "5.14.1", True),
        ("0.43.0", "5.0.0", False),
        ("0.37.0", "4.56.0", True),
        ("0.33.0", "4.54.0", False),
        ("0.27.0", "4.51.0", True),
        ("0.27.1", "4.51.0", False),
    ],
)
def test_modelopt_and_transformers(catalog, modelopt, transformers, fits):
    found = [r for r in catalog.writers.modelopt if in_range(modelopt, r.modelopt)]
    assert len(found) == 1
    assert in_range(transformers, found[0].transformers) is fits


def test_runtime_pins_agree_with_the_contracts(catalog):
    for version in catalog.contract_versions:
        pins = catalog.contract(version).data["pins"]
        found = [r for r in catalog.writers.runtimes if in_range(version, r.tensorrt_llm)]
        assert len(found) == (0 if version == "1.4.0rc4" else 1)
        for row in found:
            if row.transformers and pins.get("transformers"):
                assert row.transformers == pins["transformers"]
            if row.modelopt and pins.get("modelopt"):
                assert row.modelopt in pins["modelopt"]
