"""Examples, as in `spec_examples`, of the rules about options of a target's lane."""

from __future__ import annotations

from typing import Any

from tests.checks.feature_examples import ENGINE, LLMAPI, SIZES, Changes, on, release

B200 = {**ENGINE, "sku": "b200-sxm"}
L40S = {**ENGINE, "sku": "l40s"}
FUSED = {"reduce_fusion": True, "user_buffer": True}
NVFP4 = {"precision": {"weights": "nvfp4"}}
BF16 = {"precision": {"weights": "bf16"}}


def engine(target: Changes = ENGINE, *, limits: Changes | None = None, **options: Any) -> Changes:
    keys = {"limits": limits} if limits else {}
    return on(target, **keys, engine=options)


def over_three(target: Changes = ENGINE, **options: Any) -> Changes:
    return on(target, tensor_parallel=3, engine=options)


def llmapi(target: Changes = LLMAPI, **options: Any) -> Changes:
    return on(target, llmapi=options)


def asked(**features: Any) -> Changes:
    return on(ENGINE, serving={"features": features})


def drafts(target: Changes) -> Changes:
    return on(target, serving={"features": {"speculative": {"mode": "ngram"}}})


LOOKAHEAD = {"speculative": {"mode": "lookahead", **SIZES}}
TARGET_OPTION_EXAMPLES: list[tuple[str, Changes, Changes]] = [
    ("target-option-unused", on(LLMAPI, limits={"opt_num_tokens": 64}), on(ENGINE, limits={"opt_num_tokens": 64})),
    ("target-option-unused", on(LLMAPI, engine={"multiple_profiles": True}), engine(multiple_profiles=True)),
    ("target-option-unused", on(ENGINE, llmapi={"cuda_graphs": False}), llmapi(cuda_graphs=False)),
    ("profiles-with-opt-tokens", engine(limits={"opt_num_tokens": 64}, multiple_profiles=True),
     engine(limits={"opt_num_tokens": 64}, multiple_profiles=False)),
    ("opt-tokens-over-maximum", on(ENGINE, limits={"max_num_tokens": 256, "opt_num_tokens": 257}),
     on(ENGINE, limits={"max_num_tokens": 256, "opt_num_tokens": 256})),
    ("reduce-fusion-without-effect", engine(reduce_fusion=True), over_three(reduce_fusion=True)),
    ("user-buffer-refused", over_three(user_buffer=True), over_three(**FUSED)),
    ("user-buffer-refused", over_three(L40S, **FUSED), over_three(**FUSED)),
    ("user-buffer-refused", {**over_three(**FUSED), **BF16}, over_three(**FUSED)),
    ("gemm-plugin-for-another-format", {**engine(gemm_plugin="fp8"), **BF16}, engine(gemm_plugin="fp8")),
    ("gemm-plugin-for-another-format", {**engine(B200, gemm_plugin="auto"), **NVFP4},
     {**engine(B200, gemm_plugin="disable"), **NVFP4}),
    ("fp8-gemm-plugin-large-batch", engine(limits={"max_batch_size": 5}, gemm_plugin="fp8"),
     engine(limits={"max_batch_size": 4}, gemm_plugin="fp8")),
    ("fp8-gemm-fusion-refused", engine(B200, low_latency_gemm_plugin=True), engine(low_latency_gemm_plugin=True)),
    ("fp8-gemm-fusion-refused", engine(gemm_swiglu_plugin=True, use_fused_mlp=False),
     engine(gemm_swiglu_plugin=True)),
    ("tokens-per-block-refused", engine(tokens_per_block=48), engine(tokens_per_block=64)),
    ("tokens-per-block-refused", engine(tokens_per_block=256), llmapi(tokens_per_block=256)),
    ("lora-on-nvfp4-engine", {**on(B200, serving={"features": {"lora": {}}}), **NVFP4},
     on(B200, serving={"features": {"lora": {}}})),
    ("context-logits-with-draft-tokens", asked(context_logits=True, **LOOKAHEAD),
     asked(generation_logits=True, **LOOKAHEAD)),
    ("llmapi-option-not-in-version", llmapi(release(LLMAPI, "1.0.0"), tokens_per_block=64),
     llmapi(release(LLMAPI, "1.2.1"), tokens_per_block=64)),
    # Of 1.1.0 two snapshots were read, and one of them has it: a warning, since nobody knows.
    ("llmapi-option-not-in-version", llmapi(release(LLMAPI, "1.1.0"), tokens_per_block=64),
     llmapi(release(LLMAPI, "1.4.0rc4"), tokens_per_block=64)),
    ("llmapi-option-value", llmapi(allreduce_strategy="ring"), llmapi(allreduce_strategy="NCCL")),
    ("speculative-arguments-unknown", drafts(release(LLMAPI, "0.21.0")), drafts(release(LLMAPI, "1.0.0"))),
    ("speculative-with-pipeline", drafts({**release(LLMAPI, "1.4.0rc4"), "pipeline_parallel": 2}),
     drafts({**release(LLMAPI, "1.2.1"), "pipeline_parallel": 2})),
    ("lora-arguments-unknown", on(release(LLMAPI, "1.4.0rc4"), serving={"features": {"lora": {}}}),
     on(release(LLMAPI, "1.2.1"), serving={"features": {"lora": {}}})),
    ("moe-option-on-dense-model", llmapi(moe_backend="CUTLASS"),
     {**llmapi(moe_backend="CUTLASS"), "model": {"source": "some-org/some-model"}}),
    ("attention-dp-on-one-rank", llmapi(enable_attention_dp=True),
     on(LLMAPI, tensor_parallel=3, llmapi={"enable_attention_dp": True})),
    ("chunking-policy-without-chunks", llmapi(context_chunking_policy="EQUAL_PROGRESS"),
     on(LLMAPI, serving={"chunked_context": True}, llmapi={"context_chunking_policy": "EQUAL_PROGRESS"})),
]  # fmt: skip
