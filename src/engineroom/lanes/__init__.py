"""The list of lanes. A new lane is one package, one entry here, one template folder."""

from engineroom.lanes.base import (
    Lane,
    LaneRequest,
    RepositoryContext,
    RepositoryRequest,
)
from engineroom.lanes.engine import EngineLane
from engineroom.lanes.llmapi import LlmApiLane
from engineroom.lanes.vllm import VllmLane
from engineroom.names import LaneName

LANES: dict[LaneName, Lane] = {lane.name: lane for lane in (LlmApiLane(), EngineLane(), VllmLane())}

__all__ = [
    "LANES",
    "Lane",
    "LaneRequest",
    "RepositoryContext",
    "RepositoryRequest",
]
