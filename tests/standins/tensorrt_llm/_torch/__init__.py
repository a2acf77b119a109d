"""Where releases before 1.0 have the PyTorch backend's `LLM`."""

from tensorrt_llm.llmapi.llm import LLM

__all__ = ["LLM"]
