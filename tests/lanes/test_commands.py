"""What the lanes emit, against the contract of every version they claim."""

from __future__ import annotations

import pytest

from engineroom.catalog.load import in_range
from engineroom.lanes import LANES, LaneRequest
from engineroom.names import LaneName
from engineroom.spec import parse_spec
from tests.conftest import spec_data


def request(
    catalog, version, lane, *, sku="h100-sxm", serving=None, weights="fp8", kv="fp8", **target
):
    import yaml

    data = spec_data(
        "some/model",
        precision={"weights": weights, "kv_cache": kv},
        serving=serving or {},
        targets=[{"sku": sku, "lane": lane, "stack": {"trtllm": version, "image": "x"}, **target}],
    )
    spec = parse_spec(yaml.safe_dump(data)).spec
    chosen = spec.targets[0]
    return LaneRequest(
        spec=spec,
        target=chosen,
        sku=catalog.sku(sku),
        stack=catalog.stack(chosen.stack),
        contract=catalog.contract(version),
        weight_recipe=catalog.weight_recipe(weights),
        kv_recipe=catalog.kv_recipe(spec.precision.kv_cache),
        max_seq_len=4096,
        checkpoint="checkpoints/c",
    )


VERSIONS = ["0.21.0", "1.0.0", "1.1.0", "1.2.1", "1.4.0rc4"]


@pytest.mark.parametrize("version", VERSIONS[:4])
@pytest.mark.parametrize("sku", ["l4", "h100-sxm", "b200-sxm"])
def test_build_argv_is_in_the_contract(catalog, version, sku):
    step = LANES[LaneName.ENGINE].steps(request(catalog, version, "engine", sku=sku))[0]
    known = catalog.contract(version).build_flags
    assert step.argv[0] == "trtllm-build"
    flags = dict(zip(step.argv[1::2], step.argv[2::2], strict=True))
    for flag, value in flags.items():
        assert flag in known
        choices = known[flag]["choices"]
        assert choices is None or value in choices, flag
    assert flags["--kv_cache_type"] == "paged"
    assert flags["--remove_input_padding"] == "enable"
    # FP8 with paged context FMHA needs FP8 context FMHA, which is documented for Ada and Hopper.
    both = "disable" if sku == "b200-sxm" else "enable"
    assert flags["--use_paged_context_fmha"] == flags["--use_fp8_context_fmha"] == both
    assert flags["--gemm_plugin"] == "disable"  # max_batch_size 64
    assert set(step.reasons) == set(flags)
    assert "kv" not in "".join(flags).replace("--kv_cache_type", "")  # FP8 KV is no flag


def test_fp8_and_paged_fmha_go_together(catalog):
    serving = {"kv_block_reuse": False, "chunked_context": False}
    step = LANES[LaneName.ENGINE].steps(request(catalog, "1.2.1", "engine", serving=serving))[0]
    flags = dict(zip(step.argv[1::2], step.argv[2::2], strict=True))
    assert (flags["--use_paged_context_fmha"], flags["--use_fp8_context_fmha"]) == (
        "disable",
        "disable",
    )


def test_input_length_follows_chunking(catalog):
    def max_input(serving):
        limits = {"max_num_tokens": 2048, "max_seq_len": 4096}
        step = LANES[LaneName.ENGINE].steps(
            request(catalog, "1.2.1", "engine", serving=serving, limits=limits)
        )[0]
        return step.argv[step.argv.index("--max_input_len") + 1]

    assert max_input({}) == "2048"
    assert max_input({"chunked_context": True}) == "4096"


@pytest.mark.parametrize("version", VERSIONS)
def test_llm_args_are_in_the_contract(catalog, version):
    contract = catalog.contract(version)
    args = LANES[LaneName.LLMAPI].documents(request(catalog, version, "llmapi"))["llm_args.yaml"]
    assert set(args) <= set(contract.llm_fields)
    nested = contract.nested_fields("kv_cache_config", "KvCacheConfig")
    assert set(args["kv_cache_config"]) <= nested
    assert args["kv_cache_config"]["free_gpu_memory_fraction"] == 0.90
    for field, name in (
        ("scheduler_config", "SchedulerConfig"),
        ("cuda_graph_config", "CudaGraphConfig"),
    ):
        assert set(args.get(field, {})) <= contract.nested_fields(field, name)
    assert args["scheduler_config"] == {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"}
    assert args["max_batch_size"] == 64
    assert args["enable_iter_perf_stats"] is True  # off by default: no statistics, no metrics
    assert "trust_remote_code" not in args


def test_llm_args_differ_by_version_through_data(catalog):
    def args(version, **kw):
        return LANES[LaneName.LLMAPI].documents(request(catalog, version, "llmapi", **kw))[
            "llm_args.yaml"
        ]

    old, new = args("0.21.0"), args("1.2.1")
    assert old["kv_cache_dtype"] == "fp8"
    assert "dtype" not in old["kv_cache_config"]
    assert old["use_cuda_graph"] is True
    assert "cuda_graph_config" not in old
    assert new["kv_cache_config"]["dtype"] == "fp8"
    assert new["cuda_graph_config"] == {"max_batch_size": 64, "enable_padding": True}
    # 16-bit names are not synced before 1.3: auto is what means 16 bit.
    assert args("1.2.1", kv="bf16")["kv_cache_config"]["dtype"] == "auto"


def test_settings_reach_the_arguments(catalog):
    serving = {
        "kv_block_reuse": False, "chunked_context": True, "attention_backend": "FLASHINFER",
        "kv_cache_free_gpu_mem_fraction": 0.5, "scheduler_policy": "max_utilization",
    }  # fmt: skip
    args = LANES[LaneName.LLMAPI].documents(
        request(catalog, "1.2.1", "llmapi", serving=serving, tensor_parallel=4, pipeline_parallel=2)
    )["llm_args.yaml"]
    assert args["kv_cache_config"]["enable_block_reuse"] is False
    assert args["kv_cache_config"]["free_gpu_memory_fraction"] == 0.5
    assert args["enable_chunked_prefill"] is True
    assert args["attn_backend"] == "FLASHINFER"
    assert args["scheduler_config"]["capacity_scheduler_policy"] == "MAX_UTILIZATION"
    assert (args["tensor_parallel_size"], args["pipeline_parallel_size"]) == (4, 2)


def test_lanes_claim_what_contracts_show(catalog):
    for version in VERSIONS:
        contract = catalog.contract(version)
        assert in_range(version, LANES[LaneName.ENGINE].stack_versions) == contract.has_engine_lane
        assert in_range(version, LANES[LaneName.LLMAPI].stack_versions) == contract.has_llmapi_lane
