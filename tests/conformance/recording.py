"""Servers with recording doubles where the engine would be, and what they recorded."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from engineroom.names import RuntimeName
from engineroom.pipeline.render import render
from engineroom.runner.triton import TritonServer

STANDINS = Path(__file__).resolve().parents[1] / "standins"
STEP_MS = 15
"""Pause before each streamed token: at such a pace each must be an event of its own."""


class Recording:
    """A running server and the file its doubles write."""

    def __init__(self, server: TritonServer, file: Path, repository: Path) -> None:
        self.server, self.file, self.repository = server, file, repository

    def take(self) -> list[dict[str, Any]]:
        """Entries since the last call."""
        text = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        self.file.write_text("", encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


@contextlib.contextmanager
def recording(
    job: Any,
    lane: str,
    *,
    env: dict[str, str] | None = None,
    modules: Sequence[Path] = (),
    change: Callable[[Path], None] = lambda repository: None,
) -> Iterator[Recording]:
    """The lane's repository with doubles in the engine's place.

    Args:
        change: called with a copy of the repository before the server starts.
    """
    target = next(item.target.id for item in job.targets if item.target.lane == lane)
    # The engine lane has no engine here, and its double does not look at what it was rendered for.
    runtime = RuntimeName.REFERENCE if lane == "engine" else RuntimeName.TENSORRT_LLM
    rendered = render(job, target, runtime=runtime)[0].path
    with tempfile.TemporaryDirectory(prefix="engineroom-recording-") as folder:
        root = Path(folder)
        shutil.copytree(rendered, root / "repository")
        change(root / "repository")
        file = root / "record.jsonl"
        server = TritonServer(
            root / "repository",
            root / "work",
            job.catalog.template_roots,
            log=root / "server.log",
            engine_backend=STANDINS / "tensorrtllm",
            modules=[STANDINS / "tensorrt_llm", *modules],
            env={"STANDIN_RECORD": str(file), "STANDIN_STEP_MS": str(STEP_MS), **(env or {})},
        )
        (root / "work").mkdir(exist_ok=True)
        with server:
            server.wait_ready(120)
            yield Recording(server, file, root / "repository")


def add_draft_model(repository: Path) -> None:
    """`tensorrt_llm_draft` beside `tensorrt_llm`, as a user adds it for a draft model."""
    draft = repository / "tensorrt_llm_draft"
    shutil.copytree(repository / "tensorrt_llm", draft)
    config = draft / "config.pbtxt"
    name = re.compile(r'^name: "tensorrt_llm"', re.MULTILINE)
    text = name.sub('name: "tensorrt_llm_draft"', config.read_text(), count=1)
    config.write_text(text)
