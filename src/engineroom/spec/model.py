"""Pydantic models of `engineroom.yaml`, schema version 1.

Closed (unknown keys are errors) and frozen. Additive optional keys stay v1; anything else is a v2
with a converter. Validators stay pure: no file, network or catalog is looked at here; what needs
those is a check.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from engineroom.names import KvCacheFormat, LaneName, WeightFormat
from engineroom.spec.base import (
    MAX_INT,
    Closed,
    ImageRef,
    Number,
    PositiveInt,
    Text,
    enum_of,
    lists_as_tuples,
    no_nul,
)
from engineroom.spec.serving import Serving
from engineroom.spec.target_options import EngineOptions, Limits, LlmApiOptions

SCHEMA_VERSION = 1
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?$"
DNS_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


class Model(Closed):
    """Which model."""

    source: Text = Field(description="Local directory, or a hub id such as Qwen/Qwen3-8B.")
    revision: Text | None = Field(default=None, description="Branch, tag or commit of a hub id.")
    trust_remote_code: bool = Field(
        default=False, description="Run Python code that comes with the model. Off unless asked."
    )
    tokenizer: Text | None = Field(
        default=None, description="Tokenizer source, if not the model's."
    )

    _check = field_validator("source", "revision", "tokenizer")(
        classmethod(lambda cls, v: v if v is None else no_nul(v))
    )


class Precision(Closed):
    """Weights and KV cache: two axes."""

    weights: Annotated[WeightFormat, enum_of(WeightFormat)] = Field(
        description="bf16 | fp16 | fp8 | w4a16_awq | nvfp4 | ..."
    )
    kv_cache: Annotated[KvCacheFormat, enum_of(KvCacheFormat)] = Field(
        default=KvCacheFormat.AUTO, description="auto | bf16 | fp16 | fp8 | nvfp4 | int8"
    )
    group_size: PositiveInt | None = Field(
        default=None, description="AWQ group size (default: the recipe's, 128)."
    )
    recipe: Text | None = Field(
        default=None, description="Id of a file in build/recipes/weights/, if not the format's own."
    )


class Calibration(Closed):
    """Text that the quantizer sees."""

    dataset: Text = Field(description="Local JSONL or text file, or a hub dataset name.")
    samples: PositiveInt = Field(default=512, description="Sequences.")
    seq_len: Annotated[int, Field(ge=8, le=MAX_INT)] = Field(
        default=512, description="Tokens a sequence."
    )
    batch_size: Literal["auto"] | PositiveInt = Field(
        default="auto", description="auto picks from free memory."
    )
    seed: Annotated[int, Field(ge=0, le=MAX_INT)] = 0
    eval_documents: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=8, description="Documents held out for perplexity before and after; 0 skips it."
    )

    _check = field_validator("dataset")(classmethod(lambda cls, v: no_nul(v)))


class StackRef(Closed):
    """An explicit TensorRT-LLM or vLLM version, for what is not a Triton release."""

    trtllm: Text | None = None
    vllm: Text | None = Field(default=None, description="For the vllm lane.")
    image: ImageRef | None = None

    @model_validator(mode="after")
    def _one_version(self) -> StackRef:
        if (self.trtllm is None) == (self.vllm is None):
            raise ValueError("give exactly one of `trtllm` and `vllm`")
        return self

    @property
    def text(self) -> str:
        return f"trtllm-{self.trtllm}" if self.trtllm is not None else f"vllm-{self.vllm}"


def _stack_text(value: Any) -> Any:
    text = getattr(value, "text", None)  # a number that remembers its spelling: 26.07, 26.10
    if isinstance(text, str):
        return text
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Target(Closed):
    """One deployment target: a SKU, a lane and a stack."""

    sku: Text = Field(description="Id from build/skus/, e.g. h100-sxm.")
    lane: Annotated[LaneName, enum_of(LaneName)] = LaneName.LLMAPI
    stack: Annotated[StackRef | Text, BeforeValidator(_stack_text)] = Field(
        description="Triton release such as 26.07, or {trtllm: VERSION, image: REF}; on the vllm "
        "lane {vllm: VERSION, image: REF}."
    )
    tensor_parallel: PositiveInt = 1
    pipeline_parallel: PositiveInt = 1
    driver: Text | None = Field(
        default=None, description="NVIDIA driver on the nodes; checked against the stack."
    )
    gpu_device_ids: tuple[tuple[Annotated[int, Field(ge=0, le=1023)], ...], ...] | None = Field(
        default=None,
        description="GPUs of each model instance on the node, such as [[0, 1], [2, 3]]; one "
        "instance on all visible GPUs by default.",
    )
    profile: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$")] | None = Field(
        default=None,
        description="Name of a serving profile: a target beside others of the same SKU, lane and "
        "stack that has other limits, such as `latency` and `throughput`.",
    )
    limits: Limits = Limits()
    engine: EngineOptions = EngineOptions()
    llmapi: LlmApiOptions = LlmApiOptions()

    @field_validator("gpu_device_ids", mode="before")
    @classmethod
    def _lists_to_tuples(cls, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(tuple(item) if isinstance(item, list) else item for item in value)
        return value

    @model_validator(mode="after")
    def _one_gpu_a_rank(self) -> Target:
        if self.gpu_device_ids is None:
            return self
        for group in self.gpu_device_ids:
            if len(group) != self.ranks:
                raise ValueError(
                    f"gpu_device_ids: {list(group)} has {len(group)} GPUs, and "
                    f"tensor_parallel x pipeline_parallel needs {self.ranks}"
                )
        used = [gpu for group in self.gpu_device_ids for gpu in group]
        if len(set(used)) != len(used) or not used:
            raise ValueError("gpu_device_ids: each GPU once, and at least one")
        return self

    @model_validator(mode="after")
    def _sizes_within_ranks(self) -> Target:
        experts = self.llmapi.moe_expert_parallel_size or 1
        if self.tensor_parallel % experts:
            raise ValueError(
                f"llmapi.moe_expert_parallel_size {experts} does not divide tensor_parallel "
                f"{self.tensor_parallel}"
            )
        if (self.engine.workers or 1) > self.ranks:
            raise ValueError(
                f"engine.workers {self.engine.workers}, and there are {self.ranks} ranks"
            )
        return self

    @property
    def ranks(self) -> int:
        """Ranks of one model instance, a GPU each."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def tokens_per_block(self) -> int | None:
        """Tokens of a KV-cache block that the target's own lane is asked for."""
        engine, llmapi = self.engine.tokens_per_block, self.llmapi.tokens_per_block
        return {LaneName.ENGINE: engine, LaneName.LLMAPI: llmapi}.get(self.lane)

    @property
    def instances(self) -> int:
        """Model instances: one a set of `gpu_device_ids`, else one."""
        return len(self.gpu_device_ids) if self.gpu_device_ids else 1

    @property
    def gpus(self) -> int:
        """GPUs that a server of this target uses."""
        return self.ranks * self.instances

    @property
    def stack_id(self) -> str:
        return self.stack if isinstance(self.stack, str) else self.stack.text

    @property
    def id(self) -> str:
        """Stable, path- and DNS-safe name of the target within its spec."""
        stack = "".join(c if c.isalnum() else "-" for c in self.stack_id.lower())
        sku = "".join(c if c.isalnum() else "-" for c in self.sku.lower())
        profile = f"-{self.profile}" if self.profile else ""
        return (
            f"{self.lane}-{sku}-tp{self.tensor_parallel}pp{self.pipeline_parallel}-{stack}{profile}"
        )


class Lengths(Closed):
    """Tokens at two percentiles."""

    p50: PositiveInt
    p95: PositiveInt

    @model_validator(mode="after")
    def _ordered(self) -> Lengths:
        if self.p95 < self.p50:
            raise ValueError(f"p95 ({self.p95}) is below p50 ({self.p50})")
        return self


class Profile(Closed):
    """One kind of traffic."""

    input_tokens: Lengths
    output_tokens: Lengths
    concurrency: PositiveInt | None = None
    requests_per_second: Annotated[Number, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _one_load(self) -> Profile:
        if (self.concurrency is None) == (self.requests_per_second is None):
            raise ValueError("give exactly one of `concurrency` and `requests_per_second`")
        return self


class Slo(Closed):
    """Latency bounds at a percentile."""

    percentile: Annotated[Number, Field(gt=0, lt=100)] = 95.0
    ttft_ms: Annotated[Number, Field(gt=0)] | None = None
    tpot_ms: Annotated[Number, Field(gt=0)] | None = None
    e2e_ms: Annotated[Number, Field(gt=0)] | None = None


class Storage(Closed):
    """The volume that holds weights and engines."""

    size: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,6}(Mi|Gi|Ti)$")] = "100Gi"
    storage_class: Annotated[str, Field(pattern=DNS_NAME, max_length=253)] | None = None
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"] = (
        "ReadWriteOnce"
    )
    existing_claim: Annotated[str, Field(pattern=DNS_NAME, max_length=253)] | None = None


class Deploy(Closed):
    """Where it runs on Kubernetes."""

    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] = "default"
    replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    storage: Storage = Storage()
    image: ImageRef | None = Field(default=None, description="Overrides the stack's image.")
    image_pull_secret: Annotated[str, Field(pattern=DNS_NAME, max_length=253)] | None = None


class DeploymentSpec(Closed):
    """`engineroom.yaml`."""

    schema_version: Literal[1]
    name: Annotated[str, Field(pattern=DNS_LABEL)] = Field(
        description="Service name: lower case letters, digits and dashes, at most 53."
    )
    model: Model
    precision: Precision
    calibration: Calibration | None = Field(
        default=None, description="Needed when anything is quantized."
    )
    targets: tuple[Target, ...] = Field(min_length=1)
    workload: dict[Annotated[str, Field(min_length=1, max_length=63)], Profile] = Field(default={})
    slo: Slo | None = None
    serving: Serving = Serving()
    deploy: Deploy = Deploy()

    _tuples = lists_as_tuples("targets")

    @model_validator(mode="after")
    def _consistent(self) -> DeploymentSpec:
        seen: dict[str, int] = {}
        for i, target in enumerate(self.targets):
            if target.id in seen:
                raise ValueError(
                    f"targets[{i}] repeats targets[{seen[target.id]}] ({target.id}): "
                    "same SKU, lane, stack, parallel sizes and profile"
                )
            seen[target.id] = i
        return self
