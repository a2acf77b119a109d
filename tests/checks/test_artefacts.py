"""`check` over what lies in the workspace: checkpoints and engines made before, or by somebody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engineroom.pipeline import check
from engineroom.pipeline.check import require_no_errors
from engineroom.types import Finding
from tests.checks.test_rules import config
from tests.conftest import TINY, spec_data

ENGINE = {"sku": "h100-sxm", "lane": "engine", "stack": "26.07"}


def put(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def found(job: Any) -> dict[str, Finding]:
    return {f.code: f for f in check(job)}


def test_an_engine_of_another_release(make_job, tmp_path):
    job = make_job(spec_data(TINY, targets=[ENGINE]))
    engine = job.out / "artifacts/tiny/engine/1.2.1/h100-sxm/1x1/0123/config.json"
    put(engine, {"version": "1.2.1", "build_config": {"max_batch_size": 8}})
    assert "engine-of-other-release" not in found(job)
    put(engine, {"version": "1.0.0", "build_config": {"max_batch_size": 8}})
    finding = found(job)["engine-of-other-release"]
    assert finding.file == engine.as_posix()
    assert finding.key == "version"
    assert finding.target == job.targets[0].target.id
    assert "1.0.0" in finding.reason


def test_a_trtllm_checkpoint_of_another_layout(make_job):
    job = make_job(spec_data(TINY, targets=[ENGINE]))
    path = job.out / f"checkpoints/{job.checkpoint_prefix}abc/trtllm/config.json"
    put(
        path,
        {
            "architecture": "LlamaForCausalLM",
            "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1},
        },
    )
    assert "TP 2 x PP 1" in found(job)["checkpoint-other-layout"].reason


def test_a_checkpoint_whose_exclude_list_lies(make_job):
    job = make_job(spec_data(TINY, targets=[ENGINE]))
    folder = job.out / f"checkpoints/{job.checkpoint_prefix}abc/hf"
    put(folder / "config.json", json.loads((TINY / "config.json").read_text()))
    put(folder / "hf_quant_config.json",
        {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}})  # fmt: skip
    header = {
        "model.layers.0.mlp.up_proj.weight": {
            "dtype": "F8_E4M3",
            "shape": [2, 2],
            "data_offsets": [0, 4],
        },
        "model.layers.0.mlp.down_proj.weight": {
            "dtype": "BF16",
            "shape": [2, 2],
            "data_offsets": [4, 12],
        },
    }
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    finding = found(job)["exclude-list-misses-modules"]
    assert "down_proj" in finding.reason
    assert finding.file == (folder / "hf_quant_config.json").as_posix()


def test_an_old_artefact_stops_no_verb_that_makes_it_anew(make_job):
    job = make_job(spec_data(TINY, targets=[ENGINE]))
    path = job.out / f"checkpoints/{job.checkpoint_prefix}abc/hf/config.json"
    path.parent.mkdir(parents=True)
    path.write_text("{ not json")
    assert not [f for f in require_no_errors(job) if f.severity == "error"]


def test_a_model_folder_that_is_quantized_already(make_job, tmp_path):
    folder = config(
        tmp_path, quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 32}
    )
    finding = found(make_job(spec_data(folder)))["group-size-without-kernel"]
    assert finding.file == (folder / "config.json").as_posix()
    assert finding.key == "quantization_config.group_size"
