"""A spec's targets as evidence, so that the rules of `lint` judge specs as well."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engineroom.checks.evidence import Context
from engineroom.errors import UsageError, Where
from engineroom.names import LaneName
from engineroom.pipeline import adapters
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.reading import Evidence
from engineroom.runner import evidence_files, files
from engineroom.types.layout import trtllm_folder

SPEC_KEYS = {
    "spec.weights": "precision.weights",
    "spec.kv_cache": "precision.kv_cache",
    "spec.group_size": "precision.group_size",
    "spec.kv_cache_free_gpu_mem_fraction": "serving.kv_cache_free_gpu_mem_fraction",
}
_TARGET_KEYS = ("lane", "tensor_parallel", "pipeline_parallel")
# What a model folder says about the model itself; the rest of it is no question of the spec.
_MODEL_HINT = "is this the file that the model came with?"
_MODEL_PARTS = ("hf_config", "quant_config", "tensors", "checkpoint_files", "weight_index")


def model_parts(job: Job) -> evidence_files.Found:
    """Evidence in the model's own folder; empty when the model is not on this machine."""
    if job.local_model is None:
        return evidence_files.Found()
    found = evidence_files.model_folder(job.local_model)
    keep = {part: found.parts[part] for part in _MODEL_PARTS if part in found.parts}
    config = keep.get("hf_config")
    if isinstance(config, dict) and isinstance(config.get("rope_parameters"), dict):
        # `quantize` writes both spellings, so what the runtime will read is not the source's own.
        theta = config["rope_parameters"].get("rope_theta")
        keep["hf_config"] = {"rope_theta": theta, **config}
    return evidence_files.Found(keep, {p: f for p, f in found.files.items() if p in keep})


def contexts(job: Job, *, artefacts: bool) -> Iterator[Context]:
    """One context a target, and with `artefacts` one for each checkpoint and engine that is there."""
    with job.located():
        model = model_parts(job)
    read: dict[Path, tuple[Evidence, Mapping[str, str]]] = {}
    own = typed(model.parts, model.files)
    for item in job.targets:
        target = typed(target_parts(job, item), {})
        yield _context(job, item, own, target, model.files)
        for _, folder in adapters.folders(job):
            config = folder / adapters.CONFIG
            parts = {"adapter_config": files.read_json(config)}
            where = {"adapter_config": config.as_posix()}
            yield _context(job, item, typed(parts, where), target, where)
        for folder, names in _made(job, item) if artefacts else ():
            if folder not in read:  # targets share checkpoints: each is read and typed once
                with job.located():
                    found = evidence_files.collect([folder])
                parts = {name: found.parts[name] for name in names if name in found.parts}
                read[folder] = typed(parts, found.files), found.files
            yield _context(job, item, read[folder][0], target, read[folder][1])


def _made(job: Job, item: ResolvedTarget) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Folders in the workspace and the parts of them that are judged: checkpoints in the spec's
    formats, and engines of this target, by the layouts of `quantize` and `build`."""
    target = item.target
    try:
        pattern = f"{glob.escape(job.checkpoint_prefix)}*"
    except UsageError:
        return  # a format that is not made here has no checkpoints either
    for path in sorted((job.out / "checkpoints").glob(pattern)):
        if (path / "hf/config.json").is_file():
            yield path / "hf", _MODEL_PARTS
        layout = path / trtllm_folder(target.tensor_parallel, target.pipeline_parallel)
        if target.lane is LaneName.ENGINE and (layout / "config.json").is_file():
            yield layout, ("checkpoint_config",)
    base = job.out.joinpath(
        "artifacts", job.loaded.spec.name, str(target.lane), item.stack.runtime_version, item.sku.id,
        f"{target.tensor_parallel}x{target.pipeline_parallel}",
    )  # fmt: skip
    for path in sorted(base.glob("*/config.json")):
        yield path.parent, ("engine_config",)


def target_parts(job: Job, item: ResolvedTarget) -> dict[str, Any]:
    precision, target, stack = job.loaded.spec.precision, item.target, item.stack
    recipe = job.catalog.weight_recipes.get(precision.recipe or str(precision.weights))
    groups = recipe.group_size if recipe else None
    group = precision.group_size if groups else None
    wish: dict[str, Any] = {
        "weights": precision.weights,
        "kv_cache": precision.kv_cache,
        "group_size": group or (groups.default if groups else None),
        "lane": target.lane,
        "tensor_parallel": target.tensor_parallel,
        "pipeline_parallel": target.pipeline_parallel,
    }
    if stack.tensorrt_llm:  # no other runtime reads it
        serving = job.loaded.spec.serving
        wish["kv_cache_free_gpu_mem_fraction"] = serving.kv_cache_free_gpu_mem_fraction
    return {
        "spec": wish,
        "gpu": {
            "product": item.sku.node_label,
            "compute_capability": item.sku.compute_capability,
            "memory_mib": item.sku.memory_mib,
        },
        "stack": {
            "image": stack.image,
            "tensorrt_llm_version": stack.tensorrt_llm or None,
            "tensorrt_version": stack.tensorrt,
            "cuda_version": stack.cuda,
        },
    }


def typed(parts: Mapping[str, Any], files: Mapping[str, str], hint: str = _MODEL_HINT) -> Evidence:
    """Parts as evidence.

    Args:
        files: part to the file it was read from.

    Raises:
        UsageError: the file and key of the first part that is not what it should be.
    """
    try:
        return Evidence.model_validate(parts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        part = str(first["loc"][0])
        raise UsageError(
            str(first["msg"]),
            where=Where(files.get(part), key=".".join(map(str, first["loc"][1:]))[:300] or part),
            hint=hint,
        ) from None


def _context(
    job: Job, item: ResolvedTarget, own: Evidence, target: Evidence, files: Mapping[str, str]
) -> Context:
    """What a folder says, with what a target wishes."""
    keys = {**SPEC_KEYS} | {f"spec.{k}": f"targets[{item.index}].{k}" for k in _TARGET_KEYS}
    keys |= {"gpu": f"targets[{item.index}].sku", "stack": f"targets[{item.index}].stack"}
    wishes = {name: getattr(target, name) for name in target.model_fields_set}
    return Context(own.model_copy(update=wishes), job.catalog, files, keys, item.target.id)
