"""What an artefact of this toolkit says of itself, beside the files that other tools wrote."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from engineroom.reading.base import Fact, PackageVersion, Size, Text


class AskedLimits(Fact):
    """Limits that an engine or package is to serve."""

    max_batch_size: Size | None = None
    max_num_tokens: Size | None = None
    max_seq_len: Size | None = None
    max_beam_width: Size | None = None


class RenderedFrom(Fact):
    """What the manifest of a model repository says it was rendered from."""

    name: Text
    artefact_digest: Text | None = None


class ArtefactFacts(Fact):
    """One artefact.

    Attributes:
        kind: of its manifest: ``engine``, ``build-plan``, ``checkpoint``, ``<lane>-package`` …
        damage: why it is not what its manifest lists; None when every file was hashed and is.
        digest: of its files, by its manifest.
        asked: the target's limits, by the spec where there is one, else by the manifest.
        runtime_version: version that its files were written for.
        rank_files: names of the engine's ``rank<N>.engine`` files.
        llm_args: `llm_args.yaml` of a package.
        repository: a model repository that serves it.
    """

    kind: Text
    damage: Text | None = None
    digest: Text | None = None
    asked: AskedLimits | None = None
    runtime_version: PackageVersion | None = None
    rank_files: Annotated[tuple[Text, ...], Field(max_length=10_000)] | None = None
    llm_args: Annotated[dict[str, Any], Field(max_length=10_000)] | None = None
    repository: RenderedFrom | None = None
