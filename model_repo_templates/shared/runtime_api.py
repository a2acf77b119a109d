"""The narrow interface between a Triton model file and what computes the tokens.

Two implementations: TensorRT-LLM's LLM (`trtllm_runtime.py`) and engineroom's CPU `reference`.
Nothing here imports either.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Request:
    """One sequence to generate.

    Exactly one of `prompt` and `prompt_ids` is given. `end_ids` are token ids that end the text
    and are not part of it. Sampling is greedy unless temperature, top_k or top_p says otherwise.
    """

    prompt: str = None
    prompt_ids: list = None
    max_tokens: int = 16
    temperature: float = None
    top_k: int = None
    top_p: float = None
    frequency_penalty: float = None
    presence_penalty: float = None
    seed: int = None
    best_of: int = None
    stop: list = field(default_factory=list)
    stop_token_sequences: list = field(default_factory=list)
    end_ids: list = None
    with_text: bool = True
    streaming: bool = False


@dataclass(frozen=True)
class Chunk:
    """Progress of one sequence: new token ids and the text they complete (a delta).

    `prompt_tokens` is the length of the prompt, on the final chunk, where the runtime knows it.
    """

    token_ids: list
    text: str
    finish_reason: str = None
    stop_reason: str = None
    cumulative_logprob: float = None
    prompt_tokens: int = None

    @property
    def final(self):
        return self.finish_reason is not None


@dataclass(frozen=True)
class Stats:
    """What a runtime is doing now, as of its last step. None: this runtime does not know.

    Requests: `active` are admitted, at most `max_active`; `scheduled` are in the last step, of which
    `context` process their prompt and `generation` do not; `waiting` were accepted and are in no
    step. KV cache in blocks of `kv_tokens_per_block` tokens; `kv_reused` counts since the start.
    """

    active: int = None
    max_active: int = None
    scheduled: int = None
    context: int = None
    generation: int = None
    waiting: int = None
    paused: int = None
    context_tokens: int = None
    micro_batch: int = None
    kv_max: int = None
    kv_free: int = None
    kv_used: int = None
    kv_tokens_per_block: int = None
    kv_reused: int = None
    gpu_bytes: int = None
    iteration: int = None
    timestamp_us: int = None

    @property
    def kv_fraction(self):
        """Used share of the blocks, 0..1."""
        if self.kv_max is None or self.kv_used is None:
            return None
        return self.kv_used / self.kv_max if self.kv_max else 0.0


class RequestError(ValueError):
    """The request itself is wrong or asks for what this runtime cannot do; names the field."""


def make_runtime(name):
    """The runtime of that name, not yet started.

    Raises:
        ValueError: neither `tensorrt_llm` nor `reference`.
    """
    if name == "tensorrt_llm":
        from trtllm_runtime import TrtllmRuntime

        return TrtllmRuntime()
    if name == "reference":
        from engineroom_reference.runtime import ReferenceRuntime

        return ReferenceRuntime()
    raise ValueError(f"runtime {name!r} is neither 'tensorrt_llm' nor 'reference'")
