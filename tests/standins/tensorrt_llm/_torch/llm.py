"""The same class under the name that upstream's model file of 0.19 imports."""

from tensorrt_llm.llmapi.llm import LLM

__all__ = ["LLM"]
