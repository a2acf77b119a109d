"""Where the shipped data lives; the only module that knows.

In a wheel the data folders travel inside the package (`_data/`); in a checkout (editable install)
they are at the repository root. `importlib.resources` does not find the latter, so both are tried.
"""

from __future__ import annotations

import os
from pathlib import Path

from engineroom.errors import CatalogError, InternalError, UsageError, Where

ENV_CATALOG = "ENGINEROOM_CATALOG"
_FOLDERS = ("build", "deploy", "model_repo_templates", "helm")


def data_root() -> Path:
    """The directory that holds `build/`, `deploy/`, `model_repo_templates/` and `helm/`."""
    package = Path(__file__).resolve().parents[1]
    for root in (package / "_data", package.parents[1]):
        if all((root / folder).is_dir() for folder in _FOLDERS):
            return root
    raise InternalError("engineroom's data folders are missing from this installation")


def catalog_roots(overlay: Path | None = None) -> tuple[Path, ...]:
    """Data roots, the shipped one first; later ones override file by file.

    Args:
        overlay: `--catalog DIR`; without it the environment variable ENGINEROOM_CATALOG is used.

    Raises:
        UsageError: the overlay is not a directory, or one that cannot be an overlay.
    """
    chosen = overlay or (Path(os.environ[ENV_CATALOG]) if os.environ.get(ENV_CATALOG) else None)
    if chosen is None:
        return (data_root(),)
    if not chosen.is_dir():
        raise UsageError(
            "the catalog overlay is not a directory",
            where=Where(chosen.as_posix(), key="--catalog"),
            hint="make DIR with the same layout: DIR/build/skus/*.yaml, DIR/deploy/stacks/*.yaml, …",
        )
    if not any((chosen / folder).is_dir() for folder in _FOLDERS) and any(chosen.iterdir()):
        raise UsageError(
            f"no catalog overlay: it has files, but none of the folders {', '.join(_FOLDERS)}",
            where=Where(chosen.as_posix(), key="--catalog"),
            hint="name the folder above them: DIR of DIR/build/skus/*.yaml, DIR/deploy/stacks/*.yaml",
        )
    return (data_root(), chosen)


def find_files(roots: tuple[Path, ...], folder: str, suffix: str) -> dict[str, Path]:
    """Files below `folder` by POSIX path relative to it; a later root wins.

    Raises:
        CatalogError: something that is no regular file has the name of one.
    """
    found: dict[str, Path] = {}
    for root in roots:
        base = root / folder
        for path in sorted(base.rglob(f"*{suffix}")) if base.is_dir() else []:
            if not path.is_file():  # a pipe would be waited for
                raise CatalogError(
                    "a catalog file must be a regular file", where=Where(path.as_posix())
                )
            found[path.relative_to(base).as_posix()] = path
    return dict(sorted(found.items()))
