"""Everything `lint` may look at. Each part is optional: what is absent is not known.

A part is either a file of another tool (:mod:`engineroom.reading.files`) or something a user
states in a facts file (:mod:`engineroom.reading.facts`). `check` fills the same parts from a spec,
so that a rule is written once.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from engineroom.names import Stage
from engineroom.reading import facts, files
from engineroom.reading.artefact import ArtefactFacts
from engineroom.reading.base import Count, Fact, ReleaseText, Size, Text

Argv = Annotated[tuple[Text, ...], Field(max_length=10_000)]


class Evidence(Fact):
    """The parts. `spec` is what is wished; files say what was found."""

    spec: facts.Wish | None = None
    stage_requested: Stage | None = None
    # a model and its tokenizer
    hf_config: files.HfConfig | None = None
    generation_config: files.GenerationConfig | None = None
    tokenizer_config: files.TokenizerConfig | None = None
    tokenizer: facts.TokenizerFacts | None = None
    # quantization
    quant_config: files.QuantConfig | None = None
    quant_cfg: tuple[facts.Quantizer, ...] | None = None
    calibration: facts.Calibration | None = None
    tensors: tuple[facts.Tensor, ...] | None = None
    tensor_dtype_counts: dict[str, Count] | None = None
    checkpoint_bytes: Count | None = None
    checkpoint_files: tuple[facts.FileEntry, ...] | None = None
    weight_index: files.WeightIndex | None = None
    # engines
    checkpoint_config: files.CheckpointConfig | None = None
    build_argv: Argv | None = None
    engine_config: files.EngineConfig | None = None
    engine: facts.EngineFacts | None = None
    adapter_config: files.AdapterConfig | None = None
    artefact: ArtefactFacts | None = None
    # machines
    gpu: facts.Gpu | None = None
    memory: facts.Memory | None = None
    node: facts.Node | None = None
    stack: facts.StackFacts | None = None
    packages: dict[str, ReleaseText] | None = None
    env: dict[str, str] | None = None
    hf_cache: tuple[Text, ...] | None = None
    host_files: tuple[facts.FileEntry, ...] | None = None
    # a Triton model repository
    triton_family: Literal["inflight_batcher_llm", "llmapi"] | None = None
    triton_configs: tuple[files.TextFile, ...] | None = None
    triton_template: files.TextFile | None = None
    fill_values: dict[str, str | int | bool] | None = None
    model_repository: tuple[Text, ...] | None = None
    model_yaml: files.LlmArgs | None = None
    vllm_models: tuple[files.VllmModel, ...] | None = None
    # serving
    launch: facts.Launch | None = None
    pod: facts.Pod | None = None
    requests: tuple[facts.Request, ...] | None = None
    request_bodies: tuple[facts.RequestBody, ...] | None = None
    stream: facts.Stream | None = None
    load: facts.Load | None = None
    # Kubernetes
    chart: Text | None = None
    helm_values: Text | None = None
    helm_template: files.TextFile | None = None
    chart_files: tuple[facts.FileEntry, ...] | None = None
    helmignore: Text | None = None
    workload_kind: Literal["Deployment", "StatefulSet"] | None = None
    load_seconds: Size | None = None
    model_ids: tuple[Text, ...] | None = None
    k8s_objects: tuple[Text, ...] | None = None
    kubernetes_version: ReleaseText | None = None
    log: Text | None = None
