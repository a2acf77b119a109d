"""All files of an old setup together: models, engine, build calls, and the generation they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from engineroom.catalog.migration import Fates
from engineroom.errors import UsageError, Where
from engineroom.migration import old_engine, old_models, old_script
from engineroom.reading import model_config
from engineroom.reading.model_config import ModelConfig
from engineroom.types.migration import BuildCall, EngineFacts, Leaf, OldModel, OldSetup

FILE = "(file)"
"""Key of the leaf that stands for a file that is not read."""
# Tensors that were renamed after 0.19 (deploy/support/request_fields.yaml, `also`).
_UP_TO_019 = ("random_seed", "min_length", "return_kv_cache_reuse_stats")
_AFTER_019 = ("seed", "min_tokens", "return_num_input_tokens")


@dataclass(frozen=True)
class Text:
    """A file: its name as shown in reports, and what is in it."""

    file: str
    text: str


@dataclass(frozen=True)
class OldFiles:
    """What `migrate` was given.

    Attributes:
        configs: config.pbtxt files, by their path below the repository.
        others: (path below the repository, bytes) of files that are not read.
    """

    repo: Path
    configs: Sequence[Text]
    others: Sequence[tuple[str, int]] = ()
    engine: Text | None = None
    checkpoint: Text | None = None
    script: Text | None = None


def read_setup(files: OldFiles, fates: Fates) -> tuple[OldSetup, tuple[str, ...]]:
    """The setup, and what in the build script could not be read.

    Raises:
        UsageError: a file that its format does not allow, or no inflight_batcher_llm setup.
    """
    leaves: list[Leaf] = []
    calls: tuple[BuildCall, ...] = ()
    script_leaves: tuple[Leaf, ...] = ()
    variables: dict[str, str] = {}
    problems: list[str] = []
    if files.script is not None:
        script = files.script
        calls, script_leaves, variables, faults = old_script.read_script(
            script.file, script.text, fates.tools
        )
        problems = [f"{script.file}:{line}: {what}" for line, what in faults]
    filled = old_script.substitutions(calls)
    models: list[OldModel] = []
    for item in files.configs:
        config = _config(item)
        folder = item.file.rpartition("/")[0].rpartition("/")[2]
        models.append(old_models.read_model(item.file, config, filled.get(folder, {})))
        leaves += old_models.leaves(item.file, config)
    models = old_models.without_strangers(models)
    _is_family(models)
    leaves += [Leaf(name, FILE, None, size) for name, size in files.others]
    found: dict[str, EngineFacts] = {}
    for what, given in (("engine", files.engine), ("checkpoint", files.checkpoint)):
        if given is not None:
            data = old_engine.parse_object(given.file, given.text)
            found[what] = old_engine.read_engine(given.file, data)
            leaves += old_engine.leaves(given.file, data)
    engine, checkpoint = found.get("engine"), found.get("checkpoint")
    if engine is not None and engine.what != "engine":
        raise UsageError(
            "this is a checkpoint's config.json: it has no `build_config`",
            where=Where(engine.file), hint="name the folder that trtllm-build wrote, or use --checkpoint",
        )  # fmt: skip
    leaves += script_leaves
    generation, version, first, last = _generation(models, engine or checkpoint, fates)
    setup = OldSetup(
        files.repo, tuple(models), engine, checkpoint, calls, generation, version, _unique(leaves), variables,
        first, last,
    )  # fmt: skip
    return setup, tuple(problems)


def _config(item: Text) -> ModelConfig:
    """A config.pbtxt; a placeholder that is left over is no fault, everything else is one.

    Raises:
        UsageError: line and fault, as the server would refuse the file.
    """
    config = model_config.read(item.file, item.text)
    faults = [f for f in config.faults if f.value is None or not f.value.scalar.placeholders]
    if faults:
        more = f" ({len(faults) - 1} more)" if len(faults) > 1 else ""
        raise UsageError(
            f"not the text of a model configuration: {faults[0].message}{more}",
            where=Where(item.file, faults[0].line, faults[0].path or None),
            hint="mend the file, which the old server could not read either; `engineroom lint` tells every fault",
        )
    if not config.root.fields:
        raise UsageError("the file is empty", where=Where(item.file), hint="take the folder out")
    return config


def _is_family(models: Sequence[OldModel]) -> None:
    if any(m.kind == "engine" for m in models):
        return
    told = ", ".join(f"{m.name} ({m.backend or 'no backend'})" for m in models)
    raise UsageError(
        f"not an inflight_batcher_llm setup: none of its models loads a TensorRT-LLM engine: {told}",
        hint="name the repository with tensorrt_llm, preprocessing and postprocessing; a repository of the "
        "llmapi family needs no migration",
    )


def _generation(
    models: Sequence[OldModel], facts: EngineFacts | None, fates: Fates
) -> tuple[str, str | None, str | None, str | None]:
    """(releases that the files fit, in words; one version where a file states it; oldest and newest)."""
    low, high = Version("0.5.0"), None
    why_low, why_high = "", ""
    for model in models:
        for key in model.parameters if model.kind != "other" else ():
            row = fates.parameter(key)
            if row is not None and row.first and Version(row.first) > low:
                low, why_low = Version(row.first), f"parameter {key}"
            if row is not None and row.last and (high is None or Version(row.last) < high):
                high, why_high = Version(row.last), f"parameter {key}"
        if model.kind not in ("engine", "bls", "ensemble"):
            continue
        names = {t.name for t in model.inputs}
        for name in _UP_TO_019:
            if name in names and high is None:
                high, why_high = Version("0.19.0"), f"input {name}"
        for name in _AFTER_019:
            if name in names and low <= Version("0.19.0"):
                low, why_low = Version("0.20.0"), f"input {name}"
    told = f"from {low}" + (f" ({why_low})" if why_low else "")
    if high is not None and high < low:
        told += f", but {why_high} is of {high} at most: a mixture"
    else:
        told += f" to {high} ({why_high})" if high is not None else " on"
    first = str(low) if why_low else None
    last = str(high) if high is not None and high >= low else None
    version = None
    if facts is not None and facts.version:
        try:
            version = str(Version(facts.version))
        except InvalidVersion:
            version = None
    if version is not None and facts is not None:
        return (
            f"{version} ({facts.what}'s config.json); the repository fits releases {told}",
            version, first, last,
        )  # fmt: skip
    return f"the repository fits releases {told}", None, first, last


def _unique(leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """Keys once a file: a second one, as of a parameter that is written twice, gets a number."""
    counts: dict[tuple[str, str], int] = {}
    found = []
    for leaf in leaves:
        at = counts[leaf.file, leaf.key] = counts.get((leaf.file, leaf.key), 0) + 1
        found.append(
            leaf if at == 1 else Leaf(leaf.file, f"{leaf.key}#{at}", leaf.line, leaf.value)
        )
    return tuple(found)
