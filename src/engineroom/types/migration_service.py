"""Which models of an old repository are one service: what its main front reaches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engineroom.types.migration import OldModel


@dataclass(frozen=True)
class Service:
    """The service that one spec can say.

    Attributes:
        engine: the engine model that the main front reaches; without one, ``tensorrt_llm``, else the first.
        helpers: engines beside it that belong to the same service: a draft's, or those of
            disaggregated serving.
        others: models of other services: further engines, and what only their fronts reach.
    """

    engine: OldModel | None
    helpers: tuple[OldModel, ...]
    others: tuple[OldModel, ...]

    @property
    def other_engines(self) -> tuple[OldModel, ...]:
        return tuple(m for m in self.others if m.kind == "engine")


def service_of(models: Sequence[OldModel]) -> Service:
    """The main front is the first BLS model that reaches an engine, else the first such ensemble."""
    engines = [m for m in models if m.kind == "engine"]
    fronts = [m for kind in ("bls", "ensemble") for m in models if m.kind == kind]
    reach = {front.file: tuple(reached(front, models)) for front in fronts}
    led = [next((m for m in reach[f.file] if m.kind == "engine"), None) for f in fronts]
    named = [m for m in engines if m.name == "tensorrt_llm"]
    chosen = [m for m in (*led, *named, *engines) if m is not None]
    engine = next(iter(sorted(chosen, key=lambda m: "draft" in m.name)), None)  # a stable sort
    ours = [f for f, to in zip(fronts, led) if to is None or to is engine]
    inside = {m.file for f in ours for m in (f, *reach[f.file])}
    outside = {
        m.file for f in fronts if f not in ours for m in (f, *reach[f.file]) if m.file not in inside
    }
    helpers = tuple(_helpers([m for m in models if m.file not in outside], engines, engine))
    kept = {m.file for m in helpers} | ({engine.file} if engine else set())
    others = tuple(
        m for m in models if m.file not in kept and (m.kind == "engine" or m.file in outside)
    )
    return Service(engine, helpers, others)


def _helpers(
    models: Iterable[OldModel], engines: Iterable[OldModel], engine: OldModel | None
) -> Iterator[OldModel]:
    names = set()
    for model in models:
        for key in (
            "tensorrt_llm_draft_model_name",
            "context_model_name",
            "generation_model_name",
        ):
            if model.kind in ("bls", "disaggregated"):
                names.add(model.text(key))
    for other in engines:
        # Without a BLS model the client drafts by itself, and only the name tells the draft's engine.
        if other is not engine and (other.name in names or "draft" in other.name):
            yield other


def reached(front: OldModel, models: Sequence[OldModel]) -> Iterator[OldModel]:
    """Models that a request to `front` comes to, each once, in the order they are named."""
    by_name = {m.name: m for m in reversed(models)}
    seen, waiting = {front.file}, list(_calls(front))
    while waiting:
        found = by_name.get(waiting.pop(0))
        if found is not None and found.file not in seen:
            seen.add(found.file)
            yield found
            waiting = [*_calls(found), *waiting]


def _calls(model: OldModel) -> Iterator[str]:
    """Names of the models that it calls; upstream's BLS model has those of the other steps in its code."""
    if model.kind == "ensemble":
        for step in model.steps:
            for name, value in model.filled.items():
                step = step.replace(f"${{{name}}}", value)
            yield step
    elif model.kind == "bls":
        yield model.text("tensorrt_llm_model_name") or "tensorrt_llm"
        yield from ("preprocessing", "postprocessing")
        yield from filter(
            None,
            (model.text("multimodal_encoders_name"), model.text("tensorrt_llm_draft_model_name")),
        )
    elif model.kind == "disaggregated":
        yield from filter(
            None, (model.text("generation_model_name"), model.text("context_model_name"))
        )
