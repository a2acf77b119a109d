"""A workspace made in milliseconds: a real package of a 16-bit checkpoint, and engines that are doubles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from engineroom.pipeline import Job, build, open_job, render
from engineroom.runner import files, manifest
from tests.conftest import TINY, spec_data, write_spec

FORMATS = {"weights": "bf16", "kv_cache": "auto"}
TARGET = {"sku": "l4", "lane": "llmapi", "stack": "26.07", "limits": {"max_batch_size": 8}}
ENGINE_TARGET = {
    "sku": "h100-sxm",
    "lane": "engine",
    "stack": "26.07",
    "limits": {"max_batch_size": 8},
}


def spec_of(folder: Path, **changes: Any) -> Path:
    data = spec_data(TINY, precision=FORMATS, targets=[TARGET], **changes)
    del data["calibration"]
    return write_spec(folder, data)


def checkpoint(job: Job) -> Path:
    """The spec's checkpoint: the tiny model as it is, which is what 16-bit weights are."""
    module = __import__("engineroom.pipeline.quantize", fromlist=["x"])
    key = files.sha256_json(module._inputs(job, TINY))
    path = job.out / "checkpoints" / module.folder_name(job, key)
    with files.staged(path) as staging:
        shutil.copytree(TINY, staging / "hf", copy_function=shutil.copyfile)
        manifest.write(
            staging, "checkpoint", run_id="r", catalog_digest=job.catalog.digest, key=key,
            facts={
                "model": {"source": "acme/tiny-llama", "revision": "ABC123", "source_digest": "d" * 64,
                          "licences": ["NOTICE"]},
                "weights": {"format": "bf16"}, "kv_cache": {"format": "16-bit"},
                "tools": {"modelopt": "0.47.0", "torch": "2.13.0+cpu", "transformers": "5.14.1"},
                "calibration": None,
            },
        )  # fmt: skip
    return path


def workspace(folder: Path, *, rendered: bool = True) -> Job:
    """A spec with one llmapi target, built and rendered."""
    job = open_job(spec_of(folder), out=folder / "ws")
    checkpoint(job)
    build(job)
    if rendered:
        render(job)
    return open_job(folder / "engineroom.yaml", out=folder / "ws")


def package(job: Job) -> Path:
    return next((job.out / "artifacts/tiny/llmapi").glob("*/*/*/*"))


def made_again(path: Path, key: str, **facts: Any) -> Path:
    """A copy of an artefact under another key, as an older build would have left it."""
    goal = path.parent / key[:16]
    content = files.read_json(path / manifest.NAME)
    kept = {
        k: v for k, v in content.items() if k not in ("seal", "digest", "files", "created", "key")
    }
    with files.staged(goal) as staging:
        files.link_tree(path, staging)
        (staging / manifest.NAME).unlink()
        manifest.write(
            staging, content["kind"], run_id="r", catalog_digest="c", key=key,
            facts={**{k: v for k, v in kept.items() if k not in ("schema_version", "kind", "run_id",
                   "engineroom_version", "catalog_digest")}, **facts},
        )  # fmt: skip
    return goal


def aged(path: Path, created: str) -> None:
    """Give an artefact another time of making, with a seal that fits."""
    content = files.read_json(path / manifest.NAME)
    content["created"] = created
    content["seal"] = manifest._seal(content)
    files.write_json(path / manifest.NAME, content)


ENGINE_CONFIG: dict[str, Any] = {
    "version": "1.2.1",
    "pretrained_config": {
        "architecture": "LlamaForCausalLM", "dtype": "bfloat16",
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    },
    "build_config": {
        "max_batch_size": 8, "max_num_tokens": 8192, "max_seq_len": 4096, "max_beam_width": 1,
        "plugin_config": {"paged_kv_cache": True, "use_paged_context_fmha": True, "context_fmha": True,
                          "remove_input_padding": True},
    },
}  # fmt: skip


def engine(
    out: Path,
    config: dict[str, Any] | None = None,
    *,
    ranks: int = 1,
    version: int = 2,
    **facts: Any,
) -> Path:
    """An engine folder that is openly none: files of the right names with made-up bytes."""
    key = "e" * 64
    path = out / "artifacts/tiny/engine/1.2.1/h100-sxm/1x1" / key[:16]
    with files.staged(path) as staging:
        files.write_json(staging / "config.json", config or ENGINE_CONFIG)
        for rank in range(ranks):
            (staging / f"rank{rank}.engine").write_bytes(b"a test double, no engine" * 40)
        manifest.write(
            staging, "engine", run_id="r", catalog_digest="c", key=key,
            facts={
                "target": "engine-h100-sxm-tp1pp1-26-07", "lane": "engine",
                "sku": {"id": "h100-sxm", "compute_capability": "9.0"},
                "stack": {"id": "26.07", "runtime": "TensorRT-LLM", "runtime_version": "1.2.1",
                          "tensorrt_llm": "1.2.1", "tensorrt": None, "image": "some/image:26.07"},
                "tensor_parallel": 1, "pipeline_parallel": 1,
                "limits": {"max_batch_size": 8, "max_num_tokens": 8192, "max_seq_len": 4096,
                           "max_beam_width": 1},
                "checkpoint": {"path": "checkpoints/gone", "digest": "f" * 64,
                               "weights": {"format": "bf16"}, "kv_cache": {"format": "16-bit"}},
                **facts,
            },
        )  # fmt: skip
    if version == 1:
        content = json.loads((path / manifest.NAME).read_text())
        content["schema_version"] = 1
        content["seal"] = manifest._seal(content)
        files.write_json(path / manifest.NAME, content)
    return path


def repository(out: Path, artefact: Path, **parameters: str) -> Path:
    """A model repository of the engine lane that was rendered from an artefact."""
    path = out / "repositories/engine-h100-sxm-tp1pp1-26-07"
    text = 'backend: "tensorrtllm"\nmax_batch_size: 8\n' + "".join(
        f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n'
        for k, v in parameters.items()
    )
    made = files.read_json(artefact / manifest.NAME)
    with files.staged(path) as staging:
        (staging / "repository/tensorrt_llm").mkdir(parents=True)
        (staging / "repository/tensorrt_llm/config.pbtxt").write_text(text)
        manifest.write(
            staging, "repository", run_id="r", catalog_digest="c", key="a" * 64,
            facts={
                "target": "engine-h100-sxm-tp1pp1-26-07", "lane": "engine", "runtime": "tensorrt_llm",
                "artefact": {"path": artefact.relative_to(out).as_posix(), "kind": "engine",
                             "digest": made["digest"]},
            },
        )  # fmt: skip
    return path
