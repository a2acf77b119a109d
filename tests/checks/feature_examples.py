"""Examples, as in `spec_examples`, of the rules about serving features and the placement on GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "data"
Changes = dict[str, Any]
ENGINE = {"sku": "h100-sxm", "lane": "engine", "stack": "26.07"}
LLMAPI = {"sku": "h100-sxm", "lane": "llmapi", "stack": "26.07"}


def on(target: Changes, *, serving: Changes | None = None, **target_keys: Any) -> Changes:
    return {"targets": [{**target, **target_keys}], "serving": serving or {}}


def features(target: Changes, **names: Any) -> Changes:
    return on(target, serving={"features": names})


def speculative(target: Changes, **keys: Any) -> Changes:
    return features(target, speculative=keys)


def lora(target: Changes, adapter: str | None = None, **keys: Any) -> Changes:
    adapters = (
        [{"name": "a", "source": str(DATA / "adapters" / adapter), "task_id": 1}] if adapter else []
    )
    return features(target, lora={**keys, "adapters": adapters})


def release(target: Changes, trtllm: str) -> Changes:
    return {**target, "stack": {"trtllm": trtllm, "image": "x"}}


SIZES = {f"lookahead_{n}": 7 for n in ("window_size", "ngram_size", "verification_set_size")}
MLP = ["attn_q", "attn_k", "attn_v", "mlp_4h_to_h"]
TWO = {"gpu_device_ids": [[0], [1]]}

FEATURE_EXAMPLES: list[tuple[str, Changes, Changes]] = [
    ("multimodal-not-implemented", features(ENGINE, multimodal={}), features(LLMAPI, multimodal={})),
    ("guided-decoding-library-refused", features(ENGINE, guided_decoding="llguidance"),
     features(ENGINE, guided_decoding="xgrammar")),
    ("unknown-guided-decoding-library", features(release(LLMAPI, "0.21.0"), guided_decoding="llguidance"),
     features(release(LLMAPI, "1.0.0"), guided_decoding="llguidance")),
    ("guided-decoding-tokenizer",
     {**features(ENGINE, guided_decoding="xgrammar"), "model": {"source": str(DATA / "slow-tokenizer")}},
     {**features(LLMAPI, guided_decoding="xgrammar"), "model": {"source": str(DATA / "slow-tokenizer")}}),
    ("kv-retention-without-reuse",
     on(ENGINE, serving={"kv_block_reuse": False, "features": {"kv_retention": True}}),
     on(ENGINE, serving={"kv_block_reuse": False})),
    ("stream-interval-ensemble", on(ENGINE, serving={"stream_interval": 2}),
     on(ENGINE, serving={"stream_interval": 2, "fronts": ["bls"]})),
    ("ensemble-front-first", on(ENGINE, serving={"fronts": ["ensemble", "bls"]}),
     on(ENGINE, serving={"fronts": ["ensemble", "bls"], "streaming": False})),
    ("priority-orders-the-queue-only", on(ENGINE, serving={"priority_levels": 1}),
     on(ENGINE, serving={"priority_levels": 0})),
    ("log-probs-need-a-sampling-parameter", features(ENGINE, log_probs=True), features(LLMAPI, log_probs=True)),
    ("beams-without-sequences",
     {**features(ENGINE, sequences=False), "targets": [{**ENGINE, "limits": {"max_beam_width": 2}}]},
     features(ENGINE, sequences=False)),
    ("beams-over-tokens",
     on(ENGINE, limits={"max_batch_size": 64, "max_beam_width": 4, "max_num_tokens": 255}),
     on(ENGINE, limits={"max_batch_size": 64, "max_beam_width": 4, "max_num_tokens": 256})),
    ("speculative-mode-not-in-lane", speculative(ENGINE, mode="ngram"), speculative(LLMAPI, mode="ngram")),
    ("speculative-mode-not-in-lane", speculative(release(LLMAPI, "1.4.0rc4"), mode="lookahead", **SIZES),
     speculative(release(LLMAPI, "1.4.0rc4"), mode="ngram")),
    ("speculative-checkpoint-not-implemented", speculative(ENGINE, mode="medusa"),
     speculative(ENGINE, mode="lookahead", **SIZES)),
    ("draft-engine-not-built", speculative(ENGINE, mode="draft_target"),
     speculative(LLMAPI, mode="draft_target", draft_model="x/y")),
    ("draft-model-missing", speculative(LLMAPI, mode="eagle"), speculative(LLMAPI, mode="eagle", draft_model="x/y")),
    ("lookahead-sizes-missing",
     speculative(ENGINE, mode="lookahead", lookahead_window_size=7, lookahead_ngram_size=7),
     speculative(ENGINE, mode="lookahead", **SIZES)),
    ("speculative-choices-unreadable", speculative(ENGINE, mode="eagle", choices="[0], [0, 0]"),
     speculative(ENGINE, mode="eagle", choices="{0}, {0, 0}")),
    ("speculative-choices-unused", speculative(ENGINE, mode="lookahead", choices="{0}", **SIZES),
     speculative(ENGINE, mode="medusa", choices="{0}")),
    ("lora-rank-over-maximum", lora(ENGINE, "rank32"), lora(ENGINE, "rank16")),
    ("lora-module-not-a-target", lora(LLMAPI, "all-modules"), lora(LLMAPI, "all-modules", target_modules=MLP)),
    ("lora-target-module-unknown", lora(ENGINE, target_modules=["q_proj"]), lora(ENGINE, target_modules=["attn_q"])),
    ("lora-adapter-not-here", lora(LLMAPI, "nowhere"), lora(LLMAPI, "rank16")),
    ("lora-adapters-not-converted", lora(ENGINE, "rank16"), lora(ENGINE)),
    ("lora-adapter-counts-unused", lora(ENGINE, max_adapters=4), lora(LLMAPI, max_adapters=4)),
    ("lora-adapter-type", lora(LLMAPI, "dora"), lora(LLMAPI, "rank16")),
    ("leader-mode-instances", on(ENGINE, **TWO), on(ENGINE, serving={"process_mode": "orchestrator"}, **TWO)),
    ("gpu-ids-over-node", on(ENGINE, gpu_device_ids=[[8]]), on(ENGINE, gpu_device_ids=[[7]])),
    ("gpu-ids-not-visible", on(ENGINE, gpu_device_ids=[[7]]), on(ENGINE, gpu_device_ids=[[0]])),
    ("process-mode-unused", on(LLMAPI, serving={"process_mode": "orchestrator"}, tensor_parallel=2),
     on(ENGINE, serving={"process_mode": "orchestrator"}, tensor_parallel=2)),
]  # fmt: skip
