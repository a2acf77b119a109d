"""A spec of the llmapi lane for the service that an old setup describes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from engineroom.catalog import Catalog
from engineroom.migration import (
    draft_calibration,
    draft_features,
    draft_model,
    draft_others,
    draft_precision,
    draft_serving,
    draft_target,
)
from engineroom.migration.decisions import Draft
from engineroom.migration.draft_model import Locate
from engineroom.types import GpuSku, StackRelease
from engineroom.types.migration import OldSetup


@dataclass(frozen=True)
class Wishes:
    """What the user says beside the old files.

    Attributes:
        model: Hugging Face folder or hub id, instead of the one that the files name.
        stack: release as written in the spec; `release` what it is.
        dataset: calibration text where the old one cannot be used.
        locate: where a model path of the old files leads here; `folder` of any other path.
    """

    model: str | None
    sku: GpuSku | None
    stack: str
    release: StackRelease
    name: str | None
    dataset: str
    locate: Locate
    folder: Callable[[str], str | None]


def draft_spec(setup: OldSetup, catalog: Catalog, wishes: Wishes) -> Draft:
    """The spec with every decision that was taken on the way."""
    draft = Draft(setup, {"schema_version": 1, "name": ""})
    engine = setup.engine_model
    others = [
        path
        for m in setup.models
        if m.kind == "engine" and m is not engine and (path := m.text("gpt_model_path"))
    ]
    calls = draft_model.chain(setup, engine.text("gpt_model_path") if engine else None, others)
    helper = next((m.text("gpt_model_path") for m in setup.service.helpers), None)
    second = draft_model.chain_to(setup, helper) if helper else None
    draft_others.others(draft, calls)
    sku = wishes.sku or draft_target.built_on(draft, calls, catalog)
    draft_model.model(draft, calls, wishes.model, wishes.locate)
    draft.spec["name"] = wishes.name or _name(draft)
    draft_precision.precision(draft, calls, catalog, sku, wishes.release.runtime_version)
    draft_calibration.calibration(draft, calls, catalog, wishes.folder, wishes.dataset)
    draft_target.target(draft, calls, sku, wishes.sku is not None, wishes.stack)
    draft_serving.serving(draft)
    draft_features.features(draft, calls, second, wishes.locate, wishes.folder)
    if setup.of_kind("multimodal") or setup.parameter("multimodal_model_path"):
        draft.notes.append(
            "a multimodal service: use the multimodal Hugging Face checkpoint as model.source, and set "
            "serving.features.multimodal with the hosts that image_url may name"
        )
    if setup.of_kind("disaggregated"):
        draft.notes.append(
            "disaggregated serving is not carried over: the spec is one service that does prefill and decoding"
        )
    if setup.parameter("encoder_model_path", "engine"):
        draft.missing.append(
            "an encoder-decoder model: the llmapi lane serves decoder-only models; stay on a stack of the 1.2 line"
        )
    return draft


_PLAIN = {
    "hf", "model", "models", "tokenizer", "repo", "repository", "model-repo", "model-repository",
    "triton-model-repo", "fill-in", "checkpoint", "ckpt", "weights", "workspace", "data",
}  # fmt: skip
"""Folder names that say nothing about the service."""


def _name(draft: Draft) -> str:
    """A service name by the model's folder, or the one above it, else by the repository's."""
    source = str(draft.spec["model"]["source"]).rstrip("/").split("/")
    for text in (*reversed(source[-2:]), draft.setup.repo.name):
        name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:53].strip("-")
        if name and name not in _PLAIN:
            return name
    return "migrated"
