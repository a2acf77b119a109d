"""Server limits against each other, the model and the workload."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.names import LaneName, Severity, Topic
from engineroom.types import Finding

BATCH = declare(
    "batch-over-tokens", Topic.SPEC, Severity.ERROR,
    says="max_batch_size is at most max_num_tokens",
    why="each running sequence takes at least one token of a step",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py",
)  # fmt: skip
SEQ_LEN = declare(
    "seq-len-over-model", Topic.SPEC, Severity.WARN,
    says="max_seq_len is within the model's positions",
    why="beyond them the rotary embedding was never trained",
    source="huggingface/transformers documentation, max_position_embeddings of the model's config.json",
)  # fmt: skip
WORKLOAD = declare(
    "workload-over-seq-len", Topic.SPEC, Severity.ERROR,
    says="p95 input plus p95 output is within max_seq_len",
    why="longer requests are cut or refused",
    source="NVIDIA/TensorRT-LLM cpp/include/tensorrt_llm/batch_manager/llmRequest.h (validate)",
)  # fmt: skip
PROMPT = declare(
    "prompt-over-max-num-tokens", Topic.SPEC, Severity.ERROR,
    says="without chunked context a prompt is within max_num_tokens",
    why="such a request is rejected",
    source="NVIDIA/TensorRT-LLM issue #4641; tensorrtllm_backend issue #565",
)  # fmt: skip
BEAMS = declare(
    "beams-do-not-stream", Topic.SPEC, Severity.WARN,
    says="beam search is not streamed",
    why="it reorders earlier tokens, so text that was sent may change",
    source="NVIDIA/TensorRT-LLM executor documentation",
)  # fmt: skip
FRACTION = declare(
    "kv-fraction-too-high", Topic.SPEC, Severity.WARN,
    says="kv_cache_free_gpu_mem_fraction stays below 0.95",
    why="activations and CUDA graphs need the rest; failures at start or under load are reported",
    source="NVIDIA/TensorRT-LLM issue #486",
)  # fmt: skip
UTILIZATION = declare(
    "gpu-memory-utilization-unused", Topic.SPEC, Severity.INFO,
    says="gpu_memory_utilization is set for the vLLM lane only",
    why="it is a share of total memory, and no TensorRT-LLM lane reads it",
    source="vLLM documentation, Engine Arguments (gpu_memory_utilization)",
)  # fmt: skip
ATTENTION = declare(
    "attention-backend-unused", Topic.SPEC, Severity.WARN,
    says="attention_backend is set for the llmapi lane only",
    why="on the engine lane the build decides the attention kernels",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py: attn_backend is a PyTorch argument",
)  # fmt: skip


def batch_within_tokens(c: TargetContext) -> Iterator[Finding]:
    limits = c.target.limits
    if limits.max_batch_size > limits.max_num_tokens:
        yield BATCH.found(
            c,
            "@.limits.max_batch_size",
            f"max_batch_size {limits.max_batch_size} is above max_num_tokens {limits.max_num_tokens}: "
            "each running sequence takes at least one token of a step",
            f"set limits.max_num_tokens to {limits.max_batch_size} or more",
        )


def length_within_model(c: TargetContext) -> Iterator[Finding]:
    wanted, has = c.target.limits.max_seq_len, c.model.max_position_embeddings if c.model else None
    if wanted and has and wanted > has:
        yield SEQ_LEN.found(
            c,
            "@.limits.max_seq_len",
            f"max_seq_len {wanted} is above the model's max_position_embeddings {has}",
            f"set limits.max_seq_len to {has} or less",
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
            yield WORKLOAD.found(
                c,
                key,
                f"p95 input {prompt} + p95 output {profile.output_tokens.p95} = {total} tokens, above "
                f"the {longest} that one sequence may have",
                f"raise targets[{c.index}].limits.max_seq_len (if the model allows it), or shorten the profile",
            )
        if prompt > limits.max_num_tokens and not c.spec.serving.chunked_context:
            yield PROMPT.found(
                c,
                key,
                f"a p95 prompt of {prompt} tokens is above max_num_tokens {limits.max_num_tokens}; without "
                "chunked context such a request is rejected",
                "set serving.chunked_context: true, or raise limits.max_num_tokens",
            )


def beams(c: TargetContext) -> Iterator[Finding]:
    if c.target.lane is LaneName.VLLM:
        return  # no beams at all: checks/vllm.py
    if c.target.limits.max_beam_width > 1 and c.spec.serving.streaming:
        yield BEAMS.found(
            c,
            "@.limits.max_beam_width",
            "beam search reorders earlier tokens, so its text cannot be streamed",
            "send beam requests without streaming, or set max_beam_width: 1",
        )


def fraction_is_of_free(c: TargetContext) -> Iterator[Finding]:
    if c.target.lane is LaneName.VLLM:
        return  # another share, of another whole: checks/vllm.py
    fraction = c.spec.serving.kv_cache_free_gpu_mem_fraction
    if fraction >= 0.95:
        yield FRACTION.found(
            c,
            "serving.kv_cache_free_gpu_mem_fraction",
            f"{fraction:g} of the memory that is free after load leaves little for activations and CUDA "
            "graphs; 0.95 and above is reported to fail at start or under load",
            "use 0.90",
        )
    if c.spec.serving.gpu_memory_utilization is not None:
        yield UTILIZATION.found(
            c,
            "serving.gpu_memory_utilization",
            f"the {c.target.lane} lane does not read it: it is vLLM's share of total memory, not of what "
            "is free after load",
            "set serving.kv_cache_free_gpu_mem_fraction for this lane",
        )


def attention_backend_lane(c: TargetContext) -> Iterator[Finding]:
    chosen = c.spec.serving.attention_backend
    if c.target.lane is not LaneName.LLMAPI and chosen != "auto":
        why = (
            "the build decides the attention kernels"
            if c.target.lane is LaneName.ENGINE
            else "the name is one of TensorRT-LLM's, and vLLM chooses for itself"
        )
        yield ATTENTION.found(
            c,
            "serving.attention_backend",
            f"`{chosen}` has no effect on the {c.target.lane} lane: {why}",
            "set attention_backend: auto, or use lane: llmapi",
        )


RULES = (
    batch_within_tokens,
    length_within_model,
    workload_fits,
    beams,
    fraction_is_of_free,
    attention_backend_lane,
)
