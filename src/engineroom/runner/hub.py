"""Artefacts on the Hugging Face hub, through `huggingface_hub` and with its own login.

A repository of the hub holds artefacts under the names that they have in a workspace. No token is read or
written here: the library finds its own (`hf auth login`, HF_TOKEN).
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

from engineroom.errors import EngineroomError, ExternalToolError, UsageError, Where, missing_extra

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FOLDERS = ("artifacts/*", "checkpoints/*", "repositories/*", "releases/*")


def target(text: str) -> tuple[str, str | None]:
    """(repository, revision) of ``hf://OWNER/NAME[@REVISION]``.

    Raises:
        UsageError: something else.
    """
    name, _, revision = text.removeprefix("hf://").partition("@")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"`{text[:200]}` names no repository of the hub",
            hint="write hf://OWNER/NAME[@REVISION]",
        )
    return name, revision or None


def upload(
    repository: str, revision: str | None, folder: Path, name: str, beside: Mapping[str, bytes]
) -> None:
    """Send an artefact's folder to `name` in a repository, which is made (private) when it is not there.

    Args:
        beside: more files, by their path in the repository.

    Raises:
        MissingError: `huggingface_hub` is not installed. ExternalToolError: the hub refused.
    """
    _require()
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repository, private=True, exist_ok=True)
        for path, data in beside.items():
            api.upload_file(
                path_or_fileobj=data, path_in_repo=path, repo_id=repository, revision=revision,
                commit_message=f"SBOM of {name}",
            )  # fmt: skip
        api.upload_folder(
            folder_path=folder, path_in_repo=name, repo_id=repository, revision=revision,
            commit_message=f"Add {name}",
        )  # fmt: skip
    except Exception as error:
        raise _refused(repository, error) from None


def download(repository: str, revision: str | None, into: Path) -> None:
    """Fetch every artefact of a repository.

    Raises:
        MissingError: `huggingface_hub` is not installed. ExternalToolError: the hub refused.
    """
    _require()
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            repository, revision=revision, local_dir=into, allow_patterns=list(_FOLDERS)
        )
    except Exception as error:
        raise _refused(repository, error) from None


def _require() -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise missing_extra("hub", "huggingface_hub")


def _refused(repository: str, error: Exception) -> EngineroomError:
    lines = str(error).splitlines() or [""]
    return ExternalToolError(
        f"the hub: {type(error).__name__}: {lines[0][:300]}", where=Where(f"hf://{repository}"),
        hint="check the name, the network and `hf auth whoami`",
    )  # fmt: skip
