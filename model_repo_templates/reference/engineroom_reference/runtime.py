"""The reference runtime behind `runtime_api`: requests join and leave between steps.

Each step advances every running request by one token, one sequence per forward pass, so the text of
a request does not depend on what else is running.
"""

import collections
import dataclasses
import queue
import threading
import time
import traceback

import torch
from runtime_api import Chunk, RequestError, Stats
from text_codec import TextStream, TokenCodec, end_ids

from engineroom_reference.model import ReferenceModel

# The LLM API's default for kv_cache_config.tokens_per_block.
_TOKENS_PER_BLOCK = 32
# What a request may ask of an engine and this runtime does not compute: refused, never ignored.
_NOT_COMPUTED = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "best_of": 1}


class _Running:
    def __init__(self, request, ids, on_chunk, codec, cache, ends):
        self.request, self.ids, self.on_chunk = request, ids, on_chunk
        self.cache, self.ends = cache, ends
        self.made, self.unsent, self.logprob = [], [], 0.0
        self.text, self.sent = "", 0
        self.stream = TextStream(codec) if request.with_text else None
        self.cancelled = threading.Event()
        self.random = None
        if request.temperature or request.top_k or request.top_p:
            self.random = torch.Generator().manual_seed(request.seed or 0)


class Handle:
    """What a caller keeps to cancel its request."""

    def __init__(self, running):
        self._running = running

    def cancel(self):
        self._running.cancelled.set()


class ReferenceRuntime:
    """transformers on CPU; see the package's docstring for what it is not."""

    name = "reference"

    def start(self, model, args):
        """Load the checkpoint folder `model`; `args` are LLM arguments, of which sizes are used."""
        torch.set_grad_enabled(False)
        self._codec = TokenCodec(model)
        self._model = ReferenceModel(model)
        self._ends = end_ids(model)
        self._max_batch = int(args.get("max_batch_size") or 64)
        limit = getattr(self._model.config, "max_position_embeddings", None)
        self._max_len = int(args.get("max_seq_len") or limit or 2048)
        self._inbox = queue.Queue()
        self._iteration, self._pending = 0, 0
        kv = args.get("kv_cache_config") or {}
        self._block = int(kv.get("tokens_per_block") or _TOKENS_PER_BLOCK)
        self._note([], 0)
        self._thread = threading.Thread(target=self._loop, name="reference-runtime", daemon=True)
        self._thread.start()

    def stop(self):
        self._inbox.put(None)
        self._thread.join(timeout=30)

    def stats(self):
        """The state after the last step, and what has come in since.

        There is no block pool here: each request has a cache of its own, counted in blocks. The
        maximum is what `max_batch_size` requests of `max_seq_len` tokens would hold; nothing is
        reused and no request is ever paused.
        """
        return dataclasses.replace(self._stats, waiting=self._pending + self._inbox.qsize())

    def submit(self, request, on_chunk):
        """Queue a request; `on_chunk` is called from the runtime's thread.

        Raises:
            RequestError: empty prompt, too long, or a feature this runtime does not compute.
        """
        ids = request.prompt_ids
        if ids is None:
            ids = self._codec.encode(request.prompt)
        if not ids:
            raise RequestError("the prompt has no tokens")
        vocabulary = self._model.config.vocab_size
        if any(not 0 <= token < vocabulary for token in ids):
            raise RequestError(f"input ids must lie in 0..{vocabulary - 1}")
        if request.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, got {request.max_tokens}")
        if len(ids) + request.max_tokens > self._max_len:
            raise RequestError(
                f"prompt of {len(ids)} tokens + max_tokens {request.max_tokens} is above "
                f"max_seq_len {self._max_len}"
            )
        for name, neutral in _NOT_COMPUTED.items():
            if getattr(request, name) not in (None, neutral):
                raise RequestError(f"the reference runtime does not compute {name}")
        for name in ("temperature", "top_p"):
            value = getattr(request, name)
            if value is not None and not 0 <= value < float("inf"):
                raise RequestError(f"{name} must be a number of at least 0, got {value}")
        ends = self._ends if request.end_ids is None else list(request.end_ids)
        running = _Running(request, ids, on_chunk, self._codec, self._model.new_cache(), ends)
        self._inbox.put(running)
        return Handle(running)

    # ---- the loop
    def _loop(self):
        running, waiting, open_ = [], collections.deque(), True
        while open_ or running or waiting:
            while True:
                try:
                    item = self._inbox.get(block=open_ and not running and not waiting)
                except queue.Empty:
                    break
                if item is None:
                    open_ = False
                    break
                waiting.append(item)
            while waiting and len(running) < self._max_batch:
                running.append(waiting.popleft())
            if running:
                self._iteration += 1
                self._note(running, len(waiting))
            running = [item for item in running if not self._step_safely(item)]
            self._note(running, len(waiting))

    def _note(self, running, waiting):
        """Record the state for `stats`, which other threads call."""
        new = [item for item in running if not item.made]
        used = sum(-(-item.cache.get_seq_length() // self._block) for item in running)
        most = self._max_batch * -(-self._max_len // self._block)
        self._pending = waiting
        self._stats = Stats(
            active=len(running),
            max_active=self._max_batch,
            scheduled=len(running),
            context=len(new),
            generation=len(running) - len(new),
            paused=0,
            context_tokens=sum(len(item.ids) for item in new),
            micro_batch=0,
            kv_max=most,
            kv_free=most - used,
            kv_used=used,
            kv_tokens_per_block=self._block,
            kv_reused=0,
            iteration=self._iteration,
            timestamp_us=time.time_ns() // 1000,
        )

    def _step_safely(self, item):
        """True when the request has ended."""
        try:
            return self._step(item)
        except Exception as error:
            traceback.print_exc()
            try:
                item.on_chunk(Chunk([], "", "error", f"reference runtime: {error}"))
            except Exception:
                traceback.print_exc()
            return True

    def _step(self, item):
        if item.cancelled.is_set():
            item.on_chunk(Chunk([], "", "cancelled"))
            return True
        logits = self._model.logits(item.made[-1:] or item.ids, item.cache)[-1]
        token = self._choose(item, logits)
        item.logprob += float(torch.log_softmax(logits, -1)[token])
        if token in item.ends:
            return self._finish(item, "stop", None)
        item.made.append(token)
        item.unsent.append(token)
        if item.stream is not None:
            item.text += item.stream.push([token])
            for word in item.request.stop:
                at = item.text.find(word, max(0, item.sent - len(word)))
                if at >= 0:
                    item.text, item.stream = item.text[:at], None
                    return self._finish(item, "stop", word)
        for sequence in item.request.stop_token_sequences:
            if sequence and item.made[-len(sequence) :] == list(sequence):
                return self._finish(item, "stop", None)
        if len(item.made) >= item.request.max_tokens:
            return self._finish(item, "length", None)
        if item.request.streaming:
            self._emit(item)
        return False

    def _emit(self, item):
        # Text that could still become a stop word is held back.
        safe = len(item.text)
        for word in item.request.stop:
            for size in range(min(len(word) - 1, len(item.text)), 0, -1):
                if item.text.endswith(word[:size]):
                    safe = min(safe, len(item.text) - size)
                    break
        delta = item.text[item.sent : safe]
        if delta or (item.unsent and not item.request.with_text):
            item.sent = max(item.sent, safe)
            item.on_chunk(Chunk(item.unsent, delta))
            item.unsent = []

    def _finish(self, item, reason, stop_reason):
        if item.stream is not None:
            item.text += item.stream.finish()
        delta = item.text[item.sent :]
        item.on_chunk(Chunk(item.unsent, delta, reason, stop_reason, item.logprob, len(item.ids)))
        return True

    @staticmethod
    def _choose(item, logits):
        if item.random is None:
            return int(logits.argmax())
        request = item.request
        logits = logits / (request.temperature or 1.0)
        if request.top_k:
            kept = logits.topk(min(request.top_k, logits.numel())).values[-1]
            logits = logits.masked_fill(logits < kept, float("-inf"))
        probabilities = torch.softmax(logits, -1)
        if request.top_p and request.top_p < 1:
            ordered, order = probabilities.sort(descending=True)
            drop = ordered.cumsum(-1) - ordered > request.top_p
            probabilities = probabilities.clone()
            probabilities[order[drop]] = 0
        return int(torch.multinomial(probabilities, 1, generator=item.random))
