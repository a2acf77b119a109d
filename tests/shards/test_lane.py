"""The engine lane builds each target from the checkpoint of its own TP x PP."""

from __future__ import annotations

import json

import pytest

from engineroom.catalog import Catalog
from engineroom.errors import CatalogError
from engineroom.names import LaneName
from engineroom.pipeline import build, check
from engineroom.pipeline.init import init_spec
from engineroom.runner.trtllm_export import complete_config
from tests.conftest import ROOT, TINY, spec_data

ENGINE = {"sku": "h100-sxm", "lane": "engine", "stack": "26.07"}


@pytest.mark.parametrize(
    ("tp", "pp", "folder"),
    [(1, 1, "trtllm"), (2, 1, "trtllm-tp2pp1"), (4, 2, "trtllm-tp4pp2"), (1, 3, "trtllm-tp1pp3")],
)
@pytest.mark.parametrize("weights", ["fp8", "w4a16_awq", "bf16"])
def test_the_step_reads_the_layout_of_its_target(make_job, weights, tp, pp, folder):
    target = {**ENGINE, "tensor_parallel": tp, "pipeline_parallel": pp}
    precision = {"weights": weights, "group_size": 64} if "awq" in weights else {"weights": weights}
    job = make_job(spec_data(TINY, precision=precision, targets=[target]))
    (planned,) = build(job, dry_run=True)
    step = planned["steps"][0]
    assert step["inputs"] == [f"checkpoints/CHECKPOINT/{folder}"]
    at = step["argv"].index("--checkpoint_dir")
    assert step["argv"][at + 1] == f"checkpoints/CHECKPOINT/{folder}"
    assert f"rank{tp * pp - 1}.engine" in step["outputs"]


def test_check_judges_only_the_layout_that_a_target_reads(make_job):
    """One rank's `trtllm/` is the source of the others, and no mistake for a target of two ranks."""
    job = make_job(spec_data(TINY, targets=[{**ENGINE, "tensor_parallel": 2}]))
    folder = job.out / f"checkpoints/{job.checkpoint_prefix}abc"

    def put(name, tp):
        path = folder / name / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        mapping = {"world_size": tp, "tp_size": tp, "pp_size": 1}
        path.write_text(json.dumps({"architecture": "LlamaForCausalLM", "mapping": mapping}))

    put("trtllm", 1)
    put("trtllm-tp2pp1", 2)
    assert "checkpoint-other-layout" not in {f.code for f in check(job)}
    put("trtllm-tp2pp1", 4)
    assert "checkpoint-other-layout" in {f.code for f in check(job)}


def test_init_takes_a_group_that_the_engine_lane_can_build(catalog, tmp_path):
    """One KV head of 32: qkv has 4 x 32 + 2 x 32 = 192 rows, no multiple of 128; the input widths are."""
    config = json.loads((TINY / "config.json").read_text())
    config |= {
        "hidden_size": 128,
        "head_dim": 32,
        "num_key_value_heads": 1,
        "intermediate_size": 256,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    wish = {"model": str(tmp_path), "sku": "a100-sxm-80gb", "spec_dir": tmp_path}
    assert "group_size: 64" in init_spec(catalog, lane=LaneName.ENGINE, **wish)
    assert "group_size: 128" in init_spec(catalog, lane=LaneName.LLMAPI, **wish)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('"cut": "heads"', '"cut": "columns"', "attention.qkv"),
        ('"axes": ["output/2", "input"]', '"axes": ["output/3", "input"]', "W4A16_AWQ"),
        ('"none": {', '"nothing": {', "formats"),
        ('"versions": ">=0.21,<1.3"', '"versions": "1.x"', "versions"),
        ('"stage": "first"', '"stage": "middle"', "vocab_embedding"),
    ],
)
def test_a_wrong_contract_of_an_overlay_is_named(tmp_path, old, new, key):
    relative = "deploy/contracts/trtllm_checkpoint.json"
    text = (ROOT / relative).read_text()
    assert old in text
    (tmp_path / relative).parent.mkdir(parents=True)
    (tmp_path / relative).write_text(text.replace(old, new, 1))
    with pytest.raises(CatalogError) as caught:
        _ = Catalog(tmp_path).trtllm_checkpoint
    assert key in str(caught.value.where.key)
    assert caught.value.where.file.endswith(relative)


# ---- what ModelOpt leaves out of config.json, and the loader would guess
@pytest.mark.parametrize(
    ("source", "added"),
    [
        ({"model_type": "llama", "rope_theta": 500000}, {"rotary_base": 500000.0}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
             "low_freq_factor": 1.0}, "attention_bias": False, "mlp_bias": True},
            {"rotary_base": 5e5, "attn_bias": False, "mlp_bias": True,
             "rotary_scaling": {"rope_type": "llama3", "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}},
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}},
         {"rotary_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}}),
        ({"rope_scaling": {"rope_type": "default"}}, {}),
        ({"rope_scaling": None}, {}),
        ({"model_type": "qwen2", "rope_theta": 1000000.0},
         {"rotary_base": 1e6, "qwen_type": "qwen2"}),
    ],
)  # fmt: skip
def test_config_says_what_the_model_says(source, added):
    exported = {"architecture": "X", "mapping": {"world_size": 1}}
    assert complete_config(exported, source) == {**exported, **added}
    assert exported == {"architecture": "X", "mapping": {"world_size": 1}}
