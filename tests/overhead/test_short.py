"""The comparison in its short form: every series answers with the right number of events.

Nothing is said about time: other tests share the machine. With ENGINEROOM_UPSTREAM, the path of a
clone of tensorrtllm_backend, upstream's own files run too.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from tests.overhead.ab import SERIES, bench
from tests.overhead.client import STREAMED
from tests.overhead.servers import TOKENS
from tests.overhead.upstream import Source

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("server")]
UPSTREAM = os.environ.get("ENGINEROOM_UPSTREAM")
CHOSEN = [name for name in SERIES if UPSTREAM or not name.startswith("upstream")]


@pytest.fixture(scope="module")
def running():
    with (
        tempfile.TemporaryDirectory(prefix="overhead-short-") as work,
        bench(Source(Path(UPSTREAM)) if UPSTREAM else None, Path(work), CHOSEN) as found,
    ):
        yield found


@pytest.mark.parametrize("kind", ["generate", "stream", "grpc", "grpc-stream"])
@pytest.mark.parametrize("series", CHOSEN)
def test_events_and_figures_of_one_run(running, series, kind):
    row = asyncio.run(running.run(series, kind, 2, 0.2, 0.0, TOKENS))
    assert row["events"] == (TOKENS if kind in STREAMED else 1)
    assert row["requests"] >= 2
    assert "server" in row["cpu_ms_by_model"]
    assert len(row["cpu_ms_by_model"]) >= 2  # the server and at least one model


def test_wrong_events_are_an_error(running):
    """A series that answers with fewer events than asked for is no measurement."""
    with pytest.raises(RuntimeError, match=r"\[16\] events instead of 20"):
        asyncio.run(running.run("ours-llmapi", "stream", 1, 0.1, 0.0, 20))
