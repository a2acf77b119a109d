"""Migrations of the fixtures, each made once."""

from __future__ import annotations

import pytest

from engineroom.pipeline.migrate import migrate
from tests.conftest import TINY
from tests.migrate import old_layout as old


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
