"""Server limits against each other, the model and the workload."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import TargetContext
from engineroom.names import LaneName, Severity
from engineroom.types import Finding


def batch_within_tokens(c: TargetContext) -> Iterator[Finding]:
    limits = c.target.limits
    if limits.max_batch_size > limits.max_num_tokens:
        yield c.finding(
            "batch-over-tokens",
            Severity.ERROR,
            c.key("limits.max_batch_size"),
            f"max_batch_size {limits.max_batch_size} is above max_num_tokens {limits.max_num_tokens}: "
            "each running sequence takes at least one token of a step",
            f"set limits.max_num_tokens to {limits.max_batch_size} or more",
            "NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py",
        )


def length_within_model(c: TargetContext) -> Iterator[Finding]:
    wanted, has = c.target.limits.max_seq_len, c.model.max_position_embeddings if c.model else None
    if wanted and has and wanted > has:
        yield c.finding(
            "seq-len-over-model",
            Severity.WARN,
            c.key("limits.max_seq_len"),
            f"max_seq_len {wanted} is above the model's max_position_embeddings {has}",
            f"set limits.max_seq_len to {has} or less",
            "the model's config.json",
        )


def workload_fits(c: TargetContext) -> Iterator[Finding]:
    limits = c.target.limits
    longest = limits.max_seq_len or (c.model.max_position_embeddings if c.model else None)
    for name, profile in c.spec.workload.items():
        prompt, total = (
            profile.input_tokens.p95,
            profile.input_tokens.p95 + profile.output_tokens.p95,
        )
        key = f"workload.{name}"
        if longest and total > longest:
            yield c.finding(
                "workload-over-seq-len",
                Severity.ERROR,
                key,
                f"p95 input {prompt} + p95 output {profile.output_tokens.p95} = {total} tokens, above "
                f"the {longest} that one sequence may have",
                f"raise {c.key('limits.max_seq_len')} (if the model allows it), or shorten the profile",
                "arithmetic",
            )
        if prompt > limits.max_num_tokens and not c.spec.serving.chunked_context:
            yield c.finding(
                "prompt-over-max-num-tokens",
                Severity.ERROR,
                key,
                f"a p95 prompt of {prompt} tokens is above max_num_tokens {limits.max_num_tokens}; without "
                "chunked context such a request is rejected",
                "set serving.chunked_context: true, or raise limits.max_num_tokens",
                "NVIDIA/TensorRT-LLM issue #4641; tensorrtllm_backend issue #565",
            )


def beams(c: TargetContext) -> Iterator[Finding]:
    if c.target.limits.max_beam_width > 1 and c.spec.serving.streaming:
        yield c.finding(
            "beams-do-not-stream",
            Severity.WARN,
            c.key("limits.max_beam_width"),
            "beam search reorders earlier tokens, so its text cannot be streamed",
            "send beam requests without streaming, or set max_beam_width: 1",
            "NVIDIA/TensorRT-LLM executor documentation",
        )


def fraction_is_of_free(c: TargetContext) -> Iterator[Finding]:
    fraction = c.spec.serving.kv_cache_free_gpu_mem_fraction
    if fraction >= 0.95:
        yield c.finding(
            "kv-fraction-too-high",
            Severity.WARN,
            "serving.kv_cache_free_gpu_mem_fraction",
            f"{fraction:g} of the memory that is free after load leaves little for activations and CUDA "
            "graphs; 0.95 and above is reported to fail at start or under load",
            "use 0.90",
            "practitioners' reports (docs/design.md); NVIDIA/TensorRT-LLM issue #486",
        )
    if c.spec.serving.gpu_memory_utilization is not None:
        yield c.finding(
            "gpu-memory-utilization-unused",
            Severity.INFO,
            "serving.gpu_memory_utilization",
            f"the {c.target.lane} lane does not read it: it is vLLM's share of total memory, not of what "
            "is free after load",
            "set serving.kv_cache_free_gpu_mem_fraction for this lane",
            "vLLM engine arguments",
        )


def attention_backend_lane(c: TargetContext) -> Iterator[Finding]:
    chosen = c.spec.serving.attention_backend
    if c.target.lane is LaneName.ENGINE and chosen != "auto":
        yield c.finding(
            "attention-backend-unused",
            Severity.WARN,
            "serving.attention_backend",
            f"`{chosen}` has no effect on the engine lane: the build decides the attention kernels",
            "set attention_backend: auto, or use lane: llmapi",
            "NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py: attn_backend is a PyTorch argument",
        )


RULES = (
    batch_within_tokens,
    length_within_model,
    workload_fits,
    beams,
    fraction_is_of_free,
    attention_backend_lane,
)
