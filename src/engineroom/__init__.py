"""engineroom: from a Hugging Face LLM to a tuned, checked, deployed NVIDIA Triton service."""

__version__ = "0.1.0"
