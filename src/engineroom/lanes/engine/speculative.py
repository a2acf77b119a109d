"""Speculative decoding on the engine lane: the names that `trtllm-build` and the backend have for it."""

from __future__ import annotations

from engineroom.checks.features_speculative import ENGINE_MODES
from engineroom.spec.serving import Speculative

BUILD_MODE = ENGINE_MODES

DECODING_MODE = {
    "medusa": "medusa", "eagle": "eagle", "lookahead": "lookahead", "redrafter": "redrafter",
}  # fmt: skip
"""Spec mode to the backend's `decoding_mode`; with draft tokens from outside, the engine decides."""

CHOICES_PARAMETER = {"medusa": "medusa_choices", "eagle": "eagle_choices"}


def lookahead_sizes(speculative: Speculative) -> tuple[int, int, int] | None:
    """(window, n-gram, verification set), or None when the spec leaves one out."""
    sizes = (
        speculative.lookahead_window_size,
        speculative.lookahead_ngram_size,
        speculative.lookahead_verification_set_size,
    )
    return None if None in sizes else sizes  # type: ignore[return-value]


def max_draft_len(speculative: Speculative) -> int:
    """Tokens a step that the engine must have room for.

    Lookahead proposes (n - 2) + (w - 1 + g) * (n - 1), and none for n = 1. Source:
    LookaheadDecodingConfig::calculateSpeculativeResourceTuple in NVIDIA/TensorRT-LLM
    cpp/tensorrt_llm/executor.
    """
    sizes = lookahead_sizes(speculative) if speculative.mode == "lookahead" else None
    if sizes is None:
        return speculative.max_draft_tokens
    window, ngram, verification = sizes
    return max(ngram - 2, 0) + (window - 1 + verification) * (ngram - 1)
