"""The vLLM lane: the same checkpoint behind Triton's vLLM backend, to compare with."""

from engineroom.lanes.vllm.lane import VllmLane

__all__ = ["VllmLane"]
