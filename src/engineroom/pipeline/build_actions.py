"""Steps of a build that are no command: done in this process, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engineroom.lanes import LaneRequest
from engineroom.runner import xgrammar_info
from engineroom.types import Step


@dataclass(frozen=True)
class Action:
    """An in-process step.

    Attributes:
        settings: what it takes from the spec, as data; part of the key.
        reads: files that it reads beyond the step's inputs and that may be absent.
        run: does it: step, request, the checkpoint's folder, the artefact's folder.
    """

    settings: Callable[[LaneRequest], Any]
    reads: Callable[[LaneRequest], tuple[str, ...]]
    run: Callable[[Step, LaneRequest, Path, Path], None]


def _xgrammar(step: Step, request: LaneRequest, checkpoint: Path, artefact: Path) -> None:
    stop_ids = request.spec.serving.stop_ids
    xgrammar_info.write(checkpoint / "hf", artefact / step.outputs[0], stop_ids)


def _xgrammar_settings(request: LaneRequest) -> Any:
    stop_ids = request.spec.serving.stop_ids
    return stop_ids if isinstance(stop_ids, str) else list(stop_ids)


def _xgrammar_reads(request: LaneRequest) -> tuple[str, ...]:
    if not isinstance(request.spec.serving.stop_ids, str):
        return ()
    return tuple(f"{request.checkpoint}/hf/{n}" for n in ("generation_config.json", "config.json"))


ACTIONS = {
    "xgrammar-tokenizer-info": Action(_xgrammar_settings, _xgrammar_reads, _xgrammar),
}
