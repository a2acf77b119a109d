"""Draft models and LoRA adapters that travel with a package, and where a server finds them.

A folder or hub id that the spec names is copied into the package, so that a package is whole: it can be
moved, exported and served offline, and its digest covers what answers depend on. Where the spec says
that something does not travel, the server gets the source as it stands.

Documents inside a package name what lies beside them relative to it (``./draft``), since nobody knows
where it will be mounted; a repository is rendered for one place and has whole paths.
"""

from __future__ import annotations

from engineroom.lanes.base import Attachment, LaneRequest
from engineroom.spec.serving import LoraAdapter, Speculative

ADAPTERS = "adapters"
DRAFT = "draft"
BESIDE = "."
"""`root` of paths that are relative to the package."""


def adapters(request: LaneRequest) -> tuple[Attachment, ...]:
    """The adapters of `serving.features.lora` that travel, to ``adapters/<name>``."""
    lora = request.spec.serving.features.lora
    return tuple(
        Attachment(
            kind="lora-adapter",
            name=adapter.name,
            source=adapter.source,
            key=f"serving.features.lora.adapters[{i}].source",
            target=f"{ADAPTERS}/{adapter.name}",
        )
        for i, adapter in enumerate(lora.adapters if lora else ())
        if adapter.travels
    )


def draft(request: LaneRequest) -> tuple[Attachment, ...]:
    """The draft model of `serving.features.speculative`, when it travels, to ``draft``."""
    speculative = request.spec.serving.features.speculative
    if speculative is None or speculative.draft_model is None or not speculative.draft_travels:
        return ()
    return (
        Attachment(
            kind="draft-model",
            name=DRAFT,
            source=speculative.draft_model,
            key="serving.features.speculative.draft_model",
            target=DRAFT,
        ),
    )


def adapter_path(adapter: LoraAdapter, root: str) -> str:
    """Where the server finds an adapter, with the package at `root`."""
    return f"{root}/{ADAPTERS}/{adapter.name}" if adapter.travels else adapter.source


def draft_path(speculative: Speculative, root: str) -> str | None:
    """Where the server finds the draft model, with the package at `root`; None: there is none."""
    if speculative.draft_model is None or not speculative.draft_travels:
        return speculative.draft_model
    return f"{root}/{DRAFT}"
