"""`deploy`: a Helm release of every target, rendered by the Helm SDK and validated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engineroom.catalog import resources
from engineroom.errors import FindingsError, MissingError
from engineroom.lanes.launch import KILL_AFTER, LaunchRequest
from engineroom.names import RuntimeName
from engineroom.pipeline.build import Artefact, find_artefact
from engineroom.pipeline.check import require_no_errors
from engineroom.pipeline.job import Job, ResolvedTarget, only_targets
from engineroom.pipeline.quantize import Checkpoint, find
from engineroom.pipeline.render import render_files
from engineroom.runner import files, manifest, process
from engineroom.types import RenderedFile

POD_ROOT = "/var/lib/engineroom"
KUBE_VERSIONS = ("1.29.0", "1.37.0")


@dataclass(frozen=True)
class Release:
    """A rendered Helm release: `path` holds values.yaml, manifests.yaml and manifest.json."""

    target: ResolvedTarget
    path: Path
    objects: tuple[str, ...]
    stood_in: str | None


def deploy(
    job: Job, target: str | None = None, *, dry_run: bool = True, allow_plan: bool = False
) -> list[Release]:
    """Render and validate the release of every target.

    Args:
        allow_plan: accept an engine that exists only as a plan (`up --runtime reference`).

    Raises:
        FindingsError: `check` finds errors, or an engine is not built.
        MissingError: not a dry run (installing is not implemented yet), or the extra is missing.
    """
    if not dry_run:
        raise MissingError(
            "installing into a cluster is not implemented yet",
            hint="use --dry-run and apply releases/<target>/manifests.yaml with kubectl",
        )
    require_no_errors(job)
    checkpoint = find(job)
    releases = []
    for item in only_targets(job, target):
        artefact = find_artefact(job, item, checkpoint)
        if artefact.is_engine_plan and not allow_plan:
            raise FindingsError(
                f"{item.target.id}: the engine is only planned; a pod would find nothing to load",
                hint=f"run the plan in {artefact.path.as_posix()} on a {item.sku.id}, then deploy",
            )
        releases.append(_one(job, item, checkpoint, artefact))
    return releases


def _one(job: Job, item: ResolvedTarget, checkpoint: Checkpoint, artefact: Artefact) -> Release:
    rendered = render_files(job, item, checkpoint, artefact, RuntimeName.TENSORRT_LLM, POD_ROOT)
    values = chart_values(job, item, checkpoint, rendered)
    path = job.out / "releases" / item.target.id
    log = job.out / "logs" / f"helm-{item.target.id}-{job.run_id}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    result = process.run_module(
        "engineroom.runner.helm_child",
        {
            "chart": str(resources.data_root() / "helm" / "engineroom"),
            "values": values,
            "name": release_name(job, item),
            "namespace": job.loaded.spec.deploy.namespace,
            "kube_versions": list(KUBE_VERSIONS),
            "validate": True,
        },
        log=log,
    )
    stood_in = "reference" if artefact.is_engine_plan else None
    with files.staged(path) as staging:
        files.write_text(staging / "values.yaml", files.dump_yaml(values))
        files.write_text(staging / "manifests.yaml", result["manifests"])
        manifest.write(
            staging,
            "helm-release",
            run_id=job.run_id,
            catalog_digest=job.catalog.digest,
            key=files.sha256_json(values),
            facts={
                "target": item.target.id,
                "lane": str(item.target.lane),
                "dry_run": True,
                "artefact": {"digest": artefact.manifest["digest"], "kind": artefact.kind},
                "kube_versions_validated": result["kube_versions_validated"],
                "objects": result["objects"],
                "stood_in": stood_in,
            },
        )
    names = tuple(f"{o['kind']}/{o['name']}" for o in result["objects"])
    return Release(item, path, names, stood_in)


def release_name(job: Job, item: ResolvedTarget) -> str:
    """At most 53 characters, as Helm demands; SKU and lane keep releases of one spec apart."""
    tail = f"-{item.target.lane}-{item.sku.id}"
    return (job.loaded.spec.name[: 53 - len(tail)].rstrip("-") + tail)[:53].rstrip("-")


def chart_values(
    job: Job, item: ResolvedTarget, checkpoint: Checkpoint, rendered: tuple[RenderedFile, ...]
) -> dict[str, Any]:
    """Values of `helm/engineroom` from the spec; sizes follow docs/design.md.

    Host memory = 1.2 x weights + /dev/shm + 8 GiB + 4 GiB a GPU; start budget = 120 s + 15 s a GiB
    of weights, at least 600 s. Both are estimates with head room, not measurements.
    """
    spec, target = job.loaded.spec, item.target
    gpus = target.gpus
    # The pod's user is not root, and its repository and ports are the chart's own.
    launch = item.lane.launch(LaunchRequest(spec, target, "/repository"))
    weights = sum(p.stat().st_size for p in (checkpoint.path / "hf").glob("*.safetensors")) / 2**30
    shm = min(16, max(2, 1 + gpus))
    storage = spec.deploy.storage
    digest = files.digest_of({file.path: files.sha256_json(file.text) for file in rendered})
    return {
        "image": {
            "reference": spec.deploy.image or item.stack.image or "",
            "pullSecret": spec.deploy.image_pull_secret or "",
        },
        "replicas": spec.deploy.replicas,
        "model": {
            "name": spec.name,
            "lane": str(target.lane),
            "target": target.id,
            "sku": item.sku.id,
            "frontModel": item.lane.client.front(spec.serving.fronts),
            "digest": digest,
        },
        "repository": {
            "files": [
                {"key": f"f{i:03d}", "path": file.path, "content": file.text}
                for i, file in enumerate(rendered)
            ]
        },
        "launch": {
            "wrapper": list(launch.wrapper),
            "processes": [list(words) for words in launch.processes],
            # The chart sets KILL_AFTER itself, from the drain's time that its owner may change.
            "env": [
                {"name": name, "value": value}
                for name, value in launch.env.items()
                if name != KILL_AFTER
            ],
        },
        "artifacts": {"mountPath": POD_ROOT, "readOnly": True},
        "storage": {
            "size": storage.size,
            "storageClass": storage.storage_class or "",
            "accessMode": storage.access_mode,
            "existingClaim": storage.existing_claim or "",
        },
        "gpus": gpus,
        "nodeSelector": {"nvidia.com/gpu.product": item.sku.node_label},
        "resources": {
            "cpu": str(4 + 2 * gpus),
            "memory": f"{math.ceil(1.2 * weights + shm + 8 + 4 * gpus)}Gi",
        },
        "shmSize": f"{shm}Gi",
        "startup": {"budgetSeconds": min(7200, max(600, math.ceil(120 + 15 * weights)))},
    }
