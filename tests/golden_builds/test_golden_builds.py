"""Twelve builds, whole: every step with its flags and reasons, every document, what travels, what `check` says.

SKUs from Ampere to Blackwell, formats, TP and PP, serving profiles, LoRA, a mode of each speculative
family, experts, and every version with a contract. `ENGINEROOM_UPDATE_GOLDEN=1 pytest
tests/golden_builds` writes them again; read the difference before you commit it.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from engineroom.catalog import Catalog
from engineroom.names import Severity
from engineroom.pipeline import build, check, open_job
from tests.conftest import ROOT, golden_tree, spec_data, write_spec
from tests.product.test_emitted import contract_problems, rule_errors

GOLDEN = Path(__file__).parent / "golden"
LLAMA_8B, LLAMA_70B = "meta-llama--Llama-3.1-8B", "meta-llama--Llama-3.1-70B"
QWEN_32B, EXPERTS = "Qwen--Qwen3-32B", "Qwen--Qwen3-30B-A3B"
BF16, FP8 = {"weights": "bf16", "kv_cache": "auto"}, {"weights": "fp8", "kv_cache": "fp8"}
AWQ, NVFP4 = {"weights": "w4a16_awq", "kv_cache": "auto"}, {"weights": "nvfp4", "kv_cache": "fp8"}
LOOKAHEAD = {
    "mode": "lookahead", "lookahead_window_size": 4, "lookahead_ngram_size": 3,
    "lookahead_verification_set_size": 4,
}  # fmt: skip
LORA = {
    "max_rank": 16, "target_modules": ["attn_q", "attn_v"],
    "adapters": [{"name": "sql", "source": "example-org/sql-lora", "task_id": 1}],
}  # fmt: skip
ANSWERS = {"chat": {
    "input_tokens": {"p50": 300, "p95": 1500}, "output_tokens": {"p50": 400, "p95": 900}, "concurrency": 64,
}}  # fmt: skip


def target(sku: str, lane: str, version: str, **keys: Any) -> dict[str, Any]:
    limits = {"max_seq_len": 8192, **keys.pop("limits", {})}
    stack = {"trtllm": version, "image": "example/image:1"}
    return {"sku": sku, "lane": lane, "stack": stack, "limits": limits, **keys}


def features(**names: Any) -> dict[str, Any]:
    return {"serving": {"features": names}}


# name: (model, precision, target, the rest of the spec)
BUILDS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "01-engine-1.2.1-a100-bf16-draft-tokens": (
        LLAMA_8B, BF16, target("a100-sxm-80gb", "engine", "1.2.1"),
        features(speculative={"mode": "draft_target", "max_draft_tokens": 5})),
    "02-engine-0.21-a10g-awq-lora": (
        LLAMA_8B, AWQ, target("a10g", "engine", "0.21.0", limits={"max_batch_size": 16}), features(lora=LORA)),
    "03-engine-1.0-l40s-fp8-lookahead": (
        LLAMA_8B, FP8, target("l40s", "engine", "1.0.0"),
        features(speculative=LOOKAHEAD, guided_decoding="xgrammar", generation_logits=True)),
    "04-engine-1.2.1-h100-fp8-tp4-throughput": (
        LLAMA_70B, FP8, target(
            "h100-sxm", "engine", "1.2.1", tensor_parallel=4, profile="throughput",
            limits={"max_batch_size": 512, "max_num_tokens": 16384},
            engine={"reduce_fusion": True, "user_buffer": True, "gemm_swiglu_plugin": True,
                    "low_latency_gemm_plugin": True}),
        {"workload": ANSWERS}),
    "05-engine-1.1-h200-fp8-tp2pp2-latency": (
        LLAMA_70B, FP8, target(
            "h200-sxm", "engine", "1.1.0", tensor_parallel=2, pipeline_parallel=2, profile="latency",
            limits={"max_batch_size": 8, "opt_num_tokens": 8}, engine={"workers": 2}),
        {"workload": ANSWERS, "serving": {"chunked_context": True}}),
    "06-engine-1.2.1-b200-nvfp4": (
        LLAMA_8B, NVFP4, target("b200-sxm", "engine", "1.2.1", engine={"tokens_per_block": 64}), {}),
    "07-llmapi-0.21-a100-bf16-guided": (
        LLAMA_8B, BF16, target("a100-sxm-40gb", "llmapi", "0.21.0"), features(guided_decoding="xgrammar")),
    "08-llmapi-1.0-l4-fp8-ngram": (
        LLAMA_8B, FP8, target("l4", "llmapi", "1.0.0", limits={"max_batch_size": 8}),
        features(speculative={"mode": "ngram", "max_draft_tokens": 6})),
    "09-llmapi-1.1-h100-awq-tp2-lora": (
        QWEN_32B, AWQ, target("h100-sxm", "llmapi", "1.1.0", tensor_parallel=2), features(lora=LORA)),
    "10-llmapi-1.2.1-h200-fp8-experts": (
        EXPERTS, FP8, target(
            "h200-sxm", "llmapi", "1.2.1", tensor_parallel=4,
            llmapi={"moe_expert_parallel_size": 2, "enable_attention_dp": True, "host_cache_size": 2**36}),
        {"serving": {"chunked_context": True, "scheduler_policy": "max_utilization"}}),
    "11-llmapi-1.4-b200-nvfp4-tp4-eagle": (
        LLAMA_70B, NVFP4, target("b200-sxm", "llmapi", "1.4.0rc4", tensor_parallel=4),
        features(speculative={"mode": "eagle", "max_draft_tokens": 3, "draft_model": "example-org/eagle3"})),
    "12-llmapi-1.4-rtx-pro-nvfp4-experts-mtp": (
        EXPERTS, NVFP4, target(
            "rtx-pro-6000-blackwell-server", "llmapi", "1.4.0rc4",
            llmapi={"cuda_graph_batch_sizes": [1, 2, 4, 8], "moe_backend": "CUTLASS"}),
        features(speculative={"mode": "mtp", "max_draft_tokens": 1})),
}  # fmt: skip


def golden_build(folder: Path, name: str, catalog: Catalog) -> dict[str, Any]:
    model, precision, row, rest = BUILDS[name]
    config = json.loads((ROOT / f"tests/data/configs/{model}.json").read_text())["config"]
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(config))
    data = spec_data(folder / "model", precision=precision, targets=[row], **rest)
    job = open_job(write_spec(folder, data), out=folder / "out")
    object.__setattr__(job, "catalog", catalog)
    (plan,) = build(job, dry_run=True)
    (item,) = job.targets
    request = job.lane_request(item, "checkpoints/CHECKPOINT")
    assert isinstance(plan, dict)
    return {
        "spec": {"model": model.replace("--", "/"), "precision": precision, "targets": [row], **rest},
        **plan,
        "attachments": [dataclasses.asdict(a) for a in item.lane.attachments(request)],
        "findings": [f"{f.severity} {f.code}" for f in check(job) if f.severity is not Severity.INFO],
    }  # fmt: skip


@pytest.mark.parametrize("name", BUILDS)
def test_golden_build(tmp_path: Path, catalog: Catalog, name: str) -> None:
    made = golden_build(tmp_path, name, catalog)
    _, precision, row, _ = BUILDS[name]
    version = row["stack"]["trtllm"]
    assert contract_problems(version, made) == []
    axes = (precision["weights"], precision["kv_cache"])
    assert rule_errors(row["sku"], *axes, row["lane"], version, made) == []
    text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    kept = golden_tree(GOLDEN, {f"{name}.json": text})
    assert text == kept[f"{name}.json"]


def test_no_golden_build_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(BUILDS)
    assert len(BUILDS) == 12
