"""Names that callers import from `tensorrt_llm.llmapi`; argument classes keep what they are given."""

from tensorrt_llm.executor.request import LoRARequest
from tensorrt_llm.llmapi.llm import LLM, RequestOutput
from tensorrt_llm.sampling_params import GuidedDecodingParams, SamplingParams


class _Arguments:
    def __init__(self, **given):
        vars(self).update(given)


class KvCacheConfig(_Arguments):
    """Settings of the KV cache."""


class SchedulerConfig(_Arguments):
    """Settings of the scheduler."""


class CudaGraphConfig(_Arguments):
    """Settings of CUDA graphs."""


class KvCacheRetentionConfig(_Arguments):
    """How long blocks of a request are kept."""


class MpiCommSession(_Arguments):
    """Several ranks; made by nobody here."""


__all__ = [
    "LLM", "CudaGraphConfig", "GuidedDecodingParams", "KvCacheConfig", "KvCacheRetentionConfig",
    "LoRARequest", "MpiCommSession", "RequestOutput", "SamplingParams", "SchedulerConfig",
]  # fmt: skip
