"""Tokens to text and back, for model files that a Triton server executes.

Imports nothing of engineroom: it must run in NVIDIA's stock container. `tokenizers` is used when
the folder has a tokenizer.json (it loads in milliseconds and needs no torch), else transformers.
One file, because each model folder carries its own copy.
"""

import codecs
import functools
import json
import os
import re


class TokenCodec:
    """One tokenizer with the two calls that serving needs.

    Args:
        folder: a directory with tokenizer.json, or anything AutoTokenizer can open.
    """

    def __init__(self, folder):
        self.folder = folder
        path = os.path.join(folder, "tokenizer.json")  # noqa: PTH118 - os is what a pod surely has
        self._fast = backend = None
        if os.path.isfile(path):  # noqa: PTH113
            from tokenizers import Tokenizer

            # One text at a time: handing it to a pool of threads costs a third more than it takes.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
            self._fast = Tokenizer.from_file(path)
            self._fast.no_padding()
            self._fast.no_truncation()
            # Without the characters' places that nobody reads here; tokenizers 0.20 and later.
            self._batch = getattr(self._fast, "encode_batch_fast", self._fast.encode_batch)
            backend = self._fast
        elif os.path.isdir(folder):  # noqa: PTH112
            from transformers import AutoTokenizer

            self._slow = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            plain = ("TokenizersBackend", "PreTrainedTokenizerFast")
            if type(self._slow)._decode.__qualname__.split(".")[0] in plain:
                backend = self._slow.backend_tokenizer
        else:
            raise FileNotFoundError(f"tokenizer folder {folder!r} does not exist in this container")
        self.bos_token = bos_token(folder)
        self._plan = None if backend is None else _plan(backend.decoder)
        if self._plan is not None:
            self._token = backend.id_to_token
            added = backend.get_added_tokens_decoder().values()
            self._special = frozenset(token.content for token in added if token.special)

    def encode(self, text, add_special_tokens=True):
        """Token ids of `text`. A prompt that already begins with BOS gets no second one."""
        if self.bos_token and text.startswith(self.bos_token):
            add_special_tokens = False
        if self._fast is not None:
            return self._batch([text], add_special_tokens=add_special_tokens)[0].ids
        return self._slow.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids, skip_special_tokens=True):
        """Text of `ids`; bytes that are no whole character become U+FFFD.

        Nothing is cleaned up afterwards: `clean_up_tokenization_spaces` of tokenizer_config.json,
        which takes spaces before punctuation out of what the model wrote, has no effect.
        """
        if self._fast is not None:
            return self._fast.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return self._slow.decode(
            list(ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )

    def tokens(self, ids, skip_special_tokens):
        """The tokens of `ids` that a decoder gets to see."""
        tokens = [token for token in map(self._token, ids) if token is not None]
        if skip_special_tokens:
            return [token for token in tokens if token not in self._special]
        return tokens

    def stages(self, ends):
        """Fresh incremental decoder stages, or None where only whole decodes are known."""
        return None if self._plan is None else [make(ends) for make in self._plan]


class TextStream:
    """Incremental detokenization: the pieces concatenate to exactly `codec.decode(all ids)`.

    Text is emitted as soon as no later token can change it. Two things wait: an incomplete
    character, and a run of byte tokens (`<0xE4>`) until another token ends it, because one broken
    byte turns the whole run into U+FFFD.

    Args:
        ends: whether finish() will be called. If not, characters of a byte run are emitted once
            they are whole, since nothing would emit the last ones later; the pieces then differ
            from decode() where a run turns out to be broken.
    """

    def __init__(self, codec, skip_special_tokens=True, ends=True):
        self._codec, self._skip = codec, skip_special_tokens
        self._stages = codec.stages(ends)
        if self._stages is None:
            self._window = _Window(codec, skip_special_tokens)

    def push(self, ids):
        """Add tokens; return the text that they complete (may be empty)."""
        if self._stages is None:
            return self._window.push(ids)
        tokens = self._codec.tokens(ids, self._skip)
        for stage in self._stages:
            tokens = stage.feed(tokens)
        return "".join(tokens)

    def finish(self):
        """What is left at the end of the stream: an unfinished character shows as U+FFFD."""
        if self._stages is None:
            return self._window.finish()
        tokens = []
        for stage in self._stages:
            tokens = stage.feed(tokens) + stage.end()
        return "".join(tokens)


class _Window:
    """For tokenizers whose decoder is unknown: a short window of earlier tokens is decoded again.

    A token's text can depend on the one before it (leading spaces, characters spread over several
    tokens), so the window begins at the tokens that gave the last piece.
    """

    def __init__(self, codec, skip):
        self._codec, self._skip = codec, skip
        self._ids, self._read, self._next = [], 0, 0

    def push(self, ids):
        self._ids.extend(ids)
        # While text is held back for long, look at it rarely: the work stays linear.
        if len(self._ids) < self._next:
            return ""
        before, after = self._decode(self._ids[: self._read]), self._decode(self._ids)
        if len(after) <= len(before) or after.endswith("\ufffd") or not after.startswith(before):
            held = len(self._ids) - self._read
            self._next = len(self._ids) + max(1, held // 8)
            return ""
        del self._ids[: self._read]
        self._read, self._next = len(self._ids), 0
        return after[len(before) :]

    def finish(self):
        before, after = self._decode(self._ids[: self._read]), self._decode(self._ids)
        self._ids, self._read = [], 0
        return after[len(before) :]

    def _decode(self, ids):
        return self._codec.decode(ids, self._skip)


# ---- the decoders of `tokenizers` (0.22, src/decoders and src/pre_tokenizers), as streams: feed()
# takes tokens and returns those that are final, end() returns the rest.


class _Each:
    """A decoder that treats each token alone, the first perhaps otherwise than the others."""

    def __init__(self, rest, first=None):
        self._now, self._rest = first or rest, rest

    def feed(self, tokens):
        if not tokens:
            return tokens
        head, self._now = self._now(tokens[0]), self._rest
        return [head, *map(self._rest, tokens[1:])]

    def end(self):
        return []


class _ByteLevel:
    def __init__(self):
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, tokens):
        return [self._utf8.decode(b"".join(map(_token_bytes, tokens)))]

    def end(self):
        return [self._utf8.decode(b"", True)]


class _ByteRuns:
    """ByteFallback: a run of byte tokens is text if all of it is UTF-8, else U+FFFD per byte."""

    def __init__(self, hold):
        self._hold = hold
        self._reset()

    def _reset(self):
        self._utf8, self._text, self._unsent = None, [], 0

    def feed(self, tokens):
        out = []
        for token in tokens:
            if len(token) == 6 and _BYTE.fullmatch(token):
                out += self._byte(bytes((int(token[3:5], 16),)))
            else:
                if self._utf8:
                    out += self.end()
                out.append(token)
        return out

    def _byte(self, byte):
        self._utf8 = self._utf8 or codecs.getincrementaldecoder("utf-8")()
        self._unsent += 1
        try:
            self._text.append(self._utf8.decode(byte))
        except UnicodeDecodeError:
            self._utf8 = _BROKEN
        if self._utf8 is _BROKEN:
            return self._take(["\ufffd"] * self._unsent)
        if self._text[-1] and not self._hold:
            return self._take(self._text)
        return []

    def _take(self, out):
        self._text, self._unsent = [], 0
        return out

    def end(self):
        whole = self._utf8 in (None, _BROKEN) or not self._utf8.getstate()[0]
        out = ["".join(self._text)] if whole else ["\ufffd"] * self._unsent
        self._reset()
        return [token for token in out if token]


class _Suffix:
    """BPEDecoder: the end-of-word mark is a space, except in the last token."""

    def __init__(self, mark):
        self._mark, self._rest = mark, []

    def feed(self, tokens):
        out = []
        for token in tokens:
            head, *rest = token.split(self._mark)
            out.append(" ".join(["", *self._rest]) + head)
            self._rest = rest
        return out

    def end(self):
        return ["".join(self._rest)]


class _StripEnds:
    """Strip behind Fuse: the tokens are parts of one text."""

    def __init__(self, content, start, stop):
        self._content, self._start, self._stop, self._held = content, start, stop, ""

    def feed(self, tokens):
        text = "".join(tokens)
        while self._start and text.startswith(self._content):
            text, self._start = text[1:], self._start - 1
        if text:
            self._start = 0
        if not self._stop:
            return [text]
        text = self._held + text
        cut = max(len(text.rstrip(self._content)), len(text) - self._stop)
        self._held = text[cut:]
        return [text[:cut]]

    def end(self):
        return []


def _plan(decoder):
    """Makers of stages (called with `ends`) for a `tokenizers` decoder; None: not known here."""
    if decoder is None:
        return [lambda _: _Each(" {}".format, str)]
    try:
        specs = [json.loads(decoder.__getstate__())]
    except Exception:  # one written in Python has no such form
        return None
    makers, fused = [], False
    while specs:
        spec = specs.pop(0)
        kind = spec["type"]
        if kind == "Sequence":
            specs = spec["decoders"] + specs
            continue
        make = _maker(kind, spec, fused)
        if make is None:
            return None
        if kind != "Fuse":
            makers.append(make)
        fused = fused or kind in ("Fuse", "ByteLevel")
    return makers


def _maker(kind, spec, fused):
    if kind == "Fuse":
        return _Each
    if kind == "Strip":
        content, start, stop = spec["content"], spec["start"], spec["stop"]
        if fused:
            return lambda _: _StripEnds(content, start, stop)
        return lambda _: _Each(
            lambda token: "".join(_StripEnds(content, start, stop).feed([token]))
        )
    if kind == "Replace":
        old, new = spec["pattern"].get("String"), spec["content"]
        if not old or (fused and len(old) > 1):
            return None
        return lambda _: _Each(lambda token: token.replace(old, new))
    if fused:
        return None
    if kind == "ByteLevel":
        return lambda _: _ByteLevel()
    if kind == "ByteFallback":
        return _ByteRuns
    if kind == "BPEDecoder":
        return lambda _: _Suffix(spec["suffix"])
    if kind == "Metaspace":
        mark = spec["replacement"]
        first = "" if spec.get("prepend_scheme", "always") != "never" else " "
        return lambda _: _Each(
            lambda token: token.replace(mark, " "), lambda token: token.replace(mark, first)
        )
    if kind == "WordPiece":
        prefix, clean = spec["prefix"], _clean if spec["cleanup"] else str
        return lambda _: _Each(
            lambda token: clean(token[len(prefix) :] if token.startswith(prefix) else " " + token),
            clean,
        )
    return None


class _Broken:
    """Stands for the UTF-8 decoder of a byte run that is no text."""

    def decode(self, byte):
        return ""


_BROKEN = _Broken()
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
_CLEAN = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " do not", " 's", " 've", " 're")


def _clean(token):
    for old in _CLEAN:
        token = token.replace(old, old.strip() if old != " do not" else " don't")
    return token


def _byte_alphabet():
    """Character to byte, as byte-level BPE writes bytes: printable Latin-1 is itself."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


_ALPHABET = _byte_alphabet()


@functools.lru_cache(maxsize=1 << 16)
def _token_bytes(token):
    # An added token with a character outside of the alphabet stands for itself.
    try:
        return bytes([_ALPHABET[character] for character in token])
    except KeyError:
        return token.encode("utf-8", "replace")


def end_ids(folder):
    """End-of-sequence ids of generation_config.json, else of config.json; may be empty."""
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder, name).get("eos_token_id")
        if isinstance(value, int):
            return [value]
        if isinstance(value, list):
            return [int(item) for item in value]
    return []


def _read_json(folder, name):
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            return json.load(file)
    except FileNotFoundError:
        return {}


def bos_token(folder):
    """Text of the beginning-of-sequence token; None where there is none."""
    value = _read_json(folder, "tokenizer_config.json").get("bos_token")
    # Special tokens are written as text or as an object.
    return value.get("content") if isinstance(value, dict) else value
