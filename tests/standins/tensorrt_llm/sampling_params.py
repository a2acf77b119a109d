"""Parameters of a request: the field names of TensorRT-LLM 1.2 (tensorrt_llm/sampling_params.py)."""

import os
from dataclasses import dataclass

DEFAULTS = {
    "end_id": None, "pad_id": None, "max_tokens": 32, "bad": None, "bad_token_ids": None, "stop": None,
    "stop_token_ids": None, "include_stop_str_in_output": False, "embedding_bias": None,
    "logits_processor": None, "apply_batched_logits_processor": False, "n": 1, "best_of": None,
    "use_beam_search": False, "top_k": None, "top_p": None, "top_p_min": None, "top_p_reset_ids": None,
    "top_p_decay": None, "seed": None, "temperature": None, "min_tokens": None,
    "beam_search_diversity_rate": None, "repetition_penalty": None, "presence_penalty": None,
    "frequency_penalty": None, "length_penalty": None, "early_stopping": None,
    "no_repeat_ngram_size": None, "min_p": None, "beam_width_array": None, "logprobs": None,
    "prompt_logprobs": None, "return_context_logits": False, "return_generation_logits": False,
    "exclude_input_from_output": True, "return_encoder_output": False, "return_perf_metrics": False,
    "additional_model_outputs": None, "lookahead_config": None, "guided_decoding": None,
    "ignore_eos": False, "detokenize": True, "add_special_tokens": True, "truncate_prompt_tokens": None,
    "skip_special_tokens": True, "spaces_between_special_tokens": True,
}  # fmt: skip
# Upstream's model file of 0.19 sends it; later releases do not know it.
OLDER = {"beam_width": None}
_OLD = os.environ.get("STANDIN_TRTLLM_VERSION", "").startswith("0.")
KNOWN = {**DEFAULTS, **(OLDER if _OLD else {})}


class SamplingParams:
    """`given` holds the arguments as they were given.

    Raises:
        TypeError: an argument that TensorRT-LLM does not know.
        ValueError: a value that it refuses.
    """

    def __init__(self, **given):
        for name in given:
            if name not in KNOWN:
                raise TypeError(
                    f"SamplingParams.__init__() got an unexpected keyword argument {name!r}"
                )
        self.__dict__.update(given, given=given)
        self.best_of = self.best_of or self.n
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be positive, got {self.max_tokens}")
        if self.best_of < self.n:
            raise ValueError(f"best_of {self.best_of} is less than n {self.n}")

    def prepare(self, tokenizer):
        """Before a request: words as text are tokenized only where no end id was given, as upstream.

        Raises:
            RuntimeError: they were not; upstream says so when it asks for their ids.
        """
        if self.end_id is not None:
            for name in ("stop", "bad"):
                if getattr(self, name):
                    raise RuntimeError(f"SamplingParams.{name} is not processed by tokenizer")
        elif tokenizer is not None:
            self.end_id = tokenizer.eos_token_id
            words = [self.stop] if isinstance(self.stop, str) else self.stop or ()
            self._stop_word_ids = [tokenizer.encode(word, False) for word in words]
            for word in self.bad or ():
                tokenizer.encode(word, False)


for _name, _value in KNOWN.items():
    setattr(SamplingParams, _name, _value)


@dataclass(kw_only=True)
class GuidedDecodingParams:
    """One of the fields, at most."""

    json: object = None
    regex: str = None
    grammar: str = None
    json_object: bool = False
    structural_tag: str = None

    def __post_init__(self):
        if sum(bool(value) for value in vars(self).values()) > 1:
            raise ValueError("Only one guide can be used for a request")
