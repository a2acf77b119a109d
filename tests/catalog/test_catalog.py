"""The shipped facts validate, and an overlay adds or replaces files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from packaging.version import Version

from engineroom.catalog import Catalog
from engineroom.catalog.load import in_range
from engineroom.catalog.resources import data_root
from engineroom.checks.drivers import parse_driver
from engineroom.errors import CatalogError, UsageError
from engineroom.names import LaneName, Support
from tests.conftest import ROOT


def test_everything_loads(catalog):
    assert len(catalog.skus) == 36
    assert len(catalog.stacks) == 28
    assert catalog.contract_versions == ("0.21.0", "1.0.0", "1.1.0", "1.2.1", "1.4.0rc4")
    assert set(catalog.weight_recipes) == {"bf16", "fp16", "fp8", "w4a16_awq", "nvfp4"}
    for version in catalog.contract_versions:
        assert catalog.contract(version).version == version


def test_nvml_figures(catalog):
    """nvidia-smi totals, not the brochure's GB."""
    figures = {
        "h200-sxm": 143771,
        "h100-sxm": 81559,
        "l4": 23034,
        "a100-sxm-80gb": 81920,
        "l40s": 46068,
    }
    assert {name: catalog.sku(name).memory_mib for name in figures} == figures
    assert {catalog.sku(name).memory_basis for name in figures} == {"nvml"}
    assert catalog.sku("gb10").memory_basis == "nominal"


def test_every_row_has_a_source(catalog):
    for sku in catalog.skus.values():
        assert sku.source
        assert re.fullmatch(r"2026-\d\d-\d\d", sku.verified_on)
    for stack in catalog.stacks.values():
        assert stack.source
        assert parse_driver(stack.min_driver) <= parse_driver(stack.toolkit_driver)
        Version(stack.tensorrt_llm.split("+")[0])


def test_stack_26_07(catalog):
    stack = catalog.stack("26.07")
    assert (stack.tensorrt_llm, stack.tensorrt, stack.toolkit_driver, stack.min_driver) == (
        "1.2.1", "10.14.1.48", "590.44.01", "580.65.06",
    )  # fmt: skip


def test_typos_are_answered(catalog):
    with pytest.raises(UsageError) as caught:
        catalog.sku("h100-smx")
    assert "`h100-sxm`" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        catalog.stack("26.7")
    assert "`26.07`" in caught.value.hint


def test_lanes_per_contract(catalog):
    engine = {v for v in catalog.contract_versions if catalog.contract(v).has_engine_lane}
    assert engine == {"0.21.0", "1.0.0", "1.1.0", "1.2.1"}
    assert all(catalog.contract(v).has_llmapi_lane for v in catalog.contract_versions)


def test_precision_cells(catalog):
    def cell(lane, version, fmt, cc):
        return catalog.precision_support(LaneName(lane), version, "weights", fmt, cc)[0]

    assert cell("llmapi", "1.2.1", "fp8", "8.0") is Support.NO
    assert cell("llmapi", "1.2.1", "fp8", "8.9") is Support.YES
    assert cell("llmapi", "1.2.1", "nvfp4", "9.0") is Support.NO
    assert cell("llmapi", "1.2.1", "nvfp4", "10.0") is Support.YES
    assert cell("llmapi", "1.2.1", "w4a16_awq", "10.0") is Support.NO
    assert cell("llmapi", "1.4.0rc4", "w4a16_awq", "10.0") is Support.YES
    assert cell("engine", "1.2.1", "w4a16_awq", "10.0") is Support.NO
    assert cell("engine", "1.2.1", "w4a16_awq", "12.0") is Support.UNKNOWN
    assert cell("engine", "1.3.0", "fp8", "9.0") is Support.UNKNOWN
    assert cell("llmapi", "1.2.1", "no-such-format", "9.0") is Support.UNKNOWN
    assert cell("llmapi", "1.2.1", "fp8", "13.0") is Support.UNKNOWN


def test_ranges_count_release_candidates():
    assert in_range("1.2.1", ">=1.2,<1.3")
    assert in_range("1.4.0rc4", ">=1.3")
    assert in_range("1.0.0rc4", ">=0.21,<1.2")
    assert not in_range("1.3.0", ">=1.2,<1.3")
    assert not in_range("1.3.0rc1", ">=1.2,<1.3")


def test_every_version_is_in_at_most_one_table(catalog):
    for version in ("0.21.0", "1.1.0", "1.2.0rc2", "1.2.1", "1.3.0rc7", "1.3.0", "1.4.0rc4"):
        for lane in ("engine", "llmapi"):
            tables = [
                t
                for t in catalog.precision.tables
                if t.lane == lane and in_range(version, t.versions)
            ]
            expected = 0 if lane == "engine" and version.startswith(("1.3", "1.4")) else 1
            assert len(tables) == expected, (lane, version)


def overlay(tmp_path: Path, relative: str, text: str) -> Path:
    path = tmp_path / "overlay" / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return tmp_path / "overlay"


def test_overlay_adds_and_replaces(catalog, tmp_path, monkeypatch):
    l4 = (ROOT / "build/skus/l4.yaml").read_text()
    overlay(tmp_path, "build/skus/l4.yaml", l4.replace("23034", "23000"))
    root = overlay(tmp_path, "build/skus/l5.yaml", l4.replace("id: l4", "id: l5"))
    changed = Catalog(root)
    assert changed.sku("l4").memory_mib == 23000
    assert changed.sku("l5").compute_capability == "8.9"
    assert changed.sku("h100-sxm") == catalog.sku("h100-sxm")
    assert changed.digest != catalog.digest
    assert Catalog().digest == catalog.digest
    monkeypatch.setenv("ENGINEROOM_CATALOG", str(root))
    assert Catalog().digest == changed.digest


def test_overlay_contract_makes_a_version_known(catalog, tmp_path):
    data = json.loads((ROOT / "deploy/contracts/trtllm/1.2.1.json").read_text())
    data["version"] = "1.2.2"
    root = overlay(tmp_path, "deploy/contracts/trtllm/1.2.2.json", json.dumps(data))
    assert catalog.contract("1.2.2") is None
    assert Catalog(root).contract("1.2.2").has_engine_lane


@pytest.mark.parametrize(
    ("relative", "text", "line", "message"),
    [
        ("build/skus/x.yaml", "schema_version: 1\nid: x\n", None, "Field required"),
        ("build/skus/l4.yaml", "memory_gb: 24\n", None, ""),
        ("build/skus/x.yaml", "a: [", 1, "YAML syntax"),
    ],
)
def test_broken_overlay_file_is_named(tmp_path, relative, text, line, message):
    root = overlay(tmp_path, relative, text)
    with pytest.raises(UsageError) as caught:
        _ = Catalog(root).skus
    assert caught.value.where.file.endswith(relative)
    assert message in caught.value.message


def test_id_must_be_the_file_name(tmp_path):
    root = overlay(tmp_path, "build/skus/other.yaml", (ROOT / "build/skus/l4.yaml").read_text())
    with pytest.raises(CatalogError) as caught:
        _ = Catalog(root).skus
    assert caught.value.hint == "name the file l4.yaml"


@pytest.mark.parametrize("text", ["[]", "{", '{"version": "1.2.1"}', "[" * 100000])
def test_broken_contract_is_named(tmp_path, text):
    root = overlay(tmp_path, "deploy/contracts/trtllm/1.2.1.json", text)
    with pytest.raises(CatalogError) as caught:
        Catalog(root).contract("1.2.1")
    assert "1.2.1.json" in caught.value.where.file


def test_overlay_that_is_no_folder(tmp_path):
    with pytest.raises(UsageError):
        Catalog(tmp_path / "absent")


def test_data_root_is_the_checkout_here():
    assert data_root() == ROOT
    ignored = [line for line in (ROOT / ".gitignore").read_text().splitlines() if line[:1] != "#"]
    assert not {"build", "build/", "/build/"} & set(ignored)
