"""What TensorRT-LLM's LLM API gives of a request, as chunks of `runtime_api`.

Names are those of `RequestOutput` and `CompletionOutput` (tensorrt_llm/executor/result.py, 0.21 to 1.4)
and of the performance metrics of its executor bindings. An output holds all text and tokens so far.

Text is made here, of the token ids, where the tokenizer can be read: upstream's own of a stream (the
DecodeStream of `tokenizers`) leaves out a character that is unfinished at its end, and differs from the
whole answer's for some decoders.
"""

from runtime_api import Chunk, Perf
from stop_text import StopText
from text_codec import TextStream
from trtllm_request import in_steps


class _Made:
    """Text of one sequence, of its ids; in steps the pieces concatenate to the whole decode."""

    __slots__ = ("_codec", "_stream")

    def __init__(self, codec, steps):
        self._codec, self._stream = codec, TextStream(codec) if steps else None

    def more(self, new_ids, best, last):
        """The text that `new_ids` add."""
        stream = self._stream
        if stream is None:
            return self._codec.decode(new_ids)
        text = stream.push(new_ids) if new_ids else ""
        return text + stream.finish() if last else text


class _Given:
    """Text of one sequence as upstream gives it, which is all of it each time."""

    __slots__ = ("_read",)

    def __init__(self):
        self._read = 0

    def more(self, new_ids, best, last):
        text = best.text
        if not last and text.endswith("\ufffd"):
            # An unfinished character shows as U+FFFD until its other bytes arrive.
            text = text.rstrip("\ufffd")
        new = text[self._read :]
        self._read += len(new)
        return new


class _NoText:
    """Nobody asked for text."""

    __slots__ = ()

    def more(self, new_ids, best, last):
        return ""


class _Sequence:
    """Of one sequence: how many tokens were handed on, what makes its text and what cuts it."""

    __slots__ = ("done", "stop", "text", "tokens")

    def __init__(self, text, stop):
        self.text, self.stop, self.tokens, self.done = text, stop, 0, False


class Progress:
    """Turns the outputs of one request into chunks.

    Args:
        result: what upstream gave for the request. ends: the model's own end-of-sequence ids.
        codec: `text_codec.TokenCodec`, or None: the text is upstream's.

    Attributes:
        steps: outputs come while it runs, and each is worth a chunk.
        over: the request has its last chunk. finished: upstream has ended it.
    """

    __slots__ = (
        "_ends", "_left", "_over_ids", "_request", "_result", "_sequences", "finished", "over", "steps",
    )  # fmt: skip

    def __init__(self, request, result, ends, codec=None):
        self._request, self._result = request, result
        self._ends = ends if request.end_ids is None else request.end_ids
        self._over_ids = self._ends
        if request.stop_token_sequences:
            self._over_ids = [*self._ends, *(ids[-1] for ids in request.stop_token_sequences)]
        self._left, self.over, self.finished = request.n, False, False
        self.steps, stops = in_steps(request), request.stop
        self._sequences = [
            _Sequence(self._text(codec), StopText(stops) if stops else None)
            for _ in range(request.n)
        ]

    def _text(self, codec):
        if not self._request.with_text and not self._request.stop:
            return _NoText()
        return _Given() if codec is None else _Made(codec, self.steps)

    def chunks(self, output):
        """Chunks of one output, one at a time; when the last one comes, `over` is set."""
        self.finished = output.finished
        if self.over or not (self.finished or self.steps):
            return
        for index, (state, best) in enumerate(zip(self._sequences, output.outputs, strict=False)):
            if state.done:
                continue
            chunk = self._chunk(index, state, best, output)
            if chunk is None:
                continue
            if chunk.finish_reason is not None:
                self._left -= 1
                self.over = not self._left or chunk.finish_reason == "cancelled"
            yield chunk
            if self.over:
                return

    def _chunk(self, index, state, best, output):
        """What is new of one sequence, or None."""
        request, reason, stop_reason = self._request, best.finish_reason, best.stop_reason
        if reason == "cancelled":
            return Chunk([], "", "cancelled")
        ids, old = best.token_ids, state.tokens
        if reason is None and self.finished:
            # Upstream says it only of the sequence that ended last.
            reason = "length" if len(ids) >= request.max_tokens else "stop"
        new_ids = list(ids[old:])
        state.tokens = max(old, len(ids))
        if new_ids and new_ids[-1] in self._over_ids:
            # Whether upstream leaves it in depends on the release and on which of the ids it is.
            new_ids.pop()
        text = state.text.more(new_ids, best, reason is not None)
        stop = state.stop
        if stop is not None:
            # Upstream compares token ids, and a word can be spelled by other ones.
            text = stop.push(text)
            if stop.found is not None:
                reason, stop_reason = "stop", stop.found
            elif reason is not None and len(ids) >= old:  # else upstream took the word's ids back
                text += stop.finish()
        if reason is None and not new_ids and not text:
            return None
        values = None
        if request.log_probs and best.logprobs:
            values = log_probs(best.logprobs[old:], new_ids)
        if reason is None:
            return Chunk(new_ids, text, index=index, log_probs=values)
        state.done = True
        if stop_reason is not None:
            stop_reason = None if stop_reason in self._ends else str(stop_reason)
        return self._last(
            best,
            output,
            {
                "token_ids": new_ids,
                "text": text if request.with_text else "",
                "finish_reason": reason,
                "stop_reason": stop_reason,
                "index": index,
                "log_probs": values,
            },
        )

    def _last(self, best, output, values):
        request = self._request
        total = best.cumulative_logprob
        if total is None and request.log_probs and best.logprobs:
            total = sum(log_probs(best.logprobs, best.token_ids))
        prompt = getattr(self._result, "prompt_token_ids", None)
        if request.generation_logits and best.generation_logits is not None:
            values["generation_logits"] = logits(best.generation_logits)
        if request.context_logits and output.context_logits is not None:
            values["context_logits"] = logits(output.context_logits)
        if request.perf:
            values["perf"] = to_perf(getattr(best, "request_perf_metrics", None))
        return Chunk(
            cumulative_logprob=total,
            prompt_tokens=None if prompt is None else len(prompt),
            **values,
        )


def _nanoseconds(delta):
    """A timedelta of the executor's steady clock in ns; 0 there means that it did not happen yet."""
    whole = (delta.days * 86400 + delta.seconds) * 10**9 + delta.microseconds * 1000
    return whole or None


def to_perf(metrics):
    """`Perf` of an executor's `RequestPerfMetrics`; None stays None."""
    if metrics is None:
        return None
    kv, times, draft = (
        metrics.kv_cache_metrics,
        metrics.timing_metrics,
        metrics.speculative_decoding,
    )
    return Perf(
        arrival_ns=_nanoseconds(times.arrival_time),
        first_scheduled_ns=_nanoseconds(times.first_scheduled_time),
        first_token_ns=_nanoseconds(times.first_token_time),
        last_token_ns=_nanoseconds(times.last_token_time),
        kv_total_blocks=kv.num_total_allocated_blocks,
        kv_new_blocks=kv.num_new_allocated_blocks,
        kv_reused_blocks=kv.num_reused_blocks,
        kv_missed_blocks=kv.num_missed_blocks,
        acceptance_rate=draft.acceptance_rate,
        accepted_draft_tokens=draft.total_accepted_draft_tokens,
        draft_tokens=draft.total_draft_tokens,
    )


def log_probs(entries, token_ids):
    """One value a token of what the LLM API returns: numbers, or {token id: Logprob} of the best."""
    values = []
    for entry, token in zip(entries, token_ids, strict=False):  # upstream's list may be one ahead
        if isinstance(entry, dict):
            found = entry.get(token)
            entry = next(iter(entry.values())) if found is None else found
        values.append(float(getattr(entry, "logprob", entry)))
    return values


def logits(tensor):
    """A torch tensor as float32 [tokens, vocabulary] in host memory."""
    array = tensor.detach().float().cpu().numpy()
    return array.reshape(-1, array.shape[-1])
