"""`serving:` of `engineroom.yaml`: how the server behaves, and which features it carries.

A feature that is switched off stays visible: the request's tensor is declared and answered with an
error that names the switch, because Triton ignores inputs that no model declares.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from engineroom.spec.base import MAX_INT, Closed, Number, PositiveInt, Text, lists_as_tuples, no_nul

Count = Annotated[int, Field(ge=0, le=MAX_INT)]


class LoraAdapter(Closed):
    """One adapter that requests can name."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    source: Text = Field(description="Local directory with adapter_config.json, or a hub id.")
    task_id: Annotated[int, Field(ge=1, le=2**64 - 1)] = Field(
        description="Engine lane: `lora_task_id`. llmapi lane: the adapter's integer id."
    )
    travels: bool = Field(
        default=True,
        description="Copied into the package, which the server reads. Off: the server takes `source` "
        "as it stands, a hub id that it downloads or a path of its own.",
    )

    _check = field_validator("source")(classmethod(lambda cls, v: no_nul(v)))


class Lora(Closed):
    """LoRA adapters on top of the model's weights."""

    max_rank: PositiveInt = 16
    max_adapters: PositiveInt = Field(default=4, description="Adapters in GPU memory at once.")
    max_cpu_adapters: PositiveInt = Field(default=8, description="Adapters in host memory.")
    target_modules: tuple[Text, ...] = Field(
        default=("attn_q", "attn_k", "attn_v"), min_length=1,
        description="TensorRT-LLM module names the adapters change.",
    )  # fmt: skip
    adapters: tuple[LoraAdapter, ...] = ()

    _tuples = lists_as_tuples("target_modules", "adapters")

    @model_validator(mode="after")
    def _distinct(self) -> Lora:
        for what in ("name", "task_id"):
            values = [getattr(adapter, what) for adapter in self.adapters]
            for value in values:
                if values.count(value) > 1:
                    raise ValueError(f"two adapters have the {what} {value}")
        return self


class Speculative(Closed):
    """Speculative decoding; which lane and version knows which mode is checked."""

    mode: Literal[
        "draft_target", "eagle", "medusa", "lookahead", "redrafter", "ngram", "mtp"
    ] = Field(description="draft_target: a second, smaller model proposes tokens.")  # fmt: skip
    max_draft_tokens: PositiveInt = Field(default=4, description="Tokens proposed a step.")
    draft_model: Text | None = Field(
        default=None, description="draft_target, eagle, medusa: directory or hub id of the draft."
    )
    draft_travels: bool = Field(
        default=True,
        description="Copied into the package, which the server reads. Off: the server takes "
        "`draft_model` as it stands, a hub id that it downloads or a path of its own.",
    )
    choices: Text | None = Field(
        default=None, description='medusa, eagle: the tree, such as "{0}, {0, 0}, {0, 1}".'
    )
    lookahead_window_size: PositiveInt | None = None
    lookahead_ngram_size: PositiveInt | None = None
    lookahead_verification_set_size: PositiveInt | None = None

    _check = field_validator("draft_model", "choices")(
        classmethod(lambda cls, v: v if v is None else no_nul(v))
    )


class Multimodal(Closed):
    """Media by URL (llmapi lane). Nothing is fetched that is not allowed here."""

    allowed_hosts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9*][A-Za-z0-9.*-]*$")], ...] = (
        Field(
            default=(),
            description="Hosts that image_url may name; *.example.com for subdomains. data: URIs "
            "need none. Private and local addresses are refused even if a listed name leads there.",
        )
    )
    max_bytes: PositiveInt = Field(default=20 * 2**20, description="Of one image.")
    timeout_seconds: Annotated[Number, Field(gt=0, le=120)] = 10.0

    _tuples = lists_as_tuples("allowed_hosts")


class Features(Closed):
    """What requests may ask for. What costs memory or build time is off by default."""

    chat: bool = Field(
        default=True, description="`messages`: chat messages through the model's own template."
    )
    bad_words: bool = True
    log_probs: bool = True
    sequences: bool = Field(default=True, description="n > 1 sequences and beams of one prompt.")
    usage: bool = Field(default=True, description="Token counts of prompt and answer.")
    perf_metrics: bool = Field(default=True, description="Times and KV blocks of a request.")
    kv_retention: bool = Field(
        default=True, description="Engine lane: retention priorities of the prompt's KV blocks."
    )
    context_logits: bool = Field(default=False, description="Needs an engine built for it.")
    generation_logits: bool = Field(default=False, description="Needs an engine built for it.")
    guided_decoding: Literal["off", "xgrammar", "llguidance"] = Field(
        default="off", description="Answers by JSON schema, regex or grammar, and by whose library."
    )
    lora: Lora | None = None
    speculative: Speculative | None = None
    multimodal: Multimodal | None = None


class Vllm(Closed):
    """What only the vllm lane reads; its share of memory is `gpu_memory_utilization`."""

    block_size: PositiveInt | None = Field(
        default=None, description="Tokens of a KV-cache block (default: the version's, 16 on CUDA)."
    )
    enforce_eager: bool = Field(default=False, description="No CUDA graphs: less memory, slower.")
    enable_sleep_mode: bool = Field(
        default=False, description="Memory that can be given back; nothing in Triton asks for it."
    )
    cpu_offload_gb: Annotated[Number, Field(ge=0, le=4096)] = Field(
        default=0.0, description="GiB of weights kept in host memory and read over PCIe each step."
    )
    report_metrics: bool = Field(
        default=True, description="vLLM's own metrics (vllm:*) on Triton's metrics port."
    )
    health_check: bool = Field(
        default=False,
        description="Unload the model when its engine is dead; for --model-control-mode=explicit.",
    )


class Serving(Closed):
    """How the server behaves."""

    kv_block_reuse: bool = True
    chunked_context: bool = False
    attention_backend: Literal["auto", "TRTLLM", "FLASHINFER", "VANILLA"] = "auto"
    kv_cache_free_gpu_mem_fraction: Annotated[Number, Field(gt=0, lt=1)] = Field(
        default=0.90, description="Share of the memory that is free after the weights are loaded."
    )
    gpu_memory_utilization: Annotated[Number, Field(gt=0, lt=1)] | None = Field(
        default=None, description="vLLM lane only: share of the total memory; never the one above."
    )
    scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] = "guaranteed_no_evict"
    streaming: bool = True
    stream_interval: PositiveInt = Field(
        default=1, description="Tokens a streamed event carries; more cost less and come later."
    )
    merge_events: bool = Field(
        default=True,
        description="llmapi lane: tokens that are ready before the last event has left go out "
        "together; nothing waits for it. Off: one event a token (or a stream_interval).",
    )
    stop_ids: Literal["generation_config"] | tuple[Annotated[int, Field(ge=0, le=MAX_INT)], ...] = (
        Field(
            default="generation_config",
            description="End-of-sequence ids: from generation_config.json, or a list.",
        )
    )
    fronts: tuple[Literal["bls", "ensemble"], ...] = Field(
        default=("bls", "ensemble"), min_length=1,
        description="Engine lane: models that clients call; the first is the one our tools use.",
    )  # fmt: skip
    process_mode: Literal["leader", "orchestrator"] = Field(
        default="leader",
        description="Engine lane, several GPUs: one server process a rank (mpirun), or one server "
        "that starts a worker a rank.",
    )
    max_queue_size: Count = Field(default=0, description="Waiting requests; 0: no limit.")
    max_queue_delay_microseconds: Count = 0
    priority_levels: Annotated[int, Field(ge=0, le=100)] = Field(
        default=0, description="Queue levels for the request's `priority`, 1 first; 0: none."
    )
    features: Features = Features()
    vllm: Vllm = Vllm()

    _tuples = lists_as_tuples("stop_ids", "fronts")

    @field_validator("fronts")
    @classmethod
    def _fronts_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("names a front twice")
        return value
