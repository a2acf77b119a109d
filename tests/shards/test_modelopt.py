"""Where ModelOpt's exporter still cuts by itself, its ranks are ours, tensor for tensor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engineroom.planning.rank_parts import Layout
from engineroom.runner.trtllm_shards import cut
from tests.conftest import TINY
from tests.shards.assemble import assemble, read_ranks, read_raw
from tests.shards.modelopt_export import FORMATS, LAYOUTS, OTHERS

pytestmark = [pytest.mark.slow, pytest.mark.full]


@pytest.fixture(scope="module")
def exported(shared):
    def make(folder):
        script = Path(__file__).with_name("modelopt_export.py")
        subprocess.run([sys.executable, script, folder, TINY], check=True, capture_output=True)

    return shared("modelopt-layouts", make)


def test_it_refuses_what_pipeline_stages_do_not_share_evenly(exported):
    """Three layers on two stages: the loader takes 2 + 1 (contract), the exporter stops."""
    assert json.loads((exported / "refused.json").read_text()) == [[name, 1, 2] for name in FORMATS]


def test_it_leaves_out_the_rope_base(exported):
    """Why `complete_config` exists; when this fails, a newer ModelOpt writes it itself."""
    assert "rotary_base" not in json.loads((exported / "fp8-1x1/config.json").read_text())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("tp", "pp"), [layout for layout in LAYOUTS if layout != (1, 2)])
def test_our_ranks_are_its_ranks(exported, catalog, tmp_path, name, tp, pp):
    cut(exported / f"{name}-1x1", tmp_path / "ours", catalog.trtllm_checkpoint, Layout(tp, pp))
    (our_config, ours), (their_config, theirs) = (
        read_ranks(tmp_path / "ours"), read_ranks(exported / f"{name}-{tp}x{pp}"),
    )  # fmt: skip
    assert our_config == their_config
    for rank, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one.keys() == other.keys()
        for tensor, (dtype, array) in one.items():
            assert dtype == other[tensor][0]
            np.testing.assert_array_equal(array, other[tensor][1], f"{tensor} of rank {rank}")


@pytest.mark.parametrize("family", OTHERS)
@pytest.mark.parametrize("name", FORMATS)
def test_other_architectures_of_the_contract(exported, catalog, tmp_path, family, name):
    """Biases, a vocabulary that AWQ pads to 64, and what their config.json must say."""
    whole = exported / f"{family}-{name}"
    config = json.loads((whole / "config.json").read_text())
    assert config["architecture"] in catalog.trtllm_checkpoint.architectures
    assert config["vocab_size"] == (1024 if name == "awq" else 1000)
    assert config["rotary_base"] == {"Qwen2": 1e6, "Mistral": 1e4, "Llama": 5e5}[family]
    assert config.get("qwen_type") == ("qwen2" if family == "Qwen2" else None)
    assert config.get("attn_bias") is (True if family == "Llama" else None)
    original = read_raw(whole / "rank0.safetensors")
    biases = {n.split(".", 3)[3] for n in original if n.endswith(".bias")}
    assert biases == {
        "Qwen2": {"attention.qkv.bias"}, "Mistral": set(),
        "Llama": {"attention.qkv.bias", "attention.dense.bias"},
    }[family]  # fmt: skip
    for tp, pp in ((2, 1), (4, 2)):
        cut(whole, tmp_path / f"{tp}x{pp}", catalog.trtllm_checkpoint, Layout(tp, pp))
        joined = assemble(*read_ranks(tmp_path / f"{tp}x{pp}"))
        assert joined.keys() == original.keys()
        for tensor, (_, array) in original.items():
            np.testing.assert_array_equal(joined[tensor][1], array, tensor)
