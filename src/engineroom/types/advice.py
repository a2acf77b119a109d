"""The answer to "is an engine build worth its complexity here": one target, three lanes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from engineroom.names import LaneName, StrEnum, Support


class Subject(StrEnum):
    """What a fact about a lane is about; the stable codes of `plan`'s advice, with `Reason`."""

    LANE = "lane"
    """The lane exists in the version, and what it accepts there is known."""
    WEIGHTS = "weights"
    KV_CACHE = "kv-cache"
    MODEL = "model"
    """The runtime lists the model's architecture."""
    CHECKPOINT = "checkpoint"
    """The checkpoint that the lane reads can be made here."""
    ENCODER_DECODER = "encoder-decoder"
    BEAM_SEARCH = "beam-search"
    STOP_WORDS = "stop-words"
    GUIDED_DECODING = "guided-decoding"
    LORA = "lora"
    SPECULATIVE = "speculative"
    MULTIMODAL = "multimodal"
    LOGITS = "logits"
    KV_RETENTION = "kv-retention"
    PRIORITY = "priority"
    METRICS = "metrics"
    """Times and KV blocks of a request in its answer."""
    PLACEMENT = "placement"
    """Instances on sets of GPUs."""
    SETTING = "setting"
    """A value of the spec that this lane refuses and another does not: to be mended, and no verdict."""


class Reason(StrEnum):
    """Why the advice is what it is; stable codes."""

    NO_BUILD = "no-build"
    """The chosen lane compiles nothing."""
    STAYS_UPSTREAM = "stays-upstream"
    ONLY_LANE = "only-lane"
    """Every other lane is known not to carry what the spec asks."""
    ONLY_KNOWN_LANE = "only-known-lane"
    """No other lane is known to carry it; one of them may."""
    FEATURE_ONLY_HERE = "feature-only-here"
    NO_LANE = "no-lane"
    NOT_KNOWN = "not-known"
    """No lane is known to carry it all, and what is unknown is named."""
    OTHER_LANE_IN_SPEC = "other-lane-in-spec"
    ENGINE_FROZEN = "engine-frozen"
    ENGINE_REMOVED = "engine-removed"
    REBUILD_PER_SKU = "rebuild-per-sku"
    REBUILD_PER_VERSION = "rebuild-per-version"
    BUILD_TIME_UNKNOWN = "build-time-unknown"
    HOST_MEMORY = "host-memory"
    HOST_MEMORY_UNKNOWN = "host-memory-unknown"
    FLEET = "fleet"
    COLD_START_UNKNOWN = "cold-start-unknown"
    UPGRADE_PATH = "upgrade-path"
    GAIN_UNKNOWN = "gain-unknown"
    GAIN_NOT_COMPARABLE = "gain-not-comparable"


class EngineBuild(StrEnum):
    """Whether an engine build is worth its complexity."""

    NEEDED = "needed"
    """Only the engine lane carries what the spec asks."""
    ONLY_KNOWN = "only-known"
    """Only the engine lane is known to; whether another does is unknown."""
    NOT_WORTH = "not-worth"
    """Another lane is known to carry it without a build, and no gain is known."""
    IMPOSSIBLE = "impossible"
    UNKNOWN = "unknown"
    """Whether an engine can do it is unknown."""


@dataclass(frozen=True)
class Fact:
    """One part of what a lane can do here.

    Attributes:
        text: the verdict with its subject, e.g. the format, SKU and version.
        asked: the key of the spec that asks for it, or None for what every spec needs.
    """

    subject: Subject
    support: Support
    text: str
    source: str
    asked: str | None = None


@dataclass(frozen=True)
class LaneAnswer:
    """What one lane can do for a target.

    Attributes:
        runtime: what it runs on with its version, or why there is none.
        support: the worst of the facts, `Subject.SETTING` apart; unknown is never yes.
    """

    lane: LaneName
    runtime: str
    support: Support
    facts: tuple[Fact, ...]

    def of(self, subject: Subject) -> Support | None:
        """Support of one subject; None where it was not asked."""
        return next((f.support for f in self.facts if f.subject is subject), None)

    @property
    def against(self) -> tuple[Fact, ...]:
        """Facts that are no yes, of those that the verdict counts."""
        return tuple(
            f
            for f in self.facts
            if f.support is not Support.YES and f.subject is not Subject.SETTING
        )

    @property
    def mend(self) -> tuple[Fact, ...]:
        """Values of the spec to change before this lane takes it."""
        return tuple(f for f in self.facts if f.subject is Subject.SETTING)


@dataclass(frozen=True)
class PublishedFigure:
    """Somebody's measurement with the conditions that its source gives.

    Attributes:
        value: in the unit that `metric` ends with.
        load: how requests arrived.
        note: conditions that are missing or differ from the usual.
    """

    lane: LaneName
    version: str
    model: str
    weights: str
    sku: str
    tensor_parallel: int
    input_tokens: int
    output_tokens: int
    metric: str
    load: str
    value: float
    source: str
    note: str | None = None


@dataclass(frozen=True)
class EngineCosts:
    """What is known about an engine build for one target and its fleet.

    Attributes:
        host_memory_bytes: estimate for the build; None: not known.
        engines: distinct engines that the spec's targets would need; `packages` distinct LLM-API
            packages by content.
        last_versions: TensorRT-LLM versions that have the engine lane, as a range.
        cold_start: what each lane does at a start, in words.
    """

    host_memory_bytes: int | None
    engines: int
    packages: int
    last_versions: str
    frozen_source: str
    cold_start: str


@dataclass(frozen=True)
class Note:
    """A reason with its sentence and source."""

    code: Reason
    text: str
    source: str


@dataclass(frozen=True)
class Advice:
    """The verdict for one target.

    Attributes:
        choice: the lane to use; None when no lane is known to carry everything.
        provisional: without a choice, the lane to try first; what is unknown about it is in its facts.
        lanes: every lane's answer, the chosen one's among them.
        figures: published figures for this model, format, SKU and TP size; never a gain by themselves.
    """

    target: str
    sku: str
    stack: str
    choice: LaneName | None
    provisional: LaneName | None
    engine_build: EngineBuild
    reasons: tuple[Note, ...]
    lanes: tuple[LaneAnswer, ...]
    figures: tuple[PublishedFigure, ...]

    def lane(self, name: LaneName) -> LaneAnswer:
        return next(answer for answer in self.lanes if answer.lane is name)

    @property
    def codes(self) -> tuple[Reason, ...]:
        return tuple(note.code for note in self.reasons)

    def as_dict(self) -> dict[str, Any]:
        """Plain data; enums are their words."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, StrEnum) else value
