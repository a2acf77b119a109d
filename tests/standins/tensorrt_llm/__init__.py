"""A test double of the Python `tensorrt_llm` API: it computes nothing and answers at once.

It has what a Triton model file of the llmapi family uses, upstream's and ours, with the names and
argument lists of TensorRT-LLM 1.2. It is not TensorRT-LLM; `answers.py` says what an answer is and
which environment variables change it.

Put on the models' sys.path by `TritonServer(modules=[...])`.
"""

import os

from tensorrt_llm.llmapi.llm import LLM, RequestOutput
from tensorrt_llm.sampling_params import GuidedDecodingParams, SamplingParams

__version__ = os.environ.get("STANDIN_TRTLLM_VERSION", "1.2.1")
__all__ = ["LLM", "GuidedDecodingParams", "RequestOutput", "SamplingParams"]
