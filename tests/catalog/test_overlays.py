"""Overlay files: a bad one is named with file, line and key; a good one needs no code."""

from __future__ import annotations

from pathlib import Path

import pytest

from engineroom.catalog import Catalog
from engineroom.errors import CatalogError
from tests.conftest import ROOT


def overlay(tmp_path: Path, relative: str, old: str, new: str) -> Catalog:
    text = (ROOT / relative).read_text()
    assert old in text
    path = tmp_path / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace(old, new, 1))
    return Catalog(tmp_path)


@pytest.mark.parametrize(
    ("table", "file", "old", "new", "key", "message"),
    [
        ("constraints", "constraints", "effect: reject", "effect: forbid", "effect", "'reject'"),
        ("constraints", "constraints", 'versions: "<1.3"', 'versions: "1.2.x"', "versions", "1.2.x"),
        ("constraints", "constraints", "confidence: high", "confidence: sure", "confidence", "'high'"),
        ("constraints", "constraints", "- id: fp8-paged-fmha", "- id: fp8-fmha-arch", "constraints", "twice"),
        ("constraints", "constraints", "equals: enable}]", "equals: enable, minimum: 1}]", "when[0]", "one test"),
        ("constraints", "constraints", "  applies_to: build\n", "", "applies_to", "required"),
        ("precision", "precision", '"yes": 8.0', '"perhaps": 8.0', "bf16.cells", "'unknown'"),
        ("precision", "precision", '"no": 7.0 7.5', '"no": 7.0 8.0', "bf16.cells", "two verdicts"),
        ("precision", "precision", '"no": 7.0 7.5', '"no": sm70', "bf16.cells", "sm70"),
        ("precision", "precision", "legend: yes", "legends: yes", "legend", "required"),
        ("drivers", "drivers", 'min_driver: "450.80.02"', 'min_driver: "R450"', "min_driver", "R450"),
        ("drivers", "drivers", 'verified_on: "2026-11-29"', "verified_on: today", "verified_on", "pattern"),
        ("mig", "mig", "memory_mib: 4864", "memory_mib: -1", "memory_mib", "greater than 0"),
        ("attention", "attention", "computed: 9.0", "fast: 9.0", "modes", "'stored'"),
        ("writers", "writers", 'transformers: ">=4.40.2"', 'transformers: "new"', "transformers", "new"),
        ("lanes", "lanes", "  source:\n  - \"NVIDIA/TensorRT-LLM PR #15918", "  sources:\n  - \"NVIDIA/TensorRT-LLM PR #15918", "source", "required"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named(tmp_path, table, file, old, new, key, message):
    catalog = overlay(tmp_path, f"deploy/support/{file}.yaml", old, new)
    with pytest.raises(CatalogError) as caught:
        getattr(catalog, table)
    where = caught.value.where
    assert where.file.endswith(f"{file}.yaml")
    assert where.line is not None
    assert key in where.key
    assert message in caught.value.message


@pytest.mark.parametrize("source", ["none", "engineroom", "''"])
def test_no_source_is_no_source(tmp_path, source):
    text = (ROOT / "build/skus/l4.yaml").read_text()
    cut = text.index("source:\n")
    folder = tmp_path / "build/skus"
    folder.mkdir(parents=True)
    rest = text[text.index("verified_on") :]
    (folder / "l4.yaml").write_text(f"{text[:cut]}source: {source}\n{rest}")
    with pytest.raises(CatalogError) as caught:
        Catalog(tmp_path).sku("l4")
    assert "is no source" in caught.value.message
    assert caught.value.where.line == text[:cut].count("\n") + 1


def test_a_broken_json_file_is_named(tmp_path):
    path = tmp_path / "deploy/contracts/engine_config.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(CatalogError) as caught:
        _ = Catalog(tmp_path).engine_config
    assert caught.value.where.file.endswith("engine_config.json")
    path.write_text('{"schema": 1}')
    with pytest.raises(CatalogError):
        _ = Catalog(tmp_path).engine_config


def test_a_new_stack_is_found_without_code(tmp_path):
    text = (ROOT / "deploy/stacks/26.07.yaml").read_text().replace("26.07", "27.01")
    folder = tmp_path / "deploy/stacks"
    folder.mkdir(parents=True)
    (folder / "27.01.yaml").write_text(
        text.replace("min_driver:", "require_cuda: cuda>=13.1\nmin_driver:", 1)
    )
    stack = Catalog(tmp_path).stack("27.01")
    assert (stack.image, stack.require_cuda) == (
        "nvcr.io/nvidia/tritonserver:27.01-trtllm-python-py3", "cuda>=13.1",
    )  # fmt: skip
