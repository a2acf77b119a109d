"""The calls behind an engine, and `model` of the new spec."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engineroom.migration.decisions import Draft
from engineroom.types.migration import BuildCall, Fate, Leaf, OldSetup

CONVERTERS = ("quantize.py", "convert_checkpoint.py", "hf_ptq.py")
_SOURCES = ("--model_dir", "--model-dir", "--pyt_ckpt_path", "--meta_ckpt_dir")
_OUTPUTS = ("--output_dir", "--export_path", "--output-model-dir")
FILL_IN = "FILL-IN"
"""Stands in the spec where nothing is known; no model folder and no SKU has this name."""


@dataclass(frozen=True)
class Place:
    """Where a path of the old files leads on this machine.

    Attributes:
        path: absolute, when it is there; else None.
        hub: it can only be a hub id.
    """

    text: str
    path: str | None
    hub: bool

    @property
    def usable(self) -> str | None:
        return self.path or (self.text if self.hub and not _a_folder(self.text) else None)


_FOLDERS = {
    "model", "models", "hf", "hf-model", "hf-models", "ckpt", "ckpts", "checkpoint", "checkpoints", "tmp",
    "temp", "data", "weights", "workspace", "mnt", "home", "opt", "engine", "engines", "trt-engines", "output",
    "outputs", "tokenizer", "tokenizers", "repo", "cache", ".", "..",
}  # fmt: skip
"""First parts of relative paths: `models/llama` looks like a hub id and hardly ever is one."""


def _a_folder(text: str) -> bool:
    first = text.replace("\\", "/").split("/")[0].lower().replace("_", "-")
    return text.startswith(("/", "~")) or first in _FOLDERS


Locate = Callable[[str], Place]


@dataclass(frozen=True)
class Chain:
    """How an engine came about: the build call, and the call that wrote its checkpoint.

    Attributes:
        rivals: build calls that differ and may each have made the engine; `build` is the last of them.
    """

    build: BuildCall | None
    convert: BuildCall | None
    rivals: tuple[BuildCall, ...] = ()


def chain(setup: OldSetup, engine_dir: str | None, others: Sequence[str] = ()) -> Chain:
    """The calls behind an engine folder; without a folder, the last ones that lead to no other engine.

    Args:
        others: folders of other engines (the draft's).
    """
    builds = [c for c in setup.calls if c.tool == "trtllm-build"]
    convert = [c for c in setup.calls if c.tool in CONVERTERS]
    build = next((c for c in reversed(builds) if _leads(c, engine_dir)), None)
    rivals: tuple[BuildCall, ...] = ()
    if build is None:
        free = [c for c in builds if not any(_leads(c, other) for other in others)]
        build = free[-1] if free else None
        rivals = tuple({_essence(c): c for c in free}.values())
    checkpoint = build.flag("--checkpoint_dir", "--model_dir") if build else None
    made = next((c for c in reversed(convert) if checkpoint and _leads(c, checkpoint.value)), None)
    if made is None and build is None and convert:
        made = convert[-1]
    elif made is None and len(convert) == 1:
        made = convert[0]
    return Chain(build, made, rivals if len(rivals) > 1 else ())


def chain_to(setup: OldSetup, folder: str | None) -> Chain:
    """The calls that write this folder and no other; none where nothing says so."""
    build = next((c for c in setup.calls if c.tool == "trtllm-build" and _leads(c, folder)), None)
    checkpoint = build.flag("--checkpoint_dir", "--model_dir") if build else None
    converts = [c for c in setup.calls if c.tool in CONVERTERS]
    made = next((c for c in converts if checkpoint and _leads(c, checkpoint.value)), None)
    return Chain(build, made)


_OF_THE_BUILD = (*_OUTPUTS, "--workers", "--log_level", "--profiling_verbosity")


def _essence(call: BuildCall) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What two builds of the same engine share."""
    return tuple(sorted((f.name, f.values) for f in call.flags if f.name not in _OF_THE_BUILD))


def _leads(call: BuildCall, folder: str | None) -> bool:
    """Whether the call writes that folder: by its whole path, else by its last two names."""
    flag = call.flag(*_OUTPUTS)
    if flag is None or not folder or not flag.value:
        return False
    ours, theirs = _parts(flag.value), _parts(folder)
    return ours == theirs or (len(ours) > 1 and ours[-2:] == theirs[-2:])


def _parts(path: str) -> list[str]:
    return [p for p in re.split(r"[\\/]+", path) if p not in ("", ".")]


def model(draft: Draft, calls: Chain, override: str | None, locate: Locate) -> None:
    """`model.source` and `model.tokenizer`."""
    setup = draft.setup
    flag = calls.convert.flag(*_SOURCES) if calls.convert else None
    texts = [
        m.text("tokenizer_dir") for m in setup.of_kind("preprocessing", "postprocessing", "bls")
    ]
    tokenizer = next((t for t in texts if t), None)
    source = _source(
        draft, flag.value if flag and not flag.unresolved else None, tokenizer, override, locate
    )
    draft.spec["model"] = {"source": source}
    leaves = draft.flags(calls.convert, *_SOURCES)
    from_flag = flag is not None and not flag.unresolved and override is None
    draft.decide(
        leaves, Fate.MOVED, "model.source", source,
        "the Hugging Face checkpoint is loaded as it is" if from_flag or override is None
        else "--checkpoint or --model names the Hugging Face checkpoint of this machine",
        "" if from_flag else _say_unresolved(flag.unresolved if flag else ()),
        ("removal", "convert"),
    )  # fmt: skip
    for leaf in draft.parameter(
        "tokenizer_dir", "preprocessing", "postprocessing", "bls", "engine"
    ):
        _tokenizer(draft, leaf, source, locate)
    trust = draft.flags(calls.convert, "--trust_remote_code")
    if trust:
        draft.spec["model"]["trust_remote_code"] = True
        draft.carry(trust, "model.trust_remote_code", True, "run code that comes with the model")


def _say_unresolved(names: Sequence[str]) -> str:
    told = ", ".join(f"`{name}`" for name in names)
    return f"the script does not say what {told} is: check model.source" if told else ""


def _source(
    draft: Draft, converted: str | None, tokenizer: str | None, override: str | None, locate: Locate
) -> str:
    if override is not None:
        # What the user types is below the folder that they are in; the spec lies in another one.
        return _below_cwd(override) or locate(override).usable or override
    for text in (converted, tokenizer):
        if text and locate(text).usable:
            if text is not converted:
                draft.notes.append(
                    f"model.source is the tokenizer's folder of the old files, `{text}`: see that it has the "
                    "weights (safetensors) as well"
                )
            if locate(text).hub:
                draft.notes.append(
                    f"model.source: `{text}` is no folder on this machine, so it is taken for a hub id"
                )
            return str(locate(text).usable)
    named = converted or tokenizer
    if named is None:
        draft.missing.append(
            "model.source: no file names the Hugging Face checkpoint that the engine was made from; set it, or "
            "give --checkpoint FOLDER or --model FOLDER_OR_HUB_ID"
        )
        return FILL_IN
    draft.missing.append(
        f"model.source: `{named}` of the old files is no folder on this machine; put the Hugging Face checkpoint "
        "there, or name another with --checkpoint FOLDER or --model FOLDER_OR_HUB_ID"
    )
    return named


def _below_cwd(text: str) -> str | None:
    try:
        return str(Path(text).absolute()) if Path(text).is_dir() else None
    except (OSError, ValueError):  # a text that can be no path
        return None


def _tokenizer(draft: Draft, leaf: Leaf, source: str, locate: Locate) -> None:
    text = str(leaf.value)
    model_ = next(m for m in draft.setup.models if m.file == leaf.file)
    filled = model_.text("tokenizer_dir")
    if not filled or model_.kind == "engine":
        return
    place = locate(filled)
    where = ("our_model", "spec")
    if place.usable == source or filled == source:
        draft.decide(
            [leaf], Fate.MOVED, "model.source", source, "the tokenizer in the checkpoint's own folder",
            source=where,
        )  # fmt: skip
    elif place.path is not None:
        draft.spec["model"]["tokenizer"] = place.path
        draft.decide(
            [leaf], Fate.MOVED, "model.tokenizer", place.path, "a folder of its own", source=where
        )
    else:
        draft.decide(
            [leaf], Fate.MOVED, "model.source", source,
            f"`{text}` is not on this machine; the tokenizer of model.source is used",
            "set model.tokenizer, if that tokenizer was changed", where,
        )  # fmt: skip
