"""Reads and validates catalog files; an overlay's file replaces the shipped one of its path."""

from __future__ import annotations

import hashlib
import json
import math
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from engineroom.catalog import models, resources
from engineroom.errors import CatalogError, Where
from engineroom.spec import yaml_lines
from engineroom.spec.load import read_text

T = TypeVar("T", bound=models.Row)
MAX_JSON_BYTES = 8 << 20
"""The largest shipped contract has 126 kB."""


def read_json(path: Path) -> tuple[Any, bytes]:
    """A JSON file of the catalog, and its bytes.

    Stricter than Python's parser: no NaN, no Infinity, no number that becomes one, no key twice in
    one object.

    Raises:
        CatalogError: missing, no regular file, too large, not UTF-8, not JSON, or nested too deeply.
    """
    place = Where(path.as_posix())
    try:
        if not path.is_file():
            raise CatalogError("not a regular file", where=place)
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CatalogError(f"larger than {MAX_JSON_BYTES} bytes", where=place)
        raw = path.read_bytes()
        data = json.loads(
            raw.decode("utf-8-sig"),
            parse_constant=_no_number,
            parse_float=_finite,
            object_pairs_hook=_object,
        )
    except OSError as error:
        raise CatalogError(f"cannot be read: {error.strerror}", where=place) from None
    except UnicodeDecodeError as error:
        raise CatalogError(f"not UTF-8 (byte {error.start})", where=place) from None
    except json.JSONDecodeError as error:
        raise CatalogError(
            f"not JSON: {error.msg}", where=Where(path.as_posix(), error.lineno)
        ) from None
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise CatalogError(f"not JSON: {why}", where=place) from None
    return data, raw


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the key `{twice[:80]}` is written twice in one object")
    return found


class CatalogFiles:
    """The files below the catalog's roots.

    Args:
        overlay: a directory with the same layout as the shipped data; its files replace those of
            the same relative path and add new ones.
    """

    def __init__(self, overlay: Path | None = None) -> None:
        self.roots = resources.catalog_roots(overlay)

    @property
    def template_roots(self) -> tuple[Path, ...]:
        """Roots of the model repository templates; a later one wins file by file."""
        return tuple(root / "model_repo_templates" for root in self.roots)

    def _yaml(self, path: Path, model: type[T]) -> T:
        return self._validate(
            yaml_lines.parse(read_text(path, "catalog file"), path.as_posix()), model
        )

    @staticmethod
    def _validate(document: yaml_lines.Document, model: type[T]) -> T:
        try:
            return model.model_validate(document.data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise CatalogError(
                first["msg"],
                where=document.where(tuple(first["loc"])),
                hint=f"see the fields of `{model.__name__}`; the shipped files are examples",
            ) from None

    def _member(self, relative: str, path: Path, model: type[T]) -> T:
        """One file of a folder whose files are named after the id they hold."""
        row = self._yaml(path, model)
        name = str(getattr(row, "id", relative))
        if name != Path(relative).stem:
            raise CatalogError(
                f"the id `{name}` differs from the file name",
                where=Where(path.as_posix(), key="id"),
                hint=f"name the file {name}.yaml",
            )
        return row

    def _folder(self, folder: str, model: type[T]) -> dict[str, T]:
        files = resources.find_files(self.roots, folder, ".yaml")
        return {
            Path(relative).stem: self._member(relative, path, model)
            for relative, path in files.items()
        }

    def _path(self, file: str) -> Path:
        return next(root / file for root in reversed(self.roots) if (root / file).is_file())

    def _single(self, file: str, model: type[T]) -> T:
        return self._yaml(self._path(file), model)

    def _json(self, file: str, model: type[T]) -> T:
        path = self._path(file)
        return self._validate(yaml_lines.Document(path.as_posix(), read_json(path)[0]), model)

    @cached_property
    def digest(self) -> str:
        """sha256 over every catalog file's relative path and bytes, overlay included."""
        total = hashlib.sha256()
        for folder in ("build", "deploy"):
            for suffix in (".yaml", ".json"):
                for relative, path in resources.find_files(self.roots, folder, suffix).items():
                    total.update(f"{folder}/{relative}\0".encode())
                    total.update(hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()
