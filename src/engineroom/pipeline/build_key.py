"""What decides a target's artefact, and so its key and its place.

The key is a digest of `Inputs.facts`, and these are all that a build reads:

* each step's command, with its inputs and outputs by name, and the settings of an in-process action;
* the documents that go into the artefact (`llm_args.yaml`);
* the digests of the checkpoint's files that the steps read, wherever the checkpoint lies;
* the digests of what is attached (draft model, adapters), wherever it came from;
* the runtime and its version, the image, the SKU, and `LAYOUT`.

The spec and the contract come in through the commands and documents that lanes make of them. So a
setting that no step reads changes no key, nor does a remark in a contract, the reason of a flag, the
name of a service or of a serving profile. Their digests are in the manifest, for provenance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engineroom.errors import UsageError, Where
from engineroom.lanes import LaneRequest
from engineroom.pipeline.attachments import Attached, attached
from engineroom.pipeline.build_actions import ACTIONS
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.pipeline.quantize import Checkpoint
from engineroom.runner import files
from engineroom.types import Step

ARTIFACTS = "artifacts"
"""Folder of the workspace that holds what `build` makes."""

LAYOUT = 2
"""Version of what an artefact's folder looks like. Raised when artefacts must be made again."""

_CHECKPOINT = "CHECKPOINT"
"""Stands for the checkpoint's folder, whose name is no input."""


@dataclass(frozen=True)
class Inputs:
    """Everything that a build of one target reads.

    Attributes:
        facts: what the key is the digest of.
        path: the artefact's folder: ``artifacts/<name>/<lane>/<runtime version>/<sku>/<tp>x<pp>/<key>/``.
    """

    item: ResolvedTarget
    request: LaneRequest
    steps: tuple[Step, ...]
    documents: Mapping[str, Any]
    attached: tuple[Attached, ...]
    facts: Mapping[str, Any]
    key: str
    path: Path

    @property
    def compiles(self) -> bool:
        """Whether a tool is needed; else the artefact is put together here."""
        return any(step.argv for step in self.steps)

    @property
    def package(self) -> str:
        """Kind of the artefact of a lane that compiles nothing."""
        return f"{self.item.target.lane}-package"


def inputs_of(job: Job, item: ResolvedTarget, checkpoint: Checkpoint) -> Inputs:
    """The inputs of a target's build, digested.

    Raises:
        FindingsError: no contract of the version.
        UsageError: the checkpoint lacks what a step reads, or an attachment is not here.
    """
    request = job.lane_request(item, checkpoint.relative(job))
    nameless = replace(request, checkpoint=_CHECKPOINT)
    steps = item.lane.steps(request)
    found = attached(job, item, request)
    target = item.target
    facts = {
        "layout": LAYOUT,
        "lane": str(target.lane),
        "runtime": f"{item.stack.runtime_name} {item.stack.runtime_version}",
        "image": item.stack.image,
        "sku": {"id": item.sku.id, "compute_capability": item.sku.compute_capability},
        "parallel": {"tensor": target.tensor_parallel, "pipeline": target.pipeline_parallel},
        "steps": [_step(step, nameless) for step in item.lane.steps(nameless)],
        "documents": dict(item.lane.documents(nameless)),
        "checkpoint": _read_of(job, steps, request, nameless, checkpoint),
        "attachments": [
            {"kind": a.attachment.kind, "path": a.attachment.target, "digest": a.digest}
            for a in found
        ],
    }
    key = files.sha256_json(facts)
    return Inputs(
        item,
        request,
        tuple(steps),
        item.lane.documents(request),
        found,
        facts,
        key,
        job.out / ARTIFACTS / job.loaded.spec.name / place(item, key),
    )


def place(item: ResolvedTarget, key: str) -> str:
    """Where an artefact lies below its service's folder, as a POSIX path."""
    target = item.target
    parts = (
        str(target.lane),
        item.stack.runtime_version,
        item.sku.id,
        f"{target.tensor_parallel}x{target.pipeline_parallel}",
        key[:16],
    )
    return "/".join(parts)


def _step(step: Step, request: LaneRequest) -> dict[str, Any]:
    """A step without what explains or places it: reasons, memory estimate, GPUs."""
    action = ACTIONS.get(step.name)
    return {
        "name": step.name,
        "argv": list(step.argv),
        "inputs": list(step.inputs),
        "outputs": list(step.outputs),
        "settings": action.settings(request) if action else None,
    }


def _read_of(
    job: Job, steps: list[Step], request: LaneRequest, nameless: LaneRequest, checkpoint: Checkpoint
) -> dict[str, str]:
    """Digests of what the steps read, by path; a folder's is one over its files.

    Args:
        nameless: the request with `_CHECKPOINT` for the checkpoint's folder.
    """
    listing: Mapping[str, str] = checkpoint.manifest["files"]
    found: dict[str, str] = {}
    for step in steps:
        action = ACTIONS.get(step.name)
        for name in step.inputs:
            if name.startswith(f"{request.checkpoint}/"):
                rest = name[len(request.checkpoint) + 1 :]
                found[f"{_CHECKPOINT}/{rest}"] = _part(listing, rest, checkpoint)
            else:
                # Beside the checkpoint (shards of it), or anywhere else in the workspace.
                found[name.replace(request.checkpoint, _CHECKPOINT, 1)] = _other(job, name)
        for name in action.reads(nameless) if action else ():
            rest = name[len(_CHECKPOINT) + 1 :]
            found[name] = files.digest_of({n: d for n, d in listing.items() if n == rest})
    return found


def assert_unchanged(job: Job, inputs: Inputs, checkpoint: Checkpoint) -> None:
    """What the steps read is still what the key was made of; files that have not changed are not read.

    Raises:
        UsageError: a file changed, came or went; names the input.
    """
    for name, expected in inputs.facts["checkpoint"].items():
        place = name.replace(_CHECKPOINT, inputs.request.checkpoint, 1)
        path = job.out / place
        try:
            found = _on_disk(job, path, checkpoint)
        except OSError as error:
            found = f"{error.strerror or error}"
        if found != expected:
            raise UsageError(
                "what the build reads is no longer what its key was made of: it was changed meanwhile",
                where=Where(path.as_posix(), key=inputs.item.target.id),
                hint="nothing was published; run `engineroom quantize`, then build again when nothing "
                "writes to it",
            )


def _on_disk(job: Job, path: Path, checkpoint: Checkpoint) -> str:
    """The digest of an input as `_read_of` takes it, of the files that are there now."""
    if not path.is_relative_to(checkpoint.path):
        if path.is_file():
            return job.verified.sha256(path)
        return files.digest_of(job.verified.tree_digests(path))
    rest = path.relative_to(checkpoint.path).as_posix()
    if path.is_dir():
        below = job.verified.tree_digests(path)
        return files.digest_of({f"{rest}/{n}": digest for n, digest in below.items()})
    return files.digest_of({rest: job.verified.sha256(path)} if path.exists() else {})


def _part(listing: Mapping[str, str], name: str, checkpoint: Checkpoint) -> str:
    part = {n: d for n, d in listing.items() if n == name or n.startswith(f"{name}/")}
    if not part:
        raise UsageError(
            f"the checkpoint has no {name}, which this build reads",
            where=Where(checkpoint.path.as_posix()),
            hint="run `engineroom quantize` again",
        )
    return files.digest_of(part)


def _other(job: Job, name: str) -> str:
    """An input elsewhere in the workspace."""
    path = job.out / name
    if path.is_file():
        return job.verified.sha256(path)
    if not path.is_dir():
        raise UsageError(
            "an input of the build is not there",
            where=Where(path.as_posix()),
            hint="run `engineroom quantize` again: it makes what each target's build reads",
        )
    return files.digest_of(job.verified.tree_digests(path))
