"""`render`: the Triton model repository of every target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engineroom.errors import FindingsError
from engineroom.lanes import RepositoryRequest
from engineroom.lanes.launch import LaunchPlan, LaunchRequest
from engineroom.names import RuntimeName
from engineroom.pipeline.build import Artefact, find_artefact
from engineroom.pipeline.check import require_no_errors
from engineroom.pipeline.job import Job, ResolvedTarget, only_targets
from engineroom.pipeline.quantize import Checkpoint, find
from engineroom.render import render_tree
from engineroom.runner import files, manifest
from engineroom.types import RenderedFile

LAUNCH = "launch.json"


@dataclass(frozen=True)
class Repository:
    """A rendered model repository: `path` is what `--model-repository` takes.

    Attributes:
        launch: how the server is started, as a user that is not root.
    """

    target: ResolvedTarget
    artefact: Artefact
    runtime: RuntimeName
    path: Path
    digest: str
    launch: LaunchPlan


def render_files(
    job: Job,
    item: ResolvedTarget,
    checkpoint: Checkpoint,
    artefact: Artefact,
    runtime: RuntimeName,
    artefact_root: str,
) -> tuple[RenderedFile, ...]:
    """The repository in memory; same input, same bytes.

    Args:
        artefact_root: absolute POSIX path of the workspace as the server will see it.
    """
    context = item.lane.repository_context(
        RepositoryRequest(
            lane_request=job.lane_request(item, checkpoint.relative(job)),
            runtime=runtime,
            artefact_dir=f"{artefact_root}/{artefact.relative(job)}",
            tokenizer_dir=f"{artefact_root}/{checkpoint.relative(job)}/hf",
        )
    )
    roots = job.catalog.template_roots
    return render_tree(roots, context.layout, context.variables)


def render(
    job: Job,
    target: str | None = None,
    *,
    runtime: RuntimeName = RuntimeName.TENSORRT_LLM,
    artefact_root: str | None = None,
    dry_run: bool = False,
) -> list[Repository] | list[dict[str, Any]]:
    """Render every target's repository into the workspace.

    Raises:
        FindingsError: `check` finds errors, or a version has no contract.
        UsageError: the checkpoint or the artefact is not there or damaged.
    """
    require_no_errors(job)
    for item in only_targets(job, target):
        item.known_contract()
    checkpoint = find(job)
    root = artefact_root or job.out.as_posix()
    results: list[Repository] = []
    listing: list[dict[str, Any]] = []
    for item in only_targets(job, target):
        artefact = find_artefact(job, item, checkpoint)
        if artefact.is_engine_plan and runtime is RuntimeName.TENSORRT_LLM:
            raise FindingsError(
                f"{item.target.id}: the engine is only planned; gpt_model_path would point at no engine",
                hint="run the build plan on its GPU, or render with --runtime reference",
            )
        rendered = render_files(job, item, checkpoint, artefact, runtime, root)
        if dry_run:
            listing.append({"target": item.target.id, "files": [file.path for file in rendered]})
            continue
        results.append(_publish(job, item, artefact, runtime, root, rendered))
    return listing if dry_run else results


def folder(job: Job, item: ResolvedTarget, runtime: RuntimeName) -> Path:
    suffix = "" if runtime is RuntimeName.TENSORRT_LLM else f"-{runtime}"
    return job.out / "repositories" / f"{item.target.id}{suffix}"


def launch_plans(
    job: Job, item: ResolvedTarget, runtime: RuntimeName, root: str
) -> dict[str, LaunchPlan]:
    """How the server of a repository is started, by the kind of user that starts it.

    Args:
        root: absolute POSIX path of the workspace as the server will see it.
    """
    where = folder(job, item, runtime).relative_to(job.out).as_posix()
    return {
        user: item.lane.launch(
            LaunchRequest(
                job.loaded.spec, item.target, f"{root}/{where}/repository", as_root=user == "root"
            )
        )
        for user in ("non_root", "root")
    }


def _publish(
    job: Job,
    item: ResolvedTarget,
    artefact: Artefact,
    runtime: RuntimeName,
    root: str,
    rendered: tuple[RenderedFile, ...],
) -> Repository:
    path = folder(job, item, runtime)
    with files.staged(path) as staging:
        files.write_tree(staging / "repository", rendered)
        plans = launch_plans(job, item, runtime, root)
        if runtime is not RuntimeName.REFERENCE:  # that one is started by `serve` alone
            document = {user: plan.as_dict() for user, plan in plans.items()}
            files.write_json(staging / LAUNCH, {"schema_version": 1, **document})
        content = manifest.write(
            staging,
            "repository",
            run_id=job.run_id,
            catalog_digest=job.catalog.digest,
            key=files.sha256_json({"artefact": artefact.manifest["digest"], "root": root}),
            facts={
                "target": item.target.id,
                "lane": str(item.target.lane),
                "runtime": str(runtime),
                "tensorrt_llm": item.stack.tensorrt_llm or None,
                "runtime_version": f"{item.stack.runtime_name} {item.stack.runtime_version}",
                "artefact": {
                    "path": artefact.relative(job),
                    "kind": artefact.kind,
                    "digest": artefact.manifest["digest"],
                },
                "artefact_root": root,
                "front_model": item.lane.client.front(job.loaded.spec.serving.fronts),
            },
        )
    return Repository(
        item, artefact, runtime, path / "repository", str(content["digest"]), plans["non_root"]
    )
