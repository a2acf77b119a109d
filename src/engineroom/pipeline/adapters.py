"""LoRA adapters of a spec, as far as they are on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engineroom.checks.base import AdapterFacts
from engineroom.errors import UsageError, Where
from engineroom.pipeline.job import Job
from engineroom.runner import files, model_source
from engineroom.spec.serving import LoraAdapter

CONFIG = "adapter_config.json"
_RANKS = range(1, 100_000)


def folders(job: Job) -> Iterator[tuple[LoraAdapter, Path]]:
    """Adapters with an `adapter_config.json` on this machine; hub ids that are not here are left out.

    Raises:
        UsageError: a source that no file system takes.
    """
    lora = job.loaded.spec.serving.features.lora
    for i, adapter in enumerate(lora.adapters if lora else ()):
        where = Where(key=f"serving.features.lora.adapters[{i}].source")
        folder = model_source.user_path(adapter.source, job.loaded.folder, where)
        if (folder / CONFIG).is_file():
            yield adapter, folder


def facts(job: Job) -> dict[str, AdapterFacts]:
    """What the configs say, by adapter name.

    Raises:
        UsageError: a config that is no JSON object, or a rank that is no number.
    """
    return {a.name: _facts(folder / CONFIG) for a, folder in folders(job)}


def _facts(path: Path) -> AdapterFacts:
    config = files.read_json(path)
    if not isinstance(config, Mapping):
        raise UsageError("an adapter's config is a JSON object", where=Where(path.as_posix()))
    ranks = [config.get("r")]
    pattern = config.get("rank_pattern")
    ranks += list(pattern.values()) if isinstance(pattern, Mapping) else []
    stated = [rank for rank in ranks if rank is not None]
    for rank in stated:
        if isinstance(rank, bool) or rank not in _RANKS:
            raise UsageError(f"`{rank!r}` is no rank", where=Where(path.as_posix(), key="r"))
    kind = config.get("peft_type")
    return AdapterFacts(
        rank=max(stated, default=None),
        target_modules=_texts(config.get("target_modules")),
        kind=str(kind).upper() if kind is not None else None,
        dora=config.get("use_dora") is True,
    )


def _texts(value: Any) -> tuple[str, ...]:
    """Module names; a single text may be a pattern such as `all-linear`, of which nothing is known."""
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
