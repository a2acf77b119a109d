"""Migrations of the fixtures, each made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engineroom.catalog import Catalog
from engineroom.pipeline.migrate import migrate
from engineroom.types.migration import Migration
from tests.conftest import TINY
from tests.migrate import old_layout as old
from tests.migrate.setups import write_engine, write_repo

Migrate = Callable[..., Migration]


@pytest.fixture(scope="session")
def made(tmp_path_factory, catalog):
    """Fixture name -> its Migration, on the tests' tiny model."""
    folder, known = tmp_path_factory.mktemp("made"), {}

    def get(name):
        if name not in known:
            given, root = old.setup(name), old.FIXTURES / name
            known[name] = migrate(
                root / given["repo"],
                engine=root / given["engine"],
                build_script=root / given["build_script"],
                out=folder / name,
                stack="26.07",
                sku=given["sku"],
                model=str(TINY),
                catalog=catalog,
            )
        return known[name]

    return get


@pytest.fixture
def run(tmp_path: Path, catalog: Catalog) -> Migrate:
    """`migrate` on a small setup: `repo`, `engine`, `script` are what differs from the usual one."""

    def go(
        repo: dict[str, str] | None = None, engine: dict[str, Any] | None = None, script: str | None = None,
        **options: Any,
    ) -> Migration:  # fmt: skip
        folder = write_repo(tmp_path / "old", repo)
        file = tmp_path / "build.sh"
        if script is not None:
            file.write_text(script, encoding="utf-8")
        return migrate(
            folder, engine=write_engine(tmp_path / "engine", **engine) if engine is not None else None,
            build_script=file if script is not None else None, out=tmp_path / "new",
            catalog=catalog, **{"sku": "h100-sxm", "model": str(TINY), **options},
        )  # fmt: skip

    return go
