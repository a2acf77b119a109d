"""Weighs the lanes' answers: which lane to use, and whether an engine build is worth it. Pure.

The rules, in order:

1. A lane counts only when every part is a yes; unknown is never yes.
2. Among those, a lane without a build comes first: the spec's own, then llmapi, then vllm.
3. An engine is advised only where no other lane is known to carry what the spec asks.
4. Without any, the lane to try first is named with what is unknown about it.

Speed decides nothing here: no source that was read measures the lanes against each other at one version.
"""

from __future__ import annotations

from collections.abc import Sequence

from engineroom.names import LaneName, Support
from engineroom.types.advice import (
    Advice,
    EngineBuild,
    EngineCosts,
    Fact,
    LaneAnswer,
    Note,
    PublishedFigure,
    Reason,
    Subject,
)

_WORST = (
    Support.NO,
    Support.NOT_IMPLEMENTED,
    Support.VERSION_BOUND,
    Support.UNKNOWN,
    Support.YES,
)
_REMOVAL = (
    "NVIDIA/TensorRT-LLM PR #15918, #15907, #16369; "
    "nvidia.github.io/TensorRT-LLM/legacy/tensorrt-backend-removal.html"
)
_SKU = "NVIDIA/TensorRT-LLM issue #222 (an engine built on one compute capability is refused on another)"
_VERSION = (
    "triton-inference-server/tensorrtllm_backend issue #531 (engine version and runtime version)"
)
_HOST = "NVIDIA/TensorRT-LLM issues #236, #538, #577 (builds end for want of host memory)"
_MIB = 1024 * 1024


def worst(facts: Sequence[Fact]) -> Support:
    """The worst verdict, values to mend apart; without facts nothing is known."""
    counted = (f.support for f in facts if f.subject is not Subject.SETTING)
    return min(counted, key=_WORST.index, default=Support.UNKNOWN)


def worst_rank(fact: Fact) -> int:
    """0 for the worst verdict."""
    return _WORST.index(fact.support)


def decide(
    answers: Sequence[LaneAnswer], own: LaneName
) -> tuple[LaneName | None, LaneName | None, EngineBuild]:
    """(choice, lane to try first where there is none, whether an engine build is worth it).

    Args:
        own: the lane that the spec names.
    """
    yes = [a.lane for a in answers if a.support is Support.YES]
    maybe = [a.lane for a in answers if a.support is Support.UNKNOWN]
    choice = _preferred(yes, own)
    provisional = None if choice else _preferred(maybe, own)
    engine = next((a.support for a in answers if a.lane is LaneName.ENGINE), Support.NO)
    if engine is Support.UNKNOWN:
        return choice, provisional, EngineBuild.UNKNOWN
    if engine is not Support.YES:
        return choice, provisional, EngineBuild.IMPOSSIBLE
    if choice is not LaneName.ENGINE:
        return choice, provisional, EngineBuild.NOT_WORTH
    return choice, provisional, EngineBuild.ONLY_KNOWN if maybe else EngineBuild.NEEDED


def _preferred(lanes: Sequence[LaneName], own: LaneName) -> LaneName | None:
    order = [LaneName.LLMAPI, LaneName.VLLM, LaneName.ENGINE]
    if own is not LaneName.ENGINE:
        order.insert(0, own)
    return next((lane for lane in order if lane in lanes), None)


def advise(
    target: str,
    sku: str,
    stack: str,
    own: LaneName,
    answers: Sequence[LaneAnswer],
    costs: EngineCosts,
    figures: Sequence[PublishedFigure],
) -> Advice:
    """The verdict with its reasons, from facts alone."""
    choice, provisional, build = decide(answers, own)
    notes = [
        *_verdict(answers, choice, provisional, own),
        *_only_here(answers),
        *_costs(build, costs),
        *_gain(build, figures),
    ]
    return Advice(
        target, sku, stack, choice, provisional, build, tuple(notes), tuple(answers), tuple(figures)
    )


def _verdict(
    answers: Sequence[LaneAnswer],
    choice: LaneName | None,
    provisional: LaneName | None,
    own: LaneName,
) -> list[Note]:
    facts = {a.lane: a for a in answers}
    if choice is None:
        if provisional is None:
            every = "; ".join(_against(a) for a in answers)
            return [Note(Reason.NO_LANE, f"no lane carries it: {every}", _sources(answers))]
        tried = facts[provisional]
        return [
            Note(
                Reason.NOT_KNOWN,
                f"no lane is known to carry it all; try {provisional} first: {_against(tried)}",
                _sources([tried]),
            )
        ]
    notes: list[Note] = []
    others = [a for a in answers if a.lane is not choice and a.support is not Support.YES]
    if len(others) == len(answers) - 1:
        known = all(a.support is not Support.UNKNOWN for a in others)
        code = Reason.ONLY_LANE if known else Reason.ONLY_KNOWN_LANE
        what = "is the only lane for this" if known else "is the only lane known to carry this"
        texts = "; ".join(_against(a) for a in others)
        notes.append(Note(code, f"{choice} {what}: {texts}", _sources(others)))
    if choice is not LaneName.ENGINE:
        notes.append(
            Note(Reason.NO_BUILD, f"{choice} compiles nothing: a package is files", _REMOVAL)
        )
    if choice is LaneName.LLMAPI:
        notes.append(
            Note(Reason.STAYS_UPSTREAM, "it is the lane that TensorRT-LLM goes on with", _REMOVAL)
        )
    if choice is not own:
        mine = facts[own]
        why = _against(mine) if mine.against else f"{own} can do it too, with a build"
        notes.append(
            Note(Reason.OTHER_LANE_IN_SPEC, f"the spec says {own}: {why}", _sources([mine]))
        )
    return notes


def _against(answer: LaneAnswer) -> str:
    """What stands against a lane, the worst first."""
    facts = sorted(answer.against, key=worst_rank)
    return f"{answer.lane}: " + (", ".join(f.text for f in facts[:3]) or str(answer.support))


def _sources(answers: Sequence[LaneAnswer]) -> str:
    found = dict.fromkeys(f.source for a in answers for f in (a.against or a.facts[:1]))
    return "; ".join(found)


def _only_here(answers: Sequence[LaneAnswer]) -> list[Note]:
    """Features of the spec that exactly one lane is known to have."""
    notes: list[Note] = []
    asked = dict.fromkeys(
        f.subject for a in answers for f in a.facts if f.asked and f.subject is not Subject.SETTING
    )
    for subject in asked:
        has = [a for a in answers if a.of(subject) is Support.YES]
        if len(has) == 1:
            lane = has[0]
            fact = next(f for f in lane.facts if f.subject is subject)
            rest = ", ".join(
                f"{a.lane}: {a.of(subject)}" for a in answers if a is not lane and a.of(subject)
            )
            text = f"{subject} (`{fact.asked}`) is known of {lane.lane} alone ({rest or 'no other lane here'})"
            notes.append(Note(Reason.FEATURE_ONLY_HERE, text, fact.source))
    return notes


def _costs(build: EngineBuild, costs: EngineCosts) -> list[Note]:
    """What an engine costs; only its end upstream where it is impossible anyway."""
    ended = Note(
        Reason.ENGINE_REMOVED,
        "trtllm-build and the C++ backend are deleted upstream (July 2026)",
        _REMOVAL,
    )
    if build is EngineBuild.IMPOSSIBLE:
        return [ended]
    frozen = f"the engine lane exists in TensorRT-LLM {costs.last_versions} and gets nothing new"
    memory = (
        Note(
            Reason.HOST_MEMORY_UNKNOWN,
            "host memory of the build: unknown; builds are reported to be killed for want of it",
            _HOST,
        )
        if costs.host_memory_bytes is None
        else Note(
            Reason.HOST_MEMORY,
            f"host memory of the build: about {costs.host_memory_bytes / _MIB:.0f} MiB by estimate",
            _HOST,
        )
    )
    return [
        Note(Reason.ENGINE_FROZEN, frozen, costs.frozen_source),
        ended,
        Note(Reason.REBUILD_PER_SKU, "an engine is built again for every SKU", _SKU),
        Note(Reason.REBUILD_PER_VERSION, "and for every TensorRT-LLM version", _VERSION),
        Note(
            Reason.BUILD_TIME_UNKNOWN,
            "build time: unknown; no figure for this model, SKU and version was found",
            "no source that was read",
        ),
        memory,
        Note(
            Reason.FLEET,
            f"this spec's TensorRT-LLM targets would need {costs.engines} engine(s), or "
            f"{costs.packages} different LLM-API package(s) over one checkpoint",
            _SKU,
        ),
        Note(Reason.COLD_START_UNKNOWN, costs.cold_start, "the contract of the version"),
        Note(
            Reason.UPGRADE_PATH,
            "after the 1.2 line an engine's way on is `engineroom migrate`; packages go on with "
            "`engineroom upgrade`",
            _REMOVAL,
        ),
    ]


def _gain(build: EngineBuild, figures: Sequence[PublishedFigure]) -> list[Note]:
    if build is EngineBuild.IMPOSSIBLE:
        return []
    engine = {(f.input_tokens, f.output_tokens): f for f in figures if f.lane is LaneName.ENGINE}
    pairs = [
        (engine[f.input_tokens, f.output_tokens], f)
        for f in figures
        if f.lane is LaneName.LLMAPI and (f.input_tokens, f.output_tokens) in engine
    ]
    if not pairs:
        text = (
            "what an engine gains here: unknown; no published figure for both lanes with this model, "
            "format and SKU was found. Measure both with the same load if speed decides"
        )
        return [
            Note(
                Reason.GAIN_UNKNOWN,
                text,
                "NVIDIA/TensorRT-LLM issue #8564 (asked; no figures in what was read)",
            )
        ]
    first, second = pairs[0]
    rows = ", ".join(
        f"{a.input_tokens}/{a.output_tokens} tokens: {a.value:g} and {b.value:g}" for a, b in pairs
    )
    text = (
        f"what an engine gains here: not known from published figures, which differ in version: "
        f"engine {first.version} ({first.model}) and llmapi {second.version} ({second.model}), "
        f"{first.weights} on {first.sku} at TP {first.tensor_parallel}, {second.metric}: {rows}. "
        "Measure both with the same load if speed decides"
    )
    return [Note(Reason.GAIN_NOT_COMPARABLE, text, f"{first.source}; {second.source}")]
