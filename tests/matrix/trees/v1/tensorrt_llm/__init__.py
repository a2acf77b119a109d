# ruff: noqa
from .llmapi.llm_args import LlmArgs

__all__ = ["LlmArgs"]
