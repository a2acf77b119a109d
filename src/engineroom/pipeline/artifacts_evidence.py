"""An artefact as evidence for the rules of `lint`: its files, its manifest, its target and its repositories."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engineroom.catalog import Catalog
from engineroom.checks.evidence import Context
from engineroom.errors import EngineroomError, UsageError, Where
from engineroom.names import KvCacheFormat, WeightFormat
from engineroom.pipeline import target_evidence
from engineroom.pipeline.artifacts import Entry
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.reading import Evidence
from engineroom.runner import evidence_files, manifest
from engineroom.runner.evidence_text import read_json, read_text, read_yaml
from engineroom.types.layout import trtllm_folder

_RANK_FILE = re.compile(r"rank\d+\.engine")
_KEEP = ("hf_config", "quant_config", "tensors", "checkpoint_files", "weight_index")


def contexts(
    entry: Entry,
    repositories: Sequence[Entry],
    targets: Sequence[ResolvedTarget],
    job: Job | None,
    catalog: Catalog,
) -> Iterator[Context]:
    """The artefact alone for each target, and once more for each repository that serves it."""
    found = _parts(entry)
    served = [None, *repositories] if entry.kind not in ("repository", "checkpoint") else [None]
    wishes: list[tuple[dict[str, Any], dict[str, str], str | None]] = [
        (_asked_by(job, item), _spec_keys(item), item.target.id)
        for item in targets
        if job is not None
    ] or [(_asked_by_manifest(entry, catalog), {}, entry.text("target"))]
    for wish, keys, target in wishes:
        for repository in served:
            parts, origins = dict(found.parts), dict(found.files)
            if "artefact" in wish:
                parts["artefact"] = {**parts["artefact"], **wish["artefact"]}
            parts |= {name: value for name, value in wish.items() if name != "artefact"}
            if entry.kind == "checkpoint":
                _layout_of(entry.path, wish.get("spec", {}), parts, origins)
            if repository is not None:
                _add_repository(repository, parts, origins)
            evidence = typed(parts, origins)
            yield Context(evidence, catalog, origins, keys, target)


def _layout_of(
    path: Path, wish: Mapping[str, Any], parts: dict[str, Any], origins: dict[str, str]
) -> None:
    """Of a checkpoint's TensorRT-LLM layouts, the one that a target would read."""
    found = evidence_files.Found()
    sizes = wish.get("tensor_parallel") or 1, wish.get("pipeline_parallel") or 1
    _json(found, "checkpoint_config", path / trtllm_folder(*sizes) / "config.json")
    parts.pop("checkpoint_config", None)
    parts |= found.parts
    origins |= found.files


def _parts(entry: Entry) -> evidence_files.Found:
    """Evidence in an artefact's own files, by its kind."""
    path = entry.path
    found = evidence_files.Found()
    facts: dict[str, Any] = {
        "kind": entry.kind,
        "digest": entry.text("digest"),
        "runtime_version": entry.text("stack", "runtime_version"),
    }
    if entry.kind == "checkpoint":
        _model(found, path / "hf")
    elif entry.kind == "repository":
        _repository_files(found, path / "repository")
    elif entry.kind == "engine":
        _json(found, "engine_config", path / "config.json")
        ranks = [p for p in path.iterdir() if _RANK_FILE.fullmatch(p.name)]
        facts["rank_files"] = sorted(p.name for p in ranks)
        sku = entry.fact("sku")
        if isinstance(sku, Mapping):
            built = {"compute_capability": sku.get("compute_capability")}
            found.parts["engine"] = {
                "built_on": {k: v for k, v in built.items() if v is not None},
                "tensorrt_version": entry.text("stack", "tensorrt"),
            }
            found.files["engine"] = (path / manifest.NAME).as_posix()
        if ranks:
            found.parts["memory"] = {"engine_bytes": max(p.stat().st_size for p in ranks)}
            found.files["memory"] = ranks[0].as_posix()
    else:
        _model(found, path / "checkpoint")
        if (path / "llm_args.yaml").is_file():
            args = read_yaml(path / "llm_args.yaml")
            facts["llm_args"] = found.parts["model_yaml"] = args
            found.files["model_yaml"] = (path / "llm_args.yaml").as_posix()
    found.parts["artefact"] = {k: v for k, v in facts.items() if v is not None}
    found.files["artefact"] = (path / manifest.NAME).as_posix()
    return found


def _model(found: evidence_files.Found, folder: Path) -> None:
    if not (folder / "config.json").is_file():
        return
    model = evidence_files.model_folder(folder)
    for part in _KEEP:
        if part in model.parts:
            found.parts[part], found.files[part] = model.parts[part], model.files[part]


def _json(found: evidence_files.Found, part: str, path: Path) -> None:
    if path.is_file():
        found.parts[part], found.files[part] = read_json(path), path.as_posix()


def _repository_files(found: evidence_files.Found, folder: Path) -> None:
    """A rendered repository: its configurations, and the LLM arguments of an llmapi one."""
    for path in sorted(folder.glob("*/config.pbtxt")):
        text = read_text(path)
        found.add(
            "triton_configs", {"path": f"{path.parent.name}/config.pbtxt", "text": text}, path
        )
    model_yaml = folder / "tensorrt_llm/1/model.yaml"
    if model_yaml.is_file():
        found.parts["model_yaml"] = read_yaml(model_yaml)
        found.files["model_yaml"] = model_yaml.as_posix()
        found.parts["triton_family"] = "llmapi"
    elif found.parts.get("triton_configs"):
        found.parts["triton_family"] = "inflight_batcher_llm"


def _add_repository(repository: Entry, parts: dict[str, Any], origins: dict[str, str]) -> None:
    found = evidence_files.Found()
    _repository_files(found, repository.path / "repository")
    parts |= found.parts
    origins |= found.files
    parts["artefact"] = {
        **parts["artefact"],
        "repository": {
            "name": repository.name,
            "artefact_digest": repository.text("artefact", "digest"),
        },
    }


def _asked_by(job: Job, item: ResolvedTarget) -> dict[str, Any]:
    limits = item.target.limits
    longest = limits.max_seq_len
    if longest is None:
        try:
            longest = job.shape.max_position_embeddings if job.shape else None
        except EngineroomError:
            longest = None
    asked = {
        "max_batch_size": limits.max_batch_size,
        "max_num_tokens": limits.max_num_tokens,
        "max_seq_len": longest,
        "max_beam_width": limits.max_beam_width,
    }
    return {**target_evidence.target_parts(job, item), "artefact": {"asked": asked}}


def _spec_keys(item: ResolvedTarget) -> dict[str, str]:
    """Keys of the spec for what a target says; findings about the artefact keep its own files."""
    at = f"targets[{item.index}]"
    own = {f"spec.{key}": f"{at}.{key}" for key in ("lane", "tensor_parallel", "pipeline_parallel")}
    return {**target_evidence.SPEC_KEYS, **own, "gpu": f"{at}.sku", "stack": f"{at}.stack"}


def _asked_by_manifest(entry: Entry, catalog: Catalog) -> dict[str, Any]:
    """What the manifest says the artefact is for; facts that it does not hold stay unknown."""
    weights, kv_cache = entry.formats()
    kv_cache = None if kv_cache == "16-bit" else kv_cache
    wish: dict[str, Any] = {
        "lane": entry.text("lane"),
        "weights": weights if weights in list(WeightFormat) else None,
        "kv_cache": kv_cache if kv_cache in list(KvCacheFormat) else None,
    }
    for key in ("tensor_parallel", "pipeline_parallel"):
        if isinstance(entry.fact(key), int):
            wish[key] = entry.fact(key)
    parts: dict[str, Any] = {"spec": {k: v for k, v in wish.items() if v is not None}}
    name = entry.text("sku", "id")
    if name is not None:
        try:
            sku = catalog.sku(name, Where(key="sku.id"))
        except UsageError:  # of another catalog: only what the manifest itself says is known
            parts["gpu"] = {"compute_capability": entry.text("sku", "compute_capability")}
        else:
            parts["gpu"] = {
                "product": sku.node_label,
                "compute_capability": sku.compute_capability,
                "memory_mib": sku.memory_mib,
            }
    stack = {
        "image": entry.text("stack", "image"),
        "tensorrt_llm_version": entry.text("stack", "tensorrt_llm"),
        "tensorrt_version": entry.text("stack", "tensorrt"),
    }
    if any(stack.values()):
        parts["stack"] = {k: v for k, v in stack.items() if v is not None}
    limits = entry.fact("limits")
    if isinstance(limits, Mapping):
        parts["artefact"] = {"asked": {k: v for k, v in limits.items() if v is not None}}
    return parts


def typed(parts: Mapping[str, Any], origins: Mapping[str, str]) -> Evidence:
    """`target_evidence.typed` of what an artefact holds."""
    return target_evidence.typed(
        parts, origins, "make the artefact again, or use the engineroom that made it"
    )
