"""What a user states beside files: wishes, hosts, memory, requests. Closed: a typo is an error.

Units are in the names: ``_bytes``, ``_mib``, ``_tokens``, ``_seconds``. Versions, compute
capabilities and labels are strings.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from engineroom.names import KvCacheFormat, LaneName, WeightFormat
from engineroom.reading.base import Count, Fact, Id, Number, PackageVersion, ReleaseText, Size, Text

Capability = Annotated[str, Field(pattern=r"^\d{1,2}\.\d{1,2}$")]


class Wish(Fact):
    """What the user asks for, in the terms of the spec."""

    weights: WeightFormat | None = None
    kv_cache: KvCacheFormat | None = None
    group_size: Size | None = None
    quantize_lm_head: bool | None = None
    lane: LaneName | None = None
    tensor_parallel: Size = 1
    pipeline_parallel: Size = 1
    kv_cache_free_gpu_mem_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens_in_paged_kv_cache: Size | None = None
    tokens_per_block: Size | None = None


class TokenizerFacts(Fact):
    family: Literal["sentencepiece", "bpe"] | None = None
    adds_bos: bool | None = None
    token_ids: dict[str, Id] | None = None
    encodes: dict[str, tuple[Id, ...]] | None = None
    vocab_size: Size | None = None


class Quantizer(Fact):
    """One entry of a ModelOpt recipe; later entries win."""

    quantizer_name: Text | None = None
    enable: bool | None = None


class Amax(Fact):
    module: Text
    amax: Number | None = None


class Calibration(Fact):
    dataset: Text | None = None
    samples: Count | None = None
    input_amax: tuple[Amax, ...] | None = None


class Tensor(Fact):
    """A tensor as a safetensors header lists it."""

    name: Text
    dtype: Text | None = None
    shape: tuple[Count, ...] | None = None
    value: Number | None = None


class FileEntry(Fact):
    path: Text
    size_bytes: Count | None = None
    head: Text | None = None


class Gpu(Fact):
    product: Text | None = None
    compute_capability: Capability | None = None
    memory_mib: Size | None = None


class EngineFacts(Fact):
    """What an engine's config.json does not hold."""

    built_on: Gpu | None = None
    tensorrt_version: ReleaseText | None = None
    version_compatible: bool | None = None
    hardware_compatibility_level: (
        Literal["none", "ampere_plus", "same_compute_capability"] | None
    ) = None


class Memory(Fact):
    engine_bytes: Count | None = None
    other_runtime_bytes: Count | None = None
    free_after_load_bytes: Count | None = None


class Node(Fact):
    labels: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    gpu_count: Count | None = None
    driver_version: ReleaseText | None = None
    cuda_version: ReleaseText | None = None


class StackFacts(Fact):
    image: Text | None = None
    triton_release: ReleaseText | None = None
    tensorrt_llm_version: PackageVersion | None = None
    tensorrt_version: ReleaseText | None = None
    cuda_version: ReleaseText | None = None
    toolkit_driver_version: ReleaseText | None = None
    forward_compat_available: bool | None = None


class Launch(Fact):
    mode: Literal["leader", "orchestrator"] | None = None
    spawn_processes: bool | None = None
    mpi_ranks: Size | None = None
    nodes: Size | None = None
    load_order: tuple[Text, ...] | None = None
    argv: tuple[Text, ...] | None = None


class Mount(Fact):
    host_path: Text
    container_path: Text


class Pod(Fact):
    gpu_count: Count | None = None
    lws_size_pods: Size | None = None
    mounts: tuple[Mount, ...] | None = None
    hub_token: bool | None = None


class SentTensor(Fact):
    dtype: Text | None = None


class Request(Fact):
    """One request; null or absent means not sent."""

    protocol: Literal["http", "grpc"] | None = None
    endpoint: Text | None = None
    model: Text | None = None
    text_input: Text | None = None
    text_is_templated: bool | None = None
    prompt_tokens: Count | None = None
    max_tokens: Count | None = None
    batch_size: Size | None = None
    stream: bool | None = None
    beam_width: Count | None = None
    use_beam_search: bool | None = None
    return_log_probs: bool | None = None
    end_id: Id | None = None
    stop_words: tuple[Text, ...] | None = None
    stop_words_ids: tuple[tuple[tuple[Id, ...], ...], ...] | None = None
    lora_task_id: Id | None = None
    lora_weights: SentTensor | None = None
    lora_config: SentTensor | None = None


class RequestBody(Fact):
    """The JSON object of one generate call, as it is sent."""

    model: Text | None = None
    endpoint: Text | None = None
    body: Annotated[dict[str, Any], Field(max_length=1000)]


class Stream(Fact):
    one_response_per_token: bool | None = None
    token_ids: tuple[Id, ...] | None = None
    token_bytes_hex: tuple[Text, ...] | None = None
    token_pieces: tuple[Text, ...] | None = None
    token_texts: tuple[Text, ...] | None = None
    responses: tuple[Text, ...] | None = None
    client_joins_responses: bool | None = None
    finish_reason: Literal["stop", "length"] | None = None


class Load(Fact):
    concurrency: Size | None = None
