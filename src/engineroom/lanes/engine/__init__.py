"""The engine lane: `trtllm-build` and the C++ backend, frozen at the 1.2 line."""

from engineroom.lanes.engine.lane import EngineLane

__all__ = ["EngineLane"]
