"""Where a model is, what its config says, and what its safetensors headers hold."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from engineroom.errors import MissingError, UsageError, Where
from engineroom.runner import files, tensor_files
from engineroom.runner.verified import Verified
from engineroom.spec.model import Model
from engineroom.types import ModelShape

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z")
LICENCE_PATTERNS = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*", "USE_POLICY*")
_WANTED = (
    "*.json",
    "*.safetensors",
    "*.model",
    "*.txt",
    "*.jinja",
    *LICENCE_PATTERNS,
)
# A safetensors file starts with 8 bytes of header length; a Git LFS pointer is a short text file.
_LFS = b"version https://git-lfs"


def user_path(text: str, spec_dir: Path, where: Where) -> Path:
    """A path of the spec: `~` expanded, relative to the spec file.

    Raises:
        UsageError: an unknown user, or a name that no file system takes.
    """
    try:
        path = Path(text).expanduser()
        path = path if path.is_absolute() else spec_dir / path
        path.exists()
    except (RuntimeError, OSError, ValueError) as error:
        raise UsageError(f"`{text[:80]}` is no usable path: {error}", where=where) from None
    return path


def looks_like_hub_id(source: str) -> bool:
    return bool(_HUB_ID.match(source)) and not Path(source).exists()


def local_folder(model: Model, spec_dir: Path, *, download: bool) -> Path | None:
    """The folder of the model on this machine.

    Args:
        spec_dir: relative sources are relative to the spec file.
        download: fetch a hub id that is not in the local cache.

    Returns:
        None for a hub id that is not here when `download` is off.

    Raises:
        UsageError: a path that is not there. MissingError: no huggingface_hub for a hub id.
        ExternalToolError never; hub failures are UsageErrors with the hub's words.
    """
    where = Where(key="model.source")
    path = user_path(model.source, spec_dir, where)
    if path.is_dir():
        return path
    if path.exists() or not looks_like_hub_id(model.source):
        raise UsageError(
            f"`{model.source}` is neither a model folder nor a hub id",
            where=where,
            hint="name a folder with config.json and safetensors, or a hub id such as Qwen/Qwen3-8B",
        )
    if importlib.util.find_spec("huggingface_hub") is None:
        if not download:
            return None
        raise MissingError(
            "a hub id needs `huggingface_hub`",
            where=where,
            hint="pip install 'engineroom[quantize]'",
        )
    patterns = [*_WANTED, *(["*.py"] if model.trust_remote_code else [])]
    return _snapshot(model.source, model.revision, patterns, where, download=download)


def _snapshot(
    source: str, revision: str | None, patterns: list[str] | None, where: Where, *, download: bool
) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                source,
                revision=revision,
                allow_patterns=patterns,
                local_files_only=not download,
            )
        )
    except Exception as error:
        if not download:
            return None
        raise UsageError(
            f"cannot fetch `{source}`: {type(error).__name__}: {str(error).splitlines()[0]}",
            where=where,
            hint="check the id, the network and HF_TOKEN, or name a local folder",
        ) from None


def companion_folder(source: str, spec_dir: Path, key: str) -> Path:
    """The folder of what goes with a model (an adapter, a draft model) on this machine.

    Nothing is fetched: a hub id counts when it is in the local hub cache.

    Args:
        key: key of the spec that names it.

    Raises:
        UsageError: neither a folder nor a hub id that is here; names the key.
    """
    where = Where(key=key)
    path = user_path(source, spec_dir, where)
    if path.is_dir():
        return path
    if path.exists() or not looks_like_hub_id(source):
        raise UsageError(
            f"`{source}` is neither a folder nor a hub id",
            where=where,
            hint="relative paths are relative to the spec file",
        )
    if importlib.util.find_spec("huggingface_hub") is not None:
        found = _snapshot(source, None, None, where, download=False)
        if found is not None:
            return found
    raise UsageError(
        f"`{source}` is not on this machine, and `build` fetches nothing",
        where=where,
        hint=f"run `hf download {source}`, or name a local folder",
    )


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a model folder.

    Raises:
        UsageError: missing or not a JSON object.
    """
    path = folder / "config.json"
    try:
        config = files.read_json(path)
    except FileNotFoundError:
        raise UsageError(
            "no config.json: not a Hugging Face model folder",
            where=Where(path.as_posix(), key="model.source"),
            hint="name the folder that holds config.json",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        lfs = path.is_file() and path.read_bytes()[: len(_LFS)] == _LFS
        raise UsageError(
            "a Git LFS pointer, not the file" if lfs else f"unreadable: {error}",
            where=Where(path.as_posix()),
            hint="run `git lfs pull` in the model folder" if lfs else "download it again",
        ) from None
    if not isinstance(config, dict):
        raise UsageError("config.json is not an object", where=Where(path.as_posix()))
    return config


def read_shape(folder: Path) -> ModelShape:
    """Shape facts of a model folder.

    Raises:
        UsageError: a size key is missing or of the wrong type.
    """
    path = folder / "config.json"
    try:
        return ModelShape.from_config(read_config(folder))
    except KeyError as error:
        raise UsageError(
            f"the key {error} is missing, or no sensible size",
            where=Where(path.as_posix(), key=error.args[0]),
            hint="it must be a whole number above 0; is this the model's own config.json?",
        ) from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UsageError(f"unusable sizes: {error}", where=Where(path.as_posix())) from None


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Tensor name to shape, from the safetensors headers alone; empty without such files.

    Raises:
        UsageError: a Git LFS pointer or a damaged header.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        if not path.is_file():
            raise UsageError("not a regular file", where=Where(path.as_posix()))
        shapes |= _header(path)
    return shapes


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of one file, after checking that its tensors lie inside it."""
    with path.open("rb") as file:
        head = file.read(8)
    if head and _LFS.startswith(head):
        raise UsageError(
            "a Git LFS pointer, not weights",
            where=Where(path.as_posix()),
            hint="run `git lfs pull` in the model folder",
        )
    if not head:
        raise UsageError(
            "not a whole safetensors file: it is empty",
            where=Where(path.as_posix()),
            hint="download it again",
        )
    return {t["name"]: tuple(t["shape"]) for t in tensor_files.listing(path)}


def source_digest(folder: Path, verified: Verified | None = None) -> str:
    """One digest over the files that make up the model.

    Args:
        verified: digests of files that have not changed since are taken from it.
    """
    sha256 = files.sha256_file if verified is None else verified.sha256
    listing = {
        path.name: sha256(path)
        for pattern in (*_WANTED, "*.py")
        for path in sorted(folder.glob(pattern))
        if path.is_file()
    }
    return files.digest_of(dict(sorted(listing.items())))
