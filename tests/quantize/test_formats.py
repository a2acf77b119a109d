"""What each format's exported files hold, reopened with a reader that knows only the definitions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engineroom.pipeline.quantize import find
from engineroom.runner.quantize_child import merge_config
from tests.conftest import TINY
from tests.independent.formats import E2M1, E4M3, dequantize, e4m3_round_trip, read_safetensors

pytestmark = pytest.mark.slow
LINEARS = [
    f"model.layers.{layer}.{name}"
    for layer in range(3)
    for name in (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    )
]  # fmt: skip


@pytest.fixture(scope="module")
def source():
    return {name: array for name, (_, array) in read_safetensors(TINY).items()}


def folder(quantized, name) -> Path:
    return find(quantized(name)).path / "hf"


def test_fp8_has_e4m3_weights_and_scalar_scales(quantized):
    stored = read_safetensors(folder(quantized, "fp8"))
    for base in LINEARS:
        dtype, array = stored[f"{base}.weight"]
        assert dtype == "F8_E4M3"
        assert stored[f"{base}.weight_scale"][0] == "F32"
        assert stored[f"{base}.weight_scale"][1].size == 1
        assert stored[f"{base}.input_scale"][1].size == 1
        # The largest weight uses the largest code: the scale is amax / 448.
        assert np.nanmax(np.abs(E4M3[array])) == 448.0


@pytest.mark.parametrize(("name", "group"), [("awq", 64), ("awq128", 128)])
def test_awq_has_packed_int4_and_scales_of_the_chosen_group(quantized, source, name, group):
    path = folder(quantized, name)
    stored = read_safetensors(path)
    facts = json.loads((path / "hf_quant_config.json").read_text())["quantization"]
    assert facts["quant_algo"] == "W4A16_AWQ"
    assert facts["group_size"] == group
    for base in LINEARS:
        rows, columns = source[f"{base}.weight"].shape
        dtype, array = stored[f"{base}.weight"]
        assert (dtype, array.shape) == ("U8", (rows // 2, columns))
        assert stored[f"{base}.weight_scale"][1].shape == (rows, columns // group)


def test_nvfp4_has_packed_fp4_block_scales_of_16_and_a_global_scale(quantized, source):
    stored = read_safetensors(folder(quantized, "nvfp4"))
    for base in LINEARS:
        rows, columns = source[f"{base}.weight"].shape
        dtype, array = stored[f"{base}.weight"]
        assert (dtype, array.shape) == ("U8", (rows, columns // 2))
        dtype, scales = stored[f"{base}.weight_scale"]
        assert (dtype, scales.shape) == ("F8_E4M3", (rows, columns // 16))
        dtype, second = stored[f"{base}.weight_scale_2"]
        assert (dtype, second.size) == ("F32", 1)


@pytest.mark.parametrize("name", ["fp8", "awq", "nvfp4", "bf16-kv8"])
def test_kv_scales_are_calibrated_for_every_layer(quantized, name):
    _, kv = dequantize(folder(quantized, name))
    assert sorted(kv) == [0, 1, 2]
    for k, v in kv.values():
        assert 0 < k < 1
        assert 0 < v < 1
        assert k != v  # each its own amax: a shared constant would be a cast, not a calibration


def test_embeddings_head_and_norms_stay_in_16_bit(quantized):
    for name in ("fp8", "awq", "nvfp4"):
        stored = read_safetensors(folder(quantized, name))
        assert stored["model.embed_tokens.weight"][0] == "BF16"
        assert stored["model.norm.weight"][0] == "BF16"


def test_fp8_restores_within_half_a_code_step(quantized, source):
    weights, _ = dequantize(folder(quantized, "fp8"))
    for base in LINEARS:
        want, got = source[f"{base}.weight"], weights[f"{base}.weight"]
        scale = np.abs(want).max() / 448
        # 3 mantissa bits: half a step is 2^-4 of the value, near zero half the subnormal step. The
        # exporter divides in bfloat16 (8 bits), which may push a value over the midpoint: + 2^-8.
        bound = np.maximum(np.abs(want) * (2.0**-4 + 2.0**-8), scale * 2.0**-10 * (1 + 2.0**-4))
        assert (np.abs(want - got) <= bound).all()


def test_nvfp4_restores_within_half_a_grid_step_of_its_block(quantized, source):
    weights, _ = dequantize(folder(quantized, "nvfp4"))
    for base in LINEARS:
        want, got = source[f"{base}.weight"], weights[f"{base}.weight"]
        blocks = np.abs(want).reshape(want.shape[0], -1, 16).max(axis=2)
        step = (
            np.repeat(blocks, 16, axis=1) / 6
        )  # E2M1's widest gap is 2 (4 to 6): half is one step
        # The block scale itself is rounded to E4M3 (2^-4 relative).
        assert (np.abs(want - got) <= step * (1 + 2.0**-3)).all()


def test_awq_restores_within_half_a_step_of_its_group(quantized, source):
    """AWQ moves a scale per input channel from the weight into the norm before it: compare products."""
    path = folder(quantized, "awq128")
    weights, _ = dequantize(path)
    stored = read_safetensors(path)
    for layer in range(3):
        base = f"model.layers.{layer}"
        for norm, linears in (
            ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
        ):
            after_norm = weights[f"{base}.{norm}.weight"]
            for linear in linears:
                before = source[f"{base}.{linear}.weight"] * source[f"{base}.{norm}.weight"]
                after = weights[f"{base}.{linear}.weight"] * after_norm
                step = np.repeat(stored[f"{base}.{linear}.weight_scale"][1], 128, axis=1)
                # Half a step in the scaled domain; weight and norm were rounded to bf16 on the way.
                bound = 0.5 * step * np.abs(after_norm) + np.abs(before) * 2.0**-6
                assert (np.abs(before - after) <= bound).all(), (layer, linear)
                assert (np.abs(before - after) > 0).mean() > 0.5  # it is quantized at all


def test_trtllm_checkpoint_is_fp8_with_fp8_kv_at_tp1(quantized):
    path = find(quantized("fp8")).path / "trtllm"
    config = json.loads((path / "config.json").read_text())
    assert config["architecture"] == "LlamaForCausalLM"
    assert config["quantization"]["quant_algo"] == "FP8"
    assert config["quantization"]["kv_cache_quant_algo"] == "FP8"
    assert config["mapping"] == {"world_size": 1, "tp_size": 1, "pp_size": 1}
    stored = read_safetensors(path)
    for layer in range(3):
        base = f"transformer.layers.{layer}.attention"
        assert stored[f"{base}.qkv.weight"][0] == "F8_E4M3"
        assert stored[f"{base}.qkv.activation_scaling_factor"][1].size == 1
        assert f"{base}.kv_cache_scaling_factor" in stored


def test_licences_travel_into_both_layouts(quantized):
    path = find(quantized("fp8")).path
    for layout in ("hf", "trtllm"):
        assert (path / layout / "NOTICE").read_bytes() == (TINY / "NOTICE").read_bytes()


def test_unified_checkpoint_does_not_depend_on_the_other_layout(quantized):
    """ModelOpt's TensorRT-LLM exporter gives Q, K and V one amax in place; ours is put back."""
    stored = read_safetensors(folder(quantized, "fp8"))
    scales = {
        float(stored[f"model.layers.0.self_attn.{name}_proj.weight_scale"][1]) for name in "qkv"
    }
    assert len(scales) == 3


def test_manifest_names_the_conditions(quantized):
    facts = find(quantized("awq128")).manifest
    assert facts["weights"] == {
        "format": "w4a16_awq", "recipe": "w4a16_awq", "quant_algo": "W4A16_AWQ",
        "algorithm": "awq_lite", "granularity": "per-group",
        "activation_scheme": "none (16 bit)", "group_size": 128,
    }  # fmt: skip
    assert facts["kv_cache"] == {"format": "fp8", "quant_algo": "FP8", "scales": "calibrated"}
    assert facts["calibration"]["samples"] == 8
    assert len(facts["calibration"]["dataset_digest"]) == 64
    assert facts["tools"]["modelopt"] == "0.47.0"
    assert facts["model"]["licences"] == ["NOTICE"]
    assert facts["perplexity"]["method"] == "dequantized"
    low, high = facts["perplexity"]["interval_95_percent"]
    assert low <= facts["perplexity"]["change_percent"] <= high


def test_nvfp4_on_cpu_is_marked_emulated(quantized):
    facts = find(quantized("nvfp4")).manifest
    assert facts["perplexity"]["method"] == "emulated"
    # FP4 must cost more than FP8; equal figures would mean that the weights were not quantized.
    fp8 = find(quantized("fp8")).manifest["perplexity"]
    assert facts["perplexity"]["after"] > fp8["after"]
    assert facts["perplexity"]["before"] == fp8["before"]


def test_unquantized_checkpoint_keeps_its_weights(quantized, source):
    stored = read_safetensors(folder(quantized, "bf16"))
    for name, array in source.items():
        assert stored[name][0] == "BF16"
        np.testing.assert_array_equal(stored[name][1], array)


def test_tokenizer_template_and_notice_travel(quantized):
    path = folder(quantized, "fp8")
    for name in ("NOTICE", "tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (path / name).read_bytes() == (TINY / name).read_bytes()


def test_config_keeps_rope_in_both_spellings():
    original = {
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0},
        "eos_token_id": [1, 2],
    }
    merged = merge_config(original, {"dtype": "bfloat16", "quantization_config": {"a": 1}})
    assert merged["rope_theta"] == 5e5
    assert merged["rope_scaling"] == {"rope_type": "llama3", "factor": 8.0}
    assert merged["rope_parameters"] == original["rope_parameters"]
    assert merged["torch_dtype"] == merged["dtype"] == "bfloat16"
    assert merged["eos_token_id"] == [1, 2]
    assert merged["quantization_config"] == {"a": 1}


def test_the_tables_themselves():
    """Figures of the OCP format definitions."""
    assert np.nanmax(E4M3) == 448.0
    assert np.isnan(E4M3[0x7F])
    assert np.isnan(E4M3[0xFF])
    assert E4M3[0x01] == 2.0**-9
    assert E4M3[0x08] == 2.0**-6
    assert E4M3[0x38] == 1.0
    assert E2M1[:8].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    # Ties go to the even code: 17 lies between 16 and 18, 19 between 18 and 20.
    x = np.array([17.0, 19.0, 500.0, -0.3, 2.0**-10], np.float32)
    assert e4m3_round_trip(x, 1.0).tolist() == [16.0, 20.0, 448.0, -0.3125, 0.0]
