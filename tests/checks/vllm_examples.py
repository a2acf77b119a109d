"""For each code of a rule over a target of the vllm lane: what fires it, and a near miss.

As in `spec_examples`: changes replace top-level keys of the small spec on the SmolLM2 config, whose
longest sequence has 8192 tokens.
"""

from __future__ import annotations

from typing import Any

VLLM = {"sku": "h100-sxm", "lane": "vllm", "stack": "26.07"}
Changes = dict[str, Any]


def on(serving: Changes | None = None, **changes: Any) -> Changes:
    """A vllm target; `precision` and `workload` are the spec's, other changes the target's."""
    top = {key: changes.pop(key) for key in ("precision", "workload") if key in changes}
    return {"targets": [{**VLLM, **changes}], "serving": serving or {}, **top}


def profile(prompt: int, answer: int) -> Changes:
    def lengths(tokens: int) -> Changes:
        return {"p50": tokens, "p95": tokens}

    return {
        "chat": {
            "input_tokens": lengths(prompt), "output_tokens": lengths(answer), "concurrency": 1,
        }
    }  # fmt: skip


def formats(weights: str, kv: str = "fp8") -> Changes:
    return {"weights": weights, "kv_cache": kv}


NGRAM = {"features": {"speculative": {"mode": "ngram"}}}
EAGLE = {"features": {"speculative": {"mode": "eagle", "draft_model": "x/y"}}}

VLLM_EXAMPLES: list[tuple[str, Changes, Changes]] = [
    ("unknown-vllm-version", on(stack="26.02"), on(stack="26.01")),
    ("vllm-memory-share-too-high", on({"gpu_memory_utilization": 0.95}),
     on({"gpu_memory_utilization": 0.94})),
    ("vllm-ignores-free-share", on({"kv_cache_free_gpu_mem_fraction": 0.9}),
     on({"kv_cache_free_gpu_mem_fraction": 0.9, "gpu_memory_utilization": 0.9})),
    ("vllm-sleep-mode-unreachable", on({"vllm": {"enable_sleep_mode": True}}),
     on({"vllm": {"enable_sleep_mode": False}})),
    ("vllm-sleep-mode-with-fp8",
     on({"vllm": {"enable_sleep_mode": True}}, precision=formats("bf16", "fp8")),
     on({"vllm": {"enable_sleep_mode": True}}, precision=formats("bf16", "bf16"))),
    ("vllm-block-size-waste", on({"vllm": {"block_size": 128}}, workload=profile(1000, 270)),
     on({"vllm": {"block_size": 128}}, workload=profile(1000, 290))),
    ("vllm-value-not-listed", on({"vllm": {"block_size": 48}}, stack="25.12"),
     on({"vllm": {"block_size": 48}}, stack="26.07")),
    ("vllm-kv-dtype-by-checkpoint", on(precision=formats("fp8", "auto")),
     on(precision=formats("fp8", "bf16"))),
    ("vllm-format-not-loaded", on(precision={"weights": "w4a16_awq", "group_size": 64}),
     on(precision={"weights": "nvfp4"})),
    ("vllm-format-on-gpu", on(sku="a100-sxm-80gb"), on(sku="l4")),
    ("unknown-vllm-format-support", on(sku="b200-sxm"), on(sku="h200-sxm")),
    ("vllm-nvfp4-weight-only", on(precision=formats("nvfp4")),
     on(sku="b200-sxm", precision=formats("nvfp4"))),
    ("vllm-tokens-below-model-len", on(limits={"max_num_tokens": 8191}),
     on(limits={"max_num_tokens": 8192})),
    ("vllm-chunked-prefill-off", on(), on({"chunked_context": True})),
    ("vllm-lane-does-not-carry", on(EAGLE), on(NGRAM)),
    ("vllm-lane-does-not-read", on({"stream_interval": 2}, stack="25.10"),
     on({"stream_interval": 2}, stack="25.12")),
    ("vllm-settings-unused",
     {"targets": [{"sku": "l4", "lane": "llmapi", "stack": "26.07"}],
      "serving": {"vllm": {"block_size": 16}}},
     on({"vllm": {"block_size": 16}})),
]  # fmt: skip
