"""The fixture setups: every value of every old file is in the report, and the spec is the same service."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import model_config_pb2

from engineroom.catalog import Catalog
from engineroom.names import Severity
from engineroom.pipeline.check import check
from engineroom.pipeline.job import Job
from engineroom.pipeline.migrate import migrate
from engineroom.spec.load import load_spec
from engineroom.types.migration import Fate, Migration
from tests.conftest import TINY

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())


def facts(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FIXTURES / name / "setup.json").read_text())
    return data


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory, catalog: Catalog) -> Any:
    """The migration of a fixture, made once."""
    root = tmp_path_factory.mktemp("migrated")

    @cache
    def get(name: str) -> Migration:
        folder, known = FIXTURES / name, facts(name)
        return migrate(
            folder / known["repo"], engine=folder / known["engine"],
            build_script=folder / known["build_script"], checkpoint=TINY, sku=known["sku"],
            out=root / name, catalog=catalog,
        )  # fmt: skip

    return get


# What each old setup says, read by hand from its files; `serving` of the spec without its defaults.
EXPECTED: dict[str, dict[str, Any]] = {
    "llama3-leader-0.12": {
        "precision": {"weights": "fp16", "kv_cache": "auto"},
        "target": {"tensor_parallel": 4, "pipeline_parallel": 2,
                   "limits": {"max_batch_size": 4, "max_num_tokens": 8192, "max_seq_len": 4096}},
        "serving": {"streaming": True, "kv_block_reuse": False},
    },
    "phi3-beams-0.13": {
        "precision": {"weights": "fp16", "kv_cache": "auto"},
        "target": {"limits": {"max_batch_size": 16, "max_num_tokens": 2048, "max_seq_len": 2048,
                              "max_beam_width": 4}},
        "serving": {"streaming": False, "kv_cache_free_gpu_mem_fraction": 0.5, "kv_block_reuse": False},
    },
    "llama2-lora-0.16": {
        "precision": {"weights": "fp16", "kv_cache": "auto"},
        "target": {"limits": {"max_batch_size": 8, "max_num_tokens": 8192, "max_seq_len": 562}},
        "serving": {"streaming": False, "kv_block_reuse": False, "features": {"lora": {
            "max_rank": 8, "target_modules": ["attn_q", "attn_k", "attn_v"]}}},
    },
    "llama31-awq-0.18": {
        "precision": {"weights": "w4a16_awq", "group_size": 128, "kv_cache": "fp8"},
        "target": {"limits": {"max_batch_size": 2048, "max_num_tokens": 8192, "max_seq_len": 131072}},
        "serving": {"streaming": False, "kv_block_reuse": False, "max_queue_size": 32},
    },
    "llama31-fp8-0.21": {
        "precision": {"weights": "fp8", "kv_cache": "fp8"},
        "target": {"llmapi": {"max_tokens": 524288},
                   "limits": {"max_batch_size": 4, "max_num_tokens": 8192, "max_seq_len": 98304}},
        "serving": {"streaming": True, "chunked_context": True},
    },
    "mistral-orchestrator-1.0": {
        "precision": {"weights": "bf16", "kv_cache": "auto"},
        "target": {"tensor_parallel": 2, "gpu_device_ids": [[0, 1], [2, 3]],
                   "llmapi": {"host_cache_size": 34359738368},
                   "limits": {"max_batch_size": 64, "max_num_tokens": 8192, "max_seq_len": 4096}},
        "serving": {"streaming": True, "kv_cache_free_gpu_mem_fraction": 0.85,
                    "scheduler_policy": "max_utilization", "kv_block_reuse": True},
    },
    "qwen-leader-1.1": {
        "precision": {"weights": "fp8", "kv_cache": "fp8"},
        "target": {"tensor_parallel": 2, "llmapi": {"tokens_per_block": 64},
                   "limits": {"max_batch_size": 64, "max_num_tokens": 16384, "max_seq_len": 8192}},
        "serving": {"streaming": True, "kv_cache_free_gpu_mem_fraction": 0.9, "chunked_context": True,
                    "scheduler_policy": "guaranteed_no_evict", "kv_block_reuse": True,
                    "features": {"guided_decoding": "xgrammar"}},
    },
    "smollm-odd-1.2": {
        "precision": {"weights": "fp8", "kv_cache": "fp8"},
        "target": {"llmapi": {"max_tokens": 65536},
                   "limits": {"max_batch_size": 32, "max_num_tokens": 4096, "max_seq_len": 1024}},
        "serving": {"streaming": True, "kv_cache_free_gpu_mem_fraction": 0.8, "kv_block_reuse": True},
    },
    "llama-nvfp4-1.2": {
        "precision": {"weights": "nvfp4", "group_size": 16, "kv_cache": "fp8"},
        "target": {"limits": {"max_batch_size": 256, "max_num_tokens": 8192, "max_seq_len": 4096}},
        "serving": {"streaming": True, "kv_cache_free_gpu_mem_fraction": 0.92,
                    "scheduler_policy": "guaranteed_no_evict", "kv_block_reuse": True},
    },
}  # fmt: skip
CALIBRATION = {  # samples and tokens that the build scripts give to the quantizer
    "llama31-awq-0.18": (32, 512), "llama31-fp8-0.21": (512, 512), "qwen-leader-1.1": (512, 2048),
    "smollm-odd-1.2": (256, 512), "llama-nvfp4-1.2": (512, 512),
}  # fmt: skip


def test_every_fixture_is_expected() -> None:
    assert sorted(EXPECTED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_spec_is_the_same_service_and_passes_check(
    name: str, migrated: Any, catalog: Catalog
) -> None:
    done, expected, known = migrated(name), EXPECTED[name], facts(name)
    assert done.passes, (done.missing, done.findings)
    spec = done.spec
    target = {k: v for k, v in spec["targets"][0].items() if k not in ("sku", "lane", "stack")}
    assert spec["precision"] == expected["precision"]
    assert target == expected["target"]
    assert spec["serving"] == expected["serving"]
    assert spec["targets"][0]["lane"] == "llmapi"
    assert spec["targets"][0]["sku"] == known["sku"]
    calibration = spec.get("calibration")
    assert (calibration and (calibration["samples"], calibration["seq_len"])) == CALIBRATION.get(
        name
    )
    # The file on disk says the same, and `check` itself finds no error in it.
    loaded = load_spec(done.paths["spec"])
    assert loaded.spec.targets[0].ranks == known["parallel"][0] * known["parallel"][1]
    findings = check(Job(loaded, catalog, done.out / "work"))
    assert [f for f in findings if f.severity is Severity.ERROR] == []


# ---- nothing is left unmentioned: the old files are read a second time, by other readers
def _flat(data: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(data, dict) and data:
        return [x for k, v in data.items() for x in _flat(v, f"{path}.{k}" if path else k)]
    return [(path, data)]


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for v in value.values() for text in _texts(v)]
    if isinstance(value, list):
        return [text for v in value for text in _texts(v)]
    return [] if isinstance(value, bool) else [str(value)]


@pytest.mark.parametrize("name", NAMES)
def test_every_value_of_every_config_is_in_the_report(name: str, migrated: Any) -> None:
    """Triton's own message, parsed by protobuf, against the report."""
    done = migrated(name)
    for path in sorted((FIXTURES / name / "repo").glob("*/config.pbtxt")):
        message = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        data = MessageToDict(message, preserving_proto_field_name=True)
        file = f"{path.parent.name}/config.pbtxt"
        told = {s.key: str(s.old_value) for s in done.settings if s.file == file}
        for key, value in data.pop("parameters", {}).items():
            assert told[f"parameters.{key}"] == value.get("string_value", "")
        for side in ("input", "output"):
            for tensor in data.pop(side, []):
                row = told[f"{side}.{tensor['name']}"]
                for text in _texts({k: v for k, v in tensor.items() if k != "name"}):
                    assert text in row, (file, tensor["name"], text)
                assert ("optional" in tensor) == ("optional" in row)
        for step in data.pop("ensemble_scheduling", {}).get("step", []):
            base = f"ensemble_scheduling.step.{step['model_name']}"
            assert f"model_version: {step['model_version']}" in told[base]
            for side in ("input_map", "output_map"):
                for key, value in step[side].items():
                    assert told[f"{base}.{side}.{key}"] == value
        policy = data.pop("model_transaction_policy", None)
        assert (policy is None) == ("model_transaction_policy.decoupled" not in told)
        rest = " ".join(f"{k} {v}" for k, v in told.items())
        for key, value in _flat(data):
            assert any(k.startswith(key.split(".")[0]) for k in told), (file, key)
            for text in _texts(value):
                number = int(text) if text.isdigit() else None
                assert text in rest or (number is not None and hex(number) in rest), (
                    file,
                    key,
                    text,
                )


@pytest.mark.parametrize("name", NAMES)
def test_every_value_of_the_engine_and_every_option_of_the_script_is_in_the_report(
    name: str, migrated: Any
) -> None:
    done, folder = migrated(name), FIXTURES / name
    engine = json.loads((folder / "engine/config.json").read_text())
    told = {s.key: s.old_value for s in done.settings if s.file.endswith("engine/config.json")}
    assert told == dict(_flat(engine))
    script = (folder / "build.sh").read_text()
    bare = re.sub(r"(?m)(^|\s)#.*$", "", script)
    rows = [s for s in done.settings if s.file.endswith("build.sh")]
    mentioned = " ".join(f"{s.key} {s.old_value}" for s in rows)
    for option in set(re.findall(r"(?<!\S)[\"'(]?(--[A-Za-z][\w-]*)", bare)):
        assert option in mentioned, option
    for variable in set(re.findall(r"(?m)^\s*(?:export )?([A-Za-z_]\w*)\+?=", bare)):
        assert any(s.key.startswith(f"variable {variable}") for s in rows), variable


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_a_fate_a_reason_and_a_source(name: str, migrated: Any) -> None:
    done = migrated(name)
    assert [(s.file, s.key) for s in done.settings] == [(x.file, x.key) for x in done.setup.leaves]
    assert len({(s.file, s.key) for s in done.settings}) == len(done.settings)
    markdown = done.paths["report_md"].read_text()
    for s in done.settings:
        assert s.what, s.key
        assert s.source, s.key
        if s.fate is Fate.IMPOSSIBLE and not s.todo:
            pytest.fail(f"{s.file} {s.key}: impossible, and nobody says what to do")
        if s.fate in (Fate.KEPT, Fate.RENAMED):
            assert s.new_key, s.key
        assert f"`{s.key}`".replace("|", "\\|") in markdown
    report = json.loads(done.paths["report_json"].read_text())
    assert report["settings"] == [json.loads(json.dumps(s.as_dict())) for s in done.settings]
    assert report["counts"] == {str(f): sum(s.fate is f for s in done.settings) for f in Fate}


# (fixture, file, key, fate, new key, new value)
ROWS: tuple[tuple[str, str, str, Fate, str | None, Any], ...] = (
    ("llama3-leader-0.12", "build.sh", "launch_triton_server.py[0].--world_size", Fate.MOVED,
     "targets[0].tensor_parallel", 4),
    ("llama3-leader-0.12", "build.sh", "trtllm-build[0].--use_custom_all_reduce", Fate.REDEFAULTED, "targets[0].llmapi.allreduce_strategy", None),
    ("llama3-leader-0.12", "ensemble/config.pbtxt", "input.random_seed", Fate.RENAMED, "sampling_param_seed",
     "TYPE_UINT64 [1]"),
    ("phi3-beams-0.13", "tensorrt_llm/config.pbtxt", "parameters.max_beam_width", Fate.MOVED,
     "targets[0].limits.max_beam_width", 4),
    ("phi3-beams-0.13", "build.sh", "convert_checkpoint.py[0].--model_dir", Fate.MOVED, "model.source", str(TINY)),
    ("llama2-lora-0.16", "build.sh", "trtllm-build[0].--lora_target_modules", Fate.MOVED,
     "serving.features.lora.target_modules", ["attn_q", "attn_k", "attn_v"]),
    ("llama2-lora-0.16", "build.sh", "hf_lora_convert.py[1].-i", Fate.MOVED, "serving.features.lora.adapters", None),
    ("llama2-lora-0.16", "ensemble/config.pbtxt", "input.lora_task_id", Fate.RENAMED, "lora_id", "TYPE_UINT64 [1]"),
    ("llama2-lora-0.16", "tensorrt_llm/config.pbtxt", "parameters.exclude_input_in_output", Fate.LEFTOVER,
     "sampling_param_exclude_input_from_output", None),
    ("llama31-awq-0.18", "tensorrt_llm/config.pbtxt", "dynamic_batching.default_queue_policy.max_queue_size",
     Fate.MOVED, "serving.max_queue_size", 32),
    ("llama31-awq-0.18", "preprocessing/config.pbtxt", "parameters.add_special_tokens", Fate.IMPOSSIBLE,
     "text_input", None),
    ("llama31-awq-0.18", "build.sh", "quantize.py[0].--kv_cache_dtype", Fate.IMPOSSIBLE, "precision.kv_cache", "fp8"),
    ("llama31-fp8-0.21", "tensorrt_llm/config.pbtxt", "parameters.enable_chunked_context", Fate.RENAMED,
     "serving.chunked_context", True),
    ("mistral-orchestrator-1.0", "tensorrt_llm_bls/config.pbtxt", "parameters.accumulate_tokens", Fate.RENAMED,
     "stream_cumulative", True),
    ("mistral-orchestrator-1.0", "build.sh", "launch_triton_server.py[0].--multi-model", Fate.REDEFAULTED, None, None),
    ("qwen-leader-1.1", "tensorrt_llm/config.pbtxt", "parameters.guided_decoding_backend", Fate.RENAMED,
     "serving.features.guided_decoding", "xgrammar"),
    ("qwen-leader-1.1", "build.sh", "mpirun[0].-n", Fate.REDEFAULTED, None, None),
    ("qwen-leader-1.1", "build.sh", "tritonserver[1].--load-model", Fate.MOVED, "launch.json", None),
    ("smollm-odd-1.2", "postprocessing/config.pbtxt", "parameters.skip_special_tokens", Fate.IMPOSSIBLE,
     "text_output", None),
    ("smollm-odd-1.2", "smollm/config.pbtxt", "parameters.max_tokens_in_paged_kv_cache", Fate.RENAMED,
     "targets[0].llmapi.max_tokens", 65536),
    ("smollm-odd-1.2", "build.sh", "quantize.py[0].--calib_dataset", Fate.REDEFAULTED, "calibration.dataset",
     "mit-han-lab/pile-val-backup"),
    ("llama-nvfp4-1.2", "config.json", "pretrained_config.quantization.quant_algo", Fate.MOVED, "precision.weights",
     "nvfp4"),
    ("llama-nvfp4-1.2", "build.sh", "trtllm-build[0].--use_paged_context_fmha", Fate.REDEFAULTED, None, None),
)  # fmt: skip


@pytest.mark.parametrize(("name", "file", "key", "fate", "new", "value"), ROWS)
def test_fates_of_settings(
    name: str, file: str, key: str, fate: Fate, new: str | None, value: Any, migrated: Any
) -> None:
    found = [s for s in migrated(name).settings if s.file.endswith(file) and s.key == key]
    assert [(s.fate, s.new_key, s.new_value) for s in found] == [(fate, new, value)]


def test_what_is_no_setting_of_its_own_is_noted(migrated: Any) -> None:
    """Defaults that change without a line in any file."""
    notes = "\n".join(migrated("llama2-lora-0.16").notes)
    assert "exclude_input_in_output" in notes
    assert "/workspace/loras/luotuo-lora-7b-0.1" in notes
    assert "enable_kv_cache_reuse" in notes
    assert "builder's default" in "\n".join(migrated("llama31-awq-0.18").notes)


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        (
            "llama3-leader-0.12",
            "0.12.0 (engine's config.json); the repository fits releases from 0.12.0",
        ),
        (
            "llama31-awq-0.18",
            "0.18.0 (engine's config.json); the repository fits releases from 0.16.0",
        ),
        (
            "smollm-odd-1.2",
            "1.2.1 (engine's config.json); the repository fits releases from 0.20.0",
        ),
    ],
)
def test_generation(name: str, begins: str, migrated: Any) -> None:
    assert migrated(name).setup.generation.startswith(begins)
