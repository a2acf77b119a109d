"""Tokenizers of every family, trained here on generated text, and random text in eight scripts.

Vocabularies are small, so that a character often spreads over several tokens and some characters
are unknown. Everything follows from fixed seeds.
"""

from __future__ import annotations

import functools
import json
import random
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

UNKNOWN, BEGIN, CALL = "<unk>", "<s>", "<|call|>"
ODD = ["é!", "中 文", "x</w>y"]
"""Added tokens: byte-level letters that are no text, characters outside of its alphabet, a mark."""
SPECIAL = [UNKNOWN, BEGIN, "</s>"]
VOCABULARY = 420


def _span(*ranges: tuple[int, int]) -> list[str]:
    return [chr(code) for low, high in ranges for code in range(low, high + 1)]


def _with_marks(letters: list[str], marks: list[str]) -> list[str]:
    """Letters alone and letters with one or two marks behind them."""
    return (
        letters + [a + m for a in letters[::3] for m in marks] + [letters[0] + marks[0] + marks[1]]
    )


_FACES = _span((0x1F600, 0x1F610), (0x1F431, 0x1F435))
_TONES = [chr(code) for code in range(0x1F3FB, 0x1F400)]
SCRIPTS: dict[str, list[str]] = {
    "latin": _with_marks(_span((0x61, 0x7A), (0xC0, 0xF6), (0x1EA0, 0x1EB5)), ["\u0301", "\u0323"]),
    "cyrillic": [*_span((0x410, 0x44F)), "ё", "є", "ї", "и\u0306"],
    "greek": _span((0x391, 0x3A1), (0x3B1, 0x3C9), (0x1F00, 0x1F07)),
    "rtl": _with_marks(_span((0x5D0, 0x5EA), (0x627, 0x63A)), ["\u05b8", "\u064e", "\u200f"]),
    "devanagari": _with_marks(_span((0x905, 0x939)), ["\u093f", "\u094d", "\u0902", "\u094d\u200d"]),
    "cjk": [
        *_span((0x4E00, 0x4E40), (0x3041, 0x3060), (0x30A1, 0x30B0)),
        "\U00020000", "。", "葛\U000e0100",
    ],
    "hangul": [*_span((0xAC00, 0xAC40), (0xD55C, 0xD570)), "\u1112\u1161\u11ab", "ㅎ"],
    "emoji": [
        *_FACES, "👩‍👩‍👧‍👦", "❤\ufe0f", "1\ufe0f\u20e3", "🇫🇷", "🏴\U000e0067\U000e0062\U000e007f",
        *["👍" + tone for tone in _TONES], "👩🏽‍💻", "☺\ufe0e",
    ],
}  # fmt: skip
_BETWEEN = [" "] * 12 + [
    "  ",
    "     ",
    "\n",
    "\n\n",
    "\t",
    " , ",
    ". ",
    " ! ",
    "'s ",
    " ' ",
    "-",
    "",
]


def random_text(script: str, source: random.Random) -> str:
    """Words of one script (some digits and Latin between them), odd spacing, special tokens."""
    words = []
    for _ in range(source.randint(0, 7)):
        kind = source.random()
        if kind < 0.08:
            words.append(source.choice([CALL, BEGIN, "\ufffd", "<0xE4>", "▁", "##"]))
        elif kind < 0.2:
            words.append(source.choice(["2026", "the", "do not", "can n't", "a.b", "x="]))
        else:
            words.append("".join(source.choices(SCRIPTS[script], k=source.randint(1, 6))))
        words.append(source.choice(_BETWEEN))
    return source.choice(["", "", " ", "   ", "\n"]) + "".join(words)


@functools.cache
def corpus() -> list[str]:
    """Text to train on; half of each script's characters do not occur in it."""
    source = random.Random(5)
    lines = []
    for name, letters in SCRIPTS.items():
        known = letters[::2] if name != "cjk" else letters[::7]
        for _ in range(120):
            words = ["".join(source.choices(known, k=source.randint(1, 4))) for _ in range(6)]
            lines.append(" ".join(words))
        lines += ["the do not can't a.b x= 2026 , . ! ?"] * 5
    return lines


def _trained(model: Any, trainer: Any, pre: Any, decoder: Any, normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator(corpus(), trainer)
    # One special and one ordinary added token, as chat templates and tool calls bring along.
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    tokenizer.add_tokens(
        [AddedToken(CALL, special=False), *(AddedToken(text, special=False) for text in ODD)]
    )
    return tokenizer


def _bpe(**changes: Any) -> Any:
    given: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "special_tokens": SPECIAL,
        "show_progress": False,
    }
    return trainers.BpeTrainer(**given | changes)


def _unigram() -> Any:
    return trainers.UnigramTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, unk_token=UNKNOWN, show_progress=False
    )


def _with_byte_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """256 tokens `<0x00>`.. in the model's vocabulary, as SentencePiece's byte fallback has them."""
    data = json.loads(tokenizer.to_str())
    model = data["model"]
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    # Added tokens sit behind the vocabulary: they move up by 256.
    size = len(model["vocab"])
    if isinstance(model["vocab"], dict):
        model["vocab"].update({piece: size + i for i, piece in enumerate(pieces)})
    else:
        model["vocab"] += [[piece, -20.0] for piece in pieces]
    for added in data["added_tokens"]:
        if added["id"] >= size:
            added["id"] += 256
    model["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(data))


def _byte_level(prefix: bool) -> Tokenizer:
    return _trained(
        models.BPE(),
        _bpe(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
        pre_tokenizers.ByteLevel(add_prefix_space=prefix),
        decoders.ByteLevel(add_prefix_space=prefix),
    )


def _byte_level_split() -> Tokenizer:
    """Llama 3: its own split of the text before the byte level."""
    from tokenizers import Regex

    pattern = Regex(r" ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+")
    return _trained(
        models.BPE(ignore_merges=True),
        _bpe(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(pattern, "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        decoders.ByteLevel(),
    )


def _metaspace(model: str, scheme: str) -> Tokenizer:
    unigram = model == "unigram"
    return _trained(
        models.Unigram() if unigram else models.BPE(unk_token=UNKNOWN),
        _unigram() if unigram else _bpe(limit_alphabet=200),
        pre_tokenizers.Metaspace(prepend_scheme=scheme),
        decoders.Metaspace(prepend_scheme=scheme),
    )


def _llama2() -> Tokenizer:
    """legacy: the space at the front comes from a normalizer and goes with Strip."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return _with_byte_tokens(
        _trained(
            models.BPE(unk_token=UNKNOWN, fuse_unk=True),
            _bpe(limit_alphabet=160),
            None,
            decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)]),
            normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        )
    )


def _fallback_unigram() -> Tokenizer:
    """Gemma's steps: byte fallback, and nothing stripped at the front."""
    return _with_byte_tokens(
        _trained(
            models.Unigram(),
            _unigram(),
            pre_tokenizers.Split(" ", "merged_with_previous"),
            decoders.Sequence(
                [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
            ),
            normalizers.Replace(" ", "▁"),
        )
    )


def _wordpiece(cleanup: bool) -> Tokenizer:
    return _trained(
        models.WordPiece(unk_token=UNKNOWN),
        trainers.WordPieceTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False),
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(cleanup=cleanup),
    )


def _suffix(decoder: bool) -> Tokenizer:
    mark = {"end_of_word_suffix": "</w>"} if decoder else {}
    return _trained(
        models.BPE(unk_token=UNKNOWN, **mark),
        _bpe(**mark),
        pre_tokenizers.Whitespace(),
        decoders.BPEDecoder("</w>") if decoder else None,
    )


def _outside() -> Tokenizer:
    """A decoder that the codec has no stages for: it decodes a window again."""
    from tokenizers import Regex

    tokenizer = _llama2()
    tokenizer.decoder = decoders.Sequence([decoders.Replace(Regex("▁"), " "), decoders.Fuse()])
    return tokenizer


FAMILIES = {
    "byte-level BPE": lambda: _byte_level(False),
    "byte-level BPE, add_prefix_space": lambda: _byte_level(True),
    "byte-level BPE, split (Llama 3)": _byte_level_split,
    "Metaspace Unigram, always": lambda: _metaspace("unigram", "always"),
    "Metaspace BPE, first": lambda: _metaspace("bpe", "first"),
    "Metaspace BPE, never": lambda: _metaspace("bpe", "never"),
    "byte fallback BPE (Llama 2)": _llama2,
    "byte fallback Unigram (Gemma)": _fallback_unigram,
    "WordPiece": lambda: _wordpiece(False),
    "WordPiece, cleanup": lambda: _wordpiece(True),
    "BPE with </w>": lambda: _suffix(True),
    "no decoder": lambda: _suffix(False),
    "unknown decoder (window)": _outside,
}
"""Name to maker. The last has no byte tokens that become text, so a window is exact for it."""


@functools.cache
def tokenizer(family: str) -> Tokenizer:
    return FAMILIES[family]()
