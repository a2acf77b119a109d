"""The state of one request and of its sequences, and the chunks that they send."""

import threading
import time

import numpy as np
from runtime_api import Chunk, Perf
from text_codec import TextStream

from engineroom_reference.logits import Processor, Words
from engineroom_reference.sampling import Sampler


class StopTexts:
    """Stop words as text: where they begin, and how much of a text may still become one."""

    def __init__(self, words):
        self.words, self._longest = words, max(map(len, words), default=0)
        self._by_first = {}
        for word in words:
            self._by_first.setdefault(word[0], []).append(word)

    def find(self, text, seen):
        """(position, word) of the first stop word that ends after `seen` characters, or None."""
        best = None
        for word in self.words:
            at = text.find(word, max(0, seen - len(word) + 1))
            if at >= 0 and (best is None or at < best[0]):
                best = (at, word)
        return best

    def safe(self, text):
        """Characters of `text` that no later text can make part of a stop word."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            tail = text[start:]
            if any(word.startswith(tail) for word in self._by_first.get(tail[0], ())):
                return start
        return len(text)


class Job:
    """A request inside the runtime.

    Args:
        ids: of the prompt. `ends`: token ids that end an answer.
        bad: token sequences to avoid. `matcher`: of the guide, or None.
        number: order of arrival.
    """

    def __init__(self, request, ids, ends, bad, matcher, on_chunk, codec, number, interval):
        self.request, self.ids, self.ends, self.on_chunk = request, ids, ends, on_chunk
        self.number, self.interval = number, interval
        self.arrival_ns, self.first_scheduled_ns = time.time_ns(), None
        self.admitted = None  # order of admission; kept over a pause
        self.cancelled = threading.Event()
        self.stops = StopTexts(request.stop)
        self.stop_ids = {}  # last token -> sequences that it completes
        for sequence in request.stop_token_sequences:
            self.stop_ids.setdefault(sequence[-1], []).append(list(sequence))
        single = [s[0] for s in request.stop_token_sequences if len(s) == 1]
        self.process = Processor(request, Words(bad), sorted({*ends, *single}))
        self.sequences = [
            Sequence(
                self, index, matcher if index == 0 or matcher is None else matcher.copy(), codec
            )
            for index in range(request.n)
        ]

    @property
    def open(self):
        """Sequences that are not finished."""
        return [sequence for sequence in self.sequences if not sequence.finished]

    @property
    def order(self):
        """Admission order: priority (0..1, 0.5 if not given), then arrival."""
        priority = self.request.priority
        return (-(0.5 if priority is None else priority), self.number)


class Sequence:
    """One answer to a job's prompt."""

    def __init__(self, job, index, matcher, codec):
        self.job, self.index, self.matcher = job, index, matcher
        self.made, self.counts = [], None
        self.cache = self.table = None  # K and V, and the blocks that stand for them
        self.finished, self.logprob = False, 0.0
        self.sample = Sampler(job.request, index)
        self._stream = TextStream(codec) if job.request.with_text else None
        self.text, self.sent, self._seen = "", 0, 0
        self._tokens, self._log_probs, self._logits = [], [], []  # not sent yet
        self.context_logits = None
        self.first_token_ns = self.last_token_ns = None
        self.kv_total = self.kv_new = self.kv_reused = self.kv_missed = 0

    @property
    def cached(self):
        """Tokens whose K and V the next step leaves in the cache."""
        return len(self.job.ids) + len(self.made)

    def opened(self, table):
        self.table = table
        self.kv_total += table.total
        self.kv_new += table.new
        self.kv_reused += table.reused
        self.kv_missed += table.missed

    def add(self, token, log_prob, logits):
        """Take a sampled token; the final chunk, not sent yet, when the answer has ended.

        Args:
            logits: the model's, of which `token` was chosen.
        """
        job, request = self.job, self.job.request
        self.last_token_ns = time.time_ns()
        self.first_token_ns = self.first_token_ns or self.last_token_ns
        # As in TensorRT-LLM, the end token counts for the sum, and has no entry of its own.
        self.logprob += log_prob
        if token in job.ends:
            return self._finish("stop", None)
        self.made.append(token)
        self._tokens.append(token)
        if request.log_probs:
            self._log_probs.append(log_prob)
        if request.generation_logits:
            self._logits.append(np.array(logits))
        if self._stream is not None:
            self.text += self._stream.push([token])
        if len(self.made) >= (request.min_tokens or 0):
            if job.stops.words:
                hit = job.stops.find(self.text, self._seen)
                if hit is not None:
                    self.text, self._stream = self.text[: hit[0]], None
                    return self._finish("stop", hit[1])
            for sequence in job.stop_ids.get(token, ()):
                if self.made[-len(sequence) :] == sequence:
                    return self._finish("stop", None)
        self._seen = len(self.text)
        if len(self.made) >= request.max_tokens:
            return self._finish("length", None)
        if request.streaming and (len(self.made) == 1 or len(self.made) % job.interval == 0):
            # Text that could still become a stop word is held back, and its tokens with it.
            safe = max(self.sent, job.stops.safe(self.text))
            delta = self.text[self.sent : safe]
            if delta or self._stream is None:
                self.sent = safe
                job.on_chunk(self._chunk(delta))
        return None

    def end(self):
        """The grammar is finished, and no end token is known: the final chunk without one."""
        return self._finish("stop", None)

    def _finish(self, reason, stop_reason):
        self.finished = True
        if self._stream is not None:
            self.text += self._stream.finish()
            # What was held back as unfinished characters may hold a stop word.
            hit = self.job.stops.find(self.text, self._seen)
            if hit is not None:
                self.text, reason, stop_reason = self.text[: hit[0]], "stop", hit[1]
        perf = None
        if self.job.request.perf:
            perf = Perf(
                arrival_ns=self.job.arrival_ns,
                first_scheduled_ns=self.job.first_scheduled_ns,
                first_token_ns=self.first_token_ns,
                last_token_ns=self.last_token_ns,
                kv_total_blocks=self.kv_total,
                kv_new_blocks=self.kv_new,
                kv_reused_blocks=self.kv_reused,
                kv_missed_blocks=self.kv_missed,
                acceptance_rate=0.0,
                accepted_draft_tokens=0,
                draft_tokens=0,
            )
        return self._chunk(
            self.text[self.sent :],
            finish_reason=reason,
            stop_reason=stop_reason,
            cumulative_logprob=self.logprob,
            prompt_tokens=len(self.job.ids),
            perf=perf,
        )

    def _chunk(self, delta, **more):
        request = self.job.request
        chunk = Chunk(
            self._tokens,
            delta,
            index=self.index,
            log_probs=self._log_probs if request.log_probs else None,
            generation_logits=self._stacked() if request.generation_logits else None,
            context_logits=self.context_logits,
            **more,
        )
        self.context_logits = None
        self._tokens, self._log_probs, self._logits = [], [], []
        return chunk

    def _stacked(self):
        """[tokens, vocabulary] of the tokens that are sent, float32; None without tokens."""
        return np.stack(self._logits) if self._logits else None
