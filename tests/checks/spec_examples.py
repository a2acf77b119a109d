"""For each code of a rule over a spec: a change that fires it, and a near miss that does not.

Each entry is (code, changes that fire, changes that do not); changes replace top-level keys of the
small spec of `tests/conftest.py` on the SmolLM2 config. A key of None is removed.
"""

from __future__ import annotations

from typing import Any

from tests.checks.feature_examples import FEATURE_EXAMPLES
from tests.checks.target_option_examples import TARGET_OPTION_EXAMPLES
from tests.checks.vllm_examples import VLLM_EXAMPLES

L4 = {"sku": "l4", "lane": "llmapi", "stack": "26.07"}
H100 = {"sku": "h100-sxm", "lane": "engine", "stack": "26.07"}
Changes = dict[str, Any]


def on(target: Changes, **changes: Any) -> Changes:
    return {"targets": [{**target, **changes}]}


def profile(p95: int) -> Changes:
    lengths = {"input_tokens": {"p50": 10, "p95": p95}, "output_tokens": {"p50": 10, "p95": 20}}
    return {"chat": {**lengths, "concurrency": 1}}


SPEC_EXAMPLES: list[tuple[str, Changes, Changes]] = [
    ("lane-not-in-version", on(H100, stack={"trtllm": "1.4.0rc4", "image": "x"}), on(H100)),
    ("unknown-trtllm-version", on(L4, stack={"trtllm": "1.2.2", "image": "x"}),
     on(L4, stack={"trtllm": "v1.2.1", "image": "x"})),
    ("doubtful-stack", on(L4, stack="25.11"), on(L4)),
    ("stack-without-image", on(L4, stack={"trtllm": "1.2.1"}),
     {**on(L4, stack={"trtllm": "1.2.1"}), "deploy": {"image": "x/y:1"}}),
    ("driver-needed", on(L4), on(L4, driver="590.44.01")),
    ("unknown-model-shape", {"model": {"source": "some-org/some-model"}}, {}),
    ("trust-remote-code", {"model": {"source": "@", "trust_remote_code": True}}, {}),
    ("calibration-missing", {"calibration": None}, {"calibration": None, "precision": {"weights": "bf16"}}),
    ("multi-node-not-implemented", on(L4, pipeline_parallel=9), on(L4, pipeline_parallel=8)),
    ("group-size-unused", {"precision": {"weights": "fp8", "group_size": 64}},
     {"precision": {"weights": "w4a16_awq", "group_size": 64}}),
    ("group-size-not-allowed", {"precision": {"weights": "nvfp4", "group_size": 32}},
     {"precision": {"weights": "nvfp4", "group_size": 16}}),
    ("recipe-not-implemented", {"precision": {"weights": "mxfp4"}}, {"precision": {"weights": "nvfp4"}}),
    ("recipe-other-format", {"precision": {"weights": "fp8", "recipe": "nvfp4"}},
     {"precision": {"weights": "fp8", "recipe": "fp8"}}),
    ("kv-recipe-not-implemented", {"precision": {"weights": "fp8", "kv_cache": "int8"}},
     {"precision": {"weights": "fp8", "kv_cache": "fp8"}}),
    ("engine-checkpoint-not-implemented", {**on(H100), "architecture": "Qwen3ForCausalLM"},
     {**on(H100), "architecture": "MistralForCausalLM"}),
    ("engine-awq-multiple", {**on(H100), "precision": {"weights": "w4a16_awq", "group_size": 128}},
     {**on(H100), "precision": {"weights": "w4a16_awq", "group_size": 64}}),
    ("engine-nvfp4-padded-scales", {**on(H100), "precision": {"weights": "nvfp4"}},
     {**on(L4), "precision": {"weights": "nvfp4"}}),
    ("awq-fp8-kv-fmha", {"precision": {"weights": "w4a16_awq", "group_size": 64, "kv_cache": "fp8"}},
     {"precision": {"weights": "w4a16_awq", "group_size": 64}}),
    ("batch-over-tokens", on(L4, limits={"max_batch_size": 64, "max_num_tokens": 63}),
     on(L4, limits={"max_batch_size": 64, "max_num_tokens": 64})),
    ("seq-len-over-model", on(L4, limits={"max_seq_len": 8193}), on(L4, limits={"max_seq_len": 8192})),
    ("workload-over-seq-len", {"workload": profile(8173), "serving": {"chunked_context": True}},
     {"workload": profile(8172), "serving": {"chunked_context": True}}),
    ("prompt-over-max-num-tokens",
     {**on(L4, limits={"max_num_tokens": 4096}), "workload": profile(4097)},
     {**on(L4, limits={"max_num_tokens": 4096}), "workload": profile(4096)}),
    ("beams-do-not-stream", on(L4, limits={"max_beam_width": 2}),
     {**on(L4, limits={"max_beam_width": 2}), "serving": {"streaming": False}}),
    ("kv-fraction-too-high", {"serving": {"kv_cache_free_gpu_mem_fraction": 0.95}},
     {"serving": {"kv_cache_free_gpu_mem_fraction": 0.94}}),
    ("gpu-memory-utilization-unused", {"serving": {"gpu_memory_utilization": 0.9}}, {}),
    ("attention-backend-unused", {**on(H100), "serving": {"attention_backend": "FLASHINFER"}},
     {**on(L4), "serving": {"attention_backend": "FLASHINFER"}}),
    ("engine-lane-is-frozen", on(H100), on(L4)),
    ("fp8-engine-without-paged-fmha", on(H100, sku="b200-sxm"), on(H100)),
    ("fp8-kv-with-qkv-bias", {"model_type": "qwen2"}, {"model_type": "qwen3"}),
    *FEATURE_EXAMPLES,
    *TARGET_OPTION_EXAMPLES,
    *VLLM_EXAMPLES,
]  # fmt: skip
