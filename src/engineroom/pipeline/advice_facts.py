"""What each lane can do for a target: the facts behind `plan`'s advice.

The facts are those of `check`: the support tables, the contracts, and the rules over a target that is
taken to have each lane in turn. What the rules say of every lane alike (calibration, head counts) is no
question of the lane and stays with `check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from engineroom.catalog import Contract
from engineroom.catalog.lane_facts import load_lane_facts
from engineroom.catalog.load import in_range
from engineroom.checks import TargetContext, check_target
from engineroom.errors import UsageError
from engineroom.lanes import LANES
from engineroom.names import KvCacheFormat, LaneName, Severity, Support
from engineroom.pipeline.advice_subjects import ARGUMENTS, FRONTS, MODELS, asked, said_of
from engineroom.pipeline.check import has_tokenizer_json
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.planning import advice as weighing
from engineroom.planning.support_matrix import lane_support
from engineroom.types import Finding, ModelShape, StackRelease
from engineroom.types.advice import Fact, LaneAnswer, Subject


def lane_answer(
    job: Job, item: ResolvedTarget, lane: LaneName, findings: Mapping[LaneName, Sequence[Finding]]
) -> LaneAnswer:
    """What a lane can do for a target, taking the target to have it.

    Args:
        findings: of the rules of `check`, for each lane that the target could have.
    """
    try:
        stack = job.catalog.lane_stack(item.target.stack, lane)
    except UsageError as error:
        fact = Fact(Subject.LANE, Support.NO, error.message, "; ".join(item.stack.source))
        return LaneAnswer(lane, "not on this stack", Support.NO, (fact,))
    runtime = f"{stack.runtime_name} {stack.runtime_version}"
    exists = _lane(job, lane, stack)
    if exists.support is Support.NO:
        return LaneAnswer(lane, runtime, Support.NO, (exists,))
    contract = job.catalog.lane_contract(lane, stack.runtime_version)
    facts = [
        exists,
        *_precision(job, item, lane, stack),
        _model(job, lane, stack),
        *_features(job, item, lane, stack, contract),
    ]
    merged = _merge([*facts, *_ruled(asked(job, item), lane, findings)])
    return LaneAnswer(lane, runtime, weighing.worst(merged), tuple(merged))


def _merge(facts: list[Fact]) -> list[Fact]:
    """One fact a subject, the worst; values to mend are all kept."""
    found: dict[tuple[Subject, str | None], Fact] = {}
    for fact in sorted(facts, key=weighing.worst_rank):
        found.setdefault(
            (fact.subject, fact.asked if fact.subject is Subject.SETTING else None), fact
        )
    return sorted(found.values(), key=lambda f: list(Subject).index(f.subject))


def shape_of(job: Job) -> ModelShape | None:
    """The model's sizes, or None where it is not here; `check` says what is wrong with a broken one."""
    try:
        return job.shape
    except UsageError:
        return None


def _lane(job: Job, lane: LaneName, stack: StackRelease) -> Fact:
    version = stack.runtime_version
    support, reason, source = lane_support(job.catalog, lane, version)
    what = f"the {lane} lane in {stack.runtime_name} {version}"
    if support is Support.YES and job.catalog.lane_contract(lane, version) is None:
        return Fact(
            Subject.LANE, Support.UNKNOWN,
            f"{what}: no contract, so what it accepts is unknown and nothing is written for it", source,
        )  # fmt: skip
    if support is Support.YES and not in_range(version, LANES[lane].stack_versions):
        return Fact(
            Subject.LANE, Support.NOT_IMPLEMENTED,
            f"{what}: written here for {LANES[lane].stack_versions} only", source,
        )  # fmt: skip
    return Fact(Subject.LANE, support, f"{what}: {support}; {reason}", source)


def _precision(
    job: Job, item: ResolvedTarget, lane: LaneName, stack: StackRelease
) -> Iterator[Fact]:
    p, sku = job.loaded.spec.precision, item.sku
    axes = [(Subject.WEIGHTS, "weights", str(p.weights))]
    if p.kv_cache is not KvCacheFormat.AUTO:
        axes.append((Subject.KV_CACHE, "kv_cache", str(p.kv_cache)))
    for subject, axis, fmt in axes:
        cell = job.catalog.precision_cell(
            lane, stack.runtime_version, axis, fmt, sku.compute_capability
        )
        # A note is about the format's row, which other GPUs share: it only helps where nothing is known.
        note = f"; {cell.note}" if cell.note and cell.support is Support.UNKNOWN else ""
        yield Fact(
            subject, cell.support,
            f"{fmt} {axis.replace('kv_cache', 'KV cache')} on {sku.id} (compute capability "
            f"{sku.compute_capability}): {cell.support}{note}",
            "; ".join(cell.sources),
        )  # fmt: skip


def _model(job: Job, lane: LaneName, stack: StackRelease) -> Fact:
    facts = load_lane_facts(job.catalog)
    shape = shape_of(job)
    if shape is None:
        return Fact(
            Subject.MODEL, Support.UNKNOWN,
            "the model's config.json is not on this machine, so its architecture is unknown",
            "no config.json was read",
        )  # fmt: skip
    name = shape.architecture
    source = facts.encoder_decoder(name)
    if source is not None:
        return Fact(
            Subject.ENCODER_DECODER, Support.NOT_IMPLEMENTED,
            f"{name} has an encoder, and the lane's models have no input for it", source,
        )  # fmt: skip
    support, source = facts.model(lane, stack.runtime_version, name)
    return Fact(
        Subject.MODEL, support, f"{name} in {stack.runtime_name} {stack.runtime_version}: {support}",
        source,
    )  # fmt: skip


def _features(
    job: Job, item: ResolvedTarget, lane: LaneName, stack: StackRelease, contract: Contract | None
) -> Iterator[Fact]:
    """What the lane's own models and the version's contract say of each thing that is asked."""
    facts = load_lane_facts(job.catalog)
    version = f"{stack.runtime_name} {stack.runtime_version}"
    for subject, key in asked(job, item).items():
        feature = FRONTS.get(subject)
        if feature is not None and not facts.carries(feature, lane):
            yield Fact(
                subject, Support.NOT_IMPLEMENTED, f"{subject}: the {lane} lane has no input or output",
                MODELS, key,
            )  # fmt: skip
        elif contract is None:
            yield Fact(
                subject, Support.UNKNOWN, f"{subject}: no contract of {version}", MODELS, key
            )
        elif not _listed(subject, lane, contract):
            yield Fact(
                subject, Support.UNKNOWN,
                f"{subject}: the contract of {version} lists no argument for it", MODELS, key,
            )  # fmt: skip
        else:
            yield Fact(subject, Support.YES, f"{subject}: {lane} has it", MODELS, key)


def _listed(subject: Subject, lane: LaneName, contract: Contract) -> bool:
    if lane is LaneName.VLLM or subject not in ARGUMENTS:
        return True
    flag, argument = ARGUMENTS[subject]
    if lane is LaneName.ENGINE:
        return not flag.startswith("--") or flag in contract.build_flags
    return argument in contract.llm_fields


def lane_findings(job: Job, item: ResolvedTarget, lane: LaneName) -> list[Finding]:
    """Findings of `check`'s rules on the target, taking it to have the lane; none where it has no runtime."""
    there = as_lane(job, item, lane)
    if there is None:
        return []
    return check_target(
        TargetContext(
            spec=job.loaded.spec,
            index=item.index,
            target=there.target,
            sku=item.sku,
            stack=there.stack,
            contract=there.contract,
            model=shape_of(job),
            catalog=job.catalog,
            tokenizer_json=has_tokenizer_json(job),
        )
    )


def _errors(findings: Iterable[Finding]) -> set[tuple[str, str]]:
    return {(f.code, f.key) for f in findings if f.severity is Severity.ERROR}


def _ruled(
    wanted: Mapping[Subject, str], lane: LaneName, findings: Mapping[LaneName, Sequence[Finding]]
) -> Iterator[Fact]:
    """What the rules of `check` say of the lane.

    An error that every other lane has too is about the spec, not about the lane.
    """
    own = findings[lane]
    others = [found for other, found in findings.items() if other is not lane and found]
    shared = set.intersection(*map(_errors, others)) if others else _errors(own)
    for finding in own:
        said = said_of(finding)
        if said is not None:
            subject, support = said
            yield Fact(subject, support, finding.reason, finding.source, wanted.get(subject))
        elif (finding.code, finding.key) in _errors(own) - shared:
            yield Fact(Subject.SETTING, Support.NO, finding.reason, finding.source, finding.key)


def as_lane(job: Job, item: ResolvedTarget, lane: LaneName) -> ResolvedTarget | None:
    """The target with another lane; None where its stack has no runtime for it."""
    try:
        stack = job.catalog.lane_stack(item.target.stack, lane)
    except UsageError:
        return None
    target = item.target.model_copy(update={"lane": lane})
    contract = job.catalog.lane_contract(lane, stack.runtime_version)
    return ResolvedTarget(item.index, target, item.sku, stack, contract, LANES[lane])
