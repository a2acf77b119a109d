"""The narrow interface between a Triton model file and what computes the tokens.

Two implementations: TensorRT-LLM's LLM (`trtllm_runtime.py`) and engineroom's CPU `reference`.
Nothing here imports either. `Request` and `Chunk` are made for each request and token, so they are not
frozen, which would cost more than all else about them; nobody changes one.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Lora:
    """An adapter: its integer id, a name, and where its files are (None: already known by id)."""

    id: int
    name: str = None
    path: str = None
    ckpt_source: str = None


@dataclass(frozen=True)
class Guide:
    """Guided decoding: `kind` is json, json_schema, regex, ebnf_grammar or structural_tag."""

    kind: str
    text: str = None


@dataclass
class Request:
    """One prompt to answer, in `n` sequences.

    Exactly one of `prompt` and `prompt_ids` is given. `end_ids` are token ids that end the text
    and are not part of it; None: the model's own. Sampling is greedy unless temperature, top_k or
    top_p says otherwise. Log probabilities are natural logarithms, after the engine's penalties.

    Attributes:
        add_special_tokens: of `prompt`; a text that begins with BOS never gets a second one.
        stop, bad: texts. `stop_token_sequences`, `bad_token_sequences`: token ids.
        embedding_bias: float32 [vocabulary], added to the logits before all else.
        log_probs: one value a generated token, in `Chunk.log_probs`.
        context_logits, generation_logits: `Chunk.context_logits` [prompt, vocabulary], once, and
            `Chunk.generation_logits` [tokens, vocabulary].
        media: decoded images, in the order of their places in the prompt.
        perf: `Chunk.perf` on the final chunk.
    """

    prompt: str = None
    prompt_ids: list = None
    add_special_tokens: bool = True
    max_tokens: int = 16
    min_tokens: int = None
    n: int = 1
    beam_width: int = None
    best_of: int = None
    length_penalty: float = None
    early_stopping: bool = None
    beam_search_diversity_rate: float = None
    temperature: float = None
    top_k: int = None
    top_p: float = None
    top_p_min: float = None
    repetition_penalty: float = None
    frequency_penalty: float = None
    presence_penalty: float = None
    seed: int = None
    stop: list = field(default_factory=list)
    stop_token_sequences: list = field(default_factory=list)
    bad: list = field(default_factory=list)
    bad_token_sequences: list = field(default_factory=list)
    embedding_bias: object = None
    end_ids: list = None
    guide: Guide = None
    lora: Lora = None
    media: list = field(default_factory=list)
    logits_post_processor: str = None
    priority: float = None
    log_probs: bool = False
    context_logits: bool = False
    generation_logits: bool = False
    perf: bool = False
    with_text: bool = True
    streaming: bool = False


@dataclass(frozen=True)
class Perf:
    """Times (ns since the epoch), KV blocks and draft tokens of one request. None: not known."""

    arrival_ns: int = None
    first_scheduled_ns: int = None
    first_token_ns: int = None
    last_token_ns: int = None
    kv_total_blocks: int = None
    kv_new_blocks: int = None
    kv_reused_blocks: int = None
    kv_missed_blocks: int = None
    acceptance_rate: float = None
    accepted_draft_tokens: int = None
    draft_tokens: int = None

    @property
    def kv_hit_rate(self):
        """Reused share of the prompt's blocks, 0..1; None where the counts are not known."""
        if self.kv_reused_blocks is None or self.kv_missed_blocks is None:
            return None
        asked = self.kv_reused_blocks + self.kv_missed_blocks
        return self.kv_reused_blocks / asked if asked else 0.0


@dataclass
class Chunk:
    """Progress of one sequence: new token ids and the text they complete (a delta).

    A request ends with one final chunk a sequence (`index` 0..n-1); an error or a cancellation ends
    all of them with one. `prompt_tokens` is the length of the prompt, on final chunks, where the
    runtime knows it. `log_probs` and `generation_logits` are aligned with `token_ids`. `invalid` says
    of an error that the request itself is wrong.
    """

    token_ids: list
    text: str
    finish_reason: str = None
    stop_reason: str = None
    cumulative_logprob: float = None
    prompt_tokens: int = None
    index: int = 0
    log_probs: list = None
    context_logits: object = None
    generation_logits: object = None
    perf: Perf = None
    invalid: bool = False

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
    """The request itself is wrong or asks for what this runtime cannot do; names the field.

    Attributes:
        field: the name in `Request` that the message begins with, for a model file that knows it
            under another name; None where there is none.
    """

    def __init__(self, message, field=None):
        super().__init__(message)
        self.field = field


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
