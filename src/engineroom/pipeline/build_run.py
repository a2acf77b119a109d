"""One target's build: a verified artefact of the same inputs is taken, else it is made, by one process.

The order is always: look (quick), take the lock of the key, look again, build into a staged folder,
publish by one rename. Whoever waited for the lock finds what the other one made.
"""

from __future__ import annotations

import contextlib
import glob
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engineroom.errors import ExternalToolError, InternalError, Where
from engineroom.pipeline.attachments import assert_copied, copy_into
from engineroom.pipeline.build_actions import ACTIONS
from engineroom.pipeline.build_facts import (
    assert_packed,
    assert_quantization,
    engine_differences,
    facts_of,
)
from engineroom.pipeline.build_key import ARTIFACTS, Inputs, assert_unchanged, place
from engineroom.pipeline.job import Job, Reporter, ResolvedTarget
from engineroom.pipeline.quantize import Checkpoint, lock_of
from engineroom.pipeline.step_failure import explained
from engineroom.runner import files, locks, manifest
from engineroom.runner.executors import Executor, Progress, StepRun
from engineroom.types import Step

PLAN = "build-plan.json"
ENGINE, BUILD_PLAN = "engine", "build-plan"


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
        return self.kind == BUILD_PLAN

    def relative(self, job: Job) -> str:
        return self.path.relative_to(job.out).as_posix()


@dataclass(frozen=True)
class Tools:
    """How steps are run.

    Attributes:
        timeout: seconds for each step, or None.
        stop: set from another thread to end whatever runs or waits.
    """

    executor: Executor
    timeout: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def missing(self, inputs: Inputs) -> str | None:
        """A tool that a step needs and that is not there."""
        found = (self.executor.missing(step) for step in inputs.steps if step.argv)
        return next((tool for tool in found if tool is not None), None)

    def image_digest(self, inputs: Inputs) -> str | None:
        """Digest of the image that the commands run in, where the executor knows it."""
        ask: Callable[[Step], str | None] | None = getattr(self.executor, "image_digest", None)
        step = next((step for step in inputs.steps if step.argv), None)
        return None if ask is None or step is None else ask(step)


def kept(job: Job, inputs: Inputs, kinds: tuple[str, ...]) -> Artefact | None:
    """The verified artefact of these inputs, of the first kind that there is.

    Raises:
        NewerError: a newer engineroom made what is there.
    """
    for kind in kinds:
        content = manifest.reuse(inputs.path, kind, inputs.key, job.verified)
        if content is None:
            continue
        if kind == ENGINE and (wrong := engine_differences(inputs.path, inputs.request)):
            job.reporter.note(f"{inputs.item.target.id}: not reused: config.json: {wrong[0]}")
            continue
        if kind == BUILD_PLAN:  # a plan names the checkpoint's folder
            made_from = content.get("checkpoint")
            path = made_from.get("path") if isinstance(made_from, dict) else None
            if path != inputs.request.checkpoint:
                continue
        return Artefact(inputs.item, inputs.path, kind, content, True)
    return None


def build_one(
    job: Job, inputs: Inputs, checkpoint: Checkpoint, tools: Tools, reporter: Reporter
) -> Artefact:
    """Reuse or make one target's artefact.

    Raises:
        MissingError, ExternalToolError: of a step. UsageError: the checkpoint is not what the spec
            says, or it or an attachment changed. NewerError: a newer engineroom made what is there.
    """
    target = inputs.item.target.id
    planned = inputs.compiles and tools.missing(inputs) is not None
    found = _hit(job, inputs, tools, planned)
    if found is None:

        def waiting(who: str) -> None:
            reporter.note(f"{target}: {who} is building this artefact; waiting for it")

        lock = job.own_files / "locks" / f"{inputs.key[:32]}.lock"
        with locks.exclusive(lock, waiting, stop=tools.stop) as held:
            found = _hit(job, inputs, tools, planned) or _adopt(job, inputs, tools, planned, held)
            if found is None:
                with _reading(job, inputs, checkpoint, tools, reporter):
                    return _make(job, inputs, checkpoint, tools, reporter, planned, held)
    reporter.note(f"{target}: reusing verified {found.kind}")
    return found


@contextlib.contextmanager
def _reading(
    job: Job, inputs: Inputs, checkpoint: Checkpoint, tools: Tools, reporter: Reporter
) -> Iterator[None]:
    """While this holds, `quantize` does not publish the checkpoint anew, nor `gc` remove it."""

    def waiting(who: str) -> None:
        reporter.note(
            f"{inputs.item.target.id}: {who} is at work on {checkpoint.path.name}; waiting for it"
        )

    with locks.shared(lock_of(job, checkpoint.path), waiting, stop=tools.stop):
        yield


def _hit(job: Job, inputs: Inputs, tools: Tools, planned: bool) -> Artefact | None:
    if not inputs.compiles:
        return kept(job, inputs, (inputs.package,))
    found = kept(job, inputs, (ENGINE, BUILD_PLAN) if planned else (ENGINE,))
    if found is not None and found.kind == ENGINE:
        now, then = tools.image_digest(inputs), found.manifest.get("image_digest")
        if now is not None and then is not None and now != then:
            job.reporter.note(
                f"{inputs.item.target.id}: not reused: {inputs.item.stack.image} is {now} now, "
                f"and was {then}"
            )
            return None
    return found


def _adopt(job: Job, inputs: Inputs, tools: Tools, planned: bool, held: bool) -> Artefact | None:
    """The artefact of these inputs from another service's folder, by hard links.

    The name of a service is no input of a build, but it is the first folder of an artefact's place.
    """
    if planned:
        return None
    pattern = f"*/{glob.escape(place(inputs.item, inputs.key))}"
    for other in sorted((job.out / ARTIFACTS).glob(pattern)):
        if other == inputs.path:
            continue
        kind = ENGINE if inputs.compiles else inputs.package
        try:
            content = manifest.reuse(other, kind, inputs.key, job.verified)
        except manifest.NewerError:
            continue
        if content is None or (kind == ENGINE and engine_differences(other, inputs.request)):
            continue
        with files.staged(inputs.path, alone=held) as staging, job.verified.linking(other):
            files.link_tree(other, staging)
        return _hit(job, inputs, tools, planned)
    return None


def _make(
    job: Job,
    inputs: Inputs,
    checkpoint: Checkpoint,
    tools: Tools,
    reporter: Reporter,
    planned: bool,
    held: bool,
) -> Artefact:
    assert_unchanged(job, inputs, checkpoint)  # what it waited for may have been about its inputs
    assert_quantization(inputs.request, checkpoint)
    kind = BUILD_PLAN if planned else ENGINE if inputs.compiles else inputs.package
    ran = kind == ENGINE
    facts = facts_of(
        inputs,
        checkpoint,
        tools.executor.name if ran else None,
        tools.image_digest(inputs) if ran else None,
    )
    with files.staged(inputs.path, alone=held) as staging:
        for name, value in inputs.documents.items():
            files.write_text(staging / name, files.dump_yaml(value))
        if inputs.compiles:
            _write_plan(staging, inputs, checkpoint, facts)
        else:
            with job.verified.linking(checkpoint.path / "hf"):
                files.link_tree(checkpoint.path / "hf", staging / "checkpoint")
        for step in inputs.steps:
            if step.argv:
                if not planned:
                    _run(job, step, inputs, staging, tools, reporter)
            elif step.name in ACTIONS:
                ACTIONS[step.name].run(step, inputs.request, checkpoint.path, staging)
            elif inputs.compiles:
                raise InternalError(f"no action for the step {step.name}")
        if not planned:
            assert_unchanged(job, inputs, checkpoint)
        if kind == ENGINE and (wrong := engine_differences(staging, inputs.request)):
            raise ExternalToolError(
                "the engine is not what was asked for: its config.json says that " + wrong[0],
                where=Where(key=inputs.item.target.id),
                hint=f"build with TensorRT-LLM {inputs.request.contract.version}, in "
                f"{inputs.item.stack.image or 'the container of the stack'}",
            )
        copy_into(staging, inputs.attached)
        content = manifest.write(
            staging,
            kind,
            run_id=job.run_id,
            catalog_digest=job.catalog.digest,
            key=inputs.key,
            facts=facts,
            verified=job.verified,
        )
        assert_copied(content["files"], inputs.attached)
        if not inputs.compiles:
            assert_packed(content, inputs, checkpoint)
    return Artefact(inputs.item, inputs.path, kind, content, False)


def _write_plan(
    staging: Path, inputs: Inputs, checkpoint: Checkpoint, facts: dict[str, Any]
) -> None:
    plan = {"schema_version": 1, "kind": BUILD_PLAN, "run_from": "workspace root", **facts}
    # Where the reference runtime finds what to compute with; an engine needs no such thing.
    plan["reference_checkpoint"] = Path(
        os.path.relpath(checkpoint.path / "hf", inputs.path)
    ).as_posix()
    files.write_json(staging / PLAN, plan)


def _log(job: Job, inputs: Inputs, step: Step) -> Path:
    """A log of its own for each target: several may be built at once."""
    return job.out / "logs" / f"{step.name}-{inputs.item.target.id}-{job.run_id}.log"


def _run(
    job: Job, step: Step, inputs: Inputs, staging: Path, tools: Tools, reporter: Reporter
) -> None:
    """Run a step from the workspace root with its output in the staged folder."""
    log, target = _log(job, inputs, step), inputs.item.target.id

    def progress(now: Progress) -> None:
        reporter.progress(now.phase, now.done, now.total)

    reporter.note(f"{target}: {step.name} ({tools.executor.name}); log: {log.as_posix()}")
    run = StepRun(
        step,
        inputs.item.sku,
        job.out,
        staging,
        log,
        timeout=tools.timeout,
        on_line=reporter.line,
        on_progress=progress,
        target=target,
        key=inputs.key,
        stop=tools.stop,
    )
    with explained(job.catalog):
        tools.executor.run(run)
    outputs = {name: staging / name for name in step.outputs}
    absent = [name for name, path in outputs.items() if path.is_symlink() or not path.is_file()]
    if absent:
        raise ExternalToolError(
            f"`{step.argv[0]}` ended well but left no {', '.join(absent)}"
            + (" of its own, but a link" if any(outputs[n].is_symlink() for n in absent) else ""),
            where=Where(log.as_posix()),
        )
