"""`quantize`: a checkpoint in the spec's two precisions, with its manifest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from engineroom.errors import UsageError, Where, artefact_error
from engineroom.pipeline import shards
from engineroom.pipeline.check import require_no_errors
from engineroom.pipeline.job import Job
from engineroom.runner import files, locks, manifest, model_source, process
from engineroom.runner.texts import read_documents

EXPORT_VERSION = 1
"""Raised when the layout of what `quantize` writes changes: older checkpoints are made again."""

TRTLLM_VERSION = 2
"""The same for `trtllm/`, which is no part of the key: a checkpoint without it serves targets that do not
read it. 2: its config.json has the model's RoPE base, scaling and biases."""

_REMARKS = {"source", "verified_on", "confidence", "recommended_samples"}
"""Of a recipe: what is said about it, and decides no byte."""


@dataclass(frozen=True)
class Checkpoint:
    """A finished checkpoint.

    Attributes:
        path: absolute; holds ``hf/``, and ``trtllm/`` where the engine lane needs it; for TP x PP also
            ``trtllm-tp2pp1/`` and the like.
        reused: True when a verified one with the same inputs was already there.
    """

    path: Path
    manifest: dict[str, Any]
    reused: bool

    def relative(self, job: Job) -> str:
        return self.path.relative_to(job.out).as_posix()


def _needs_trtllm(job: Job) -> bool:
    """Whether any target's build reads a TensorRT-LLM checkpoint."""
    return job.weight_recipe.trtllm_checkpoint and any(
        name.rpartition("/")[2].startswith("trtllm")
        for item in job.targets
        if item.contract is not None
        for step in item.lane.steps(job.lane_request(item, "checkpoint"))
        for name in step.inputs
    )


def _inputs(job: Job, model: Path) -> dict[str, Any]:
    """Everything that decides the result; its digest is the checkpoint's key."""
    spec = job.loaded.spec
    calibration = spec.calibration
    facts: dict[str, Any] = {
        "export_version": EXPORT_VERSION,
        "modelopt": _version("nvidia-modelopt"),
        "source_digest": model_source.source_digest(model, job.verified),
        "tokenizer": _tokenizer_digest(job, model),
        "trust_remote_code": spec.model.trust_remote_code,
        "recipe": job.weight_recipe.model_dump(mode="json", exclude=_REMARKS),
        "kv_recipe": job.kv_recipe.model_dump(mode="json", exclude=_REMARKS),
        "group_size": job.group_size,
        "calibration": None,
    }
    if calibration is not None and _quantizes(job):
        with job.located():
            documents, file = read_documents(calibration.dataset, job.loaded.folder)
        facts["calibration"] = {
            "dataset_digest": job.verified.sha256(file) if file else files.sha256_json(documents),
            "documents": len(documents),
            **calibration.model_dump(mode="json", exclude={"dataset"}),
        }
    return facts


def _quantizes(job: Job) -> bool:
    return bool(job.weight_recipe.modelopt_config or job.kv_recipe.modelopt_config)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def folder_name(job: Job, key: str) -> str:
    return f"{job.checkpoint_prefix}{key[:12]}"


def find(job: Job) -> Checkpoint:
    """The finished checkpoint of this spec; files that have not changed since are not read again.

    Raises:
        UsageError: it was not made yet, or is damaged.
    """
    model = _model(job, download=False)
    key = files.sha256_json(_inputs(job, model))
    path = job.out / "checkpoints" / folder_name(job, key)
    try:
        content = manifest.load_quick(path, "checkpoint", job.verified)
        if content["key"] != key:
            raise artefact_error(path, "this checkpoint was made from other inputs")
        return Checkpoint(path, content, True)
    except manifest.NewerError:
        raise
    except UsageError as error:
        error.hint = "run `engineroom quantize` first, or `engineroom up` for the whole chain"
        raise


def _model(job: Job, *, download: bool) -> Path:
    with job.located():
        folder = model_source.local_folder(
            job.loaded.spec.model, job.loaded.folder, download=download
        )
        if folder is None:
            raise UsageError(
                f"`{job.loaded.spec.model.source}` is not on this machine",
                where=job.loaded.where("model.source"),
                hint="run `engineroom quantize`, which fetches it, or name a local folder",
            )
        return folder


def quantize(
    job: Job, *, dry_run: bool = False, evaluate: bool = True
) -> Checkpoint | dict[str, Any]:
    """Make the checkpoint, or reuse a verified one; with `dry_run`, only say what would be done.

    Raises:
        FindingsError: `check` finds errors. MissingError: the extra is not installed.
        ExternalToolError, InternalError: the child failed; nothing is left that a stage accepts.
    """
    require_no_errors(job)
    model = _model(job, download=not dry_run)
    inputs = _inputs(job, model)
    key = files.sha256_json(inputs)
    path = job.out / "checkpoints" / folder_name(job, key)
    if not any(model.glob("*.safetensors")):
        raise UsageError(
            "no *.safetensors files: there are no weights to quantize",
            where=job.loaded.where("model.source"),
            hint=f"download the whole model into {model.as_posix()}",
        )
    if dry_run:
        return {
            "checkpoint": path.as_posix(),
            "exists": path.is_dir(),
            "layouts": ["hf", *shards.needed(job)],
            "inputs": inputs,
        }
    try:
        made = _kept(job, path, key) or _alone(job, path, key, model, inputs, evaluate)
        return _with_layouts(job, made) if shards.missing(job, made.manifest) else made
    finally:
        job.verified.save()


def _with_layouts(job: Job, made: Checkpoint) -> Checkpoint:
    """The checkpoint with the sharded layouts that targets' builds read; nothing is quantized."""
    path, key = made.path, str(made.manifest["key"])
    with locks.exclusive(lock_of(job, path), _waiting(job, path)) as held:
        content = manifest.reuse(path, "checkpoint", key, job.verified) or made.manifest
        if layouts := shards.missing(job, content):
            content = shards.extend(job, path, content, layouts, alone=held)
    return Checkpoint(path, content, made.reused)


def _kept(job: Job, path: Path, key: str) -> Checkpoint | None:
    kept = manifest.reuse(path, "checkpoint", key, job.verified)
    if kept is None or (_needs_trtllm(job) and kept.get("trtllm_version") != TRTLLM_VERSION):
        return None
    job.reporter.note(f"reusing verified checkpoint {path.name}")
    return Checkpoint(path, kept, True)


def _alone(
    job: Job, path: Path, key: str, model: Path, inputs: dict[str, Any], evaluate: bool
) -> Checkpoint:
    """Make the checkpoint while no other process does, or take the one that it made."""
    with locks.exclusive(lock_of(job, path), _waiting(job, path)) as held:
        return _kept(job, path, key) or _make(job, path, key, model, inputs, evaluate, held)


def lock_of(job: Job, path: Path) -> Path:
    """The lock of a checkpoint's folder: whoever makes, changes or removes it holds it alone."""
    return job.own_files / "locks" / f"{path.name}.lock"


def _waiting(job: Job, path: Path) -> Callable[[str], None]:
    def waiting(who: str) -> None:
        job.reporter.note(f"{path.name}: {who} is at work on this checkpoint; waiting for it")

    return waiting


def _make(
    job: Job, path: Path, key: str, model: Path, inputs: dict[str, Any], evaluate: bool, held: bool
) -> Checkpoint:
    spec = job.loaded.spec
    calibration = spec.calibration
    roots = job.catalog.template_roots
    log = job.out / "logs" / f"quantize-{job.run_id}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with files.staged(path, alone=held) as staging, job.located():
        request = {
            "source": str(model),
            "tokenizer": str(_tokenizer(job, model)),
            "out": str(staging),
            "weights": str(spec.precision.weights),
            "modelopt_config": job.weight_recipe.modelopt_config,
            "modelopt_kv_config": job.kv_recipe.modelopt_config,
            "group_size": job.group_size,
            "trtllm": _needs_trtllm(job),
            "trust_remote_code": spec.model.trust_remote_code,
            "dataset": calibration.dataset if calibration and _quantizes(job) else None,
            "spec_dir": str(job.loaded.folder),
            "samples": calibration.samples if calibration else 0,
            "seq_len": calibration.seq_len if calibration else 0,
            "batch_size": calibration.batch_size if calibration else 1,
            "seed": calibration.seed if calibration else 0,
            "eval_documents": calibration.eval_documents if calibration else 0,
            "evaluate": evaluate and calibration is not None and calibration.eval_documents > 0,
            "reference_paths": [
                str(root / name) for root in roots for name in ("shared", "reference")
            ],
        }
        result = process.run_module(
            "engineroom.runner.quantize_child",
            request,
            log=log,
            on_event=lambda event: _report(job, event),
        )
        result.pop("event")
        content = manifest.write(
            staging,
            "checkpoint",
            run_id=job.run_id,
            catalog_digest=job.catalog.digest,
            key=key,
            facts=_facts(job, inputs, result),
            verified=job.verified,
        )
    return Checkpoint(path, content, False)


def _tokenizer(job: Job, model: Path) -> Path:
    name = job.loaded.spec.model.tokenizer
    if name is None:
        return model
    return model_source.user_path(name, job.loaded.folder, Where(key="model.tokenizer"))


def _tokenizer_digest(job: Job, model: Path) -> str | None:
    """Of a tokenizer that is not the model's own; a name that is no folder here stays a name."""
    folder = _tokenizer(job, model)
    if folder == model:
        return None
    if folder.is_dir():
        return model_source.source_digest(folder, job.verified)
    return job.loaded.spec.model.tokenizer


def _report(job: Job, event: dict[str, Any]) -> None:
    if event["event"] == "phase":
        job.reporter.progress(str(event["name"]), 0, int(event["total"]))
    elif event["event"] == "progress":
        job.reporter.progress(str(event["phase"]), int(event["done"]), int(event["total"]))


def _facts(job: Job, inputs: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """The conditions, without which no result of this checkpoint means anything."""
    recipe, kv, spec = job.weight_recipe, job.kv_recipe, job.loaded.spec
    calibration = inputs["calibration"]
    return {
        "model": {
            "source": spec.model.source,
            "revision": spec.model.revision,
            "source_digest": inputs["source_digest"],
            "licences": result.pop("licences"),
        },
        "weights": {
            "format": str(recipe.weights),
            "recipe": recipe.id,
            "quant_algo": recipe.quant_algo,
            "algorithm": recipe.algorithm,
            "granularity": recipe.weight_granularity,
            "activation_scheme": recipe.activation_scheme,
            "group_size": job.group_size,
        },
        "kv_cache": {
            "format": kv.kv_cache_quant_algo.lower() if kv.kv_cache_quant_algo else "16-bit",
            "quant_algo": kv.kv_cache_quant_algo,
            "scales": kv.scales,
        },
        "calibration": calibration and {"dataset": spec.calibration.dataset, **calibration}
        if spec.calibration
        else None,
        "layouts": ["hf", *(["trtllm tp1 pp1"] if _needs_trtllm(job) else [])],
        "trtllm_version": TRTLLM_VERSION if _needs_trtllm(job) else None,
        **result,
    }
