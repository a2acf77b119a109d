"""Guided decoding through llguidance: a guide becomes a matcher, a matcher a mask a token.

TensorRT-LLM's own engines for this are XGrammar and llguidance. Where they differ in what they
accept, this runtime accepts what llguidance does. JSON is compact here: no whitespace is generated
between tokens, which an engine may generate.
"""

import collections
import json
import os
import threading

import numpy as np
import torch
from runtime_api import RequestError

KINDS = ("json", "json_schema", "regex", "ebnf_grammar", "structural_tag")
# Compiling happens in the caller's thread. With these, the worst seen on one 2 GHz core is about a
# third of a second; llguidance's own limits would allow seconds.
MAX_GUIDE_BYTES = 64 * 1024
MAX_GRAMMAR_SIZE = 100_000
_CACHED = 32
_FIELD = "guided_decoding_guide"
# Objects and arrays, as XGrammar's built-in JSON grammar has it.
_ANY_JSON = {"type": ["object", "array"]}


class Guides:
    """Matchers for one tokenizer.

    Args:
        folder: of the tokenizer; read at the first guide.
        vocabulary: of the model.
        ends: the model's end ids.
    """

    def __init__(self, folder, vocabulary, ends):
        self._folder, self._vocabulary, self._ends = folder, vocabulary, ends
        self._lock = threading.Lock()
        self._tokenizer = None
        self._made = collections.OrderedDict()

    def __call__(self, guide):
        """A fresh `Matcher` of the guide.

        Raises:
            RequestError: names guided_decoding_guide_type or guided_decoding_guide.
        """
        if guide.kind not in KINDS:
            raise RequestError(
                f"guided_decoding_guide_type must be one of {', '.join(KINDS)}, got {guide.kind!r}"
            )
        text = guide.text or ""
        if guide.kind != "json" and not text.strip():
            raise RequestError(f"{_FIELD} must be given with guide type {guide.kind}")
        if len(text.encode("utf-8", "replace")) > MAX_GUIDE_BYTES:
            raise RequestError(f"{_FIELD} is above the limit of {MAX_GUIDE_BYTES} bytes")
        key = (guide.kind, "" if guide.kind == "json" else text)
        with self._lock:
            matcher = self._made.get(key)
            if matcher is None:
                matcher = self._compile(*key)
                self._made[key] = matcher
                if len(self._made) > _CACHED:
                    self._made.popitem(last=False)
            self._made.move_to_end(key)
            return Matcher(matcher.deep_copy(), self._vocabulary, self._ends)

    def _compile(self, kind, text):
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ImportError:
            raise RequestError(
                "guided_decoding_guide_type needs llguidance, which is not installed here"
            ) from None
        if self._tokenizer is None:
            self._tokenizer = self._load()
        try:
            grammar = _grammar(kind, text)
        except Exception as error:
            raise RequestError(f"{_FIELD} is no valid {kind}: {_short(error)}") from None
        limits = LLParserLimits(max_grammar_size=MAX_GRAMMAR_SIZE)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise RequestError(f"{_FIELD} is no valid {kind}: {_short(matcher.get_error())}")
        return matcher

    def _load(self):
        from llguidance import LLTokenizer

        path = os.path.join(self._folder, "tokenizer.json")  # noqa: PTH118
        ends = list(self._ends) or None
        try:
            if os.path.isfile(path):  # noqa: PTH113
                from tokenizers import Tokenizer

                backend = Tokenizer.from_file(path)
                backend.no_padding()
                backend.no_truncation()
            else:
                from transformers import AutoTokenizer

                backend = AutoTokenizer.from_pretrained(
                    self._folder, trust_remote_code=False
                ).backend_tokenizer
            size = max(self._vocabulary, backend.get_vocab_size(with_added_tokens=True))
            return LLTokenizer(backend.to_str(), n_vocab=size, eos_token=ends)
        except Exception as error:
            raise RequestError(
                f"{_FIELD}: this tokenizer is unknown to llguidance: {_short(error)}"
            ) from None


def _grammar(kind, text):
    from llguidance import LLMatcher, grammar_from

    if kind in ("json", "json_schema"):
        schema = _ANY_JSON if kind == "json" else json.loads(text)
        return LLMatcher.grammar_from_json_schema(schema, {"whitespace_flexible": False})
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "ebnf_grammar":
        return grammar_from("ebnf", text)
    return _structural_tag(json.loads(text))


def _structural_tag(guide):
    """The guide of TensorRT-LLM: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}."""
    from llguidance import StructTag

    tags = []
    for item in guide["structures"]:
        triggers = [one for one in guide["triggers"] if item["begin"].startswith(one)]
        if not triggers:
            raise ValueError(f"no trigger begins {item['begin']!r}")
        tags.append(
            StructTag(
                trigger=triggers[0], begin=item["begin"], grammar=item["schema"], end=item["end"]
            )
        )
    return StructTag.to_grammar(tags, assume_special=False)


def _short(error):
    return " ".join(str(error).split())[:300] or type(error).__name__


class Matcher:
    """Where one sequence is in its grammar."""

    def __init__(self, matcher, vocabulary, ends):
        self._matcher, self._vocabulary, self._own_ends = matcher, vocabulary, ends

    def copy(self):
        return Matcher(self._matcher.deep_copy(), self._vocabulary, self._own_ends)

    def allowed(self, ends):
        """Boolean mask [vocabulary]; the request's `ends` are allowed where the guide may end.

        Raises:
            RequestError: the grammar ran into a limit of llguidance.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._refuse_error()
        mask = np.zeros(self._vocabulary, bool)
        known = np.unpackbits(bits, bitorder="little")[: self._vocabulary]
        mask[: len(known)] = known
        mask[self._own_ends] = False
        if self._matcher.is_accepting():
            mask[ends] = True
        return torch.from_numpy(mask)

    @property
    def accepting(self):
        """The answer may end here."""
        return self._matcher.is_accepting()

    def push(self, token):
        self._matcher.consume_token(token)
        self._refuse_error()

    def _refuse_error(self):
        if self._matcher.is_error():
            raise RequestError(f"{_FIELD}: {_short(self._matcher.get_error())}")
