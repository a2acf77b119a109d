"""Every option of a target, and the features that change what is built, on every version with a contract.

Each is emitted and validates against the contract, or is refused by a finding: which of the two is
written here, version by version. And the same through the command line, as JSON.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from engineroom.checks.features_speculative import DECODING_TYPES, ENGINE_MODES
from engineroom.checks.llmapi_options import PLACES
from engineroom.names import Severity
from engineroom.pipeline import check, open_job
from engineroom.pipeline.check import explain
from engineroom.pipeline.job import Job
from engineroom.spec.target_options import EngineOptions, LlmApiOptions
from tests.conftest import ROOT, TINY, run_cli, spec_data, write_spec
from tests.product.test_emitted import (
    CATALOG,
    VERSIONS,
    contract_problems,
    rule_errors,
    unexplained,
)

ENGINE_VERSIONS = VERSIONS[:4]
SIZES = {f"lookahead_{n}": 7 for n in ("window_size", "ngram_size", "verification_set_size")}
TP2 = {"tensor_parallel": 2}


def speculative(mode: str, **keys: Any) -> dict[str, Any]:
    return {"serving": {"features": {"speculative": {"mode": mode, **keys}}}}


def features(**names: Any) -> dict[str, Any]:
    return {"serving": {"features": names}}


# name: (changes of the target, changes of the spec, versions that refuse it)
ENGINE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "profiles": ({"engine": {"multiple_profiles": False}}, {}, ""),
    "opt tokens": ({"limits": {"max_batch_size": 8, "opt_num_tokens": 64}}, {}, ""),
    "blocks": ({"engine": {"tokens_per_block": 64}}, {}, ""),
    "prompt table": ({"engine": {"max_prompt_embedding_table_size": 512}}, {}, ""),
    "hopper": ({"engine": {"low_latency_gemm_plugin": True, "gemm_swiglu_plugin": True}}, {}, ""),
    "small batches": (
        {"limits": {"max_batch_size": 4},
         "engine": {"gemm_plugin": "fp8", "low_latency_gemm_swiglu_plugin": True, "use_fused_mlp": True}}, {}, ""),
    "fusion": ({**TP2, "engine": {"reduce_fusion": True, "user_buffer": True, "workers": 1}}, {}, ""),
    "logits": ({}, features(context_logits=True, generation_logits=True), ""),
    "lora": ({}, features(lora={"max_rank": 32, "target_modules": ["attn_q", "mlp_gate"]}), ""),
    "lookahead": ({}, speculative("lookahead", **SIZES), ""),
    "draft tokens": ({}, speculative("draft_target"), ""),
    # Heads are converted by converters that are not implemented.
    "medusa": ({}, speculative("medusa"), "0.21.0 1.0.0 1.1.0 1.2.1"),
    "eagle": ({}, speculative("eagle"), "0.21.0 1.0.0 1.1.0 1.2.1"),
    "redrafter": ({}, speculative("redrafter"), "0.21.0 1.0.0 1.1.0 1.2.1"),
    "ngram": ({}, speculative("ngram"), "0.21.0 1.0.0 1.1.0 1.2.1"),
}  # fmt: skip
MOE = {"moe_expert_parallel_size": 2, "moe_backend": "CUTLASS", "moe_max_num_tokens": 4096}
LLMAPI: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "kv": ({"llmapi": {"host_cache_size": 2**34, "max_tokens": 65536, "enable_partial_reuse": False}}, {}, ""),
    "blocks": ({"llmapi": {"tokens_per_block": 64}}, {}, "0.21.0 1.0.0"),
    "chunks": ({"llmapi": {"context_chunking_policy": "EQUAL_PROGRESS"}}, {"serving": {"chunked_context": True}}, ""),
    "no graphs": ({"llmapi": {"cuda_graphs": False, "disable_overlap_scheduler": True}}, {}, ""),
    "graph sizes": ({"llmapi": {"cuda_graph_batch_sizes": [1, 4, 8], "cuda_graph_padding": False}}, {}, ""),
    "tuner": ({"llmapi": {"enable_autotuner": False}}, {}, ""),
    "allreduce": ({**TP2, "llmapi": {"allreduce_strategy": "NCCL"}}, {}, "0.21.0"),
    "attention dp": ({**TP2, "llmapi": {"enable_attention_dp": True}}, {}, ""),
    "experts": ({**TP2, "llmapi": MOE}, {"moe": True}, ""),
    "experts by default": ({}, {"moe": True}, ""),
    "new experts": ({"llmapi": {"moe_backend": "DENSEGEMM"}}, {"moe": True}, "1.0.0 1.1.0 1.2.1"),
    "lora": ({}, features(lora={"max_rank": 32}), "1.4.0rc4"),
    "guided": ({}, features(guided_decoding="xgrammar", generation_logits=True), ""),
    "ngram": ({}, speculative("ngram"), "0.21.0"),
    "mtp": ({}, speculative("mtp"), "0.21.0"),
    "eagle": ({}, speculative("eagle", draft_model="some/draft"), "0.21.0"),
    "draft model": ({}, speculative("draft_target", draft_model="some/draft"), "0.21.0"),
    "medusa": ({}, speculative("medusa"), "0.21.0 1.0.0 1.1.0 1.2.1 1.4.0rc4"),
    "lookahead": ({}, speculative("lookahead", **SIZES), "0.21.0 1.0.0 1.1.0 1.2.1 1.4.0rc4"),
}  # fmt: skip
CASES = [("engine", name) for name in ENGINE] + [("llmapi", name) for name in LLMAPI]


def moe_model(folder: Path) -> Path:
    """A folder with the config of Qwen3-30B-A3B: sizes, and no weights."""
    data = json.loads((ROOT / "tests/data/configs/Qwen--Qwen3-30B-A3B.json").read_text())
    (folder / "moe").mkdir()
    (folder / "moe/config.json").write_text(json.dumps(data["config"]))
    return folder / "moe"


def job_of(folder: Path, lane: str, name: str) -> Job:
    """One job with a target a version."""
    target, spec, _ = (ENGINE if lane == "engine" else LLMAPI)[name]
    spec = dict(spec)
    model = moe_model(folder) if spec.pop("moe", False) else TINY
    targets = [
        {"sku": "h100-sxm", "lane": lane, "limits": {"max_batch_size": 8}, **target,
         "stack": {"trtllm": version, "image": "example/image:1"}}
        for version in (ENGINE_VERSIONS if lane == "engine" else VERSIONS)
    ]  # fmt: skip
    job = open_job(write_spec(folder, spec_data(model, targets=targets, **spec)), out=folder / "o")
    object.__setattr__(job, "catalog", CATALOG)
    return job


@pytest.mark.parametrize(("lane", "name"), CASES)
def test_emitted_where_the_version_has_it(tmp_path: Path, lane: str, name: str) -> None:
    job = job_of(tmp_path, lane, name)
    refused = {f.target for f in check(job) if f.severity is Severity.ERROR}
    versions = {item.target.id: item.stack.tensorrt_llm for item in job.targets}
    expected = (ENGINE if lane == "engine" else LLMAPI)[name][2].split()
    assert sorted(versions[target] for target in refused if target) == sorted(expected)
    for item in job.targets:
        if item.target.id in refused:
            continue
        request = job.lane_request(item, "checkpoints/CHECKPOINT")
        plan = {
            "steps": [step.as_dict() for step in item.lane.steps(request)],
            "documents": dict(item.lane.documents(request)),
        }
        version = item.stack.tensorrt_llm
        assert contract_problems(version, plan) == []
        assert unexplained(plan) == set()
        assert rule_errors("h100-sxm", "fp8", "fp8", lane, version, plan) == []


def test_every_option_and_mode_is_tried() -> None:
    def tried(rows: dict[str, Any], section: str) -> set[str]:
        return {key for target, _, _ in rows.values() for key in target.get(section, ())}

    assert tried(ENGINE, "engine") == set(EngineOptions.model_fields)
    assert tried(LLMAPI, "llmapi") == set(LlmApiOptions.model_fields)
    assert set(PLACES) <= set(LlmApiOptions.model_fields)

    def modes(rows: dict[str, Any]) -> set[str]:
        parts = [s.get("serving", {}).get("features", {}) for _, s, _ in rows.values()]
        return {part["speculative"]["mode"] for part in parts if "speculative" in part}

    assert modes(ENGINE) >= set(ENGINE_MODES)
    assert modes(LLMAPI) >= set(DECODING_TYPES)


GUIDE = (ROOT / "docs/build-settings.md").read_text(encoding="utf-8")


def test_the_guide_names_every_option() -> None:
    for options in (EngineOptions, LlmApiOptions):
        assert [name for name in options.model_fields if name not in GUIDE] == []


def test_the_guides_example(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.S)
    job = open_job(write_spec(tmp_path, {**spec_data(TINY), **yaml.safe_load(block)}))
    assert [f.code for f in check(job) if f.severity is Severity.ERROR] == []
    (code,) = re.findall(r"--explain ([a-z-]+)`", GUIDE)
    assert "builder.py" in explain(code)["source"]


def dry_run(folder: Path, **spec: Any) -> Any:
    path = write_spec(folder, spec_data(TINY, **spec))
    return run_cli(
        "build", "-f", str(path), "--out", str(folder / "out"), "--dry-run", "--format", "json"
    )


def test_dry_run_as_json(tmp_path: Path) -> None:
    """Ampere to Blackwell, both lanes, every version: what the command line prints validates."""
    rows = [
        ("engine", "l40s", "0.21.0"), ("engine", "h100-sxm", "1.0.0"), ("engine", "h200-sxm", "1.1.0"),
        ("engine", "b200-sxm", "1.2.1"), ("llmapi", "l4", "0.21.0"), ("llmapi", "h100-sxm", "1.0.0"),
        ("llmapi", "h20", "1.1.0"), ("llmapi", "b200-sxm", "1.2.1"), ("llmapi", "gb200", "1.4.0rc4"),
    ]  # fmt: skip
    targets = [
        {"sku": sku, "lane": lane, "stack": {"trtllm": version, "image": "example/image:1"}}
        for lane, sku, version in rows
    ]
    result = dry_run(tmp_path, targets=targets)
    assert result.returncode == 0, result.stderr
    plans = json.loads(result.stdout)["artefacts"]
    assert len(plans) == len(rows)
    for (lane, _, version), plan in zip(rows, plans, strict=True):
        assert contract_problems(version, plan) == []
        assert unexplained(plan) == set()
        words = [step["argv"][0] for step in plan["steps"] if step["argv"]]
        assert words == (["trtllm-build"] if lane == "engine" else [])
        assert set(plan["documents"]) == (set() if lane == "engine" else {"llm_args.yaml"})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"sku": "a100-sxm-80gb"}, ("weights-format-not-supported", "compute capability 8.0", "fix:")),
        ({"sku": "h100-sxm", "lane": "engine", "stack": {"trtllm": "1.4.0rc4", "image": "x"}},
         ("lane-not-in-version", "removed after the 1.2 line", "fix:")),
        ({"sku": "l40s", "lane": "engine", "engine": {"gemm_swiglu_plugin": True}},
         ("fp8-gemm-fusion-refused", "compute capability 8.9", "fix:")),
    ],
)  # fmt: skip
def test_what_is_forbidden_exits_1_with_the_reason(
    tmp_path: Path, target: dict[str, Any], words: tuple[str, ...]
) -> None:
    result = dry_run(tmp_path, targets=[{"stack": "26.07", **target}])
    assert result.returncode == 1
    assert all(word in result.stderr for word in words), result.stderr
    assert result.stdout == ""
