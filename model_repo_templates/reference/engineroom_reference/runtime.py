"""The reference runtime behind `runtime_api`: requests join and leave between steps.

Each step advances every running sequence by one token, one sequence per forward pass, so that what
a request answers does not depend on what else is running.
"""

import dataclasses
import itertools
import queue
import threading
import time
import traceback

import torch
from runtime_api import RequestError, Stats
from text_codec import TokenCodec, end_ids

from engineroom_reference import validation
from engineroom_reference.blocks import BlockPool
from engineroom_reference.guided import Guides
from engineroom_reference.model import ReferenceModel
from engineroom_reference.scheduler import POLICIES, Scheduler
from engineroom_reference.sequence import Job

# The LLM API's default for kv_cache_config.tokens_per_block.
_TOKENS_PER_BLOCK = 32
# Below this many parameters, threads wait for each other longer than they compute.
_SMALL = 20_000_000


class Handle:
    """What a caller keeps to cancel its request, at any time and any number of times."""

    def __init__(self, job):
        self._job = job

    def cancel(self):
        self._job.cancelled.set()


class ReferenceRuntime:
    """transformers on CPU; see the package's docstring for what it is not."""

    name = "reference"

    def start(self, model, args):
        """Load the checkpoint folder `model`.

        Args:
            args: LLM arguments, of which these are used: max_batch_size, max_seq_len,
                stream_interval, scheduler_config.capacity_scheduler_policy and of kv_cache_config
                tokens_per_block, max_tokens, enable_block_reuse (default: true, as upstream). One
                more: max_queue_size, requests that may wait (default: no limit).

        Raises:
            ValueError: a checkpoint or a policy that this runtime does not know.
        """
        torch.set_grad_enabled(False)
        self._codec = TokenCodec(model)
        self._model = ReferenceModel(model)
        if sum(p.numel() for p in self._model.model.parameters()) < _SMALL:
            torch.set_num_threads(1)
        self._ends = end_ids(model)
        self._vocabulary = self._model.config.vocab_size
        self._guides = Guides(model, self._vocabulary, self._ends)
        self._max_batch = int(args.get("max_batch_size") or 64)
        limit = getattr(self._model.config, "max_position_embeddings", None)
        self._max_len = int(args.get("max_seq_len") or limit or 2048)
        self._interval = max(1, int(args.get("stream_interval") or 1))
        self._max_queue = int(args.get("max_queue_size") or 0)
        kv = args.get("kv_cache_config") or {}
        block = int(kv.get("tokens_per_block") or _TOKENS_PER_BLOCK)
        if kv.get("max_tokens"):
            blocks = -(-int(kv["max_tokens"]) // block)
        else:
            blocks = self._max_batch * -(-self._max_len // block)
        reuse = kv.get("enable_block_reuse")
        pool = BlockPool(blocks, block, True if reuse is None else bool(reuse))
        policy = (args.get("scheduler_config") or {}).get("capacity_scheduler_policy")
        self._scheduler = Scheduler(
            self._model, pool, self._max_batch, (policy or POLICIES[0]).lower(), self._note
        )
        self._inbox, self._numbers = queue.Queue(), itertools.count()
        self._iteration, self._closed, self._gate = 0, False, threading.Lock()
        self._note()
        self._thread = threading.Thread(target=self._loop, name="reference-runtime", daemon=True)
        self._thread.start()

    def stop(self):
        """Answer what has come in, then end; requests that come later are refused."""
        with self._gate:  # so that no request comes in behind the last one that is read
            self._closed = True
            self._inbox.put(None)
        self._thread.join(timeout=30)

    def submit(self, request, on_chunk):
        """Queue a request; `on_chunk` is called from the runtime's thread.

        A callback that raises ends its own request only.

        Raises:
            RequestError: a value out of range, a prompt that does not fit, a feature that this
                runtime does not compute, a guide that does not compile, or a full queue.
        """
        validation.check_sampling(request)
        validation.check_words(request, self._vocabulary)
        ids = validation.prompt_ids(request, self._codec, self._vocabulary, self._max_len)
        if request.n > self._max_batch:
            raise RequestError(f"n {request.n} is above max_batch_size {self._max_batch}", "n")
        pool = self._scheduler.pool
        most = self._scheduler.most_blocks(len(ids), request.max_tokens, request.n)
        if most > pool.size:
            raise RequestError(
                f"max_tokens {request.max_tokens}: {request.n} x ({len(ids)} + "
                f"{request.max_tokens}) tokens need {most} KV cache blocks, there are {pool.size}",
                "max_tokens",
            )
        bad = validation.bad_sequences(request, self._codec)
        matcher = None if request.guide is None else self._guides(request.guide)
        ends = self._ends if request.end_ids is None else list(request.end_ids)
        job = Job(
            request, ids, ends, bad, matcher, on_chunk, self._codec, next(self._numbers),
            self._interval,
        )  # fmt: skip
        with self._gate:
            waiting = self._scheduler.waiting + self._inbox.qsize()
            if self._max_queue and waiting >= self._max_queue:
                raise RequestError(f"the queue is full: {waiting} requests wait")
            if self._closed:
                raise RequestError("the runtime is stopping")
            self._inbox.put(job)
        return Handle(job)

    def stats(self):
        """The state after the last step, and what has come in since."""
        stats = self._stats
        return dataclasses.replace(stats, waiting=stats.waiting + self._inbox.qsize())

    def check(self):
        """Assert that no block is lost; call it while nothing is submitted or running."""
        self._scheduler.check()

    # ---- the loop
    def _loop(self):
        open_ = True
        while open_ or not self._scheduler.idle:
            while True:
                try:
                    job = self._inbox.get(block=open_ and self._scheduler.idle)
                except queue.Empty:
                    break
                if job is None:
                    open_ = False
                    break
                self._scheduler.add(job)
            try:
                self._scheduler.schedule()
                if self._scheduler.running:
                    self._iteration += 1
                    self._note()
                    self._scheduler.step()
            except Exception as error:  # a defect of ours: nobody may wait for ever
                traceback.print_exc()
                self._scheduler.fail_all(f"reference runtime: {error}")
            self._note()

    def _note(self):
        """Record the state for `stats`, which other threads call."""
        scheduler, pool = self._scheduler, self._scheduler.pool
        running = [sequence for job in scheduler.running for sequence in job.open]
        new = [sequence for sequence in running if sequence.cache is None]
        self._stats = Stats(
            active=len(running),
            max_active=self._max_batch,
            scheduled=len(running),
            context=len(new),
            generation=len(running) - len(new),
            waiting=scheduler.waiting,
            paused=scheduler.paused,
            context_tokens=sum(sequence.cached for sequence in new),
            micro_batch=0,
            kv_max=pool.size,
            kv_free=pool.free,
            kv_used=pool.used,
            kv_tokens_per_block=pool.tokens_per_block,
            kv_reused=pool.reused,
            iteration=self._iteration,
            timestamp_us=time.time_ns() // 1000,
        )
