"""What a node brings (drivers, MIG slices), and the configuration files around an engine."""

from __future__ import annotations

import pytest

from engineroom.checks.require_cuda import evaluate


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("565.77", "12.7"),  # nvidia-container-toolkit issue #940
        ("535.104.05", "12.2"),
        ("550.54.14", "12.4"),
        ("580.159.04", "13.0"),
        ("590.44.01", "13.1"),
        ("589.99", "13.0"),
        ("450.80.02", None),
        ("five", None),
    ],
)
def test_cuda_that_a_driver_reports(catalog, driver, cuda):
    assert catalog.cuda_of_driver(driver) == cuda


def test_stacks_agree_with_the_toolkit_table(catalog):
    """Another source than the container table, for the same pairs."""
    shipped = {row.cuda: row.driver for row in catalog.drivers.toolkits.rows}
    for stack in catalog.stacks.values():
        parts = stack.cuda.split(".")
        exact = shipped.get(".".join(parts[:3]))
        if exact is not None:
            assert stack.toolkit_driver == exact, stack.id
        else:
            assert parts[2] == "0"
            assert shipped[".".join(parts[:2])].split(".")[0] == stack.toolkit_driver.split(".")[0]
        floor = next(r for r in catalog.drivers.floors if r.cuda == parts[0])
        assert stack.min_driver == floor.min_driver


def test_require_cuda_of_published_images(catalog):
    found = {row.images: row for row in catalog.drivers.require_cuda}
    plain = found["nvidia/cuda, CUDA 12.8"].expression
    assert plain.startswith("cuda>=12.8 brand=unknown,driver>=470,driver<471 brand=grid,")
    assert len(plain.split(" ")) == 1 + 12 * 5
    node = {"cuda": "12.4", "driver": "550.54.15"}
    assert evaluate(plain, **node, brand="nvidia")[0] is True
    assert evaluate(plain, **node, brand="geforce")[0] is False
    newer = found["nvidia/cuda, CUDA 13.1"].expression
    assert evaluate(newer, cuda="12.6", driver="560.35.05", brand="nvidia")[0] is False
    stacks = {s.require_cuda for s in catalog.stacks.values()}
    assert stacks == {None, "cuda>=9.0"}  # NGC images ask for little


# ---- MIG
def test_mig_profiles(catalog):
    assert catalog.mig_profile("a100-sxm-40gb", "1g.5gb").memory_mib == 4864
    assert catalog.mig_profile("h200-sxm", "3g.71gb").instances == 2
    assert catalog.mig_profile("h200-sxm", "1g.10gb") is None
    assert catalog.mig_profile("l4", "1g.5gb") is None
    listed = [name for row in catalog.mig.gpus for name in row.skus]
    assert len(set(listed)) == len(listed)
    assert set(listed) == {s.id for s in catalog.skus.values() if s.mig_supported}
    for row in catalog.mig.gpus:
        for name, profile in row.profiles.items():
            gigabytes = float(name.split(".")[1].removesuffix("gb"))
            if profile.memory_mib:
                assert 0.8 * gigabytes < profile.memory_mib / 1024 < 1.05 * gigabytes
                assert row.memory_source


def test_engine_config(catalog):
    data = catalog.engine_config
    assert data.engine_config_json.build_config.fields["max_batch_size"].default == 2048
    assert data.engine_config_json.required_to_be_an_engine == ("pretrained_config", "build_config")
    assert not data.engine_config_json.pretrained_config.fields["vocab_size"].default_known
    assert {c.id for c in data.cross_checks} >= {"batch", "beam", "world", "version"}
    assert "NVFP4" in data.hf_quant_config_json.quant_algo_written_by_modelopt
