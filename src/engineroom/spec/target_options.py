"""Sizes of a target, and what overrides the choices that a lane makes for it.

`engine:` and `llmapi:` are optional, and so is each key: what is left out the lane chooses from the
spec, the SKU and the version, and its reason is in the manifest. Names are upstream's own, so that its
documentation applies. What cannot work on a SKU, format or version is a check.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from engineroom.spec.base import MAX_INT, Closed, PositiveInt, Text, lists_as_tuples

Count = Annotated[int, Field(ge=0, le=MAX_INT)]


class Limits(Closed):
    """Sizes the server is built and started for."""

    max_batch_size: PositiveInt = Field(default=64, description="Sequences at once.")
    max_num_tokens: PositiveInt = Field(default=8192, description="Tokens a forward step.")
    max_seq_len: PositiveInt | None = Field(
        default=None, description="Prompt and answer in tokens (default: the model's)."
    )
    max_beam_width: PositiveInt = 1
    opt_num_tokens: PositiveInt | None = Field(
        default=None,
        description="Engine lane: tokens a step that the kernels are tuned for, in place of several "
        "profiles. Only for traffic that hardly varies.",
    )


class EngineOptions(Closed):
    """Engine lane: flags of `trtllm-build` that are not the lane's own choice."""

    multiple_profiles: bool | None = Field(
        default=None, description="Kernels for several token counts; builds take longer."
    )
    gemm_plugin: Literal["auto", "fp8", "nvfp4", "disable"] | None = None
    reduce_fusion: bool | None = Field(
        default=None, description="AllReduce with the norm after it; Llama, TP over 1."
    )
    user_buffer: bool = Field(default=False, description="With reduce_fusion: one copy less.")
    tokens_per_block: PositiveInt | None = Field(
        default=None, description="Tokens of a KV-cache block (default: the version's, 32)."
    )
    use_fused_mlp: bool | None = Field(
        default=None,
        description="False keeps a scale of FP8 models that the fused MLP drops.",
    )
    gemm_swiglu_plugin: bool = Field(default=False, description="FP8 on Hopper.")
    low_latency_gemm_plugin: bool = Field(default=False, description="FP8 on Hopper.")
    low_latency_gemm_swiglu_plugin: bool = Field(default=False, description="FP8 on Hopper.")
    max_prompt_embedding_table_size: Count = Field(
        default=0, description="Rows of prompt_embedding_table in all requests; 0: no such input."
    )
    workers: PositiveInt | None = Field(
        default=None, description="Ranks built at once, each with its own host memory."
    )

    @model_validator(mode="after")
    def _one_swiglu(self) -> EngineOptions:
        if self.gemm_swiglu_plugin and self.low_latency_gemm_swiglu_plugin:
            raise ValueError(
                "gemm_swiglu_plugin and low_latency_gemm_swiglu_plugin exclude each other"
            )
        return self


class LlmApiOptions(Closed):
    """llmapi lane: LLM arguments that are not the lane's own choice."""

    moe_expert_parallel_size: PositiveInt | None = Field(
        default=None, description="Ranks that split the experts whole; divides tensor_parallel."
    )
    moe_backend: Text | None = Field(
        default=None, description="Kernels of the experts, as the version calls them."
    )
    moe_max_num_tokens: PositiveInt | None = None
    enable_attention_dp: bool = Field(
        default=False, description="Attention by requests, not by heads, over the same ranks."
    )
    tokens_per_block: PositiveInt | None = Field(
        default=None, description="Tokens of a KV-cache block (default: the version's, 32)."
    )
    host_cache_size: Annotated[int, Field(ge=1, le=2**53)] | None = Field(
        default=None, description="Bytes of host memory for KV blocks that left the GPU."
    )
    max_tokens: PositiveInt | None = Field(
        default=None, description="Tokens of KV cache at most, below what memory allows."
    )
    enable_partial_reuse: bool | None = Field(
        default=None, description="Blocks of which only a part matches."
    )
    context_chunking_policy: (
        Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS", "FORCE_CHUNK"] | None
    ) = Field(default=None, description="Which prompt gets the next chunk; with chunked_context.")
    cuda_graphs: bool = True
    cuda_graph_batch_sizes: tuple[PositiveInt, ...] | None = Field(
        default=None,
        min_length=1,
        description="Batch sizes with a graph (default: chosen upstream).",
    )
    cuda_graph_padding: bool = True
    disable_overlap_scheduler: bool = False
    enable_autotuner: bool | None = None
    allreduce_strategy: Text | None = None

    _tuples = lists_as_tuples("cuda_graph_batch_sizes")

    @model_validator(mode="after")
    def _graphs(self) -> LlmApiOptions:
        if self.cuda_graph_batch_sizes is not None and not self.cuda_graphs:
            raise ValueError("cuda_graph_batch_sizes with cuda_graphs: false is never read")
        return self
