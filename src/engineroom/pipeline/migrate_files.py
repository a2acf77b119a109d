"""The files of an old setup, and where paths in them lead on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from engineroom.errors import UsageError, Where
from engineroom.migration import old_engine
from engineroom.migration.draft_model import Place
from engineroom.migration.setup import OldFiles, Text
from engineroom.runner.model_source import looks_like_hub_id
from engineroom.spec.load import read_text

MAX_FILES = 2000
"""Files of a repository that are told one by one."""


def read_files(
    repo: Path,
    engine: Path | None,
    checkpoint: Path | None,
    build_script: Path | None,
    model: str | None,
) -> tuple[OldFiles, str | None]:
    """Texts of all files, and the Hugging Face model that the user names."""
    configs, others = _repository(repo)
    engine_text = _config_json(engine, "--engine") if engine is not None else None
    if engine_text is not None and _is_huggingface(engine_text):
        raise UsageError(
            "this is a Hugging Face model's config.json, not an engine's",
            where=Where(engine_text.file), hint="name it with --checkpoint or --model",
        )  # fmt: skip
    checkpoint_text = None
    if checkpoint is not None:
        checkpoint_text = _config_json(checkpoint, "--checkpoint")
        if _is_huggingface(checkpoint_text):
            folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
            model, checkpoint_text = model or str(folder.absolute()), None
    script = None
    if build_script is not None:
        script = Text(build_script.as_posix(), read_text(build_script, "build script"))
    return OldFiles(repo, configs, others, engine_text, checkpoint_text, script), model


def _repository(repo: Path) -> tuple[list[Text], list[tuple[str, int]]]:
    """config.pbtxt files, and the names of all other files.

    Raises:
        UsageError: no folder, or none with a config.pbtxt in it.
    """
    place = Where(repo.as_posix())
    if not repo.is_dir():
        what = "not a folder" if repo.exists() else "no such folder"
        raise UsageError(what, where=place, hint="name the Triton model repository")
    paths = sorted(repo.glob("*/config.pbtxt"))
    if not paths:
        deeper = sorted({p.parent.parent for p in _few(repo.glob("*/*/config.pbtxt"))})
        if (repo / "config.pbtxt").is_file():
            hint = f"name the folder above it: {repo.absolute().parent}"
        elif deeper:
            hint = f"the models lie deeper: name {deeper[0]}"
        else:
            hint = "name a folder that has tensorrt_llm/config.pbtxt"
        raise UsageError(
            "no model repository: no folder in it has a config.pbtxt", where=place, hint=hint
        )
    texts = [Text(p.relative_to(repo).as_posix(), _config_text(p)) for p in paths]
    others: list[tuple[str, int]] = []
    for path in sorted(_few(_walk(repo))):
        if path not in paths:
            others.append((path.relative_to(repo).as_posix(), path.lstat().st_size))
    return texts, others


def _config_text(path: Path) -> str:
    return read_text(path, "model configuration")


def _walk(folder: Path) -> Iterator[Path]:
    """Files, without following links out of the repository."""
    for base, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(base) / name for name in sorted(names))


def _few(paths: Iterator[Path]) -> list[Path]:
    return [path for path, _ in zip(paths, range(MAX_FILES))]


def _config_json(path: Path, option: str) -> Text:
    """`config.json` of a folder, or the file itself.

    Raises:
        UsageError: neither is there.
    """
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        what = "no config.json in it" if path.is_dir() else "no such file or folder"
        raise UsageError(
            what, where=Where(path.as_posix(), key=option),
            hint="name the folder that trtllm-build, convert_checkpoint.py or quantize.py wrote",
        )  # fmt: skip
    return Text(file.as_posix(), read_text(file, "config.json"))


def _is_huggingface(item: Text) -> bool:
    return old_engine.is_huggingface(old_engine.parse_object(item.file, item.text))


def folders(repo: Path, build_script: Path | None) -> tuple[Path, ...]:
    """Where relative paths of the old files may begin."""
    return (*((build_script.absolute().parent,) if build_script else ()), repo.absolute().parent)


def find_path(text: str, folders: Sequence[Path]) -> str | None:
    """The absolute path, when it is on this machine."""
    if not text or "${" in text or "\x00" in text:
        return None
    try:
        path = Path(text).expanduser()
        for folder in folders:
            if (folder / path).exists():
                return str((folder / path).resolve())
    except (OSError, RuntimeError, ValueError):
        return None
    return None


def locate(text: str, folders: Sequence[Path]) -> Place:
    here = find_path(text, folders)
    hub = here is None and not text.startswith((".", "~", "/")) and looks_like_hub_id(text)
    return Place(text, here if here and Path(here).is_dir() else None, hub)
