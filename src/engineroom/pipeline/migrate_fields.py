"""What becomes of each field that clients of an old `inflight_batcher_llm` front send and get.

Names that mean the same come from `deploy/support/request_fields.yaml`; the rest of what the old fronts
declare is in `migrate_notes`, with what to do about it. Nothing of the old setup is run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engineroom.catalog import Catalog
from engineroom.catalog.request_fields import FILE, FieldRow, load_request_fields
from engineroom.pipeline.migrate_notes import CORE, INPUTS, OUTPUTS, Note
from engineroom.types.migration import Fate, OldModel, OldSetup, OldTensor


@dataclass(frozen=True)
class FieldLine:
    """One input or output of the old fronts.

    Attributes:
        side: ``inputs`` or ``outputs``.
        models: old models that declare it.
        new: names in the new model, all of them are needed; empty when there is none.
        what: one sentence; may be empty for what is only renamed.
        todo: what the client has to do; empty when renaming is all.
    """

    side: str
    old: str
    data_type: str | None
    models: tuple[str, ...]
    new: tuple[str, ...]
    fate: Fate
    what: str
    todo: str
    source: str


def front_lines(setup: OldSetup, catalog: Catalog) -> list[FieldLine]:
    """A line for each input and output that an old front declares, in its order, each name once."""
    return _lines(setup.fronts, catalog, "engine", INPUTS, OUTPUTS)


def core_lines(setup: OldSetup, catalog: Catalog) -> list[FieldLine]:
    """The same for the model that runs the engine, which some clients call with token ids."""
    model = setup.engine_model
    return _lines(
        (model,) if model else (), catalog, "core", {**INPUTS, **CORE}, {**OUTPUTS, **CORE}
    )


def _lines(
    models: Iterable[OldModel],
    catalog: Catalog,
    dialect: str,
    inputs: dict[str, Note],
    outputs: dict[str, Note],
) -> list[FieldLine]:
    table = load_request_fields(catalog)
    lines: list[FieldLine] = []
    for side, rows, notes in (
        ("inputs", table.inputs, inputs),
        ("outputs", table.outputs, outputs),
    ):
        seen: dict[str, tuple[OldTensor, tuple[str, ...]]] = {}
        for model in models:
            for tensor in getattr(model, side):
                first, names = seen.get(tensor.name, (tensor, ()))
                seen[tensor.name] = first, (*names, model.name)
        lines += [
            _line(side, tensor, names, _row(rows, tensor.name, dialect), notes.get(name))
            for name, (tensor, names) in seen.items()
        ]
    return lines


def _row(rows: Iterable[FieldRow], name: str, dialect: str) -> FieldRow | None:
    """The thing that an old name means, by the names of today first, then by those of before."""
    rows = tuple(rows)
    return next((r for r in rows if name in r.names(dialect)), None) or next(
        (r for r in rows if r.has(name)), None
    )


def _line(
    side: str, tensor: OldTensor, models: tuple[str, ...], row: FieldRow | None, note: Note | None
) -> FieldLine:
    name, kind = tensor.name, tensor.data_type
    if note is not None:
        new = note.new or ((name,) if note.fate is Fate.KEPT else ())
        return FieldLine(
            side, name, kind, models, new, note.fate, note.what, note.todo, note.source
        )
    new = row.llmapi[:1] if row is not None else ()
    if not new:
        return FieldLine(
            side, name, kind, models, (), Fate.IMPOSSIBLE,
            "the new model has nothing by this name or for this purpose" if side == "inputs"
            else "the new model does not answer with it",
            "leave it out: Triton ignores an input that no model declares" if side == "inputs"
            else "do not read it",
            FILE,
        )  # fmt: skip
    fate = Fate.KEPT if new == (name,) else Fate.RENAMED
    return FieldLine(side, name, kind, models, new, fate, "", _switch(row), FILE)


def _switch(row: FieldRow | None) -> str:
    """Which feature of the spec must be on."""
    needs = {
        "guide": "guided_decoding", "guide_type": "guided_decoding",
        "context_logits": "context_logits", "generation_logits": "generation_logits",
    }  # fmt: skip
    key = needs.get(row.id) if row else None
    return f"switch serving.features.{key} on in the spec" if key else ""
