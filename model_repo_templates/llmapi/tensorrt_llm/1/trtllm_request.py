"""A runtime request as what TensorRT-LLM's LLM API takes. Imports TensorRT-LLM when first called.

Names are those of `SamplingParams`, `GuidedDecodingParams` and `LoRARequest` of 0.21 to 1.4
(tensorrt_llm/sampling_params.py, tensorrt_llm/executor/request.py).

Words as text: upstream tokenizes `stop` and `bad` only where it also chooses the end id itself
(llmapi/llm.py, _prepare_sampling_params), and fails on them beside an `end_id`. It adds the
tokenizer's and the model's own end ids then, so it can be left to it only if those are wanted.
"""

import inspect
import sys

from runtime_api import RequestError

# runtime_api.Request and SamplingParams call these the same.
SAME = (
    "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "top_p_min", "repetition_penalty",
    "frequency_penalty", "presence_penalty", "length_penalty", "beam_search_diversity_rate", "seed",
)  # fmt: skip
_GUIDES = {"json_schema": "json", "regex": "regex", "ebnf_grammar": "grammar",
           "structural_tag": "structural_tag"}  # fmt: skip


class Converter:
    """Makes the arguments of `LLM.generate_async`.

    Args:
        llm: the LLM. module: `tensorrt_llm`.
        end_ids: the model's own end-of-sequence ids.
        bos: text of the tokenizer's BOS token, or None.
        processors: {name: logits post-processor}.
        codec: `text_codec.TokenCodec` of the model, or None: all text is left to the LLM.
    """

    def __init__(self, llm, module, end_ids, bos, processors, codec=None):
        self._params, self._end_ids, self._bos = module.SamplingParams, end_ids, bos
        self._processors, self._codec = processors, codec
        # One that reads images does more with a text than to tokenize it, also without an image.
        reader = type(getattr(llm, "input_processor", None)).__name__
        self._encodes = codec is not None and reader in ("NoneType", "DefaultInputProcessor")
        try:
            self._known = frozenset(inspect.signature(llm.generate_async).parameters)
        except (TypeError, ValueError):
            self._known = frozenset()

    def prompt_ids(self, request):
        """Token ids of the prompt, or None: the LLM gets its text. Called from any thread."""
        if request.prompt_ids is not None:
            return list(request.prompt_ids)
        if self._encodes and not request.media:
            return self._codec.encode(request.prompt, request.add_special_tokens)
        return None

    def arguments(self, request, ids):
        """(inputs, sampling parameters, further keyword arguments) of `generate_async`.

        Args:
            ids: what `prompt_ids` gave.

        Raises:
            RequestError: something that this version's LLM API has no place for.
            ValueError: what SamplingParams refuses.
        """
        more = {}
        if request.lora is not None:
            more["lora_request"] = _lora(request.lora)
        if request.priority is not None:
            if "priority" not in self._known:
                raise RequestError("this release of the LLM API knows no priority")
            more["priority"] = request.priority
        inputs = request.prompt if ids is None else ids
        if request.media:
            inputs = {
                "prompt" if ids is None else "prompt_token_ids": inputs,
                "multi_modal_data": {"image": list(request.media)},
            }
        return inputs, self._params(**self.sampling(request, ids)), more

    def sampling(self, request, ids=None):
        """Keyword arguments of `SamplingParams`: what differs from its defaults."""
        given = vars(request)
        wanted = {name: given[name] for name in SAME if given[name] is not None}
        if not request.temperature and request.temperature is not None:
            # 0 means greedy to clients; upstream wants it above 0.
            del wanted["temperature"]
            wanted["top_k"] = 1
            wanted.pop("top_p", None)
        ends = self._end_ids if request.end_ids is None else request.end_ids
        stops = [_single("stop", ids) for ids in request.stop_token_sequences]
        words = (request.stop or request.bad) and self._words(request, wanted)
        if ends:
            if not words:
                wanted["end_id"] = ends[0]
            stops += ends[0 if words else 1 :]
        elif request.end_ids is not None:
            wanted["ignore_eos"] = True
        if stops:
            wanted["stop_token_ids"] = stops
        if request.bad_token_sequences:
            wanted["bad_token_ids"] = [_single("bad", ids) for ids in request.bad_token_sequences]
        if request.beam_width:
            wanted.update(use_beam_search=True, n=request.n, best_of=request.beam_width)
            if request.early_stopping is not None:
                wanted["early_stopping"] = int(request.early_stopping)
        else:
            if request.n > 1:
                wanted["n"] = request.n
            if request.best_of is not None and request.best_of > 1:
                wanted["best_of"] = request.best_of
        if request.log_probs:
            wanted["logprobs"] = 1
        if request.context_logits:
            wanted["return_context_logits"] = True
        if request.generation_logits:
            wanted["return_generation_logits"] = True
        if request.perf:
            wanted["return_perf_metrics"] = True
        if request.guide is not None:
            wanted["guided_decoding"] = _guided(request.guide)
        if request.logits_post_processor is not None:
            wanted["logits_processor"] = self._processor(request.logits_post_processor)
        if ids is None:
            starts = bool(self._bos) and request.prompt.startswith(self._bos)
            if starts or not request.add_special_tokens:
                wanted["add_special_tokens"] = False
        if self._codec is not None or not request.with_text:
            wanted["detokenize"] = False
        return wanted

    def _words(self, request, wanted):
        """Add stop and bad words as text; False: an end id must be given, and with it no such word."""
        ends = request.end_ids
        if ends or (ends is None and self._end_ids):
            own = ends is None or (self._end_ids and set(self._end_ids) <= set(ends))
            if not own:
                if request.bad:
                    raise RequestError(
                        "bad: the LLM API takes such words only with the model's own end ids"
                    )
                return False
        if request.bad:
            wanted["bad"] = list(request.bad)
        if request.stop and ends != []:  # upstream ignores them where it ignores end ids
            wanted["stop"] = list(request.stop)
            # Without the ids of the word the text could not be cut where the word begins.
            wanted["include_stop_str_in_output"] = True
        return True

    def _processor(self, name):
        found = self._processors.get(name)
        if found is None:
            known = ", ".join(sorted(self._processors)) or "none"
            raise RequestError(
                f"logits_post_processor {name[:80]!r} is not registered; there are: {known}"
            )
        return found


def _single(field, ids):
    if len(ids) != 1:
        raise RequestError(f"{field}: the LLM API takes such words as text or as one token id")
    return ids[0]


def _guided(guide):
    from tensorrt_llm.sampling_params import GuidedDecodingParams

    _read_by_xgrammar(guide)
    if guide.kind == "json":
        return GuidedDecodingParams(json_object=True)
    return GuidedDecodingParams(**{_GUIDES[guide.kind]: guide.text})


def _read_by_xgrammar(guide):
    """Refuse what the library cannot read, before it is the engine's loop that finds out.

    Raises:
        RequestError: not a schema, expression or grammar. Where the library is missing nothing is said.
    """
    make = {
        "json_schema": "from_json_schema", "regex": "from_regex", "ebnf_grammar": "from_ebnf",
    }.get(guide.kind)  # fmt: skip
    try:
        import xgrammar
    except ImportError:
        return
    try:
        if make is not None:
            getattr(xgrammar.Grammar, make)(guide.text)
    except Exception as error:
        line = next(iter(str(error).splitlines()), "")[:200]
        raise RequestError(f"guide is no valid {guide.kind}: {line}", field="guide") from None


def _lora(lora):
    from tensorrt_llm.executor.request import LoRARequest

    more = {} if lora.ckpt_source is None else {"lora_ckpt_source": lora.ckpt_source}
    return LoRARequest(lora.name or str(lora.id), lora.id, lora.path or "", **more)


def in_steps(request):
    """Whether the LLM is asked to stream: for a stream, and to find stop words in the text.

    Not where that changes the answer: which sequences are the best is known only at the end, and
    streamed logits are those of a step.
    """
    if request.streaming or not request.stop:
        return request.streaming
    return not (
        request.beam_width or (request.best_of or 1) > request.n or request.generation_logits
    )


def open_codec(folder):
    """`text_codec.TokenCodec` of a folder, or None (and a line in the log): text is left to the LLM."""
    from text_codec import TokenCodec

    try:
        return TokenCodec(folder)
    except Exception as error:
        line = next(iter(str(error).splitlines()), "")[:200]
        print(f"[engineroom] the LLM API does the text: {line}", file=sys.stderr)
        return None
