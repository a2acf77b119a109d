"""What is in the old files and is not this service: other engines, a draft's engine, further builds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engineroom.migration.decisions import Draft
from engineroom.migration.draft_model import Chain, chain_to
from engineroom.types.migration import BuildCall, Fate, Leaf, OldModel


def others(draft: Draft, calls: Chain) -> None:
    """Fates of everything that belongs to another engine; asks where one has to be chosen."""
    setup, service = draft.setup, draft.setup.service
    ours = {(c.file, c.tool, c.index) for c in (calls.build, calls.convert) if c is not None}
    shown = ours | {
        (c.file, c.tool, c.index)
        for model in service.helpers
        for c in _calls(chain_to(setup, model.text("gpt_model_path")))
    }
    for model in service.helpers:
        made = _calls(chain_to(setup, model.text("gpt_model_path")))
        draft.decide(
            _leaves(draft, [model], [c for c in made if (c.file, c.tool, c.index) not in ours]),
            Fate.REDEFAULTED, None, None,
            f"of `{model.name}`, a second engine of the same service: the settings of "
            f"`{service.engine.name if service.engine else ''}` hold for the new one",
            source=("our_model", "speculative"),
        )  # fmt: skip
    for model in service.other_engines:
        made = _calls(chain_to(setup, model.text("gpt_model_path")))
        _stranger(
            draft, _leaves(draft, [], [c for c in made if (c.file, c.tool, c.index) not in shown])
        )
    _stranger(draft, _leaves(draft, service.others, []))
    _choose_engine(draft)
    _choose_build(draft, calls)


def _stranger(draft: Draft, leaves: Iterable[Leaf]) -> None:
    draft.decide(
        leaves, Fate.IMPOSSIBLE, None, None, "of another engine than the one that is carried over",
        "another engine: migrate it as a service of its own", ("our_model", "spec"),
    )  # fmt: skip


def _calls(made: Chain) -> Iterator[BuildCall]:
    return (call for call in (made.build, made.convert) if call is not None)


def _leaves(draft: Draft, models: Iterable[OldModel], calls: Iterable[BuildCall]) -> Iterator[Leaf]:
    files = {m.file for m in models}
    bases = [(c.file, f"{c.tool}[{c.index}]") for c in calls]
    for leaf in draft.setup.leaves:
        if leaf.file in files or any(
            leaf.file == file and (leaf.key == base or leaf.key.startswith(f"{base}."))
            for file, base in bases
        ):
            yield leaf


def _choose_engine(draft: Draft) -> None:
    service = draft.setup.service
    rest = service.other_engines
    if rest and service.engine is not None:
        names = ", ".join(f"`{m.name}`" for m in (service.engine, *rest))
        draft.missing.append(
            f"{len(rest) + 1} engines ({names}): one spec is one service, and this one is for "
            f"`{service.engine.name}`. Migrate each by itself: give a copy of the repository with one engine and the "
            "models that call it"
        )


def _choose_build(draft: Draft, calls: Chain) -> None:
    if not calls.rivals or calls.build is None:
        return
    lines = ", ".join(f"{c.file}:{c.line}" for c in calls.rivals)
    told = (
        f"{len(calls.rivals)} trtllm-build calls that differ ({lines}), and none of them writes the folder of "
        f"gpt_model_path: the one of line {calls.build.line} is taken"
    )
    if draft.setup.engine is None:
        draft.missing.append(
            f"targets[0]: {told}; give --engine DIR with the engine that is served, or a script with its calls only"
        )
    else:
        draft.notes.append(f"{told} for what the engine's config.json does not say")
