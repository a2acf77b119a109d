"""`build`: an engine, its plan, or an LLM-API package for every target."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engineroom.errors import EngineroomError, MissingError, UsageError, Where
from engineroom.lanes import LaneRequest
from engineroom.pipeline.build_jobs import SharedReporter, TargetErrors, Task, of_system, run_all
from engineroom.pipeline.build_key import ARTIFACTS, Inputs, inputs_of
from engineroom.pipeline.build_run import BUILD_PLAN, ENGINE, PLAN, Artefact, Tools, build_one, kept
from engineroom.pipeline.check import require_no_errors
from engineroom.pipeline.job import Job, Reporter, ResolvedTarget, only_targets
from engineroom.pipeline.quantize import Checkpoint, find
from engineroom.runner.executors import Executor, LocalExecutor
from engineroom.runner.memory import available_bytes

__all__ = ["ARTIFACTS", "PLAN", "Artefact", "build", "find_artefact", "location"]


def location(
    job: Job, item: ResolvedTarget, checkpoint: Checkpoint
) -> tuple[Path, str, LaneRequest]:
    """(artefact folder, key, lane request): a function of the inputs alone.

    Layout: ``artifacts/<name>/<lane>/<runtime version>/<sku>/<tp>x<pp>/<digest>/``.

    Raises:
        FindingsError: no contract of the version. UsageError: an input is not here.
    """
    inputs = inputs_of(job, item, checkpoint)
    return inputs.path, inputs.key, inputs.request


def find_artefact(job: Job, item: ResolvedTarget, checkpoint: Checkpoint) -> Artefact:
    """The finished artefact of a target; files that have not changed since are not read again.

    Raises:
        UsageError: not built, or damaged.
    """
    inputs = inputs_of(job, item, checkpoint)
    found = kept(job, inputs, (ENGINE, BUILD_PLAN, inputs.package))
    if found is not None:
        return found
    raise UsageError(
        f"{item.target.id} is not built, or its artefact is damaged",
        where=Where(inputs.path.as_posix()),
        hint="run `engineroom build` first, or `engineroom up` for the whole chain",
    )


def build(
    job: Job,
    target: str | None = None,
    *,
    dry_run: bool = False,
    allow_plan: bool = False,
    executor: Executor | None = None,
    timeout: float | None = None,
    jobs: int | None = None,
) -> list[Artefact] | list[dict[str, Any]]:
    """Build every target; with `dry_run`, the steps as data.

    A target that fails, or whose inputs are not here, does not keep the others from being built; results
    are in the spec's order.

    Args:
        allow_plan: a plan without its tool is good enough (`up --runtime reference` stands something
            else in); otherwise it is exit 4, after the plan was written.
        executor: where commands run; by default tools on PATH.
        timeout: seconds for each command, or None.
        jobs: targets at once, as far as their memory fits beside each other; by default 1 where
            commands run on this machine, since they time kernels on its GPUs.

    Raises:
        FindingsError: `check` finds errors, or a version has no contract.
        MissingError: a step's tool is not on PATH. ExternalToolError: it failed.
        TargetErrors: several targets failed.
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
    tools = Tools(executor or LocalExecutor(), timeout)
    try:
        found, refused = _inputs(job, chosen, checkpoint)
        results = _build_all(job, found, checkpoint, tools, jobs, refused)
    finally:
        job.verified.save()
    plans = [r for r in results if r.is_engine_plan]
    if plans and not allow_plan:
        at = [inputs for inputs in found if inputs.item is plans[0].target]
        tool = tools.missing(at[0]) or at[0].steps[0].argv[0]
        written = ", ".join((r.path / PLAN).as_posix() for r in plans)
        raise MissingError(
            f"`{tool}` is not on PATH; the build plan is written: {written}",
            hint=f"run it in {plans[0].target.stack.image or 'the container of its stack'} on a "
            f"{plans[0].target.sku.id} (--executor docker or kubernetes does), or use "
            "lane: llmapi, which compiles nothing",
        )
    return results


def _inputs(
    job: Job, chosen: Sequence[ResolvedTarget], checkpoint: Checkpoint
) -> tuple[list[Inputs], dict[str, EngineroomError]]:
    """(inputs of the targets that can be built, errors of the others by target)."""
    found: list[Inputs] = []
    refused: dict[str, EngineroomError] = {}
    for item in chosen:
        try:
            found.append(inputs_of(job, item, checkpoint))
        except EngineroomError as error:
            refused[item.target.id] = error
        except OSError as error:
            refused[item.target.id] = of_system(error)
    return found, refused


def _build_all(
    job: Job,
    found: list[Inputs],
    checkpoint: Checkpoint,
    tools: Tools,
    jobs: int | None,
    refused: Mapping[str, EngineroomError],
) -> list[Artefact]:
    """Build every target of `found`, then tell the errors of these and of `refused`, in the spec's order."""
    elsewhere = bool(getattr(tools.executor, "elsewhere", False))
    places = min(len(found), jobs or (len(found) if elsewhere else 1))
    done: dict[str, Artefact] = {}
    lock = threading.Lock()

    def task(inputs: Inputs) -> Task:
        name = inputs.item.target.id
        reporter: Reporter = (
            job.reporter if places <= 1 else SharedReporter(job.reporter, name, lock)
        )

        def work() -> None:
            done[name] = build_one(job, inputs, checkpoint, tools, reporter)

        return Task(name, 0 if elsewhere else memory_of(inputs), work)

    free = available_bytes() if places > 1 else None
    ran = dict(run_all([task(inputs) for inputs in found], places, free, tools.stop))
    errors = {**refused, **ran}
    failed = [(i.target.id, errors[i.target.id]) for i in job.targets if i.target.id in errors]
    total = len(found) + len(refused)
    if len(failed) == 1:
        name, error = failed[0]
        if name in refused and total > 1 and name not in error.message:
            error.message = f"{name}: {error.message}"
        raise error
    if failed:
        raise TargetErrors(failed, total)
    return [done[inputs.item.target.id] for inputs in found]


def memory_of(inputs: Inputs) -> int | None:
    """Host memory of a target's commands at their peak, in bytes; None: not known for one of them."""
    needs = [step.host_memory_bytes for step in inputs.steps if step.argv]
    return None if None in needs else max((need for need in needs if need is not None), default=0)
