"""Tokens to text without a tokenizer: vocabulary pieces and raw bytes, whole and as a stream.

The stream never takes back what it sent: a character whose bytes are not all there waits, and what
is left at the end shows as U+FFFD, as a decode of the whole shows it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

REPLACEMENT = "\ufffd"
SPACE = "\u2581"  # how SentencePiece writes a space inside a piece
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>", re.ASCII)
_CONTROL = frozenset(("<s>", "</s>", "<unk>", "<pad>"))
_PER_BYTE = "replace-each-byte"


def _each_byte(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeDecodeError):
        return REPLACEMENT * (error.end - error.start), error.end
    raise error


codecs.register_error(_PER_BYTE, _each_byte)


@dataclass(frozen=True)
class Tokens:
    """Tokens as bytes.

    Attributes:
        data: bytes of each token; empty for a special token that is skipped.
        strips: SentencePiece: one space at the very front is not part of the text.
        errors: how bytes that are no character show. A decoder of byte pieces (tokenizers ByteFallback,
            sentencepiece) writes U+FFFD for each byte, a byte-level one for each broken sequence.
    """

    data: tuple[bytes, ...]
    strips: bool = False
    errors: str = "replace"

    def alone(self) -> list[str]:
        """Each token decoded by itself."""
        return [self._front(item.decode("utf-8", self.errors)) for item in self.data]

    def _front(self, text: str) -> str:
        return text[1:] if self.strips and text.startswith(" ") else text

    def stream(self) -> Deltas:
        """New text of each token, and what is left at the end."""
        decoder = codecs.getincrementaldecoder("utf-8")(self.errors)
        deltas: list[str] = []
        started = False
        for item in self.data:
            text = decoder.decode(item)
            if text and not started:
                started, text = True, self._front(text)
            deltas.append(text)
        return Deltas(tuple(deltas), decoder.decode(b"", final=True))


@dataclass(frozen=True)
class Deltas:
    deltas: tuple[str, ...]
    flush: str = ""

    @property
    def text(self) -> str:
        return "".join(self.deltas) + self.flush


@cache
def byte_alphabet() -> dict[str, int]:
    """Character to byte, as byte-level BPE (GPT-2 and its heirs) writes bytes in its vocabulary."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in set(shown)]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


def is_byte_level(pieces: Iterable[str], family: str | None) -> bool:
    """Whether pieces are written in the byte alphabet: stated, else seen by what stands in them."""
    joined = "".join(pieces)
    if family == "sentencepiece" or SPACE in joined:
        return False
    if family == "bpe":
        return True
    alphabet = byte_alphabet()
    return any("\u0100" <= ch <= "\u0143" for ch in joined) and all(ch in alphabet for ch in joined)


def of_pieces(
    pieces: Sequence[str], family: str | None, special: Collection[str] | None = ()
) -> Tokens:
    """Tokens of vocabulary pieces.

    Args:
        special: pieces that are skipped; None where special tokens are kept.
    """
    byte_level = is_byte_level((p for p in pieces if p not in (special or ())), family)
    skipped = None if special is None else {*special, *(() if byte_level else _CONTROL)}
    data: list[bytes] = []
    fallback = False
    for piece in pieces:
        if skipped is not None and piece in skipped:
            data.append(b"")
        elif byte_level:
            data.append(_of_alphabet(piece))
        elif match := _BYTE_PIECE.fullmatch(piece):
            data.append(bytes.fromhex(match[1]))
            fallback = True
        else:
            data.append(_encoded(piece.replace(SPACE, " ")))
    metaspace = not byte_level and (
        family == "sentencepiece" or fallback or any(SPACE in p for p in pieces)
    )
    return Tokens(tuple(data), metaspace, _PER_BYTE if metaspace else "replace")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _of_alphabet(piece: str) -> bytes:
    alphabet = byte_alphabet()
    if all(ch in alphabet for ch in piece):
        return bytes(alphabet[ch] for ch in piece)
    return _encoded(piece)  # an added token is written as its text


def of_hex(
    tokens: Sequence[str], family: str | None, special: Collection[str] | None = ()
) -> Tokens:
    """Tokens of bytes written in hex.

    Raises:
        ValueError: not hex.
    """
    data = [bytes.fromhex(token) for token in tokens]
    names = {_encoded(name) for name in special or ()}
    data = [b"" if item in names else item for item in data]
    mark = _encoded(SPACE)
    marked = family == "sentencepiece" and any(mark in item for item in data)
    if marked:
        data = [item.replace(mark, b" ") for item in data]
    return Tokens(tuple(data), marked)


def of_accumulated(responses: Sequence[str]) -> Deltas | None:
    """Deltas of responses that each hold the whole text so far; None where one takes text back.

    U+FFFD at the end of a response is a character that is not whole yet, except in the last one.
    """
    sent, deltas = "", []
    for response in responses:
        whole = response.rstrip(REPLACEMENT)
        if not whole.startswith(sent):
            if sent.startswith(whole):  # nothing new
                whole = sent
            else:
                return None
        deltas.append(whole[len(sent) :])
        sent = whole
    last = responses[-1] if responses else ""
    return Deltas(tuple(deltas), last[len(sent) :])


def grows(responses: Sequence[str]) -> bool:
    """Whether each response repeats the one before it and adds to it, often enough to be no chance."""
    return (
        len(responses) >= 3
        and bool(responses[0])
        and all(
            len(b) > len(a) and b.startswith(a.rstrip(REPLACEMENT)) for a, b in pairwise(responses)
        )
    )


class IdText:
    """A sequence of ids as a text with one character for each, so that a search runs at C speed."""

    def __init__(self, ids: Sequence[int]) -> None:
        numbers: dict[int, str] = {}
        for number in ids:
            if number not in numbers and len(numbers) < 0x10FFFF:
                numbers[number] = chr(len(numbers))
        self._numbers = numbers
        self._text = "".join(numbers.get(number, "\U0010ffff") for number in ids)

    def find(self, ids: Sequence[int], end: int | None = None) -> int:
        """First place of `ids` that ends at or before `end`; -1 where there is none."""
        if not ids or any(number not in self._numbers for number in ids):
            return -1
        return self._text.find("".join(self._numbers[number] for number in ids), 0, end)


def word_list(rows: Sequence[Sequence[Sequence[int]]]) -> list[list[list[int]]]:
    """The int32 tensor [rows, 2, n] of stop or bad words: ids in a row, and where each word ends.

    Words without ids are left out; ids are padded with 0 and ends with -1 to the longest row, which is
    at least 1 wide. Source: preprocessing/1/model.py of inflight_batcher_llm, _to_word_list_format.
    """
    kept = [[tuple(word) for word in row if word] for row in rows]
    flat = [[number for word in row for number in word] for row in kept]
    ends = []
    for row in kept:
        at, offsets = 0, []
        for word in row:
            at += len(word)
            offsets.append(at)
        ends.append(offsets)
    width = max([1, *(len(ids) for ids in flat)])
    return [
        [ids + [0] * (width - len(ids)), offsets + [-1] * (width - len(offsets))]
        for ids, offsets in zip(flat, ends)
    ]
