"""The LLM API (PyTorch) lane: a checkpoint plus LLM arguments of one version."""

from engineroom.lanes.llmapi.lane import LlmApiLane

__all__ = ["LlmApiLane"]
