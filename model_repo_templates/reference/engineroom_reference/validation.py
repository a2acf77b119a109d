"""What a request may ask for. Each refusal begins with the name of the `runtime_api.Request` field."""

import math

import numpy as np
from runtime_api import RequestError

# Words are looked for at every token, so there is an end to them: per list, and all texts or ids.
MAX_WORDS = 1024
MAX_CHARACTERS = 65_536
MAX_IDS = 262_144
_INT32 = 2**31 - 1


def _refuse(field, problem):
    raise RequestError(f"{field} {problem}", field)


def _number(request, field, low=None, high=None, above=None):
    """A finite number in range, or None."""
    value = getattr(request, field)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _refuse(field, f"must be a number, got {value!r}")
    if not math.isfinite(value):
        _refuse(field, f"must be a finite number, got {value}")
    if above is not None and value <= above:
        _refuse(field, f"must be above {above}, got {value}")
    if low is not None and value < low:
        _refuse(field, f"must be at least {low}, got {value}")
    if high is not None and value > high:
        _refuse(field, f"must be at most {high}, got {value}")


def _integer(request, field, low, high=_INT32):
    value = getattr(request, field)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        _refuse(field, f"must be an integer, got {value!r}")
    _number(request, field, low, high)


def _words(request, field, of_ids=None):
    """A list of texts, or with `of_ids` (the vocabulary's size) of token id sequences."""
    words = getattr(request, field)
    if len(words) > MAX_WORDS:
        _refuse(field, f"has {len(words)} entries, the limit is {MAX_WORDS}")
    most, unit = (MAX_CHARACTERS, "characters") if of_ids is None else (MAX_IDS, "token ids")
    if sum(map(len, words)) > most:
        _refuse(field, f"has more than {most} {unit} altogether")
    for word in words:
        if not word:
            _refuse(field, "has an empty entry")
        if of_ids is not None:
            _ids(field, word, of_ids)


def _ids(field, ids, vocabulary):
    """Token ids of the vocabulary, as Python integers."""
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            _refuse(field, f"must hold ids of 0..{vocabulary - 1}, got {token!r}")


def check_sampling(request):
    """Raises RequestError: a value is out of its range, or needs what this runtime does not do."""
    _integer(request, "max_tokens", 1)
    _integer(request, "min_tokens", 0)
    if (request.min_tokens or 0) > request.max_tokens:
        _refuse("min_tokens", f"{request.min_tokens} is above max_tokens {request.max_tokens}")
    _integer(request, "n", 1)
    _integer(request, "beam_width", 1)
    if request.beam_width not in (None, 1):
        _refuse("beam_width", f"{request.beam_width}: the reference runtime computes no beams")
    _integer(request, "best_of", 1)
    if request.best_of not in (None, request.n):
        _refuse("best_of", f"{request.best_of}: the reference runtime computes n sequences only")
    _number(request, "temperature", low=0)
    _integer(request, "top_k", 0)
    _number(request, "top_p", low=0, high=1)
    if request.top_p_min not in (None, 0.0):
        _refuse("top_p_min", "is not computed by the reference runtime")
    _number(request, "repetition_penalty", above=0)
    _number(request, "frequency_penalty")
    _number(request, "presence_penalty")
    # These say how beams compete: without beams they have no meaning, on an engine as well.
    _number(request, "length_penalty")
    _number(request, "beam_search_diversity_rate")
    _integer(request, "seed", 0, 2**64 - 1)
    _number(request, "priority", low=0, high=1)
    if request.lora is not None:
        _refuse("lora", "is not computed by the reference runtime")
    if request.media:
        _refuse("media", "is not computed by the reference runtime: it takes text only")
    if request.logits_post_processor:
        _refuse("logits_post_processor", "is not computed by the reference runtime")


def check_words(request, vocabulary):
    """Raises RequestError: too many stop or bad words, empty ones, or ids out of the vocabulary."""
    _words(request, "stop")
    _words(request, "bad")
    _words(request, "stop_token_sequences", vocabulary)
    _words(request, "bad_token_sequences", vocabulary)
    if request.stop and not request.with_text:
        _refuse("stop", "needs with_text; without text, stop_token_sequences end an answer")
    if request.end_ids is not None:
        _ids("end_ids", request.end_ids, vocabulary)
    bias = request.embedding_bias
    if bias is not None:
        if np.shape(bias) != (vocabulary,):
            _refuse("embedding_bias", f"must have {vocabulary} values, got {np.shape(bias)}")
        if not np.isfinite(bias).all():
            _refuse("embedding_bias", "must hold finite numbers")


def prompt_ids(request, codec, vocabulary, longest):
    """The token ids of the prompt.

    Args:
        longest: tokens that prompt and answer may have together.

    Raises:
        RequestError: no tokens, too many, or ids out of the vocabulary.
    """
    field, ids = "prompt_ids", request.prompt_ids
    if ids is None:
        field, text = "prompt", request.prompt
        if not isinstance(text, str):
            _refuse(field, "or prompt_ids must be given")
        # A token has few characters: what is far above the limit need not be tokenized first.
        if len(text) > 64 * longest:
            _refuse(field, f"of {len(text)} characters cannot fit max_seq_len {longest}")
        ids = codec.encode(text, request.add_special_tokens)
    else:
        ids = list(ids)
        _ids(field, ids, vocabulary)
    if not ids:
        _refuse(field, "has no tokens")
    if len(ids) + request.max_tokens > longest:
        raise RequestError(
            f"{field} of {len(ids)} tokens + max_tokens {request.max_tokens} is above "
            f"max_seq_len {longest}",
            field,
        )
    return ids


def bad_sequences(request, codec):
    """Token id sequences of the bad words; a text counts with and without a space before it."""
    found = [list(sequence) for sequence in request.bad_token_sequences]
    for word in request.bad:
        for text in (word, f" {word}"):
            ids = codec.encode(text, False)
            if ids and ids not in found:
                found.append(ids)
    return found
