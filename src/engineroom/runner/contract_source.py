"""A contract from a TensorRT-LLM source tree, by parsing alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from engineroom.errors import UsageError, Where
from engineroom.runner import (
    contract_source_build,
    contract_source_llm,
    contract_source_pins,
    contract_source_serve,
    contract_source_triton,
)
from engineroom.runner.contract_source_fields import Models
from engineroom.runner.contract_source_tree import SourceTree
from engineroom.runner.contract_source_values import Values


def capture_source(
    root: Path,
    version: str | None = None,
    commit: str | None = None,
    all_models: Path | None = None,
) -> dict[str, Any]:
    """The contract of a source tree, in the shape of `deploy/contracts/trtllm/*.json`.

    Args:
        root: the folder that holds `tensorrt_llm/`.
        version: needed when the tree has no tensorrt_llm/version.py.
        commit: the upstream commit of an exported tree; a checkout's own is read from `.git`.
        all_models: Triton models of this version, where the tree itself has none.

    Raises:
        UsageError: no TensorRT-LLM tree, a file that cannot be read safely, or a version that is
            missing, malformed or not the tree's.
    """
    tree = SourceTree(root)
    values = Values(tree)
    try:
        return _capture(
            tree,
            values,
            version,
            commit,
            SourceTree(all_models, "--all-models") if all_models else None,
        )
    except RecursionError:
        raise UsageError(
            "an expression in the source tree is nested too deeply",
            where=Where(root.as_posix()),
            hint="give an unchanged TensorRT-LLM source tree (a checkout, or `git archive`)",
        ) from None


def _capture(
    tree: SourceTree,
    values: Values,
    version: str | None,
    commit: str | None,
    all_models: SourceTree | None,
) -> dict[str, Any]:
    number = checked_version(
        version, contract_source_pins.version_text(tree, values), tree.root.as_posix()
    )
    models = Models(values)
    api = contract_source_llm.llm_api(tree, values, models)
    sections = {
        "trtllm_build": contract_source_build.trtllm_build(tree, values, models),
        "llm_api": api,
        "trtllm_serve": contract_source_serve.trtllm_serve(tree, values),
        "triton": contract_source_triton.triton(tree, all_models),
        "quantization": contract_source_pins.quantization(tree, values),
        "enums": dict(sorted(models.enums.items())),
        "pins": contract_source_pins.pins(tree),
    }
    found = commit or tree.commit()
    return assemble(
        number,
        sections,
        git={
            "commit": found,
            "note": "the commit of the tree, as given"
            if commit
            else "read from the checkout's .git"
            if found
            else "the tree names no commit; the digests under `capture` tell which files were read",
        },
        capture={
            "method": "source",
            "files": dict(sorted(tree.digests.items())),
            "unknown": [item.as_dict() for item in tree.unknown],
        },
    )


def assemble(
    version: str, sections: dict[str, Any], *, git: dict[str, Any], capture: dict[str, Any]
) -> dict[str, Any]:
    """Sections with the head that every contract has."""
    unknown = capture["unknown"]
    return {
        "schema": 1,
        "version": version,
        "git": git,
        "triton_containers": [],
        "confidence": {
            "overall": "medium" if unknown else "high",
            "note": (
                f"captured ({capture['method']}); {len(unknown)} part(s) stay unknown, listed under "
                "`capture.unknown`"
            ),
        },
        **sections,
        "capture": capture,
    }


def checked_version(given: str | None, found: str | None, place: str) -> str:
    """The version in its PEP 440 form.

    Raises:
        UsageError: neither is known, they differ, or the text is no version.
    """
    text = given or found
    if text is None:
        raise UsageError(
            "tensorrt_llm/version.py names no version",
            where=Where(place),
            hint="give it: --version 1.2.1",
        )
    try:
        number = str(Version(text))
        same = given is None or found is None or Version(given) == Version(found)
    except InvalidVersion:
        raise UsageError(
            f"`{text[:80]}` is not a version", where=Where(place), hint="write e.g. 1.2.1"
        ) from None
    if not same:
        raise UsageError(
            f"--version {given}, but the code says {found}",
            where=Where(place),
            hint=f"drop --version, or give the source of {given}",
        )
    return number
