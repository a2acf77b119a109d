"""TensorRT-LLM checkpoints for TP x PP, made from a checkpoint's own of one rank.

They lie in the checkpoint's folder (``trtllm-tp2pp1/``) and in its manifest, and are no part of its
key: they are cut from what is there, so a target with another layout needs no new quantization, and
what other targets read stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engineroom.errors import UsageError
from engineroom.pipeline.job import Job
from engineroom.planning.rank_parts import Layout
from engineroom.runner import files, manifest, trtllm_shards
from engineroom.types.layout import trtllm_folder

_ANY = "CHECKPOINT"
_SET_ANEW = {
    "schema_version", "kind", "key", "run_id", "created", "engineroom_version", "catalog_digest",
    "digest", "files", "seal",
}  # fmt: skip


def needed(job: Job) -> dict[str, Layout]:
    """Folders of a checkpoint that targets' builds read and that hold a TensorRT-LLM checkpoint."""
    found: dict[str, Layout] = {}
    for item in job.targets:
        if item.contract is None:
            continue
        target = item.target
        layout = Layout(target.tensor_parallel, target.pipeline_parallel)
        name = trtllm_folder(layout.tensor_parallel, layout.pipeline_parallel)
        for step in item.lane.steps(job.lane_request(item, _ANY)):
            if f"{_ANY}/{name}" in step.inputs:
                found[name] = layout
    return found


def missing(job: Job, content: Mapping[str, Any]) -> dict[str, Layout]:
    """Those of `needed` that a checkpoint with this manifest does not have yet."""
    there = {name.partition("/")[0] for name in content["files"]}
    return {name: layout for name, layout in needed(job).items() if name not in there}


def extend(
    job: Job, path: Path, content: Mapping[str, Any], layouts: Mapping[str, Layout], *, alone: bool
) -> dict[str, Any]:
    """Publish the checkpoint anew with these layouts added; its other files are linked, not copied.

    Args:
        path: folder of a verified checkpoint; content: its manifest.
        alone: the caller holds the checkpoint's lock.

    Returns:
        The new manifest.

    Raises:
        UsageError: the model cannot be cut so; the checkpoint stays as it was.
    """
    if not (path / "trtllm").is_dir():
        raise UsageError(
            "the checkpoint has no TensorRT-LLM layout to cut",
            hint="run `engineroom quantize` again",
        )
    # The outer one: the old folder's links go away when the new one is published.
    with job.verified.linking(path), files.staged(path, alone=alone) as staging:
        with job.verified.linking(path):
            files.link_tree(path, staging)
        for name, layout in layouts.items():
            trtllm_shards.cut(
                path / "trtllm",
                staging / name,
                job.catalog.trtllm_checkpoint,
                layout,
                _progress(job, name),
            )
        facts = {key: value for key, value in content.items() if key not in _SET_ANEW}
        facts["layouts"] = [*content["layouts"], *map(_words, layouts.values())]
        facts["cut_by_engineroom"] = sorted({*content.get("cut_by_engineroom", ()), *layouts})
        return manifest.write(
            staging,
            "checkpoint",
            run_id=job.run_id,
            catalog_digest=job.catalog.digest,
            key=content["key"],
            facts=facts,
            verified=job.verified,
        )


def _progress(job: Job, name: str) -> trtllm_shards.Progress:
    return lambda done, total: job.reporter.progress(name, done, total)


def _words(layout: Layout) -> str:
    return f"trtllm tp{layout.tensor_parallel} pp{layout.pipeline_parallel}"
