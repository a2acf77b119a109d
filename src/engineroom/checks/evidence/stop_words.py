"""Stop words: their tensor, and whether their ids come up in the stream.

The engine compares ids, not text. One text has several spellings in ids: SentencePiece puts a space
in front of what is encoded alone, and any tokenizer joins a word with what stands beside it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from engineroom.checks.codes import declare
from engineroom.checks.evidence import text_stream
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.reading.facts import Request
from engineroom.reading.token_text import IdText, word_list
from engineroom.types import Figure, Finding

_LAYOUT = (
    "NVIDIA/TensorRT-LLM triton_backend/all_models/inflight_batcher_llm/preprocessing/1/model.py @ 01259b15, "
    "_to_word_list_format (tensorrtllm_backend @ v0.5.0 and later alike)"
)
_KERNEL = "cpp/tensorrt_llm/kernels/stopCriteriaKernels.cu (compares the last ids of the sequence)"
SPELLING = declare(
    "stop-word-other-spelling", Topic.STOP_WORDS, Severity.ERROR,
    says="a stop word is given in the ids that it has inside running text",
    why="ids are compared, not text: encoded alone a word has other ids than in context, and nothing stops",
    source=f"NVIDIA/TensorRT-LLM#90 (maintainer: pass the ids that are wanted); {_KERNEL}",
)  # fmt: skip
WITH_BOS = declare(
    "stop-word-with-bos", Topic.STOP_WORDS, Severity.ERROR,
    says="stop words are encoded without special tokens",
    why="BOS comes once, at the front of the prompt: a word that begins with it is never generated",
    source=f"triton-inference-server/tensorrtllm_backend#47 (1 in front of both words); {_LAYOUT}",
)  # fmt: skip
ROWS = declare(
    "stop-words-rows-not-batch", Topic.STOP_WORDS, Severity.ERROR,
    says="stop words have one row for each row of the request",
    why="Triton refuses inputs of one request whose batch dimensions differ",
    source=f"triton-inference-server/core src/infer_request.cc (batch size of inputs); {_LAYOUT}",
)  # fmt: skip
UNKNOWN_ID = declare(
    "stop-word-id-not-in-vocabulary", Topic.STOP_WORDS, Severity.ERROR,
    says="ids of stop words are ids of the tokenizer",
    why="an id outside the vocabulary is never generated, so the word never stops anything",
    source=f"{_KERNEL}; {_LAYOUT} (int32)",
)  # fmt: skip

Ids = tuple[int, ...]


@dataclass(frozen=True)
class _Word:
    key: str
    ids: Ids
    text: str | None


def _known(c: Context) -> dict[str, Ids]:
    """Texts whose ids are stated; a special token is one id."""
    tokenizer = c.evidence.tokenizer
    known = {t: (i,) for t, i in ((tokenizer.token_ids if tokenizer else None) or {}).items()}
    return {**known, **((tokenizer.encodes if tokenizer else None) or {})}


def _rows(request: Request, known: dict[str, Ids]) -> Sequence[Sequence[Ids]] | None:
    """Ids per row and word; texts go to every row. None where they are not known."""
    if request.stop_words_ids is not None:
        return request.stop_words_ids
    if request.stop_words is None or any(w and w not in known for w in request.stop_words):
        return None
    row = tuple(known[word] for word in request.stop_words if word)
    return (row,) * min(request.batch_size or 1, 10_000)


@about(Topic.TOKENISATION, Topic.STOP_WORDS)
def stop_words_tensor(c: Context) -> Iterator[Answer]:
    known = _known(c)
    for request in c.evidence.requests or ():
        rows = _rows(request, known)
        if rows is None:
            continue
        empty: list[list[list[int]]] = [
            [[], []] for _ in range(min(request.batch_size or 1, 10_000))
        ]
        yield Figure("stop_words_tensor", word_list(rows) if rows else empty)
        return


@about(Topic.STOP_WORDS)
def shape(c: Context) -> Iterator[Answer]:
    tokenizer = c.evidence.tokenizer
    size = tokenizer.vocab_size if tokenizer else None
    for at, request in enumerate(c.evidence.requests or ()):
        rows, key = request.stop_words_ids or (), f"requests[{at}].stop_words_ids"
        if rows and request.batch_size is not None and len(rows) != request.batch_size:
            yield ROWS.found(
                c, key, f"{len(rows)} rows of stop words for batch_size {request.batch_size}",
                f"send {request.batch_size} rows: the same words once for each row",
            )  # fmt: skip
        limit = min(size or 2**31, 2**31)
        wrong = sorted({i for row in rows for word in row for i in word if not 0 <= i < limit})
        if wrong:
            yield UNKNOWN_ID.found(
                c, key, f"id {', '.join(map(str, wrong[:3]))} is not among the {limit} ids of the vocabulary",
                "send ids that the tokenizer gives",
            )  # fmt: skip


def _words(c: Context, at: int, request: Request, known: dict[str, Ids]) -> list[_Word]:
    texts: dict[Ids, str] = {}
    for text, ids in known.items():
        texts.setdefault(ids, text)
    words = [
        _Word(f"requests[{at}].stop_words_ids[{r}][{w}]", ids, texts.get(ids))
        for r, row in enumerate(request.stop_words_ids or ())
        for w, ids in enumerate(row)
        if ids
    ]
    words += [
        _Word(f"requests[{at}].stop_words[{w}]", known.get(text, ()), text)
        for w, text in enumerate(request.stop_words or ())
        if text
    ]
    return words[:1000]


class _Stream:
    """The generated ids, and the text of each token where that is known."""

    def __init__(self, c: Context, ids: Ids, known: dict[str, Ids]) -> None:
        tokenizer = c.evidence.tokenizer
        self.ids, self.known = IdText(ids), known
        self.numbers = ids
        self.special = set(((tokenizer.token_ids if tokenizer else None) or {}).values())
        self.family = tokenizer.family if tokenizer else None
        self.spaced: dict[str, list[tuple[str, Ids]]] = {}
        for text, others in known.items():
            self.spaced.setdefault(text.strip(" "), []).append((text, others))
        data = self._texts(c)
        self.data = data if data is not None and len(data) == len(ids) else None
        self.joined = b"".join(self.data or ())
        self.starts = [0, *accumulate(map(len, self.data or ()))]

    def _texts(self, c: Context) -> Sequence[bytes] | None:
        stream = c.evidence.stream
        if stream is None:
            return None
        tokens = text_stream.tokens_of(c, stream)
        if tokens is not None:
            return tokens.data
        if stream.token_texts and self.family != "sentencepiece":
            return [item.encode("utf-8", "replace") for item in stream.token_texts]
        return None

    def by_text(self, text: str, end: int) -> Ids | None:
        """Ids of the tokens that hold the text; () where it does not come up."""
        if self.data is None:
            return None
        wanted = text.encode("utf-8", "replace")
        place = self.joined.find(wanted, 0, self.starts[end])
        if place < 0:
            return ()
        first = bisect_right(self.starts, place) - 1
        last = bisect_left(self.starts, place + len(wanted))
        return self.numbers[first:last]

    def other_spelling(self, word: _Word, end: int) -> Ids | None:
        """The ids under which this word stands in the first `end` ids, where they are not its own."""
        if not word.ids or self.ids.find(word.ids, end) >= 0:
            return None
        if word.text:
            spelled = self.by_text(word.text, end)
            if spelled is not None:
                return spelled or None
            for text, others in self.spaced.get(word.text.strip(" "), ())[:100]:
                if text != word.text and self.ids.find(others, end) >= 0:
                    return others
        rest = word.ids[1:]
        place = self.ids.find(rest, end)
        if place < 0:
            return None
        if place == 0 or word.ids[0] in self.special or self._bare_space(word):
            return rest
        if len(rest) == 1:
            # One id in common proves little (a colon after another word), except where the stream ends.
            place = end - 1
            if end != len(self.numbers) or self.numbers[-1] != rest[0]:
                return None
        return (self.numbers[place - 1], *rest) if place else None

    def _bare_space(self, word: _Word) -> bool:
        """Whether the first id is nothing but the space that SentencePiece puts in front."""
        if word.text is None or self.family != "sentencepiece":
            return False
        return word.text[:1] in ("\n", "\t", "\r") or (
            word.text.isascii() and len(word.ids) > len(word.text)
        )


@about(Topic.STOP_WORDS)
def matches(c: Context) -> Iterator[Answer]:
    facts, known = c.evidence.stream, _known(c)
    if facts is None or not facts.token_ids or not c.evidence.requests:
        return
    stream = _Stream(c, facts.token_ids, known)
    first = True  # figures are about the first request that has words
    for at, request in enumerate(c.evidence.requests):
        words = _words(c, at, request, known)
        if not words:
            continue
        ends = [p + len(w.ids) for w in words if (p := stream.ids.find(w.ids)) >= 0]
        if first and (ends or all(w.ids for w in words)):
            yield Figure("stop_word_matches", bool(ends))
        # What comes after the first match is not generated; a word that ends with it is no fault.
        end = min(ends) - 1 if ends else len(facts.token_ids)
        listed = {w.ids for w in words}
        for word in words:
            other = stream.other_spelling(word, end)
            if other is None or other in listed:
                continue
            if first:
                yield Figure("stop_word_ids_to_add", list(other))
                first = False
            yield _missed(c, stream, word, other)
        first = False


def _missed(c: Context, stream: _Stream, word: _Word, other: Ids) -> Finding:
    named = f"`{word.text}` " if word.text is not None else ""
    if word.ids[1:] == other and word.ids[0] in stream.special:
        return WITH_BOS.found(
            c, word.key, f"the stop word {named}begins with the special token {word.ids[0]}; the stream has "
            f"{list(other)}", f"encode without special tokens: pass {list(other)}",
        )  # fmt: skip
    return SPELLING.found(
        c, word.key, f"the stop word {named}is {list(word.ids)} as sent, and {list(other)} in this stream: it "
        "does not match",
        f"pass {list(other)} as a further stop word, or stop on the text in the client",
    )  # fmt: skip


RULES = (stop_words_tensor, shape, matches)
