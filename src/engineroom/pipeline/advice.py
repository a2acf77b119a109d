"""`plan`'s answer to "is an engine build worth its complexity here": the lanes' facts, costs, the verdict."""

from __future__ import annotations

import json

from engineroom.catalog.lane_facts import load_lane_facts
from engineroom.errors import EngineroomError
from engineroom.lanes import LANES
from engineroom.names import LaneName, Support
from engineroom.pipeline.advice_facts import as_lane, lane_answer, lane_findings, shape_of
from engineroom.pipeline.job import Job, ResolvedTarget, only_targets
from engineroom.planning import advice as weighing
from engineroom.types.advice import Advice, EngineCosts


def advise(job: Job, target: str | None = None) -> list[Advice]:
    """The verdict for every target, or the one of that id.

    Raises:
        SpecError: an unknown SKU or stack. UsageError: no such target.
    """
    facts = load_lane_facts(job.catalog)
    spec = job.loaded.spec
    found: list[Advice] = []
    for item in only_targets(job, target):
        findings = {lane: lane_findings(job, item, lane) for lane in LANES}
        answers = [lane_answer(job, item, lane, findings) for lane in LANES]
        shape = shape_of(job) if item.target.pipeline_parallel == 1 else None
        figures = (
            facts.figures(
                shape, item.sku.id, str(spec.precision.weights), item.target.tensor_parallel
            )
            if shape
            else ()
        )
        found.append(
            weighing.advise(
                item.target.id, item.sku.id, item.stack.id, item.target.lane, answers,
                _costs(job, item), figures,
            )
        )  # fmt: skip
    return found


def _costs(job: Job, item: ResolvedTarget) -> EngineCosts:
    row = next(
        r for r in job.catalog.lanes.lanes
        if r.lane == str(LaneName.ENGINE) and r.support is Support.YES
    )  # fmt: skip
    engines, packages = _fleet(job)
    return EngineCosts(
        _host_memory(job, item), engines, packages, row.versions, "; ".join(row.source),
        _cold_start(job, item),
    )  # fmt: skip


def _fleet(job: Job) -> tuple[int, int]:
    """(engines, packages): an engine is of its SKU and version, a package's content of its version.

    Counted over the targets that run on TensorRT-LLM, as if all had the one lane or the other.
    """
    engines: set[str] = set()
    packages: set[str] = set()
    for item in job.targets:
        if not item.stack.tensorrt_llm:
            continue
        target = item.target
        same = (
            item.stack.tensorrt_llm, target.tensor_parallel, target.pipeline_parallel,
            target.limits.model_dump(),
        )  # fmt: skip
        engines.add(json.dumps((item.sku.id, *same), sort_keys=True))
        packages.add(json.dumps(same, sort_keys=True))
    return len(engines), len(packages)


def _host_memory(job: Job, item: ResolvedTarget) -> int | None:
    """The largest estimate among the engine lane's steps; None where it gives none."""
    engine = as_lane(job, item, LaneName.ENGINE)
    if engine is None:
        return None
    try:
        steps = engine.lane.steps(job.lane_request(engine, "checkpoints/CHECKPOINT"))
    except EngineroomError:
        return None
    return max((s.host_memory_bytes for s in steps if s.host_memory_bytes), default=None)


def _cold_start(job: Job, item: ResolvedTarget) -> str:
    contract = job.catalog.contract(item.stack.tensorrt_llm) if item.stack.tensorrt_llm else None
    fields = contract.llm_fields if contract else {}
    on = [
        name
        for name in ("enable_autotuner", "cuda_graph_config")
        if fields.get(name, {}).get("default") not in (None, False)
    ]
    known = (
        f"; TensorRT-LLM {item.stack.tensorrt_llm} has {' and '.join(on)} on by default, which is work at "
        "each start of the llmapi lane, while an engine's kernels are chosen when it is built"
        if on
        else ""
    )
    return f"time of a cold start: unknown for either lane{known}"
