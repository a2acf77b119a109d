"""Steps and runs for the executors' tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engineroom.catalog import Catalog
from engineroom.runner.executors import StepRun
from engineroom.types import Step

IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
CHECKPOINT = "checkpoints/fp8/trtllm"


def step(ranks: int = 1, **changes: Any) -> Step:
    """A step as the engine lane makes it, smaller."""
    argv = (
        "trtllm-build", "--checkpoint_dir", CHECKPOINT, "--output_dir", "engine",
        "--max_batch_size", "8", "--workers", str(ranks),
    )  # fmt: skip
    facts: dict[str, Any] = {
        "name": "build-engine",
        "argv": argv,
        "image": IMAGE,
        "inputs": (CHECKPOINT,),
        "outputs": ("config.json", *(f"rank{i}.engine" for i in range(ranks))),
        "output_flag": "--output_dir",
        "gpus": ranks,
        "host_memory_bytes": 24 << 30,
    }
    return Step(**{**facts, **changes})


def workspace(folder: Path, ranks: int = 1) -> Path:
    """A workspace with the config.json of a TensorRT-LLM checkpoint, and a staged folder."""
    checkpoint = folder / CHECKPOINT
    checkpoint.mkdir(parents=True)
    config = {"architecture": "LlamaForCausalLM", "mapping": {"world_size": ranks}}
    (checkpoint / "config.json").write_text(json.dumps(config))
    (folder / "staged").mkdir()
    return folder


def run_of(folder: Path, ranks: int = 1, sku: str = "h100-sxm", **changes: Any) -> StepRun:
    facts: dict[str, Any] = {
        "step": step(ranks),
        "sku": Catalog().sku(sku),
        "workspace": folder,
        "output": folder / "staged",
        "log": folder / "logs/build.log",
        "target": "engine-h100-sxm-tp1pp1-26-07",
        "key": "0123456789abcdef" * 4,
    }
    return StepRun(**{**facts, **changes})
