"""Capacity arithmetic against published parameter counts and a measured server."""

from __future__ import annotations

import json

import pytest

from engineroom.names import KvCacheFormat
from engineroom.pipeline import plan
from engineroom.planning.capacity import (
    MIB,
    capacity_of,
    kv_bytes_per_token,
    profile_plans,
    rank_weight_bytes,
    weight_bytes,
)
from engineroom.runner.model_source import tensor_shapes
from engineroom.spec.model import Lengths, Profile
from engineroom.types import ModelShape
from tests.conftest import ROOT, TINY, spec_data


def known(name: str) -> tuple[ModelShape, dict]:
    data = json.loads((ROOT / f"tests/data/configs/{name}.json").read_text())
    return ModelShape.from_config(data["config"]), data


@pytest.mark.parametrize("name", ["meta-llama--Llama-3.1-8B", "meta-llama--Llama-3.1-70B"])
def test_16_bit_weights_equal_the_published_checkpoint(catalog, name):
    shape, data = known(name)
    weights = weight_bytes(shape, catalog.weight_recipes["bf16"], None)
    assert weights.total == data["published_checkpoint_bytes"]
    assert weights.total == 2 * data["published_parameters"]


def test_biases_and_head_norms_are_below_a_thousandth(catalog):
    """Qwen's QKV bias and head norms are not in the dense formula; the headers have them."""
    for name in ("Qwen--Qwen2.5-7B", "Qwen--Qwen3-32B"):
        shape, data = known(name)
        total = weight_bytes(shape, catalog.weight_recipes["bf16"], None).total
        assert total == pytest.approx(2 * data["published_parameters"], rel=1e-3)


def test_quantized_llama_8b(catalog):
    """GiB of real exports on a GPU host: FP8 8.46, AWQ-128 5.41 (bf16 scales there), NVFP4 5.61."""
    shape, _ = known("meta-llama--Llama-3.1-8B")
    linear = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336)
    kept = 2 * (2 * 128256 * 4096 + 65 * 4096)
    fp8 = weight_bytes(shape, catalog.weight_recipes["fp8"], None)
    assert (fp8.quantized, fp8.high_precision) == (linear, kept)
    assert fp8.total / 2**30 == pytest.approx(8.46, abs=0.01)
    nvfp4 = weight_bytes(shape, catalog.weight_recipes["nvfp4"], None)
    assert nvfp4.quantized == linear // 2 + linear // 16
    assert nvfp4.total / 2**30 == pytest.approx(5.61, abs=0.01)
    awq = weight_bytes(shape, catalog.weight_recipes["w4a16_awq"], 128)
    assert awq.quantized == linear // 2 + 4 * linear // 128
    assert weight_bytes(shape, catalog.weight_recipes["w4a16_awq"], 64).total > awq.total


def test_experts_without_shapes_are_not_guessed(catalog):
    shape, _ = known("Qwen--Qwen3-30B-A3B")
    assert shape.has_experts
    assert weight_bytes(shape, catalog.weight_recipes["fp8"], None) is None


def test_router_of_experts_stays_in_16_bit(catalog):
    shape, _ = known("Qwen--Qwen3-30B-A3B")
    tensors = {
        "model.layers.0.mlp.gate.weight": (128, 2048),
        "model.layers.0.mlp.experts.0.gate_proj.weight": (768, 2048),
    }
    weights = weight_bytes(shape, catalog.weight_recipes["fp8"], None, tensors)
    assert (weights.quantized, weights.high_precision) == (768 * 2048, 2 * 128 * 2048)


def test_kv_bytes_per_token():
    """Measured on a server: 131,072 (16 bit) and 65,536 (FP8) for Llama-3.1-8B."""
    shape, _ = known("meta-llama--Llama-3.1-8B")
    assert kv_bytes_per_token(shape, 16, 1, 1) == 131072
    assert kv_bytes_per_token(shape, 8, 1, 1) == 65536
    assert kv_bytes_per_token(shape, 8, 8, 1) == 8192
    assert kv_bytes_per_token(shape, 8, 16, 1) == 8192  # KV heads fewer than ranks: replicated
    assert kv_bytes_per_token(shape, 8, 1, 2) == 32768


def test_measured_pool_gives_the_measured_token_count():
    """vLLM on an H200: 114.80 GiB of KV cache held 1,880,848 FP8 tokens in blocks of 16."""
    assert pytest.approx(114.80, abs=0.005) == 1880848 * 65536 / 2**30
    assert pytest.approx(108.31, abs=0.005) == 887264 * 131072 / 2**30


def test_rank_bytes_split_tables_over_stages(catalog):
    shape, _ = known("meta-llama--Llama-3.1-8B")
    weights = weight_bytes(shape, catalog.weight_recipes["bf16"], None)
    table = 2 * 128256 * 4096
    assert weights.tables == (table, table)
    whole = rank_weight_bytes(weights, 32, 1, 1)
    assert whole == pytest.approx(weights.total, rel=1e-6)
    assert rank_weight_bytes(weights, 32, 1, 2) == pytest.approx(
        (weights.total - 2 * table) / 2 + table, rel=1e-6
    )
    assert rank_weight_bytes(weights, 32, 4, 1) == pytest.approx(weights.total / 4, rel=1e-6)


def test_fraction_is_a_share_of_what_is_free(catalog):
    shape, _ = known("meta-llama--Llama-3.1-8B")
    weights = weight_bytes(shape, catalog.weight_recipes["fp8"], None)
    sku = catalog.sku("h200-sxm")
    cap = capacity_of(shape, weights, KvCacheFormat.FP8, sku, tp=1, pp=1, fraction=0.9)
    free = 143771 * MIB - cap.weight_bytes - 2048 * MIB
    assert cap.free_bytes == free
    assert cap.kv_pool_bytes == int(0.9 * free)
    assert cap.kv_tokens % 32 == 0
    assert 0 <= cap.kv_pool_bytes - cap.kv_tokens * 65536 < 32 * 65536
    small = capacity_of(
        shape, weights, KvCacheFormat.FP8, catalog.sku("a10"), tp=1, pp=1, fraction=0.9
    )
    assert small.kv_tokens < cap.kv_tokens
    sixteen = capacity_of(shape, weights, KvCacheFormat.AUTO, sku, tp=1, pp=1, fraction=0.9)
    assert sixteen.kv_tokens == pytest.approx(cap.kv_tokens / 2, abs=32)


def test_model_larger_than_the_gpu_holds_nothing(catalog):
    shape, _ = known("meta-llama--Llama-3.1-70B")
    weights = weight_bytes(shape, catalog.weight_recipes["bf16"], None)
    cap = capacity_of(
        shape, weights, KvCacheFormat.AUTO, catalog.sku("h100-sxm"), tp=1, pp=1, fraction=0.9
    )
    assert (cap.free_bytes, cap.kv_tokens) == (0, 0)
    profile = Profile(
        input_tokens=Lengths(p50=1, p95=1), output_tokens=Lengths(p50=1, p95=1), concurrency=1
    )
    assert profile_plans(cap, {"a": profile}, 8)[0].concurrent_sequences == 0


def test_plan_verb_counts_the_real_tensors(make_job):
    profile = {
        "input_tokens": {"p50": 50, "p95": 200},
        "output_tokens": {"p50": 50, "p95": 101},
        "concurrency": 4,
    }
    first, second = plan(make_job(spec_data(workload={"chat": profile})))
    shapes = tensor_shapes(TINY)
    linear = sum(
        a * b for n, s in shapes.items() if ".layers." in n and len(s) == 2 for a, b in [s]
    )
    total = sum(s[0] * (s[1] if len(s) > 1 else 1) for s in shapes.values())
    # Per-tensor formats: a byte an element, the rest in 16 bit. per_layer is floored: within a layer.
    assert first.capacity.weight_bytes == pytest.approx(linear + 2 * (total - linear), abs=8)
    assert first.capacity.kv_bytes_per_token == 2 * 3 * 2 * 64
    assert first.profiles[0].tokens_per_sequence == 301
    assert first.profiles[0].bound_by == "max_batch_size"
    assert (first.sku, second.sku) == ("l4", "h100-sxm")
    assert second.capacity.memory_mib == 81559


def test_plan_of_an_unknown_model_says_so(make_job):
    one = plan(make_job(spec_data("some-org/some-model")))[0]
    assert one.capacity is None
    assert any("nothing was computed" in text for text in one.assumptions)
