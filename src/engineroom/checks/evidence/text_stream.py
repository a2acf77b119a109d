"""What a client shows of a stream, against the text that one decode of all tokens gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence import triton_values
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.errors import UsageError, Where
from engineroom.names import Severity, Topic
from engineroom.reading import token_text
from engineroom.reading.facts import Stream
from engineroom.reading.token_text import REPLACEMENT, Deltas, Tokens
from engineroom.types import Figure, Finding

_POSTPROCESSING = (
    "NVIDIA/TensorRT-LLM triton_backend/all_models/inflight_batcher_llm/postprocessing/1/model.py @ 2e2327b9 "
    "(decodes the tokens of one response)"
)
_ACCUMULATE = (
    "triton-inference-server/tensorrtllm_backend docs/model_config.md (accumulate_tokens) and #606"
)
SPLIT = declare(
    "stream-splits-character", Topic.STREAMING_DETOK, Severity.ERROR,
    says="a character whose bytes lie in several tokens is sent once it is whole",
    why="each token decoded alone shows U+FFFD for its part, and the character cannot be put together again",
    source=f"NVIDIA/TensorRT-LLM#2595, #81 (maintainer); {_POSTPROCESSING}",
)  # fmt: skip
ALONE = declare(
    "stream-decodes-tokens-alone", Topic.STREAMING_DETOK, Severity.ERROR,
    says="the text of a token is read with the tokens before it",
    why="SentencePiece drops the space in front of a first token: decoded alone, every token is a first one",
    source=f"triton-inference-server/tensorrtllm_backend#192, #332; {_POSTPROCESSING}",
)  # fmt: skip
JOINED = declare(
    "accumulated-stream-joined", Topic.STREAMING_DETOK, Severity.ERROR,
    says="responses that hold all text so far are not joined",
    why="with accumulate_tokens each response repeats what came before, and so does the joined text",
    source=_ACCUMULATE,
)  # fmt: skip
LAST_ONLY = declare(
    "stream-deltas-not-joined", Topic.STREAMING_DETOK, Severity.ERROR,
    says="responses that hold new text only are joined",
    why="the last response is the last piece, not the text; only the BLS model can send the whole text",
    source=_ACCUMULATE,
)  # fmt: skip
BEAMS = declare(
    "accumulated-stream-with-beams", Topic.STREAMING_DETOK, Severity.ERROR,
    says="streams of a BLS model with accumulate_tokens have one beam",
    why="the decoder accumulates the tokens of one beam only and raises for more",
    source="NVIDIA/TensorRT-LLM triton_backend/all_models/inflight_batcher_llm/tensorrt_llm_bls/1/lib/decode.py "
    "@ 4db68284, postprocess",
)  # fmt: skip
CUT = declare(
    "stream-ends-inside-character", Topic.STREAMING_DETOK, Severity.INFO,
    says="a stream ends with a whole character",
    why="bytes that never became a character show as U+FFFD, in a stream as in a whole answer",
    source="Unicode Standard, chapter 3, U+FFFD substitution of maximal subparts; huggingface/tokenizers "
    "ByteLevel and ByteFallback decoders",
)  # fmt: skip


def _skipped(c: Context) -> tuple[str, ...] | None:
    """Special tokens that are cut out of the text; None where postprocessing keeps them."""
    for model in repo.models(c):
        if model.role == repo.POSTPROCESSING:
            row, scalar = (
                repo.rows(c, model).get("skip_special_tokens"),
                model.config.parameters.get("skip_special_tokens"),
            )
            if row and scalar and triton_values.judge(row, scalar, c.trtllm).effective is False:
                return None
    tokenizer = c.evidence.tokenizer
    return tuple((tokenizer.token_ids if tokenizer else None) or ())


def tokens_of(c: Context, stream: Stream) -> Tokens | None:
    """The stream's tokens as bytes, from bytes or from pieces.

    Raises:
        UsageError: bytes that are not written in hex.
    """
    family = c.evidence.tokenizer.family if c.evidence.tokenizer else None
    if stream.token_bytes_hex:
        try:
            return token_text.of_hex(stream.token_bytes_hex, family, _skipped(c))
        except ValueError:
            raise UsageError(
                "the bytes of a token are not written in hex",
                where=Where(key="stream.token_bytes_hex"),
                hint="write two digits for each byte, e.g. E4BDA0",
            ) from None
    if stream.token_pieces:
        return token_text.of_pieces(stream.token_pieces, family, _skipped(c))
    return None


def _whole_answer(c: Context) -> bool:
    """Whether every request asks for one answer: then all tokens are decoded together."""
    asked = [r.stream for r in c.evidence.requests or ()]
    return bool(asked) and all(value is False for value in asked)


def _setting(c: Context) -> bool | None:
    """accumulate_tokens as it acts on the model that is called; None where nobody says."""
    called = {r.model for r in c.evidence.requests or () if r.stream is not False}
    names = called - {None}
    found: bool | None = None
    for model in repo.models(c):
        if model.role != repo.BLS:
            continue
        if None not in called and names and not names & {model.name, model.config.folder}:
            continue
        row, scalar = (
            repo.rows(c, model).get("accumulate_tokens"),
            model.config.parameters.get("accumulate_tokens"),
        )
        if row is not None:
            value = (
                triton_values.judge(row, scalar, c.trtllm).effective
                if scalar
                else row.defaults(c.trtllm)[0]
            )
            found = bool(found) or value is True
    if found is None and names and not any("bls" in (name or "") for name in names):
        return False
    return found


def _decoded_alone(c: Context, stream: Stream, setting: bool | None) -> bool:
    """Whether postprocessing sees one token at a time: stated, else what upstream's models do."""
    if stream.one_response_per_token is not None:
        return stream.one_response_per_token
    return setting is False and any(r.stream for r in c.evidence.requests or ())


def _sent(
    stream: Stream, tokens: Tokens | None, alone: bool, accumulated: bool
) -> tuple[str, ...] | None:
    """Texts of the responses; None where nobody says how they were made."""
    if stream.responses:
        return stream.responses
    if not alone or accumulated:
        return None
    if stream.token_texts:
        return stream.token_texts
    return tuple(tokens.alone()) if tokens else None


def _right(c: Context, stream: Stream, tokens: Tokens | None, accumulated: bool) -> Deltas | None:
    if tokens is not None:
        return tokens.stream()
    if stream.responses:
        if accumulated:
            return token_text.of_accumulated(stream.responses)
        return _as_sent(stream.responses, stream)
    family = c.evidence.tokenizer.family if c.evidence.tokenizer else None
    if stream.token_texts and (family != "sentencepiece" or len(stream.token_texts) == 1):
        return _as_sent(stream.token_texts, stream)
    return None


def _as_sent(pieces: Sequence[str], stream: Stream) -> Deltas | None:
    """Pieces of text as they are, where none shows a part of a character."""
    last = pieces[-1]
    cut = stream.finish_reason == "length" and last.endswith(REPLACEMENT)
    if any(REPLACEMENT in piece for piece in pieces[:-1]):
        return None
    if REPLACEMENT in last and not cut:
        return None
    body = last.rstrip(REPLACEMENT) if cut else last
    return Deltas((*pieces[:-1], body), last[len(body) :])


@about(Topic.STREAMING_DETOK)
def text_of_stream(c: Context) -> Iterator[Answer]:
    stream = c.evidence.stream
    if stream is None:
        return
    tokens = tokens_of(c, stream)
    whole, setting = _whole_answer(c), _setting(c)
    accumulated = not whole and (
        setting if setting is not None else token_text.grows(stream.responses or ())
    )
    right = _right(c, stream, tokens, accumulated)
    if right is not None:
        yield Figure("deltas", list(right.deltas))
        yield Figure("flush", right.flush)
        yield Figure("text", right.text)
    sent = (
        None
        if whole and not stream.responses
        else _sent(stream, tokens, _decoded_alone(c, stream, setting), accumulated)
    )
    fault = _fault(c, stream, sent, right, accumulated)
    if fault is not None:
        yield fault
    elif right is not None and right.flush:
        yield CUT.found(
            c, "stream.finish_reason",
            f"the last bytes are no whole character: the text ends with U+FFFD ({len(right.flush)} times)",
            "none needed; more max_tokens, where the character is wanted",
        )  # fmt: skip


def _fault(
    c: Context, stream: Stream, sent: Sequence[str] | None, right: Deltas | None, accumulated: bool
) -> Finding | None:
    joins, key = stream.client_joins_responses, "stream.client_joins_responses"
    if accumulated:
        count = len(sent or (right.deltas if right else ()))
        if not joins or (sent is not None and (len(sent) < 2 or not any(sent[:-1]))):
            return None
        if sent is None and sum(map(bool, right.deltas if right else ())) < 2:
            return None
        return JOINED.found(
            c, key, f"each of {count} responses holds all text so far (accumulate_tokens), and the client joins "
            "them" + (f": {_short(''.join(sent))}" if sent else ""),
            "show the last response, or what it adds to the one before; or set accumulate_tokens to false",
        )  # fmt: skip
    if not sent:
        return None
    shown = sent[-1] if joins is False else "".join(sent)
    if right is None:
        if any(REPLACEMENT in piece for piece in sent):
            return _split(c, "".join(sent).count(REPLACEMENT), stream, None)
        return None
    if shown == right.text:
        return None
    if joins is False and "".join(sent) == right.text:
        return LAST_ONLY.found(
            c, key, f"each response holds new text only, and the client shows the last one: {_short(shown)} "
            f"instead of {_short(right.text)}", "join the responses in order",
        )  # fmt: skip
    extra = "".join(sent).count(REPLACEMENT) - right.text.count(REPLACEMENT)
    if extra > 0:
        return _split(c, extra, stream, right)
    return ALONE.found(
        c, "stream.one_response_per_token" if stream.one_response_per_token else "stream",
        f"the responses join to {_short(''.join(sent))}, the tokens together are {_short(right.text)}"
        + _not_here(c),
        "decode with context: the BLS model with accumulate_tokens true, or the difference between decodes "
        "of all ids so far",
    )  # fmt: skip


def _split(c: Context, count: int, stream: Stream, right: Deltas | None) -> Finding:
    return SPLIT.found(
        c, "stream.one_response_per_token" if stream.one_response_per_token else "stream.responses",
        f"each response is decoded alone: U+FFFD comes {count} times in place of characters whose bytes lie in "
        "several tokens" + (f" (right: {_short(right.text)})" if right else "") + _not_here(c),
        "call the BLS model with accumulate_tokens true and show its last response, or hold back an incomplete "
        "UTF-8 tail until it is a character",
    )  # fmt: skip


def _not_here(c: Context) -> str:
    """Where accumulate_tokens is on and acts on another model than the one called."""
    if _setting(c) is not False:
        return ""
    for model in repo.models(c):
        scalar = model.config.parameters.get("accumulate_tokens")
        row = repo.rows(c, model).get("accumulate_tokens")
        if row is None or scalar is None or model.role != repo.BLS:
            continue
        if triton_values.judge(row, scalar, c.trtllm).effective is True:
            return f"; accumulate_tokens acts on {model.name} only, which is not called"
    return ""


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


@about(Topic.STREAMING_DETOK)
def beams(c: Context) -> Iterator[Answer]:
    if not _setting(c):
        return
    for at, request in enumerate(c.evidence.requests or ()):
        if request.stream and (request.beam_width or 1) > 1:
            yield BEAMS.found(
                c, f"requests[{at}].beam_width",
                f"beam_width {request.beam_width} with accumulate_tokens true: tokens of one beam only are "
                "accumulated", "send beam_width 1, or set accumulate_tokens to false",
            )  # fmt: skip


RULES = (text_of_stream, beams)
