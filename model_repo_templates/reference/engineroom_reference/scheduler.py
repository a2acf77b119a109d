"""Which requests run: continuous batching over a block pool, one token a sequence and step."""

import time
import traceback

import torch
from runtime_api import Chunk, RequestError

POLICIES = ("guaranteed_no_evict", "max_utilization")


class Scheduler:
    """Requests join and leave between two steps. Not thread-safe: one thread steps.

    With guaranteed_no_evict a request is admitted when its prompt and all tokens that it may
    generate fit, so that it never has to stop. With max_utilization it is admitted when its prompt
    and one token fit; when blocks run out, the youngest request is paused: its blocks and its
    cache are dropped. It resumes before others, by running the same forward passes again (prompt,
    then token by token), which gives the same bits.

    Args:
        model: `ReferenceModel`.
        pool: `BlockPool`.
        max_batch: sequences that may run at once.
        note: called when blocks have become free, before a final chunk is sent: who has the last
            word of a request finds it gone from the statistics.
    """

    def __init__(self, model, pool, max_batch, policy=POLICIES[0], note=lambda: None):
        if policy not in POLICIES:
            raise ValueError(f"scheduler policy {policy!r} is none of {', '.join(POLICIES)}")
        self._model, self._vocabulary = model, model.config.vocab_size
        self.pool, self._max_batch = pool, max_batch
        self._careful = policy == POLICIES[0]
        self._waiting, self._paused, self.running = [], [], []
        self._admissions, self._note = 0, note

    @property
    def idle(self):
        return not (self._waiting or self._paused or self.running)

    @property
    def waiting(self):
        return len(self._waiting)

    @property
    def paused(self):
        return len(self._paused)

    def most_blocks(self, length, max_tokens, n):
        """Blocks that a request can come to need at once."""
        return n * self.pool.blocks_for(length + max_tokens)

    def add(self, job):
        self._waiting.append(job)
        self._waiting.sort(key=lambda job: job.order)

    # ---- before a step
    def schedule(self):
        """Drop what was cancelled, admit what fits, find blocks for the tokens of the next step."""
        for jobs in (self._waiting, self._paused, self.running):
            for job in [job for job in jobs if job.cancelled.is_set()]:
                jobs.remove(job)
                self._end(job, "cancelled", None)
        while self._paused and self._admit(self._paused[0]):
            self._paused.pop(0)
        while not self._paused and self._waiting and self._admit(self._waiting[0]):
            self._waiting.pop(0)
        for job in list(self.running):
            if job in self.running:
                self._cover(job)

    def _admit(self, job):
        sequences = job.open
        if sum(len(other.open) for other in self.running) + len(sequences) > self._max_batch:
            return False
        if self._careful and not self._fits(job):
            return False
        tables = []
        for sequence in sequences:
            ids = job.ids + sequence.made
            table = self.pool.open(self.pool.root(), ids)
            if table is not None:
                tables.append(table)
                if self.pool.extend(table, len(ids) + (0 if self._careful else 1)):
                    continue
            for table in tables:
                self.pool.close(table)
            return False
        for sequence, table in zip(sequences, tables):
            sequence.opened(table)
        if job.admitted is None:
            self._admissions += 1
            job.admitted, job.first_scheduled_ns = self._admissions, time.time_ns()
        self.running.append(job)
        self.running.sort(key=lambda job: job.admitted)
        return True

    def _fits(self, job):
        """Whether the job can run to its end beside what the running ones may still take."""
        promised = sum(
            self.pool.blocks_for(len(other.ids) + other.request.max_tokens)
            - len(sequence.table.blocks)
            for other in self.running
            for sequence in other.open
        )
        total = len(job.ids) + job.request.max_tokens
        # Sequences of one job are opened before any is stored: they share only what is there now.
        wanted = len(job.open) * self.pool.blocks_for(total)
        found = self.pool.match(self.pool.root(), job.ids)
        held = self.pool.held(found)
        # A free block that is found is taken once, by the first of the job's sequences.
        wanted -= len(job.open) * held + (len(job.open) - 1) * (len(found) - held)
        return promised + wanted <= self.pool.free

    def _cover(self, job):
        for sequence in job.open:
            while not self.pool.extend(sequence.table, sequence.cached):
                youngest = self.running[-1]
                self._pause(youngest)
                if youngest is job:
                    return

    def _pause(self, job):
        self.running.remove(job)
        for sequence in job.open:
            self._free(sequence)
        self._paused.append(job)
        self._paused.sort(key=lambda job: job.admitted)

    # ---- a step
    def step(self):
        """Advance every running sequence by one token."""
        for job in list(self.running):
            try:
                for sequence in job.open:
                    self._advance(sequence)
            except Exception as error:
                if not isinstance(error, RequestError):
                    traceback.print_exc()
                self.running.remove(job)
                known = isinstance(error, (RequestError, ValueError))
                self._end(job, "error", str(error) if known else f"reference runtime: {error}")
            else:
                if not job.open:
                    self.running.remove(job)

    @torch.inference_mode()
    def _advance(self, sequence):
        job = sequence.job
        logits = self._forward(sequence)
        if sequence.counts is None:
            sequence.counts = job.process.counts(job.ids, self._vocabulary)
        allowed = None
        if sequence.matcher is not None:
            allowed = sequence.matcher.allowed(job.ends)
            if not bool(allowed.any()):
                if sequence.matcher.accepting:
                    self._send_last(sequence, sequence.end())
                    return
                raise RequestError("guided_decoding_guide: no token continues the answer")
        ids = job.ids + sequence.made
        ready = job.process(logits, ids, len(sequence.made), sequence.counts, allowed)
        token = sequence.sample(ready)
        log_prob = float(torch.log_softmax(ready, -1)[token])
        if sequence.counts is not None:
            sequence.counts[token] += 1
        if sequence.matcher is not None and token not in job.ends:
            sequence.matcher.push(token)
        last = sequence.add(token, log_prob, logits)
        if last is not None:
            self._send_last(sequence, last)

    def _send_last(self, sequence, chunk):
        self._free(sequence)
        self._note()
        sequence.job.on_chunk(chunk)

    def _forward(self, sequence):
        """The model's logits [vocabulary] for the next token."""
        job = sequence.job
        if sequence.cache is not None:
            return self._model.logits(sequence.made[-1:], sequence.cache)[-1]
        sequence.cache = self._model.new_cache()
        logits = self._model.logits(job.ids, sequence.cache)
        if job.request.context_logits and sequence.index == 0 and not sequence.made:
            sequence.context_logits = logits.numpy()
        # After a pause: the same passes as before, so that the same numbers come out.
        for token in sequence.made:
            logits = self._model.logits([token], sequence.cache)
        self.pool.store(sequence.table, job.ids + sequence.made)
        return logits[-1]

    def _free(self, sequence):
        """Give up a sequence's blocks and cache; what is computed of it stays findable."""
        if sequence.table is not None:
            if sequence.cache is not None:
                length = sequence.cache.get_seq_length()
                self.pool.store(sequence.table, (sequence.job.ids + sequence.made)[:length])
            self.pool.close(sequence.table)
        sequence.cache = sequence.table = None

    def _end(self, job, reason, stop_reason):
        """End all sequences of a job with one chunk."""
        for sequence in job.open:
            self._free(sequence)
            sequence.finished = True
        self._note()
        try:
            job.on_chunk(Chunk([], "", reason, stop_reason, prompt_tokens=len(job.ids)))
        except Exception:
            traceback.print_exc()

    def fail_all(self, message):
        """End every request with an error."""
        jobs = self._waiting + self._paused + self.running
        self._waiting, self._paused, self.running = [], [], []
        for job in jobs:
            self._end(job, "error", message)

    def check(self):
        """Assert that blocks are held by running sequences only, and cover what they cached."""
        self.pool.check()
        tables = [s.table for job in self.running for s in job.open]
        assert len(set(map(id, tables))) == len(tables)
        assert all(table is not None for table in tables)
        assert sum(len(t.blocks) for t in tables) >= self.pool.used
        for job in self._waiting + self._paused:
            assert all(s.table is None and s.cache is None for s in job.sequences)
        for job in self.running:
            for sequence in job.open:
                if sequence.cache is not None:
                    length = sequence.cache.get_seq_length()
                    assert self.pool.blocks_for(length) <= len(sequence.table.blocks)
        if not self.running:
            assert self.pool.used == 0
