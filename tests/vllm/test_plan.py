"""Memory of the vllm lane against a server that was measured: vLLM 0.21.0 on an H200, total x 0.90."""

from __future__ import annotations

import json

import pytest

from engineroom.names import KvCacheFormat
from engineroom.pipeline import plan
from engineroom.planning import VLLM_RESERVE_MIB, capacity_of, weight_bytes, whole_blocks
from engineroom.types import ModelShape
from tests.conftest import ROOT, TINY, spec_data

GIB = 2**30
LLAMA = json.loads((ROOT / "tests/data/configs/meta-llama--Llama-3.1-8B.json").read_text())
# (weights, KV format, KV GiB available, KV tokens, bytes a token), as the server logged them.
MEASURED = [
    ("bf16", KvCacheFormat.BF16, 108.31, 887_264, 131_072),
    ("fp8", KvCacheFormat.FP8, 114.80, 1_880_848, 65_536),
]


@pytest.mark.parametrize(("weights", "kv", "gib", "tokens", "per_token"), MEASURED)
def test_plan_is_within_half_a_percent_of_the_server(catalog, weights, kv, gib, tokens, per_token):
    shape, sku = ModelShape.from_config(LLAMA["config"]), catalog.sku("h200-sxm")
    assert sku.memory_mib == 143_771
    size = weight_bytes(shape, catalog.weight_recipes[weights], None)
    capacity = capacity_of(
        shape, size, kv, sku,
        tp=1, pp=1, fraction=0.90, of_total=True, reserve_mib=VLLM_RESERVE_MIB, tokens_per_block=16,
    )  # fmt: skip
    assert capacity.kv_bytes_per_token == per_token
    assert capacity.kv_pool_bytes / GIB == pytest.approx(gib, rel=0.001)
    assert capacity.kv_tokens == pytest.approx(tokens, rel=0.001)
    assert capacity.kv_tokens % 16 == 0


@pytest.mark.parametrize(("weights", "kv", "gib", "tokens", "per_token"), MEASURED)
def test_tokens_are_whole_blocks_of_what_was_free(weights, kv, gib, tokens, per_token):
    """The log rounds to 0.01 GiB, which is 82 or 164 tokens."""
    low, high = (whole_blocks(int((gib + d) * GIB), per_token, 16) for d in (-0.005, 0.005))
    assert low <= tokens <= high
    assert tokens % 16 == 0


def _plan(make_job, **serving):
    target = {"sku": "h200-sxm", "lane": "vllm", "stack": "26.07"}
    return plan(make_job(spec_data(TINY, targets=[target], serving=serving)))[0]


def test_share_is_of_the_total_and_not_of_the_rest(make_job):
    """Half the share is half the total less the same weights and reserve, not half the pool."""
    total = 143_771 * 2**20
    high, low = (_plan(make_job, gpu_memory_utilization=share).capacity for share in (0.90, 0.45))
    assert high.kv_pool_bytes - low.kv_pool_bytes == pytest.approx(0.45 * total, abs=2)
    other = _plan(make_job, kv_cache_free_gpu_mem_fraction=0.5).capacity
    assert other.kv_pool_bytes == high.kv_pool_bytes  # the other lanes' share is not read
    assert _plan(make_job, gpu_memory_utilization=0.01).capacity.kv_tokens == 0


def test_block_size_decides_the_whole_blocks(make_job):
    for size in (16, 128):
        capacity = _plan(make_job, vllm={"block_size": size}).capacity
        assert capacity.tokens_per_block == size
        assert capacity.kv_tokens % size == 0
    assert "total" not in "".join(_plan(make_job).assumptions[1:])
    assert "one H200" in _plan(make_job).assumptions[0]
