"""One Job through `kubectl`: made, watched to its end, removed when the run is given up."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engineroom.errors import ExternalToolError
from engineroom.runner import tool
from engineroom.runner.executors import kube_job, pod_build
from engineroom.runner.executors.base import StepFailed, StepRun
from engineroom.runner.executors.ending import failure, stopped
from engineroom.runner.executors.watch import Watch
from engineroom.runner.tool import Ended

_CALL_SECONDS = 60.0
_MISSES = 5
"""Polls in a row that may fail: an API server that restarts is no end of a build."""

_POD_ENDS = {
    pod_build.WRONG_CLAIM: "the claim of the pod is not this workspace",
    pod_build.NO_OUTPUT: "the command ended well, but an output is missing or no regular file",
}


@dataclass(frozen=True)
class Kubectl:
    """The client, and where it points; empty: its own current context and namespace."""

    program: str
    context: str
    namespace: str

    def words(self, *words: str) -> tuple[str, ...]:
        """A kubectl command line."""
        context = ("--context", self.context) if self.context else ()
        namespace = ("--namespace", self.namespace) if self.namespace else ()
        return (self.program, *context, *namespace, *words)

    def call(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """A short call of kubectl; its own code says how it went.

        Raises:
            ExternalToolError: it cannot be started, or does not answer.
        """
        try:
            return subprocess.run(
                self.words(*words),
                input=text,
                stdin=subprocess.DEVNULL if text is None else None,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_CALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ExternalToolError(
                f"`{self.program} {words[0]}` did not answer within {_CALL_SECONDS:g} s",
                hint="check the connection: kubectl version",
            ) from None
        except OSError as error:
            raise ExternalToolError(
                f"`{self.program}` cannot be started: {error.strerror}"
            ) from None

    def get(self, *words: str) -> Mapping[str, Any]:
        """What `kubectl get` prints as JSON.

        Raises:
            ExternalToolError: no answer, or one that cannot be read.
        """
        done = self.call("get", *words, "--output", "json")
        if done.returncode != 0:
            raise ExternalToolError(f"the cluster does not answer: {_last(done.stderr)}")
        try:
            content = json.loads(done.stdout)
        except (ValueError, RecursionError):
            raise ExternalToolError("kubectl's answer is no JSON") from None
        if not isinstance(content, dict):
            raise ExternalToolError(f"kubectl's answer is no object: {done.stdout.strip()[:80]}")
        return content


class JobRun:
    """One Job, from its creation to its end."""

    def __init__(
        self,
        kubectl: Kubectl,
        run: StepRun,
        request: kube_job.JobRequest,
        *,
        poll: float,
        grace: float,
    ) -> None:
        self.kubectl, self.run, self.request = kubectl, run, request
        self.poll, self.grace = poll, grace
        self.watch = Watch(run)
        self.end = None if run.timeout is None else time.monotonic() + run.timeout
        self.tail: tuple[str, ...] = ()
        self.said: set[str] = set()
        self.shown: dict[str, int] = {}

    def to_its_end(self) -> None:
        """Raises StepFailed, StepStopped, ExternalToolError."""
        try:
            self._create()
            job = self._wait()
        except BaseException:
            self._delete()
            raise
        if _condition(job, "Complete") is None:
            raise self._failed(job)

    def _create(self) -> None:
        """Make the Job, or go on with one of the same name that is not over.

        A Job that failed, or whose result is no longer there, is made again.
        """
        text = json.dumps(kube_job.job(self.request))
        for _ in range(2):
            done = self.kubectl.call("create", "-f", "-", text=text)
            if done.returncode == 0:
                return
            if "AlreadyExists" not in done.stderr:
                raise ExternalToolError(
                    f"the cluster did not take the Job: {_last(done.stderr)}",
                    hint="kubectl auth can-i create jobs",
                )
            if not _over(self._job()):
                self._say(f"going on with the Job {self.request.name} of an earlier run")
                return
            self._delete(wait=True)
        raise ExternalToolError(f"the Job {self.request.name} cannot be made again")

    def _wait(self) -> Mapping[str, Any]:
        misses = 0
        while True:
            try:
                job = self._job()
                for pod in self._pods():
                    self._look_at(pod)
                if _over(job):
                    return job
                misses = 0
            except ExternalToolError:
                misses += 1
                if misses >= _MISSES:
                    raise
            if self.end is not None and time.monotonic() >= self.end:
                raise failure(self.run, Ended(-15, True, False, self.tail, None))
            if self.run.stop is not None and self.run.stop.wait(self.poll):
                raise stopped(self.run)
            if self.run.stop is None:
                time.sleep(self.poll)

    def _look_at(self, pod: Mapping[str, Any]) -> None:
        name = str(_part(pod, "metadata").get("name"))
        status = _part(pod, "status")
        phase = status.get("phase")
        for condition in _rows(status, "conditions"):
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                self._say(
                    f"pod {name} waits for a node: {condition.get('message', 'no reason given')}"
                )
            if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
                self._say(
                    f"pod {name} was taken away: {condition.get('reason', 'no reason given')}"
                )
        for container in _rows(status, "containerStatuses"):
            waiting = _part(_part(container, "state"), "waiting")
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                self._say(
                    f"pod {name}: {waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
                )
        if phase in ("Running", "Succeeded", "Failed") and self.shown.get(name) != -1:
            self._follow_log(name, over=phase != "Running")

    def _follow_log(self, name: str, *, over: bool) -> None:
        """Show a pod's log to its end; a broken stream is taken up again where it broke."""
        before = self.shown.get(name, 0)
        count = 0

        def line(text: str) -> None:
            nonlocal count
            count += 1
            if count > before:
                self.watch.line(text)
                self.shown[name] = count

        # Straight into the log; what a second look shows again goes into a file of its own first.
        log = self.run.log if not before else self.run.log.with_name(f"{self.run.log.name}.part")
        ended = tool.follow(
            self.kubectl.words("logs", "--follow", name, "--container", kube_job.CONTAINER),
            cwd=self.run.workspace,
            log=log,
            on_line=line,
            seconds=None if self.end is None else max(0.0, self.end - time.monotonic()),
            stop=self.run.stop,
            append=not before,
            grace=self.grace,
        )
        if before:
            _append(log, self.run.log, skip=before)
            log.unlink(missing_ok=True)
        if ended.code == 0:
            self.tail = ended.tail or self.tail
            if over:
                self.shown[name] = -1

    def _failed(self, job: Mapping[str, Any]) -> StepFailed:
        condition = _condition(job, "Failed") or {}
        reason = condition.get("reason", "")
        if reason == "DeadlineExceeded":
            return failure(self.run, Ended(-15, True, False, self.tail, None))
        ends = [end for pod in self._pods() if (end := _exit_code(pod)) is not None]
        if reason == "BackoffLimitExceeded" or not ends:
            attempts = self.request.retries + 1
            message = f"{condition.get('message', reason) or 'no reason given'}"
            return StepFailed(
                f"the Job {self.request.name} failed ({message}): its pods were taken away "
                f"{attempts} times, or never started",
                log=self.run.log,
                tail=self.tail,
                hint=f"kubectl describe job {self.request.name}",
            )
        code, why = ends[-1]
        meaning = _POD_ENDS.get(code)
        if meaning is None and why == "OOMKilled":
            meaning = "the kubelet says OOMKilled"
        return failure(self.run, Ended(code, False, False, self.tail, None), meaning=meaning)

    def _job(self) -> Mapping[str, Any]:
        return self.kubectl.get("job", self.request.name)

    def _pods(self) -> Sequence[Mapping[str, Any]]:
        """The Job's pods, oldest first."""
        found = self.kubectl.get("pods", "--selector", f"{kube_job.JOB_LABEL}={self.request.name}")
        pods = [pod for pod in _rows(found, "items") if _part(pod, "metadata").get("name")]
        return sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))

    def _delete(self, *, wait: bool = False) -> None:
        """Remove the Job and its pods; what fails here is not told: the error of the run is."""
        with contextlib.suppress(ExternalToolError):
            self.kubectl.call(
                "delete", "job", self.request.name, "--ignore-not-found",
                "--cascade=foreground" if wait else "--cascade=background", f"--wait={str(wait).lower()}",
            )  # fmt: skip

    def _say(self, text: str) -> None:
        if text not in self.said:
            self.said.add(text)
            self.run.on_line(f"engineroom: {text}")


def _append(part: Path, log: Path, skip: int) -> None:
    """Add the lines of `part` from number `skip` on; a full disk does not stop a build elsewhere."""
    with contextlib.suppress(OSError), part.open("rb") as source, log.open("ab") as goal:
        for number, line in enumerate(source):
            if number >= skip:
                goal.write(line)


def _over(job: Mapping[str, Any]) -> bool:
    return _condition(job, "Complete") is not None or _condition(job, "Failed") is not None


def _condition(job: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    conditions = _rows(_part(job, "status"), "conditions")
    return next(
        (c for c in conditions if c.get("type") == kind and c.get("status") == "True"), None
    )


def _exit_code(pod: Mapping[str, Any]) -> tuple[int, str] | None:
    for container in _rows(_part(pod, "status"), "containerStatuses"):
        ended = _part(_part(container, "state"), "terminated")
        code = ended.get("exitCode")
        if container.get("name") == kube_job.CONTAINER and isinstance(code, int) and code:
            return code, str(ended.get("reason", ""))
    return None


def _part(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object in kubectl's answer; empty when it is not there, or is none."""
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _rows(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The objects of a list in kubectl's answer."""
    found = value.get(key)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:400] if lines else "no reason given"
