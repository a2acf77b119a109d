"""Each rule on an input that breaks it, and on its sound neighbour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engineroom.checks import order
from engineroom.checks.drivers import parse_driver
from engineroom.names import Severity
from engineroom.pipeline import check
from engineroom.types import Finding, ModelShape
from tests.conftest import ROOT, SMOLLM2_CONFIG, TINY, spec_data

LLMAPI_L4 = {"sku": "l4", "lane": "llmapi", "stack": "26.07"}


def config(tmp_path: Path, **keys) -> Path:
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    base = json.loads((TINY / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**base, **keys}))
    return folder


def findings(make_job, model=SMOLLM2_CONFIG, **changes) -> dict[str, Finding]:
    changes.setdefault("targets", [LLMAPI_L4])
    return {f.code: f for f in check(make_job(spec_data(model, **changes)))}


def errors(found: dict[str, Finding]) -> set[str]:
    return {code for code, f in found.items() if f.severity is Severity.ERROR}


# ---- the five of the main job: key, reason, remedy, source
@pytest.mark.parametrize(
    ("changes", "code", "key", "reason", "fix"),
    [
        ({"targets": [{**LLMAPI_L4, "sku": "a100-sxm-80gb"}], "precision": {"weights": "fp8"}},
         "weights-format-not-supported", "precision.weights", "8.9 (Ada)", "w4a16_awq"),
        ({"targets": [{**LLMAPI_L4, "sku": "h100-sxm"}], "precision": {"weights": "nvfp4"}},
         "weights-format-not-supported", "precision.weights", "Blackwell", "fp8"),
        ({"targets": [{"sku": "h100-sxm", "lane": "engine", "stack": {"trtllm": "1.4.0rc4", "image": "x"}}]},
         "lane-not-in-version", "targets[0].lane", "1.4.0rc4", "lane: llmapi"),
        ({"precision": {"weights": "w4a16_awq", "group_size": 128}},
         "group-size-partial", "precision.group_size", "q_proj has 576 = 4.5 x 128", "group_size: 64"),
        ({"targets": [{**LLMAPI_L4, "tensor_parallel": 2}]},
         "tensor-parallel-heads", "targets[0].tensor_parallel", "9 attention heads do not divide by 2",
         "tensor_parallel 1, 3"),
    ],
)  # fmt: skip
def test_refusals(make_job, changes, code, key, reason, fix):
    found = findings(make_job, **changes)
    assert code in errors(found)
    finding = found[code]
    assert finding.key == key
    assert reason in finding.reason
    assert fix in finding.fix
    assert len(finding.source) > 10


def test_awq_with_group_64_fits_smollm2(make_job):
    assert errors(findings(make_job, precision={"weights": "w4a16_awq", "group_size": 64})) == set()


def test_smollm2_in_fp8_is_fine_in_both_lanes(make_job):
    targets = [LLMAPI_L4, {"sku": "h100-sxm", "lane": "engine", "stack": "26.07"}]
    found = findings(make_job, targets=targets)
    assert {c for c, f in found.items() if f.severity is not Severity.INFO} == set()


# ---- lanes and versions
def test_engine_lane_exists_up_to_1_2(make_job):
    for version in ("0.21.0", "1.0.0", "1.1.0", "1.2.1"):
        target = {"sku": "h100-sxm", "lane": "engine", "stack": {"trtllm": version, "image": "x"}}
        assert errors(findings(make_job, targets=[target])) == set(), version


def test_unknown_version_warns_and_is_never_yes(make_job):
    target = {**LLMAPI_L4, "stack": {"trtllm": "1.2.2", "image": "x"}}
    found = findings(make_job, targets=[target])
    assert found["unknown-trtllm-version"].severity is Severity.WARN
    assert "1.2.1" in found["unknown-trtllm-version"].fix


def test_removed_lane_is_an_error_without_a_contract_too(make_job):
    target = {"sku": "h100-sxm", "lane": "engine", "stack": {"trtllm": "1.5.0", "image": "x"}}
    assert "lane-not-in-version" in errors(findings(make_job, targets=[target]))


def test_doubtful_release_is_said(make_job):
    found = findings(make_job, targets=[{**LLMAPI_L4, "stack": "25.11"}])
    assert "1.2.0rc2" in found["doubtful-stack"].reason


def test_stack_without_an_image_warns(make_job):
    target = {**LLMAPI_L4, "stack": {"trtllm": "1.2.1"}}
    found = findings(make_job, targets=[target])
    assert found["stack-without-image"].severity is Severity.WARN
    assert "stack-without-image" not in findings(
        make_job, targets=[target], deploy={"image": "x/y:1"}
    )


def test_fp8_engine_on_blackwell_loses_kv_reuse(make_job):
    engine = {"sku": "b200-sxm", "lane": "engine", "stack": "26.07"}
    found = findings(make_job, TINY, targets=[engine])
    assert "kv_block_reuse will be off" in found["fp8-engine-without-paged-fmha"].reason
    off = findings(make_job, TINY, targets=[engine], serving={"kv_block_reuse": False})
    assert "fp8-engine-without-paged-fmha" not in off
    assert "fp8-engine-without-paged-fmha" not in findings(
        make_job, TINY, targets=[{**engine, "sku": "l4"}]
    )


# ---- precision
def test_unknown_cell_warns(make_job):
    precision = {"weights": "w4a16_awq", "group_size": 64}
    found = findings(make_job, targets=[{**LLMAPI_L4, "sku": "gb10"}], precision=precision)
    assert found["unknown-weights-support"].severity is Severity.WARN
    assert errors(found) == set()


def test_kv_axis_is_its_own_verdict(make_job):
    """On Ampere the llmapi table lists FP8 KV, the engine table does not."""
    precision = {"weights": "bf16", "kv_cache": "fp8"}
    a100 = {**LLMAPI_L4, "sku": "a100-sxm-80gb"}
    assert "kv-cache-format-not-supported" not in findings(
        make_job, precision=precision, targets=[a100]
    )
    engine = {**a100, "lane": "engine"}
    found = findings(make_job, precision=precision, targets=[engine])
    assert "kv-cache-format-not-supported" in errors(found)
    assert "weights-format-not-supported" not in found


def test_awq_was_refused_on_sm100_and_is_listed_later(make_job):
    precision = {"weights": "w4a16_awq", "group_size": 64}
    old = {**LLMAPI_L4, "sku": "b200-sxm"}
    assert "weights-format-not-supported" in errors(
        findings(make_job, precision=precision, targets=[old])
    )
    new = {**old, "stack": {"trtllm": "1.4.0rc4", "image": "x"}}
    assert errors(findings(make_job, precision=precision, targets=[new])) == set()


@pytest.mark.parametrize("kv", ["int8", "nvfp4"])
def test_kv_formats_that_we_do_not_make(make_job, kv):
    found = findings(make_job, precision={"weights": "fp8", "kv_cache": kv})
    assert "not implemented" in found["kv-recipe-not-implemented"].reason


def test_qkv_bias_with_fp8_kv_warns(make_job, tmp_path):
    folder = config(tmp_path, model_type="qwen2", architectures=["Qwen2ForCausalLM"])
    found = findings(make_job, folder)
    assert found["fp8-kv-with-qkv-bias"].severity is Severity.WARN
    assert "#4218" in found["fp8-kv-with-qkv-bias"].source
    assert "fp8-kv-with-qkv-bias" not in findings(make_job, folder, precision={"weights": "fp8"})


def test_engine_checkpoints_of_every_format_and_layout_that_can_be_cut(make_job):
    engine = {"sku": "h100-sxm", "lane": "engine", "stack": "26.07"}
    for weights in ("fp8", "w4a16_awq", "bf16", "fp16"):
        for tp, pp in ((1, 1), (2, 1), (2, 2), (1, 3)):
            target = {**engine, "tensor_parallel": tp, "pipeline_parallel": pp}
            found = findings(make_job, TINY, precision={"weights": weights}, targets=[target])
            assert not errors(found), (weights, tp, pp, errors(found))


@pytest.mark.parametrize(
    ("group", "tp", "codes"),
    # The tiny model has widths of 256, 512 and 768: on 4 ranks a part is 64 wide.
    [(64, 4, set()), (128, 2, set()), (128, 4, {"engine-awq-multiple", "group-size-partial"})],
)
def test_awq_groups_of_engine_ranks(make_job, group, tp, codes):
    target = {"sku": "h100-sxm", "lane": "engine", "stack": "26.07", "tensor_parallel": tp}
    precision = {"weights": "w4a16_awq", "group_size": group}
    assert set(errors(findings(make_job, TINY, precision=precision, targets=[target]))) == codes


def test_nvfp4_scales_that_are_padded_are_no_promise(make_job):
    """On 4 ranks qkv has 64 + 2 x 64 rows (each KV head on two ranks), on 2 ranks 256."""
    for tp, padded in ((2, False), (4, True)):
        target = {"sku": "b200-sxm", "lane": "engine", "stack": "26.07", "tensor_parallel": tp}
        found = findings(make_job, TINY, precision={"weights": "nvfp4"}, targets=[target])
        reasons = [f.reason for f in found.values() if f.code == "engine-nvfp4-padded-scales"]
        assert bool(reasons) is padded
        assert not padded or "attention.qkv has 192 x 256" in reasons[0]


# ---- drivers: toolkit, floor, data centre
@pytest.mark.parametrize(
    ("sku", "driver", "code", "severity"),
    [
        ("l4", "590.44.01", None, None),
        ("l4", "610.43.02", None, None),
        ("l4", "580.65.06", "driver-minor-compat", Severity.INFO),
        ("l4", "575.57.08", "driver-needs-compat-package", Severity.WARN),
        ("rtx-4090", "575.57.08", "driver-too-old", Severity.ERROR),
        ("l4", "latest", "driver-unreadable", Severity.ERROR),
    ],
)
def test_drivers(make_job, sku, driver, code, severity):
    found = findings(make_job, targets=[{**LLMAPI_L4, "sku": sku, "driver": driver}])
    about = {c: f.severity for c, f in found.items() if c.startswith(("driver", "unknown-driver"))}
    assert about == ({code: severity} if code else {})


def test_driver_versions_compare_by_number():
    assert parse_driver("580.159.04") > parse_driver("580.65.06")
    assert parse_driver("535.86") == (535, 86)
    assert parse_driver("535.86; rm") is None


# ---- shapes and parallel sizes
@pytest.mark.parametrize(
    ("heads", "kv", "allowed"), [(28, 4, (1, 2, 4)), (9, 3, (1, 3)), (32, 8, (1, 2, 4, 8)), (64, 1, (1, 2, 4, 8))]
)  # fmt: skip
def test_allowed_tensor_parallel(heads, kv, allowed):
    base = json.loads((TINY / "config.json").read_text())
    shape = ModelShape.from_config(
        {**base, "num_attention_heads": heads, "num_key_value_heads": kv}
    )
    assert shape.allowed_tensor_parallel == allowed


@pytest.mark.parametrize(
    ("tp", "group", "bad"), [(1, 128, False), (2, 128, False), (4, 128, True), (4, 64, False)]
)
def test_awq_groups_per_rank(make_job, tmp_path, tp, group, bad):
    """intermediate 11008: 11008/4 = 2752 = 21.5 x 128, but 43 x 64."""
    folder = config(
        tmp_path, hidden_size=4096, intermediate_size=11008, num_attention_heads=32,
        num_key_value_heads=32, head_dim=128,
    )  # fmt: skip
    found = findings(
        make_job, folder,
        precision={"weights": "w4a16_awq", "group_size": group},
        targets=[{**LLMAPI_L4, "tensor_parallel": tp}],
    )  # fmt: skip
    assert ("group-size-partial" in found) is bad
    if bad:
        assert "down_proj has 11008/4 = 2752 = 21.5 x 128" in found["group-size-partial"].reason
        assert "tensor_parallel: 2, or group_size: 64" in found["group-size-partial"].fix


def test_group_256_has_no_kernel(make_job):
    found = findings(make_job, TINY, precision={"weights": "w4a16_awq", "group_size": 256})
    assert "64 and 128 only, not 256" in found["group-size-without-kernel"].reason


def test_nvfp4_has_one_block_size(make_job):
    found = findings(make_job, TINY, precision={"weights": "nvfp4", "group_size": 32})
    assert "16 only, not 32" in found["group-size-not-allowed"].reason


def test_group_size_on_a_format_without_groups(make_job):
    found = findings(make_job, precision={"weights": "fp8", "group_size": 64})
    assert "group-size-unused" in errors(found)


def test_explicit_head_dim_wins():
    """Qwen3-32B: 64 heads of 128 on hidden 5120, so o_proj has 8192 inputs."""
    data = json.loads((ROOT / "tests/data/configs/Qwen--Qwen3-32B.json").read_text())
    shape = ModelShape.from_config(data["config"])
    assert shape.head_dim == 128
    assert shape.linear_shapes["o_proj"] == (5120, 8192)


def test_too_many_gpus_for_one_node(make_job, tmp_path):
    folder = config(tmp_path, num_attention_heads=64, num_key_value_heads=64)
    found = findings(
        make_job, folder, targets=[{**LLMAPI_L4, "tensor_parallel": 8, "pipeline_parallel": 2}]
    )
    assert "= 16 GPUs" in found["multi-node-not-implemented"].reason


# ---- limits and workload
def test_prompt_over_max_num_tokens(make_job):
    workload = {
        "long": {
            "input_tokens": {"p50": 100, "p95": 5000},
            "output_tokens": {"p50": 10, "p95": 20},
            "concurrency": 1,
        }
    }
    limits = {"max_num_tokens": 4096}
    targets = [{**LLMAPI_L4, "limits": limits}]
    found = findings(make_job, targets=targets, workload=workload)
    assert "5000" in found["prompt-over-max-num-tokens"].reason
    chunked = findings(
        make_job, targets=targets, workload=workload, serving={"chunked_context": True}
    )
    assert "prompt-over-max-num-tokens" not in chunked
    short = [{**LLMAPI_L4, "limits": {"max_seq_len": 5019, "max_num_tokens": 8192}}]
    assert "workload-over-seq-len" in errors(findings(make_job, targets=short, workload=workload))


def test_batch_over_tokens(make_job):
    limits = {"max_batch_size": 64, "max_num_tokens": 32}
    found = findings(make_job, targets=[{**LLMAPI_L4, "limits": limits}])
    assert "batch-over-tokens" in errors(found)


def test_fraction_warnings(make_job):
    found = findings(
        make_job, serving={"kv_cache_free_gpu_mem_fraction": 0.95, "gpu_memory_utilization": 0.9}
    )
    assert found["kv-fraction-too-high"].severity is Severity.WARN
    assert (
        "free after load"
        in found["gpu-memory-utilization-unused"].fix
        + found["gpu-memory-utilization-unused"].reason
    )


def test_missing_calibration_is_an_error(make_job):
    data = spec_data(SMOLLM2_CONFIG, targets=[LLMAPI_L4])
    del data["calibration"]
    assert "calibration-missing" in {f.code for f in check(make_job(data))}
    data["precision"] = {"weights": "bf16"}
    assert "calibration-missing" not in {f.code for f in check(make_job(data))}


def test_hub_model_that_is_not_here(make_job):
    found = findings(make_job, "some-org/some-model")
    assert found["unknown-model-shape"].severity is Severity.WARN


def test_every_finding_is_complete(make_job):
    """Reason, fix and source are never empty, whatever is wrong."""
    targets = [
        {"sku": sku, "lane": lane, "stack": stack, "tensor_parallel": 2, "driver": "500.1"}
        for sku in ("a100-sxm-80gb", "rtx-4090", "gb10")
        for lane in ("llmapi", "engine")
        for stack in ("26.07", "25.11", {"trtllm": "1.4.0rc4"})
    ]
    seen = check(
        make_job(
            spec_data(
                SMOLLM2_CONFIG, targets=targets, precision={"weights": "nvfp4", "kv_cache": "int8"}
            )
        )
    )
    assert len(seen) > 20
    for f in seen:
        assert f.reason
        assert f.fix
        assert f.source
        assert f.key
    ranks = [f.severity.rank for f in seen]
    assert ranks == sorted(ranks)


def test_order_drops_duplicates():
    one = Finding("a", Severity.WARN, "k", "r", "f", "s")
    two = Finding("b", Severity.ERROR, "k", "r", "f", "s")
    assert order([one, two, one]) == [two, one]
