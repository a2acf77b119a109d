"""SKUs by id and by what a node's label says."""

from __future__ import annotations

from pathlib import Path

import pytest

from engineroom.catalog import Catalog
from engineroom.errors import UsageError
from engineroom.names import LaneName, Support
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("label", "sku", "capability"),
    [
        ("NVIDIA-RTX-A6000", "rtx-a6000", "8.6"),
        ("NVIDIA-RTX-6000-Ada-Generation", "rtx-6000-ada", "8.9"),
        ("NVIDIA-A100-SXM4-80GB", "a100-sxm-80gb", "8.0"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb", "8.0"),  # as NVML names it
        ("A100-SXM4-40GB", "a100-sxm-40gb", "8.0"),  # before drivers put NVIDIA in front
        ("A100-SXM4-40GB-MIG-1g.5gb-SHARED", "a100-sxm-40gb", "8.0"),
        ("NVIDIA-A10", "a10", "8.6"),
        ("NVIDIA-A10G-SHARED", "a10g", "8.6"),
        ("Tesla-V100-SXM2-32GB", "v100-sxm2-32gb", "7.0"),
        ("Tesla-T4", "t4", "7.5"),
        ("NVIDIA-H200-MIG-1g.18gb", "h200-sxm", "9.0"),
        ("NVIDIA-H100-80GB-HBM3-MIG-INVALID", "h100-sxm", "9.0"),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gbme", "h100-sxm", "9.0"),
        (
            "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-MIG-1g.24gb-me",
            "rtx-pro-6000-blackwell-server",
            "12.0",
        ),
        ("NVIDIA-B300-SXM6-AC", "b300-sxm", "10.3"),
        ("NVIDIA-GB10", "gb10", "12.1"),
    ],
)
def test_product_label(catalog, label, sku, capability):
    found = catalog.sku_by_product(label)
    assert (found.id, found.compute_capability) == (sku, capability)


@pytest.mark.parametrize(
    "label",
    [
        "nvidia-l4",
        "NVIDIA-L4S",
        "L40",  # a part of a label, and no alias
        "NVIDIA-A100",
        "NVIDIA-H100-SXM5-80GB",  # of many tutorials, of no node
        "A6000",
        "6000",
        "-SHARED",
        "-MIG-1g.5gb",
        "",
        "NVIDIA-L4-MIG-",
        "NVIDIA-L4" * 100,
    ],
)
def test_no_guess_by_a_part_of_the_name(catalog, label):
    assert catalog.sku_by_product(label) is None


def test_every_label_and_alias_names_one_sku(catalog):
    owners: dict[str, str] = {}
    for sku in catalog.skus.values():
        for name in {sku.node_label, *sku.aliases}:
            assert owners.setdefault(name, sku.id) == sku.id, name
            assert catalog.sku_by_product(name) == sku


def test_a_new_sku_is_found_without_code(tmp_path: Path):
    text = (ROOT / "build/skus/l4.yaml").read_text()
    text = text.replace("id: l4", "id: x900").replace("NVIDIA-L4", "NVIDIA-X900-128GB")
    folder = tmp_path / "build/skus"
    folder.mkdir(parents=True)
    (folder / "x900.yaml").write_text(text)
    catalog = Catalog(tmp_path)
    assert catalog.sku_by_product("NVIDIA-X900-128GB-SHARED").id == "x900"
    assert catalog.sku("x900").compute_capability == "8.9"


def test_one_sku_reads_one_file(tmp_path: Path):
    folder = tmp_path / "build/skus"
    folder.mkdir(parents=True)
    (folder / "broken.yaml").write_text("a: [")
    catalog = Catalog(tmp_path)
    assert catalog.sku("l4").id == "l4"
    with pytest.raises(UsageError) as caught:
        catalog.sku("broken")
    assert caught.value.where.file.endswith("broken.yaml")


def test_architectures_without_bf16_are_known(catalog):
    """Cards that TensorRT-LLM dropped are recognised, so that the verdict has a reason."""
    for name in ("t4", "v100-sxm2-32gb", "v100-pcie-16gb"):
        sku = catalog.sku(name)
        cell = catalog.precision_cell(
            LaneName.ENGINE, "0.9.0", "weights", "bf16", sku.compute_capability
        )
        assert cell.support is Support.NO
