"""Our model repositories, rendered for the tiny model as `render` would for a GPU target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engineroom.catalog import Catalog
from engineroom.lanes import LANES, RepositoryRequest
from engineroom.names import LaneName, RuntimeName
from engineroom.render import render_tree
from tests.lanes.test_commands import request


def render(
    out: Path,
    lane: str,
    tokenizer: Path,
    *,
    version: str = "1.2.1",
    serving: dict[str, Any] | None = None,
    batch: int = 64,
) -> None:
    """Write one lane's repository below `out`, default features, for the TensorRT-LLM runtime.

    Args:
        tokenizer: a folder called `checkpoint`, which is where an llmapi package has its tokenizer.
    """
    catalog = Catalog()
    lane_request = request(
        catalog, version, lane, serving=serving, limits={"max_batch_size": batch}
    )
    context = LANES[LaneName(lane)].repository_context(
        RepositoryRequest(
            lane_request, RuntimeName.TENSORRT_LLM, str(tokenizer.parent), str(tokenizer)
        )
    )
    roots = tuple(root / "model_repo_templates" for root in catalog.roots)
    for file in render_tree(roots, context.layout, context.variables):
        path = out / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")
