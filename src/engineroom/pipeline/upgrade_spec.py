"""`upgrade`: the spec's text with the new stack, for the folder that it is written to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from engineroom.runner import files
from engineroom.spec import LoadedSpec
from engineroom.spec.edit import plain, replace_values, with_values
from engineroom.spec.load import read_text
from engineroom.spec.yaml_lines import Path as KeyPath
from engineroom.spec.yaml_lines import parse
from engineroom.types import StackRelease

Edits = dict[KeyPath, tuple[str, Any]]
ANEW = (
    "the spec is written anew, without its comments: a value to change is shared or spans lines, so it could "
    "not be edited in place; bring the comments over by hand"
)


def stack_value(stack: StackRelease, release: bool, image: str | None) -> Any:
    """`targets[].stack` for a stack: a release's id, else its version with an image."""
    if release:
        return stack.id
    runtime, version = ("trtllm", stack.tensorrt_llm) if stack.tensorrt_llm else ("vllm", "")
    version = version or stack.id.removeprefix("vllm-")
    return {runtime: version, **({"image": image} if image else {})}


def moved_text(loaded: LoadedSpec, indices: Iterable[int], stack: Any) -> tuple[str, list[str]]:
    """(text with the new stack, notes); line numbers stay unless a note says otherwise."""
    written = json.dumps(stack, ensure_ascii=False)
    edits: Edits = {("targets", index, "stack"): (written, stack) for index in indices}
    return _edited(read_text(loaded.file, "spec file"), edits)


def text_for(text: str, folder: Path, out: Path) -> tuple[str, list[str]]:
    """The text for a file in `out`: paths that exist relative to `folder` are written anew."""
    edits: Edits = {}
    for path, value in _paths(parse(text, "").data):
        try:
            there = (folder / value).exists()
        except (OSError, ValueError):
            continue
        if there:  # else a hub id, or nothing that is here
            new = Path(os.path.relpath(folder / value, out.resolve())).as_posix()
            edits[path] = (json.dumps(new, ensure_ascii=False), new)
    if not edits:
        return text, []
    result, notes = _edited(text, edits)
    names = ", ".join(".".join(map(str, path)) for path in edits)
    return result, [f"relative paths are written for the new file's folder: {names}", *notes]


def _edited(text: str, edits: Edits) -> tuple[str, list[str]]:
    """Comments are kept where the values can be replaced in place."""
    done = replace_values(text, edits)
    if done is not None:
        return done, []
    data = with_values(parse(text, "").data, {path: value for path, (_, value) in edits.items()})
    return files.dump_yaml(_with_text_stacks(data)), [ANEW]


def _with_text_stacks(data: Any) -> Any:
    """Plain data in which a stack is text: 26.10 must not become the number 26.1."""
    for target in data.get("targets", ()):
        stack = target.get("stack")
        target["stack"] = getattr(stack, "text", stack)
    return plain(data)


def _paths(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Values that may be relative paths, with their places."""
    features = (data.get("serving") or {}).get("features") or {}
    adapters = (features.get("lora") or {}).get("adapters") or []
    speculative = features.get("speculative") or {}
    places: list[tuple[KeyPath, Any]] = [
        (("model", "source"), data["model"].get("source")),
        (("model", "tokenizer"), data["model"].get("tokenizer")),
        (("calibration", "dataset"), (data.get("calibration") or {}).get("dataset")),
        (("serving", "features", "speculative", "draft_model"), speculative.get("draft_model")),
        *(
            (("serving", "features", "lora", "adapters", i, "source"), adapter.get("source"))
            for i, adapter in enumerate(adapters)
        ),
    ]
    for path, value in places:
        if isinstance(value, str) and value and not value.startswith(("/", "~")):
            yield path, value
