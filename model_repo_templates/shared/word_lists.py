"""Stop words, bad words and embedding bias: words as text to what the engine takes.

A word's tokens depend on what stands before it: SentencePiece puts a space before the first word of
a text, byte-level BPE has one token for a word with its leading space and another without. So each
word is listed as it is, with a leading space, and as it follows a line break. Nothing of Triton is
imported.
"""

import functools
import json
import os

import numpy as np
from request_fields import FieldError, finite_array

_CACHED_CHARACTERS = 512
"""Lists up to this length are kept: clients send the same few with every request."""


class WordLists:
    """Word lists by one tokenizer."""

    def __init__(self, codec):
        self._codec = codec
        self._variants = functools.lru_cache(maxsize=4096)(self._spell)
        self._cached_row = functools.lru_cache(maxsize=1024)(self._row)

    def _spell(self, word):
        """Token sequences that spell `word` in different places, without repeats."""
        encode, found = self._codec.encode, {}
        line = encode("\n", False)
        after = encode("\n" + word, False)
        places = [encode(word, False), encode(" " + word, False)]
        if after[: len(line)] == line:
            places.append(after[len(line) :])
        for ids in places:
            # Near a tokenizer's normalization a piece can lose the word: no such piece may count.
            if ids and word in self._codec.decode(ids, False):
                found[tuple(ids)] = None
        return tuple(found) or ((tuple(places[0]),) if places[0] else ())

    def row(self, words, sequences=()):
        """A WordRow of words and of further token sequences; None when there are none."""
        if not words and not sequences:
            return None
        small = sum(map(len, words)) <= _CACHED_CHARACTERS
        return (self._cached_row if small else self._row)(tuple(words), tuple(sequences))

    def _row(self, words, sequences):
        spelled = dict.fromkeys(
            [*sequences, *(ids for word in words for ids in self._variants(word))]
        )
        return WordRow(spelled) if spelled else None

    def bias(self, words, weights, size):
        """Embedding bias of one row, float32 [size]: a word's weight on every token that spells it.

        Raises:
            FieldError: not one finite weight a word, or a word without tokens.
        """
        if len(words) != len(weights):
            raise FieldError(
                f"embedding_bias_weights must have one weight a word: {len(words)} words, "
                f"{len(weights)} weights"
            )
        out = np.zeros(size, np.float32)
        finite_array("embedding_bias_weights", np.asarray(weights, np.float32))
        for word, weight in zip(words, weights):
            ids = {token for ids in self._variants(word) for token in ids}
            if not ids:
                raise FieldError(f"embedding_bias_words: {word!r} has no tokens")
            if max(ids) >= size:
                raise FieldError(f"embedding_bias_words: {word!r} is outside of the vocabulary")
            out[list(ids)] += weight
        return out


class WordRow:
    """Token sequences of one request row, in the engine's layout.

    Attributes:
        array: int32 [1, 2, length]: the ids of all words in a line, and the end offset of each word,
            padded with -1. Shared between requests: not to be changed.
    """

    __slots__ = ("_ends", "_ids", "array")

    def __init__(self, sequences):
        self._ids, self._ends = [], []
        for sequence in sequences:
            self._ids.extend(sequence)
            self._ends.append(len(self._ids))
        self.array = np.full((1, 2, len(self._ids)), -1, np.int32)
        self.array[0, 0] = self._ids
        self.array[0, 1, : len(self._ends)] = self._ends

    def sequences(self):
        """The token sequences, as lists."""
        return [self._ids[start:end] for start, end in zip([0, *self._ends], self._ends)]


def pack(rows):
    """WordRows (or None) of a batch as int32 [batch, 2, longest]; None when no row has words."""
    if len(rows) == 1:
        return None if rows[0] is None else rows[0].array
    if not any(rows):
        return None
    out = np.zeros((len(rows), 2, max(row.array.shape[2] for row in rows if row)), np.int32)
    out[:, 1] = -1
    for place, row in zip(out, rows):
        if row:
            place[:, : row.array.shape[2]] = row.array[0]
    return out


def vocabulary_size(folder):
    """Width of the model's logits by config.json, else by tokenizer.json; None where neither says."""
    for name, read in (("config.json", _config_size), ("tokenizer.json", _tokenizer_size)):
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:  # noqa: PTH118, PTH123
                size = read(json.load(file))
        except FileNotFoundError:
            continue
        if size:
            return size
    return None


def _config_size(config):
    text = config.get("text_config")
    return config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)


def _tokenizer_size(tokenizer):
    vocabulary = tokenizer.get("model", {}).get("vocab") or ()
    added = [token["id"] + 1 for token in tokenizer.get("added_tokens", ())]
    return max([len(vocabulary), *added])
