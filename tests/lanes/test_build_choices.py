"""Which plugins, profiles and kernels an engine gets, by format, GPU, model and workload."""

from __future__ import annotations

import dataclasses
import json

import pytest
import yaml

from engineroom.errors import SpecError
from engineroom.lanes import LANES
from engineroom.lanes.base import Attachment
from engineroom.lanes.engine.build import build_flags
from engineroom.lanes.engine.memory import BUILDER_BYTES, COPIES
from engineroom.names import LaneName
from engineroom.planning import target_capacity, weight_bytes
from engineroom.spec import parse_spec
from engineroom.types import ModelShape
from tests.conftest import ROOT, spec_data
from tests.lanes.test_commands import request

GIB = 2**30


def shape(name: str, **changes) -> ModelShape:
    data = json.loads((ROOT / f"tests/data/configs/{name}.json").read_text())["config"]
    return ModelShape.from_config({**data, **changes})


LLAMA_8B, LLAMA_70B = shape("meta-llama--Llama-3.1-8B"), shape("meta-llama--Llama-3.1-70B")


def profile(prompt: int, answer: int):
    return {
        "input_tokens": {"p50": prompt, "p95": 2 * prompt},
        "output_tokens": {"p50": answer, "p95": 2 * answer}, "concurrency": 8,
    }  # fmt: skip


def flags(catalog, *, model=None, workload=None, **kw) -> dict[str, str]:
    asked = request(catalog, "1.2.1", "engine", **kw)
    if workload is not None:
        data = spec_data("some/model", workload=workload)
        spec = parse_spec(yaml.safe_dump(data)).spec
        asked = dataclasses.replace(
            asked, spec=asked.spec.model_copy(update={"workload": spec.workload})
        )
    asked = dataclasses.replace(asked, shape=model)
    return {flag: " ".join(words) for flag, words in build_flags(asked)[0].items()}


@pytest.mark.parametrize(
    ("sku", "weights", "plugin"),
    [("a100-sxm-80gb", "bf16", "auto"), ("h100-sxm", "fp16", "auto"), ("h100-sxm", "fp8", "disable"),
     ("a100-sxm-80gb", "w4a16_awq", "auto"), ("b200-sxm", "nvfp4", "nvfp4")],
)  # fmt: skip
def test_gemm_plugin(catalog, sku, weights, plugin):
    """As the tuning guide recommends: on for 16 bit, off for FP8; FP4's own GEMM for NVFP4."""
    found = flags(catalog, sku=sku, weights=weights, kv="auto", limits={"max_batch_size": 2})
    assert found["--gemm_plugin"] == plugin


@pytest.mark.parametrize(
    ("sku", "weights", "kv", "paged", "fp8"),
    [
        ("h100-sxm", "fp8", "fp8", "enable", "enable"), ("l40s", "fp8", "fp8", "enable", "enable"),
        # Not documented on Blackwell, and a build is reported to fail.
        ("b200-sxm", "fp8", "fp8", "disable", "disable"), ("b200-sxm", "nvfp4", "fp8", "disable", "disable"),
        # FP8 queries read an FP8 cache; a 16-bit cache has 16-bit kernels everywhere.
        ("h100-sxm", "fp8", "auto", "enable", "disable"), ("b200-sxm", "nvfp4", "auto", "enable", "disable"),
        ("h100-sxm", "w4a16_awq", "fp8", "disable", "disable"), ("h100-sxm", "bf16", "fp8", "disable", "disable"),
        ("a100-sxm-80gb", "bf16", "bf16", "enable", "disable"),
    ],
)  # fmt: skip
def test_context_kernels(catalog, sku, weights, kv, paged, fp8):
    found = flags(catalog, sku=sku, weights=weights, kv=kv)
    assert (found["--use_paged_context_fmha"], found["--use_fp8_context_fmha"]) == (paged, fp8)


def test_the_server_is_told_what_the_engine_cannot(catalog):
    """An INT4 engine with an FP8 cache has no KV reuse: the config says so, and `check` warns."""
    from tests.lanes.test_features import config, parameters

    found = parameters(config(catalog, weights="w4a16_awq", kv="fp8")[0])
    assert found["enable_kv_cache_reuse"] == "false"
    asked = request(catalog, "1.2.1", "engine", weights="w4a16_awq", kv="fp8")
    codes = {
        f.code
        for f in LANES[LaneName.ENGINE].findings(asked.spec, asked.target, asked.sku, asked.stack)
    }
    assert "fp8-engine-without-paged-fmha" in codes


def test_profiles(catalog):
    assert flags(catalog)["--multiple_profiles"] == "enable"
    tuned = flags(catalog, limits={"opt_num_tokens": 256})
    assert (tuned["--opt_num_tokens"], tuned["--multiple_profiles"]) == ("256", "disable")
    assert flags(catalog, engine={"multiple_profiles": False})["--multiple_profiles"] == "disable"


@pytest.mark.parametrize(
    ("model", "tensor_parallel", "workload", "fused"),
    [
        (LLAMA_70B, 4, {"chat": profile(200, 400)}, "enable"),
        (LLAMA_70B, 4, {"chat": profile(200, 400), "rag": profile(4000, 300)}, "disable"),
        (LLAMA_70B, 4, {}, "disable"), (LLAMA_70B, 1, {"chat": profile(200, 400)}, "disable"),
        (shape("Qwen--Qwen3-32B"), 4, {"chat": profile(200, 400)}, "disable"),
        (None, 4, {"chat": profile(200, 400)}, "disable"),
    ],
)  # fmt: skip
def test_reduce_fusion_follows_model_and_workload(catalog, model, tensor_parallel, workload, fused):
    found = flags(catalog, model=model, tensor_parallel=tensor_parallel, workload=workload)
    assert found["--reduce_fusion"] == fused
    assert found["--user_buffer"] == "disable"


def test_experts_get_their_plugin(catalog):
    assert "--moe_plugin" not in flags(catalog, model=LLAMA_8B)
    assert flags(catalog, model=shape("Qwen--Qwen3-30B-A3B"))["--moe_plugin"] == "auto"


def test_overrides_reach_the_command(catalog):
    options = {
        "tokens_per_block": 64, "max_prompt_embedding_table_size": 1024, "workers": 1,
        "reduce_fusion": True, "user_buffer": True, "low_latency_gemm_plugin": True,
        "gemm_swiglu_plugin": True, "use_fused_mlp": True, "gemm_plugin": "fp8",
    }  # fmt: skip
    found = flags(catalog, tensor_parallel=2, engine=options)
    for name, value in options.items():
        on = "fp8" if name.endswith("_plugin") else "enable"
        assert found[f"--{name}"] == (on if value is True else str(value)), name


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ({"engine": {"workers": 2}}, "engine.workers 2, and there are 1 ranks"),
        ({"tensor_parallel": 4, "llmapi": {"moe_expert_parallel_size": 3}}, "3 does not divide tensor_parallel 4"),
        ({"llmapi": {"cuda_graphs": False, "cuda_graph_batch_sizes": [1]}}, "never read"),
        ({"engine": {"gemm_swiglu_plugin": True, "low_latency_gemm_swiglu_plugin": True}}, "exclude each other"),
        ({"engine": {"gemm_plugin": "float16"}}, "gemm_plugin"), ({"engine": {"fast_build": True}}, "fast_build"),
    ],
)  # fmt: skip
def test_what_no_lane_could_do_is_no_spec(target, why):
    row = {"sku": "h100-sxm", "stack": {"trtllm": "1.2.1", "image": "x"}, **target}
    with pytest.raises(SpecError) as caught:
        parse_spec(yaml.safe_dump(spec_data("some/model", targets=[row])))
    assert why in caught.value.render()


# ---- host memory
def build_step(catalog, model, **kw):
    asked = dataclasses.replace(request(catalog, "1.2.1", "engine", **kw), shape=model)
    return LANES[LaneName.ENGINE].steps(asked)[0]


@pytest.mark.parametrize(
    ("weights", "peak"), [(70725, 176260), (19386, 40291), (15317, 38513)], ids=["35B", "9B", "8B"]
)
def test_host_memory_covers_the_builds_that_were_logged(weights, peak):
    """MiB that TensorRT printed for a model's weights and for the host's peak."""
    assert peak < COPIES * weights + BUILDER_BYTES / 2**20 < 1.4 * peak


def test_host_memory_is_above_what_builds_took(catalog):
    """Llama 3 8B in BF16 printed a peak of 38513 MiB; a third of it more would waste a machine."""
    needed = build_step(catalog, LLAMA_8B, weights="bf16", kv="auto").host_memory_bytes
    assert 38513 * 2**20 < needed < 1.25 * 38513 * 2**20


def test_host_memory_of_ranks(catalog):
    one = build_step(catalog, LLAMA_70B, tensor_parallel=4, engine={"workers": 1})
    four = build_step(catalog, LLAMA_70B, tensor_parallel=4)
    assert four.host_memory_bytes == 4 * one.host_memory_bytes
    # 70.6 GB of FP8 linears and 16-bit tables over four ranks, 2.5 times, and 4 GiB.
    assert 45 * GIB < one.host_memory_bytes < 50 * GIB
    assert (one.gpus, four.gpus) == (1, 4)
    assert four.argv[four.argv.index("--workers") + 1] == "4"


def test_host_memory_that_nobody_knows(catalog):
    assert build_step(catalog, None).host_memory_bytes is None
    assert build_step(catalog, shape("Qwen--Qwen3-30B-A3B")).host_memory_bytes is None


def test_plan_counts_the_blocks_that_are_asked_for(catalog):
    """A KV pool holds whole blocks only, so larger blocks hold no more tokens."""

    def capacity(**options):
        asked = request(catalog, "1.2.1", "engine", engine=options)
        weights = weight_bytes(LLAMA_8B, asked.weight_recipe, None)
        return target_capacity(LLAMA_8B, weights, asked.spec, asked.target, asked.sku, asked.stack)[
            0
        ]

    plain, larger = capacity(), capacity(tokens_per_block=128)
    assert (plain.tokens_per_block, larger.tokens_per_block) == (32, 128)
    assert larger.kv_tokens % 128 == 0
    assert plain.kv_tokens - 128 < larger.kv_tokens <= plain.kv_tokens


# ---- what travels
FEATURES = {
    "lora": {"adapters": [
        {"name": "sql", "source": "./sql", "task_id": 1},
        {"name": "fr", "source": "org/fr", "task_id": 2, "travels": False},
    ]},
    "speculative": {"mode": "draft_target", "draft_model": "org/draft"},
}  # fmt: skip
SQL = Attachment(
    "lora-adapter", "sql", "./sql", "serving.features.lora.adapters[0].source", "adapters/sql"
)


def test_adapters_and_draft_travel_with_a_package(catalog):
    asked = request(catalog, "1.2.1", "llmapi", serving={"features": FEATURES})
    lane = LANES[LaneName.LLMAPI]
    draft = Attachment(
        "draft-model", "draft", "org/draft", "serving.features.speculative.draft_model", "draft"
    )
    assert lane.attachments(asked) == (SQL, draft)
    assert set(lane.steps(asked)[0].outputs) >= {"adapters/sql", "draft"}
    # What lies in the package names what lies beside it, wherever it is mounted.
    speculative = lane.documents(asked)["llm_args.yaml"]["speculative_config"]
    assert speculative["speculative_model_dir"] == "./draft"


def test_what_stays_is_named_as_the_spec_has_it(catalog):
    stays = {
        "lora": {"adapters": [FEATURES["lora"]["adapters"][1]]},
        "speculative": {**FEATURES["speculative"], "draft_travels": False},
    }
    asked = request(catalog, "1.2.1", "llmapi", serving={"features": stays})
    lane = LANES[LaneName.LLMAPI]
    assert lane.attachments(asked) == ()
    speculative = lane.documents(asked)["llm_args.yaml"]["speculative_config"]
    assert speculative["speculative_model_dir"] == "org/draft"


def test_the_server_is_given_whole_paths(catalog):
    from tests.llmapi.test_lane import rendered

    files, _, parameters = rendered(catalog, serving={"features": FEATURES})
    assert [row["path"] for row in json.loads(parameters["lora_adapters"])] == [
        "/art/adapters/sql",
        "org/fr",
    ]
    model = json.loads(files["tensorrt_llm/1/model.yaml"])
    assert model["speculative_config"]["speculative_model_dir"] == "/art/draft"


def test_an_engine_takes_nothing_along(catalog):
    asked = request(catalog, "1.2.1", "engine", serving={"features": FEATURES})
    assert LANES[LaneName.ENGINE].attachments(asked) == ()
