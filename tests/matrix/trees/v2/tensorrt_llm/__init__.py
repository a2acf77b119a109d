# ruff: noqa
from .llmapi import LLM

__all__ = ["LLM"]
