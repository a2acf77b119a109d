"""A runtime's chunks as Triton responses: text as a delta, and only the outputs that were asked for.

`text_output` has one element a sequence. Streamed, each response carries what is new of every
sequence (or, with `stream_cumulative`, all of it so far); everything else comes with the response
whose text it belongs to, or with the last one.
"""

import contextlib
import threading
import time
import traceback

import numpy as np
import triton_python_backend_utils as pb_utils
from input_table import PERF
from inputs import client_message

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# Names of Triton's error codes. The class that has them is not there yet while this file is imported.
INVALID, CANCELLED, UNAVAILABLE = "INVALID_ARG", "CANCELLED", "UNAVAILABLE"
_PERF_TYPES = {"kv_hit_rate": np.float32, "acceptance_rate": np.float32}
_PERF = {
    name: (
        attribute,
        _PERF_TYPES.get(attribute, np.int64 if attribute.endswith("_ns") else np.int32),
    )
    for name, attribute in PERF
}


def fail(sender, message, code=None):
    """Answer a request with an error, as its last response."""
    message = f"[engineroom] {message}"
    known = None if code is None else getattr(pb_utils.TritonError, code, None)
    more = () if known is None else (known,)
    error = pb_utils.TritonError(message, *more)
    sender.send(pb_utils.InferenceResponse([], error), flags=FINAL)


def strings(name, texts):
    """A STRING tensor [len(texts)]."""
    return pb_utils.Tensor(
        name, np.array([text.encode("utf-8", "replace") for text in texts], np.object_)
    )


class Sequence:
    """What one sequence of a request has given so far; `unsent` is the text no response carried."""

    __slots__ = (
        "finish_reason", "generation_logits", "log_probs", "logprob", "sent", "stop_reason",
        "tokens", "unsent",
    )  # fmt: skip

    def __init__(self, text):
        self.unsent, self.sent, self.tokens = text, "", 0
        self.finish_reason = self.stop_reason = self.logprob = None
        self.log_probs, self.generation_logits = [], []


class Reply:
    """Answers one request; called with chunks from the runtime's thread.

    Args:
        sender: Triton's response sender. wanted: `inputs.Wanted`.
        echo: text before the answer of each sequence.
        ended: called once, with (prompt tokens, tokens of all sequences), both None for an error.
        log: called with a line for the server's log.

    Attributes:
        started: time.monotonic() of its creation. cancelled: somebody asked to end it.
    """

    __slots__ = (
        "_context_logits", "_cumulative", "_ended", "_left", "_lock", "_log", "_perf", "_prompt_tokens",
        "_returns", "_sequences", "_streaming", "cancelled", "done", "handle", "sender", "started",
    )  # fmt: skip

    def __init__(self, sender, wanted, echo, ended, log):
        self.sender, self._ended, self._log = sender, ended, log
        self._streaming, self._cumulative = wanted.streaming, wanted.cumulative
        self._returns = wanted.returns
        self._left = wanted.fields.get("n", 1)
        self._sequences = [Sequence(echo) for _ in range(self._left)]
        self._prompt_tokens = self._context_logits = self._perf = None
        self.handle, self.cancelled, self.done = None, False, False
        self._lock = threading.Lock()
        self.started = time.monotonic()

    def follow(self, handle):
        """Remember what cancels the request in the runtime."""
        self.handle = handle
        if self.cancelled:  # asked before there was a handle
            handle.cancel()

    def gone(self):
        """Whether the client has left. Asks the server, so not for each token.

        The server crashes when it is asked about a request whose last response it is sending.
        """
        with self._lock:
            return not self.done and self.sender.is_cancelled()

    def cancel(self):
        """End the request soon, from any thread; its last response says that it was cancelled."""
        self.cancelled = True
        if self.handle is not None:
            self.handle.cancel()

    def __call__(self, chunk):
        if self.done:
            return
        try:
            self._take(chunk)
        except Exception as error:
            # Others are answered on the same thread, so it ends here; nobody may be there any more.
            self._log(traceback.format_exc())
            self._end(None, None)
            self.cancel()
            with contextlib.suppress(Exception):
                fail(self.sender, f"{type(error).__name__}: {error}")

    def error(self, message, code=None):
        """Answer with an error; does nothing after the last response."""
        if self._end(None, None):
            fail(self.sender, message, code)

    def _end(self, prompt_tokens, tokens):
        """Before the last response is sent; False when it was already.

        Who has the response may ask at once whether anything is still running.
        """
        with self._lock:
            if self.done:
                return False
            self.done = True
        self._ended(self, prompt_tokens, tokens)
        return True

    # ---- chunks
    def _take(self, chunk):
        reason = chunk.finish_reason
        if reason == "error":
            message = chunk.stop_reason or "generation failed"
            if chunk.invalid:
                self.error(client_message(message), INVALID)
            else:
                self.error(message)
            return
        if reason == "cancelled":
            self.error("the request was cancelled", CANCELLED)
            return
        sequence = self._sequences[chunk.index]
        sequence.unsent += chunk.text
        sequence.tokens += len(chunk.token_ids)
        if chunk.log_probs is not None:
            sequence.log_probs.extend(chunk.log_probs)
        if chunk.generation_logits is not None:
            sequence.generation_logits.append(chunk.generation_logits)
        if chunk.context_logits is not None:
            self._context_logits = chunk.context_logits
        if reason is None:
            if self._streaming and sequence.unsent:
                self.sender.send(pb_utils.InferenceResponse(self._outputs(False)))
            return
        sequence.finish_reason, sequence.stop_reason = reason, chunk.stop_reason
        sequence.logprob = chunk.cumulative_logprob
        self._perf = chunk.perf or self._perf
        if chunk.prompt_tokens is not None:
            self._prompt_tokens = chunk.prompt_tokens
        self._left -= 1
        if not self._left:
            outputs = self._outputs(True)
            self._end(self._prompt_tokens, sum(item.tokens for item in self._sequences))
            self.sender.send(pb_utils.InferenceResponse(outputs), flags=FINAL)
        elif self._streaming and sequence.unsent:
            self.sender.send(pb_utils.InferenceResponse(self._outputs(False)))

    def _outputs(self, last):
        sequences = self._sequences
        if self._cumulative:
            for item in sequences:
                item.sent += item.unsent
                item.unsent = ""
            outputs = [strings("text_output", [item.sent for item in sequences])]
        else:
            outputs = [strings("text_output", [item.unsent for item in sequences])]
            for item in sequences:
                item.unsent = ""
        if self._returns:
            for name in self._returns:
                tensor = self._extra(name, last)
                if tensor is not None:
                    outputs.append(tensor)
        return outputs

    def _extra(self, name, last):
        """The tensor of an output that was asked for, or None: not in this response, or not known."""
        sequences = self._sequences
        if name == "output_log_probs":
            return _padded(name, [item.log_probs for item in sequences])
        if name == "generation_logits":
            return _logits(name, sequences)
        if name == "context_logits":
            logits, self._context_logits = self._context_logits, None
            if logits is None:
                return None
            return pb_utils.Tensor(name, np.ascontiguousarray(logits, np.float32))
        if not last:
            return None
        if name in ("finish_reason", "stop_reason"):
            values = [getattr(item, name) for item in sequences]
            return strings(name, ["" if value is None else str(value) for value in values])
        if name == "num_output_tokens":
            return _array(name, [item.tokens for item in sequences], np.int32)
        if name == "num_input_tokens":
            count = self._prompt_tokens
            return None if count is None else _array(name, [count], np.int32)
        if name == "cumulative_logprob":
            values = [item.logprob for item in sequences]
            return None if None in values else _array(name, values, np.float32)
        attribute, kind = _PERF[name]
        value = None if self._perf is None else getattr(self._perf, attribute)
        return None if value is None else _array(name, [value], kind)


def _array(name, values, kind):
    return pb_utils.Tensor(name, np.array(values, kind))


def _padded(name, rows):
    """FP32 [sequences, longest], and `rows` emptied; shorter ones end with zeros, as in the engine lane."""
    out = np.zeros((len(rows), max(map(len, rows))), np.float32)
    for place, row in zip(out, rows, strict=True):
        place[: len(row)] = row
        row.clear()
    return pb_utils.Tensor(name, out)


def _logits(name, sequences):
    """FP32 [sequences, tokens, vocabulary] of the tokens since the last response; None: none."""
    parts = [
        np.concatenate(item.generation_logits) if item.generation_logits else None
        for item in sequences
    ]
    known = [part for part in parts if part is not None]
    if not known:
        return None
    shape = (len(parts), max(len(part) for part in known), known[0].shape[-1])
    out = np.zeros(shape, np.float32)
    for place, part, item in zip(out, parts, sequences, strict=True):
        if part is not None:
            place[: len(part)] = part
        item.generation_logits = []
    return pb_utils.Tensor(name, out)
