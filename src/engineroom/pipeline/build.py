"""`build`: an engine, its plan, or an LLM-API package for every target."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engineroom.errors import ExternalToolError, MissingError, UsageError, Where
from engineroom.lanes import LaneRequest
from engineroom.pipeline.check import require_no_errors
from engineroom.pipeline.job import Job, ResolvedTarget, only_targets
from engineroom.pipeline.quantize import Checkpoint, find
from engineroom.runner import files, manifest, xgrammar_info
from engineroom.runner.executors import LocalExecutor, StepRun
from engineroom.types import GpuSku, Step

PLAN = "build-plan.json"
ARTIFACTS = "artifacts"
"""Folder of the workspace that holds what `build` makes."""


@dataclass(frozen=True)
class Artefact:
    """What a target's build left.

    Attributes:
        kind: ``engine`` (compiled), ``build-plan`` (the command, not run) or ``<lane>-package`` of
            a lane that compiles nothing.
    """

    target: ResolvedTarget
    path: Path
    kind: str
    manifest: dict[str, Any]
    reused: bool

    @property
    def is_engine_plan(self) -> bool:
        return self.kind == "build-plan"

    def relative(self, job: Job) -> str:
        return self.path.relative_to(job.out).as_posix()


def location(
    job: Job, item: ResolvedTarget, checkpoint: Checkpoint
) -> tuple[Path, str, LaneRequest]:
    """(artefact folder, key, lane request): a function of the inputs alone.

    Layout: ``artifacts/<name>/<lane>/<runtime version>/<sku>/<tp>x<pp>/<digest>/``.

    Raises:
        FindingsError: no contract of the version.
    """
    request = job.lane_request(item, checkpoint.relative(job))
    key = files.sha256_json(
        {
            "steps": [step.as_dict() for step in item.lane.steps(request)],
            "documents": dict(item.lane.documents(request)),
            "checkpoint": checkpoint.manifest["digest"],
            "contract": request.contract.digest,
            "image": item.stack.image,
            "sku": item.sku.id,
        }
    )
    target = item.target
    parts = (
        ARTIFACTS,
        job.loaded.spec.name,
        str(target.lane),
        item.stack.runtime_version,
        item.sku.id,
        f"{target.tensor_parallel}x{target.pipeline_parallel}",
        key[:16],
    )
    return job.out.joinpath(*parts), key, request


def find_artefact(job: Job, item: ResolvedTarget, checkpoint: Checkpoint) -> Artefact:
    """The finished artefact of a target.

    Raises:
        UsageError: not built, or damaged.
    """
    path, key, _ = location(job, item, checkpoint)
    for kind in ("engine", "build-plan", f"{item.target.lane}-package"):
        content = manifest.reuse(path, kind, key)
        if content is not None:
            return Artefact(item, path, kind, content, True)
    raise UsageError(
        f"{item.target.id} is not built, or its artefact is damaged",
        where=Where(path.as_posix()),
        hint="run `engineroom build` first, or `engineroom up` for the whole chain",
    )


def build(
    job: Job, target: str | None = None, *, dry_run: bool = False, allow_plan: bool = False
) -> list[Artefact] | list[dict[str, Any]]:
    """Build every target; with `dry_run`, the steps as data.

    Args:
        allow_plan: a plan without its tool is good enough (`up --runtime reference` stands something
            else in); otherwise it is exit 4, after the plan was written.

    Raises:
        FindingsError: `check` finds errors, or a version has no contract.
        MissingError: a step's tool is not on PATH. ExternalToolError: it failed.
    """
    require_no_errors(job)
    chosen = only_targets(job, target)
    if dry_run:
        requests = [(item, job.lane_request(item, "checkpoints/CHECKPOINT")) for item in chosen]
        return [
            {
                "target": item.target.id,
                "steps": [step.as_dict() for step in item.lane.steps(request)],
                "documents": dict(item.lane.documents(request)),
            }
            for item, request in requests
        ]
    checkpoint = find(job)
    results = [_build_one(job, item, checkpoint) for item in chosen]
    missing = [r for r in results if r.is_engine_plan]
    if missing and not allow_plan:
        tool = missing[0].manifest["steps"][0]["argv"][0]
        plans = ", ".join((r.path / PLAN).as_posix() for r in missing)
        raise MissingError(
            f"`{tool}` is not on PATH; the build plan is written: {plans}",
            hint=f"run it in {missing[0].target.stack.image or 'the container of its stack'} on a "
            f"{missing[0].target.sku.id}, or use "
            "lane: llmapi, which compiles nothing",
        )
    return results


def _build_one(job: Job, item: ResolvedTarget, checkpoint: Checkpoint) -> Artefact:
    path, key, request = location(job, item, checkpoint)
    steps = item.lane.steps(request)
    tools = [step.argv[0] for step in steps if step.argv]
    runnable = not any(LocalExecutor().missing(step) for step in steps)
    package = f"{item.target.lane}-package"
    kind = package if not tools else ("engine" if runnable else "build-plan")
    kept = manifest.reuse(path, kind, key) or manifest.reuse(path, "engine", key)
    if kept is not None:
        job.reporter.note(f"{item.target.id}: reusing verified {kept['kind']}")
        return Artefact(item, path, str(kept["kind"]), kept, True)
    _assert_quantization(job, request, checkpoint)
    with files.staged(path) as staging:
        for name, value in item.lane.documents(request).items():
            files.write_text(staging / name, files.dump_yaml(value))
        facts = _facts(item, request, checkpoint, steps)
        if kind == package:
            files.link_tree(checkpoint.path / "hf", staging / "checkpoint")
        else:
            plan = {
                "schema_version": 1,
                "kind": "build-plan",
                "run_from": "workspace root",
                **facts,
            }
            # Where the reference runtime finds what to compute with; an engine needs no such thing.
            plan["reference_checkpoint"] = Path(
                os.path.relpath(checkpoint.path / "hf", path)
            ).as_posix()
            files.write_json(staging / PLAN, plan)
        for step in steps:
            if step.name == "xgrammar-tokenizer-info":
                stop_ids = request.spec.serving.stop_ids
                xgrammar_info.write(checkpoint.path / "hf", staging / step.outputs[0], stop_ids)
            elif kind == "engine":
                _run_step(job, step, item.sku, staging)
        content = manifest.write(
            staging,
            kind,
            run_id=job.run_id,
            catalog_digest=job.catalog.digest,
            key=key,
            facts=facts,
        )
    return Artefact(item, path, kind, content, False)


def _run_step(job: Job, step: Step, sku: GpuSku, staging: Path) -> None:
    """Run a step from the workspace root with its output in the staged folder."""
    log = job.out / "logs" / f"{step.name}-{job.run_id}.log"
    LocalExecutor().run(StepRun(step, sku, job.out, staging, log))
    absent = [name for name in step.outputs if not (staging / name).is_file()]
    if absent:
        raise ExternalToolError(
            f"`{step.argv[0]}` ended well but left no {', '.join(absent)}",
            where=Where(log.as_posix()),
        )


def _assert_quantization(job: Job, request: LaneRequest, checkpoint: Checkpoint) -> None:
    """What the builder takes from the checkpoint must be what the spec says: FP8 KV is no flag."""
    for relative in ("trtllm/config.json", "hf/hf_quant_config.json"):
        path = checkpoint.path / relative
        if not path.is_file():
            continue
        found = files.read_json(path)["quantization"]
        for name, expected in (
            ("quant_algo", request.weight_recipe.quant_algo),
            ("kv_cache_quant_algo", request.kv_recipe.kv_cache_quant_algo),
        ):
            if found.get(name) != expected:
                raise UsageError(
                    f"the checkpoint says {name} {found.get(name)}, the spec needs {expected}",
                    where=Where(path.as_posix(), key=name),
                    hint="run `engineroom quantize` again",
                )


def _facts(
    item: ResolvedTarget, request: LaneRequest, checkpoint: Checkpoint, steps: list[Step]
) -> dict[str, Any]:
    limits = request.target.limits
    return {
        "target": item.target.id,
        "lane": str(item.target.lane),
        "sku": {"id": item.sku.id, "compute_capability": item.sku.compute_capability},
        "stack": {
            "id": item.stack.id,
            "runtime": item.stack.runtime_name,
            "runtime_version": item.stack.runtime_version,
            "tensorrt_llm": item.stack.tensorrt_llm or None,
            "tensorrt": item.stack.tensorrt,
            "image": item.stack.image,
        },
        "contract": {"version": request.contract.version, "digest": request.contract.digest},
        "tensor_parallel": item.target.tensor_parallel,
        "pipeline_parallel": item.target.pipeline_parallel,
        "limits": {
            "max_batch_size": limits.max_batch_size,
            "max_num_tokens": limits.max_num_tokens,
            "max_seq_len": request.max_seq_len,
            "max_beam_width": limits.max_beam_width,
        },
        "checkpoint": {
            "path": request.checkpoint,
            "digest": checkpoint.manifest["digest"],
            "weights": checkpoint.manifest["weights"],
            "kv_cache": checkpoint.manifest["kv_cache"],
        },
        "steps": [step.as_dict() for step in steps],
    }
