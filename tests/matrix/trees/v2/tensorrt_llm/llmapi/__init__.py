# ruff: noqa
from .llm import LLM

__all__ = ["LLM"]
