"""The tiny model in each format: quantized by ModelOpt, cut by us, put together again from the contract."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from engineroom.pipeline import open_job, quantize
from engineroom.pipeline.quantize import find
from engineroom.planning.rank_parts import Layout
from engineroom.runner.trtllm_shards import cut
from tests.conftest import TINY, run_cli, spec_data, write_spec
from tests.independent.formats import read_safetensors
from tests.shards.assemble import assemble, built_shapes, read_ranks, read_raw, values

pytestmark = pytest.mark.slow
FORMATS = ("fp8", "awq", "nvfp4", "bf16")
HF_NAMES = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense": ("self_attn.o_proj",),
    "mlp.fc": ("mlp.gate_proj",),
    "mlp.gate": ("mlp.up_proj",),
    "mlp.proj": ("mlp.down_proj",),
}
LAYERS = range(3)


@pytest.fixture(scope="module")
def source():
    return {name: array for name, (_, array) in read_safetensors(TINY).items()}


def weights_of(source, layer, module):
    return np.concatenate(
        [source[f"model.layers.{layer}.{name}.weight"] for name in HF_NAMES[module]]
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_layout_is_the_whole_bit_for_bit(quantized, catalog, tmp_path, name):
    """TP 1, 2, 4 x PP 1, 2; on 4 ranks each of the 2 KV heads is on two, on 2 stages 3 layers are 2 + 1."""
    whole = find(quantized(name)).path / "trtllm"
    original = read_raw(whole / "rank0.safetensors")
    for tp, pp in ((t, p) for t in (1, 2, 4) for p in (1, 2)):
        target = tmp_path / f"{tp}x{pp}"
        cut(whole, target, catalog.trtllm_checkpoint, Layout(tp, pp))
        config, ranks = read_ranks(target)
        assert config["mapping"] == {"world_size": tp * pp, "tp_size": tp, "pp_size": pp}
        assert (
            config["quantization"]
            == json.loads((whole / "config.json").read_text())["quantization"]
        )
        joined = assemble(config, ranks)
        assert joined.keys() == original.keys()
        for tensor, (dtype, array) in original.items():
            assert joined[tensor][0] == dtype
            np.testing.assert_array_equal(joined[tensor][1], array, f"{tensor} at {tp}x{pp}")
        for rank, tensors in enumerate(ranks):
            for weight, shape in built_shapes(config, rank // tp).items():
                stored = tensors[weight][1].shape
                packed = {"awq": (2, 1), "nvfp4": (1, 2)}.get(name, (1, 1))
                quantized_here = (
                    f"{weight.removesuffix('.weight')}.weights_scaling_factor" in tensors
                )
                rows, columns = packed if quantized_here else (1, 1)
                assert (stored[0] * rows, stored[1] * columns) == shape, weight


# ---- the packing itself: what the numbers stand for
def test_nvfp4_codes_and_scales_are_those_of_the_unified_checkpoint(quantized):
    path = find(quantized("nvfp4")).path
    _, (tensors,) = read_ranks(path / "trtllm")
    unified = read_safetensors(path / "hf")
    for layer in LAYERS:
        for module, names in HF_NAMES.items():
            base = f"transformer.layers.{layer}.{module}"
            bases = [f"model.layers.{layer}.{name}" for name in names]
            for ours, theirs in (("weight", "weight"), ("weights_scaling_factor", "weight_scale")):
                joined = np.concatenate([unified[f"{b}.{theirs}"][1] for b in bases])
                np.testing.assert_array_equal(tensors[f"{base}.{ours}"][1], joined, base)
            for ours, theirs in (
                ("weights_scaling_factor_2", "weight_scale_2"), ("activation_scaling_factor", "input_scale"),
            ):  # fmt: skip
                number = tensors[f"{base}.{ours}"][1].reshape(-1).view(np.float32)
                assert {float(unified[f"{b}.{theirs}"][1]) for b in bases} == {float(number[0])}


def test_awq_stands_for_the_weights_of_the_model(quantized, source):
    """Half a step of its group from the source; where no scale moved into a norm, the unified codes."""
    path = find(quantized("awq")).path
    config, (tensors,) = read_ranks(path / "trtllm")
    unified = read_safetensors(path / "hf")
    for layer in LAYERS:
        for module, names in HF_NAMES.items():
            base = f"transformer.layers.{layer}.{module}"
            want, got = weights_of(source, layer, module), values(config, tensors, base)
            scale = tensors[f"{base}.weights_scaling_factor"][1].view(np.float32)
            before = (tensors[f"{base}.prequant_scaling_factor"][1].astype(np.uint32) << 16).view(
                np.float32
            )
            step = np.repeat(scale, 64, axis=1) * before
            # The weight was scaled in bfloat16 (twice for qkv) before it was rounded to a code.
            bound = 0.5 * step + np.abs(want) * 2.0**-6
            assert (np.abs(want - got) <= bound).all(), base
            assert (np.abs(want - got) > 0).mean() > 0.5
            if module in ("attention.qkv", "attention.dense", "mlp.proj"):
                codes = [unified[f"model.layers.{layer}.{n}.weight"][1] for n in names]
                np.testing.assert_array_equal(tensors[f"{base}.weight"][1], np.concatenate(codes))


def test_fp8_stands_for_the_weights_of_the_model(quantized, source):
    """One scale for Q, K and V: the largest of theirs; half a code step from the source."""
    path = find(quantized("fp8")).path
    config, (tensors,) = read_ranks(path / "trtllm")
    unified = read_safetensors(path / "hf")

    def scale_of(name):
        return float(unified[name][1].reshape(-1)[0])

    for layer in LAYERS:
        for module in HF_NAMES:
            base = f"transformer.layers.{layer}.{module}"
            fused = HF_NAMES["attention.qkv"] if module == "attention.qkv" else HF_NAMES[module]
            if module in ("mlp.fc", "mlp.gate"):
                fused = ("mlp.gate_proj", "mlp.up_proj")
            scale = tensors[f"{base}.weights_scaling_factor"][1].view(np.float32)[0]
            assert scale == max(scale_of(f"model.layers.{layer}.{n}.weight_scale") for n in fused)
            activation = tensors[f"{base}.activation_scaling_factor"][1].view(np.float32)[0]
            assert activation == max(
                scale_of(f"model.layers.{layer}.{n}.input_scale") for n in HF_NAMES[module]
            )
            want, got = weights_of(source, layer, module), values(config, tensors, base)
            bound = np.maximum(np.abs(want) * (2.0**-4 + 2.0**-8), scale * 2.0**-10 * (1 + 2.0**-4))
            assert (np.abs(want - got) <= bound).all(), base


def test_bf16_is_the_model(quantized, source):
    config, (tensors,) = read_ranks(find(quantized("bf16")).path / "trtllm")
    for layer in LAYERS:
        for module in HF_NAMES:
            got = values(config, tensors, f"transformer.layers.{layer}.{module}")
            np.testing.assert_array_equal(got, weights_of(source, layer, module))


@pytest.mark.parametrize("name", ["fp8", "awq", "nvfp4"])
def test_kv_scales_are_clamped_as_the_contract_says(quantized, catalog, name):
    _, (tensors,) = read_ranks(find(quantized(name)).path / "trtllm")
    scales = {
        float(array.view(np.float32)[0])
        for tensor, (_, array) in tensors.items() if "_cache_scaling_factor" in tensor
    }  # fmt: skip
    assert scales == {catalog.trtllm_checkpoint.kv_cache.minimum}


@pytest.mark.parametrize("name", FORMATS)
def test_config_has_what_the_loader_needs(quantized, catalog, name):
    config = json.loads((find(quantized(name)).path / "trtllm/config.json").read_text())
    assert set(catalog.trtllm_checkpoint.config.required) <= set(config)
    assert set(config["mapping"]) == set(catalog.trtllm_checkpoint.config.mapping)
    assert config["rotary_base"] == 10000.0
    assert config["attn_bias"] is False
    assert config["logits_dtype"] == "float16"
    group = {"awq": 64, "nvfp4": 16}.get(name)
    assert config["quantization"].get("group_size") == group


@pytest.mark.full
def test_the_unified_awq_checkpoint_does_not_depend_on_the_other_layout(quantized, shared):
    """Made once with and once without `trtllm/`: the same bytes."""
    targets = [{"sku": "l4", "lane": "llmapi", "stack": "26.07"}]
    precision = {"weights": "w4a16_awq", "kv_cache": "fp8", "group_size": 64}

    def make(folder):
        path = write_spec(folder, spec_data(precision=precision, targets=targets))
        done = run_cli("quantize", "-f", str(path), "--out", str(folder / "out"), "--no-evaluate")
        assert done.returncode == 0, done.stderr

    folder = shared("checkpoint-awq-unified", make)
    alone = find(open_job(folder / "engineroom.yaml", out=folder / "out"))
    both = find(quantized("awq"))
    assert not (alone.path / "trtllm").exists()
    assert alone.path.name == both.path.name  # the layouts are no part of the key
    files = {n: d for n, d in both.manifest["files"].items() if n.startswith("hf/")}
    assert {n: d for n, d in alone.manifest["files"].items() if n.startswith("hf/")} == files


# ---- the verb
def test_another_layout_needs_no_new_quantization(quantized, tmp_path, monkeypatch):
    job = quantized("awq")
    out = tmp_path / "out"
    shutil.copytree(job.out / "checkpoints", out / "checkpoints")
    engine = {"sku": "h100-sxm", "lane": "engine", "stack": "26.07"}
    precision = {"weights": "w4a16_awq", "kv_cache": "fp8", "group_size": 64}

    def quantize_for(*layouts):
        targets = [{**engine, "tensor_parallel": t, "pipeline_parallel": p} for t, p in layouts]
        path = write_spec(tmp_path, spec_data(precision=precision, targets=targets))
        return quantize(open_job(path, out=out), evaluate=False)

    monkeypatch.setattr(
        "engineroom.runner.process.run_module", lambda *a, **k: pytest.fail("quantized again")
    )
    first = quantize_for((1, 1), (2, 1))
    before = {n: d for n, d in first.manifest["files"].items() if n.startswith(("hf/", "trtllm/"))}
    second = quantize_for((2, 2))
    assert second.path == first.path
    assert second.reused
    assert second.manifest["layouts"] == [
        "hf", "trtllm tp1 pp1", "trtllm tp2 pp1", "trtllm tp2 pp2",
    ]  # fmt: skip
    assert second.manifest["cut_by_engineroom"] == ["trtllm-tp2pp1", "trtllm-tp2pp2"]
    assert before.items() <= second.manifest["files"].items()
    for tp, pp in ((2, 1), (2, 2)):
        config, ranks = read_ranks(second.path / f"trtllm-tp{tp}pp{pp}")
        whole = read_raw(second.path / "trtllm/rank0.safetensors")
        joined = assemble(config, ranks)
        assert all(np.array_equal(joined[n][1], whole[n][1]) for n in whole)
    assert quantize_for((2, 2)).manifest["seal"] == second.manifest["seal"]  # nothing to add


def test_a_layout_that_cannot_be_cut_leaves_the_checkpoint_as_it_was(
    quantized, tmp_path, monkeypatch
):
    job = quantized("awq")
    out = tmp_path / "out"
    shutil.copytree(job.out / "checkpoints", out / "checkpoints")
    target = {"sku": "h100-sxm", "lane": "engine", "stack": "26.07", "tensor_parallel": 2}
    precision = {"weights": "w4a16_awq", "kv_cache": "fp8", "group_size": 64}
    path = write_spec(tmp_path, spec_data(precision=precision, targets=[target]))
    real = cut

    def full(*arguments):
        real(*arguments)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engineroom.runner.trtllm_shards.cut", full)
    with pytest.raises(OSError, match="No space left"):
        quantize(open_job(path, out=out), evaluate=False)
    (left,) = (out / "checkpoints").iterdir()
    assert sorted(p.name for p in left.iterdir()) == ["hf", "manifest.json", "trtllm"]
    assert find(open_job(path, out=out)).path == left
