"""Steps as Kubernetes Jobs on nodes of the SKU, through `kubectl`.

The workspace lies on a PersistentVolumeClaim that this process sees as well (it runs in a pod with the
claim, or on a machine that mounts the same share): inputs are read from it and the output comes back
through it. A Job's name follows from the key of what it makes, so that a run whose `engineroom` was
killed is found again, and its result taken over rather than made twice.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engineroom.errors import ExternalToolError, MissingError, UsageError, Where
from engineroom.runner import files
from engineroom.runner.executors import kube_job, pod_build
from engineroom.runner.executors.base import StepRun
from engineroom.runner.executors.kube_run import JobRun, Kubectl
from engineroom.runner.executors.options import (
    MIN_POLL,
    check_retries,
    check_seconds,
    check_sub_path,
    check_user,
)
from engineroom.types import Step

JOBS = ".engineroom-jobs"
"""Folder of the workspace that holds what Jobs made, until it is taken over."""

_SEEN_SECONDS = 30.0
"""How long a published result may stay unseen here: attribute caches of network file systems."""


@dataclass(frozen=True)
class KubernetesExecutor:
    """`kubectl create` of a Job, its log, and its end.

    Attributes:
        claim: PersistentVolumeClaim with the workspace; always needed.
        sub_path: folder of the claim that is the workspace.
        namespace, context: as kubectl has them; empty: its current ones.
        pull_secret: name of an image pull secret.
        user: uid and gid of the pod.
        cpu, shm_size: quantities.
        retries: pods after the first when one was taken away.
        poll: seconds between looks at the Job.
        grace: seconds that the client gets to end when a run is stopped.
    """

    claim: str = ""
    sub_path: str = ""
    namespace: str = ""
    context: str = ""
    pull_secret: str = ""
    user: int = 1000
    cpu: str = "4"
    shm_size: str = "2Gi"
    retries: int = 2
    poll: float = 2.0
    grace: float = 2.0
    program: str = "kubectl"

    name = "kubernetes"
    elsewhere = True
    """Steps take no memory of this machine."""

    def __post_init__(self) -> None:
        check_retries(self.name, self.retries)
        check_seconds(self.name, "grace", self.grace)
        check_seconds(self.name, "poll", self.poll, MIN_POLL)
        check_user(self.name, self.user)
        check_sub_path(self.name, self.sub_path)

    def missing(self, step: Step) -> str | None:
        return self.program if step.argv and shutil.which(self.program) is None else None

    def run(self, run: StepRun) -> None:
        if (absent := self.missing(run.step)) is not None:
            raise MissingError(
                f"`{absent}` is not on PATH",
                hint="install kubectl and give it access to the cluster, or use --executor docker",
            )
        run.log.parent.mkdir(parents=True, exist_ok=True)
        run.log.write_bytes(b"")
        name = job_name(run)
        request = self.request(run, name)
        result = run.workspace / request.publish
        _make_shared(result.parent)
        probe = result.parent / f"{name}.probe"
        files.write_text(probe, name)
        try:
            if not _complete(result, request.manifest):
                kubectl = Kubectl(self.program, self.context, self.namespace)
                JobRun(kubectl, run, request, poll=self.poll, grace=self.grace).to_its_end()
            _take_over(result, request.manifest, run)
        finally:
            probe.unlink(missing_ok=True)

    def manifest(self, run: StepRun) -> dict[str, Any]:
        """The Job of a run, as data.

        Raises:
            UsageError: no claim is named, the step has no image, or a name is not Kubernetes'.
        """
        return kube_job.job(self.request(run, job_name(run)))

    def request(self, run: StepRun, name: str) -> kube_job.JobRequest:
        """What the Job of a run is made of.

        Raises:
            UsageError: no claim is named.
        """
        if not self.claim:
            raise UsageError(
                "the kubernetes executor needs the claim that holds the workspace",
                where=Where(key="--executor"),
                hint="name it with the option `claim`",
            )
        publish = f"{JOBS}/{name}"
        return kube_job.JobRequest(
            name=name,
            step=run.step,
            sku=run.sku,
            claim=self.claim,
            publish=publish,
            manifest={"schema_version": 1, "kind": "step-output", "key": _key(run)},
            namespace=self.namespace,
            sub_path=self.sub_path,
            probe={"path": f"{publish}.probe", "text": name},
            target=run.target,
            timeout=run.timeout,
            retries=self.retries,
            user=self.user,
            pull_secret=self.pull_secret,
            cpu=self.cpu,
            shm_size=self.shm_size,
        )


def _key(run: StepRun) -> str:
    return run.key or files.sha256_json(run.step.as_dict())


def job_name(run: StepRun) -> str:
    """Name of a run's Job, by its key and step: one target may have several steps."""
    digest = files.sha256_json([_key(run), list(run.step.argv), run.step.image])
    return f"engineroom-build-{digest[:16]}"


def _complete(result: Path, manifest: Mapping[str, Any]) -> bool:
    return pod_build.complete(result, str(manifest["key"]))


def _take_over(result: Path, manifest: Mapping[str, Any], run: StepRun) -> None:
    """Move a verified result into the caller's folder.

    Raises:
        ExternalToolError: it is not there, or not what the pod wrote.
    """
    end = time.monotonic() + _SEEN_SECONDS
    while not _complete(result, manifest):
        if (result / pod_build.MANIFEST).exists() or time.monotonic() >= end:
            raise ExternalToolError(
                "the Job ended well, but its result here is missing or damaged",
                where=Where(result.as_posix()),
                hint="check that the claim is mounted here as the workspace, then run again",
            )
        time.sleep(0.5)
    for path in sorted(result.iterdir()):
        if path.name != pod_build.MANIFEST:
            _move(path, run.output / path.name)
    # The lock file stays for a pod that may wait for it; it is empty.
    shutil.rmtree(result, ignore_errors=True)


def _move(path: Path, goal: Path) -> None:
    try:
        path.replace(goal)
    except OSError:  # another file system, or a folder of the pod's user
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, goal)


def _make_shared(folder: Path) -> None:
    """Make the folder where pods publish; they may run as another user than this process."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o1777)
