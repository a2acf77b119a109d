"""Steps in the container of their stack, on this machine.

The container sees two folders: the workspace, read-only, and the step's output. It runs as the user of
this process, so that what it makes can be renamed and removed; it has no network and gets none of this
process's environment, so that no secret travels.

Sources: options and their CSV forms, docker/cli opts/mount.go and opts/gpus.go; ``--shm-size``,
``--ulimit`` as NVIDIA starts this container, triton-inference-server/tensorrtllm_backend README.md and
docs/lora.md @ 0b9d7d5a; exit codes 125 to 127, Docker's documentation of `docker run`, "Exit status".
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from engineroom.errors import MissingError, UsageError, Where
from engineroom.runner.executors.attempts import run_attempts
from engineroom.runner.executors.base import StepRun
from engineroom.runner.executors.gpus import require_sku
from engineroom.runner.executors.options import check_docker_user, check_retries, check_seconds
from engineroom.runner.tool import GRACE_SECONDS
from engineroom.types import Step

WORKSPACE = "/workspace"
OUTPUT = "/output"
_KILL_SECONDS = 20
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")
_MEANINGS = {
    125: "Docker itself failed: its last lines say why",
    126: "the command of the image cannot be started",
    127: "the image does not have this command",
}


@dataclass(frozen=True)
class DockerExecutor:
    """`docker run` on this machine.

    Attributes:
        gpus: devices as Docker names them, index or UUID, separated by commas (``0,1``); empty: as
            many as the step needs, of Docker's choice. On a machine with several products name them.
        user: ``uid:gid`` in the container; empty: this process's.
        shm_size: size of ``/dev/shm``, which NCCL and the workers of a build use.
        retries: as in `LocalExecutor`.
        grace: seconds that the container gets after SIGTERM before it is killed.
        program: the client to run; ``podman`` understands the same words, but nobody tried.
    """

    gpus: str = ""
    user: str = ""
    shm_size: str = "2g"
    retries: int = 2
    grace: float = GRACE_SECONDS
    program: str = "docker"

    name = "docker"

    def __post_init__(self) -> None:
        check_retries(self.name, self.retries)
        check_seconds(self.name, "grace", self.grace)
        check_docker_user(self.name, self.user)

    def missing(self, step: Step) -> str | None:
        return self.program if step.argv and shutil.which(self.program) is None else None

    def run(self, run: StepRun) -> None:
        if (absent := self.missing(run.step)) is not None:
            raise MissingError(
                f"`{absent}` is not on PATH",
                hint="install Docker and the NVIDIA Container Toolkit, or use --executor local "
                "inside the container",
            )
        require_sku(run)
        base = f"engineroom-{run.key[:12] or 'step'}-{secrets.token_hex(4)}"
        names = [f"{base}-{attempt}" for attempt in range(self.retries + 1)]
        commands = [self.argv(run, name) for name in names]
        run_attempts(
            run,
            lambda attempt: commands[attempt],
            retries=self.retries,
            grace=self.grace,
            clean_up=lambda attempt: self._kill(names[attempt]),
            hints=_MEANINGS.get,
        )

    def argv(self, run: StepRun, name: str) -> tuple[str, ...]:
        """The words of the command.

        Args:
            name: of the container.

        Raises:
            UsageError: the step has no image, or a folder's name is one that Docker does not take.
        """
        if run.step.image is None:
            raise UsageError(
                f"the step {run.step.name} has no image to run in",
                where=Where(key="targets[].stack"),
                hint="name one: stack: {trtllm: VERSION, image: REGISTRY/IMAGE@sha256:DIGEST}",
            )
        return (
            self.program, "run", "--rm", "--init",
            "--name", name,
            "--label", f"engineroom.target={run.target}",
            "--label", f"engineroom.key={run.key}",
            *self._gpus(run.step.gpus),
            "--shm-size", self.shm_size,
            "--ulimit", "memlock=-1",
            "--ulimit", "stack=67108864",
            "--network", "none",
            "--user", self.user or f"{os.getuid()}:{os.getgid()}",
            # This user is not in the image's /etc/passwd: it has no home and no name there.
            "--env", "HOME=/tmp",
            "--env", "USER=engineroom",
            *_mounts(run),
            "--workdir", WORKSPACE,
            run.step.image,
            # After the image: its entry point stays, which sets up CUDA's forward compatibility.
            *run.step.argv_into(OUTPUT),
        )  # fmt: skip

    def _gpus(self, count: int) -> tuple[str, ...]:
        if self.gpus:
            return ("--gpus", _csv(f"device={self.gpus}"))
        return ("--gpus", str(count)) if count else ()

    def _kill(self, name: str) -> None:
        """End the container: it outlives its client when that is killed."""
        # What fails here is not told: the error of the run is.
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [self.program, "kill", name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_KILL_SECONDS,
                check=False,
            )

    def image_digest(self, step: Step) -> str | None:
        """``sha256:…`` of the step's image: as its reference says, else as the local store has it.

        A local image may have several registries' digests: then it is not known which one was meant.
        """
        if step.image is None:
            return None
        if found := _DIGEST.search(step.image):
            return found[1]
        try:
            done = subprocess.run(
                [self.program, "image", "inspect", "--format", "{{join .RepoDigests \"\\n\"}}", step.image],
                stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace",
                timeout=_KILL_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        digests = {m[1] for line in done.stdout.split() if (m := _DIGEST.search(line))}
        return digests.pop() if done.returncode == 0 and len(digests) == 1 else None


def _mounts(run: StepRun) -> tuple[str, ...]:
    """The workspace, what its inputs link to outside of it, and the output."""
    workspace = run.workspace.resolve()
    mounts = [(workspace, WORKSPACE, True)]
    for name in run.step.inputs:
        source = (workspace / name).resolve()
        if not source.is_relative_to(workspace):
            mounts.append((source, f"{WORKSPACE}/{name}", True))
    mounts.append((run.output.resolve(), OUTPUT, False))
    return tuple(
        word
        for source, target, fixed in mounts
        for word in ("--mount", _mount(source, target, fixed))
    )


def _mount(source: Path, target: str, readonly: bool) -> str:
    for text in (str(source), target):
        # The client trims values and refuses what it trimmed; Go's CSV reader drops a CR before a LF.
        if text != text.strip() or "\r" in text or "\x00" in text:
            raise UsageError(
                "Docker cannot mount a folder whose name ends in a space or has a carriage return",
                where=Where(text),
                hint="move the workspace with --out, or use --executor local inside the container",
            )
    fields = (
        "type=bind",
        f"source={source}",
        f"target={target}",
        *(["readonly"] if readonly else []),
    )
    return _csv(*fields)


def _csv(*fields: str) -> str:
    """One record as Docker's own reader takes it: a field with a comma, a quote or a line break in
    double quotes, quotes doubled."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()
