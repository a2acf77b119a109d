"""Names used everywhere: exit codes, lanes, formats, support levels, severities.

Standard library only, and cheap to import: ``engineroom --help`` loads this module and
``errors`` but no pydantic, Jinja or YAML.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class StrEnum(str, Enum):
    """``enum.StrEnum`` for Python 3.10."""

    def __str__(self) -> str:
        return str(self.value)


class ExitCode(IntEnum):
    """What a verb answers to the shell; one code per class of outcome."""

    OK = 0
    FINDINGS = 1
    """The verb ran and found problems at or above ``--fail-on``."""
    USAGE = 2
    """Bad command line, or a spec that does not validate."""
    EXTERNAL = 3
    """A tool we started failed; its own code is in the message."""
    MISSING = 4
    """A missing extra, tool, platform or GPU; the message has the line to type."""
    INTERNAL = 70
    """Our fault (``EX_SOFTWARE`` of sysexits.h)."""
    INTERRUPTED = 130
    """128 + SIGINT."""


class LaneName(StrEnum):
    """How a checkpoint becomes a server: interchangeable ways."""

    ENGINE = "engine"
    """TensorRT-LLM <= 1.2: ``trtllm-build`` and the C++ ``tensorrtllm`` backend."""
    LLMAPI = "llmapi"
    """The LLM API (PyTorch) behind Triton's Python backend."""
    VLLM = "vllm"
    """vLLM behind Triton's vLLM backend, to compare with: same checkpoint, another runtime."""


class WeightFormat(StrEnum):
    """Precision of the weights. Never fused with the KV cache's."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    W4A16_AWQ = "w4a16_awq"
    NVFP4 = "nvfp4"
    W4A8_AWQ = "w4a8_awq"
    FP8_BLOCK_SCALES = "fp8_block_scales"
    W8A8_SQ = "w8a8_sq"
    MXFP4 = "mxfp4"


class KvCacheFormat(StrEnum):
    """Precision of the KV cache. ``auto`` follows the checkpoint, else 16 bit."""

    AUTO = "auto"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    NVFP4 = "nvfp4"
    INT8 = "int8"


class Support(StrEnum):
    """Five-valued support; ``UNKNOWN`` is never ``YES``."""

    YES = "yes"
    NO = "no"
    VERSION_BOUND = "version-bound"
    NOT_IMPLEMENTED = "not-implemented"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """How bad a finding is; ordered by ``rank`` (0 is worst)."""

    ERROR = "error"
    WARN = "warn"
    INFO = "info"

    @property
    def rank(self) -> int:
        return ("error", "warn", "info").index(self.value)


class Stage(StrEnum):
    """When a verdict is asked for; a format that can be made need not be servable."""

    QUANTIZE = "quantize"
    PACKAGE = "package"
    BUILD = "build"
    CHECK = "check"
    RENDER = "render"
    SERVE = "serve"
    DEPLOY = "deploy"


class Topic(StrEnum):
    """What a rule is about; ``lint --topic`` selects by it."""

    ARTEFACT_INTEGRITY = "artefact-integrity"
    BATCHING = "batching"
    BEAM_WIDTH = "beam-width"
    BUILD_FLAGS = "build-flags"
    CALIBRATION_DATA = "calibration-data"
    DECOUPLED = "decoupled"
    DISAGGREGATED = "disaggregated"
    ENGINE_RUNTIME_MISMATCH = "engine-runtime-mismatch"
    GPU_SHARING = "gpu-sharing"
    HELM_SIZE = "helm-size"
    HELM_VALUES = "helm-values"
    K8S_NAMES = "k8s-names"
    K8S_PROBES = "k8s-probes"
    K8S_SECRETS = "k8s-secrets"
    K8S_SHM = "k8s-shm"
    K8S_STORAGE = "k8s-storage"
    KV_CACHE = "kv-cache"
    LLM_ARGS = "llm-args"
    LORA = "lora"
    MODEL_CONFIG = "model-config"
    MOE = "moe"
    MPI_LAUNCH = "mpi-launch"
    MULTI_NODE = "multi-node"
    OUTPUT_SHAPE = "output-shape"
    PARALLEL_LAYOUT = "parallel-layout"
    QUANT_GPU_SUPPORT = "quant-gpu-support"
    QUANT_LM_HEAD = "quant-lm-head"
    QUANT_METADATA = "quant-metadata"
    QUANT_SHAPE = "quant-shape"
    SEQUENCE_LIMITS = "sequence-limits"
    SILENT_FALLBACK = "silent-fallback"
    SPEC = "spec"
    STOP_WORDS = "stop-words"
    STREAMING_DETOK = "streaming-detok"
    TEMPLATE_FILL = "template-fill"
    TOKENISATION = "tokenisation"
    TOKENIZER_PATH = "tokenizer-path"
    VERSIONS = "versions"
    VLLM = "vllm"


class RuntimeName(StrEnum):
    """What computes the tokens behind a rendered repository."""

    TENSORRT_LLM = "tensorrt_llm"
    REFERENCE = "reference"
    """transformers on CPU, standing where the engine would; never called TensorRT-LLM."""


# CUDA toolkit and TensorRT-LLM call 2 bytes per element "16 bit"; one table for every size question.
BITS_PER_ELEMENT: dict[str, int] = {
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "int8": 8,
    "nvfp4": 4,
    "w4a16_awq": 4,
    "w4a8_awq": 4,
    "mxfp4": 4,
    "fp8_block_scales": 8,
    "w8a8_sq": 8,
}
