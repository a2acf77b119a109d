"""`LLM` and the results of its requests."""

import asyncio
import itertools
import os
import time
from types import SimpleNamespace

from tensorrt_llm import answers
from tensorrt_llm.sampling_params import SamplingParams

PERF_START = 1_700_000_000.0
"""Seconds: the made-up times of performance metrics count from here."""


class CompletionOutput:
    """One sequence of an answer; text, token ids and log probabilities are cumulative."""

    def __init__(self, index):
        self.index, self.text, self.token_ids = index, "", []
        self.cumulative_logprob = self.finish_reason = self.stop_reason = None
        self.logprobs, self.prompt_logprobs = [], []
        self.generation_logits = self.disaggregated_params = self.request_perf_metrics = None
        self._last_text_len = self._last_token_ids_len = self._last_logprobs_len = 0
        self._states = None

    @property
    def length(self):
        return len(self.token_ids)

    @property
    def text_diff(self):
        return self.text[self._last_text_len :]

    @property
    def token_ids_diff(self):
        return self.token_ids[self._last_token_ids_len :]

    @property
    def logprobs_diff(self):
        return self.logprobs[self._last_logprobs_len :]


class RequestOutput:
    """An answer that grows: `async for` gives this object again after each step.

    Token k has log probability -(k + 1) / 8.
    """

    def __init__(self, ident, inputs, params, streaming, tokenizer=None):
        self.request_id = self.id = ident
        self.prompt = inputs if isinstance(inputs, str) else None
        self.finished, self.context_logits = False, None
        self._params, self._streaming, self._aborted, self._at = params, streaming, False, 0
        count = 32 if params.max_tokens is None else params.max_tokens
        self._tokenizer, self._reasons = tokenizer, None
        if tokenizer is None:
            self.prompt_token_ids = answers.prompt_tokens(inputs)[1]
            self._made = [answers.answer(inputs, count, place) for place in range(params.n)]
        else:
            ids = self.prompt_token_ids = tokenizer.prompt_ids(inputs, params)
            made = [tokenizer.answer(ids, params, count, place) for place in range(params.n)]
            self._made, self._reasons = zip(*made)
        self._count = max(len(ids) for _, ids in self._made)
        self.outputs = [CompletionOutput(place) for place in range(params.n)]

    @property
    def done(self):
        return self.finished

    def abort(self):
        self._aborted = True
        answers.record("abort", id=self.id)

    def aborted(self):
        return self._aborted

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.finished:
            raise StopAsyncIteration
        await self._step()
        while not self._streaming and not self.finished:
            await self._step()
        return self

    def __await__(self):
        return self.aresult().__await__()

    async def aresult(self):
        while not self.finished:
            await self._step()
        return self

    def result(self, timeout=None):
        return asyncio.run(self.aresult())

    async def _step(self):
        if answers.PAUSE:
            await asyncio.sleep(answers.PAUSE)
        whole = not self._streaming and not answers.PAUSE
        end = self._count if whole else min(self._at + answers.STEP, self._count)
        if not self._aborted:
            for output, (texts, ids) in zip(self.outputs, self._made):
                self._grow(output, texts[self._at : end], ids[self._at : end])
            self._at = end
        self.finished = self._aborted or self._at == self._count
        if self.finished:
            self._end()

    def _grow(self, output, texts, ids):
        output._last_text_len = len(output.text)
        output._last_token_ids_len = len(output.token_ids)
        output._last_logprobs_len = len(output.logprobs)
        output.token_ids.extend(ids)
        if not self._params.detokenize:
            pass
        elif self._tokenizer is None:
            output.text += "".join(texts)
        else:
            self._tokenizer.step(output, self._params, self._streaming)
        if self._params.logprobs is not None:
            values = [-(self._at + k + 1) / 8 for k in range(len(ids))]
            output.logprobs.extend(
                {token: SimpleNamespace(logprob=value, rank=1)} for token, value in zip(ids, values)
            )
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + sum(values)

    def _end(self):
        for place, output in enumerate(self.outputs):
            output.finish_reason = "cancelled" if self._aborted else "length"
            if self._reasons and not self._aborted:
                output.finish_reason, output.stop_reason = self._reasons[place]
            if self._params.return_perf_metrics:
                output.request_perf_metrics = perf_metrics()
            if self._params.return_generation_logits:
                output.generation_logits = _logits(output.length)
        if self._params.return_context_logits:
            self.context_logits = _logits(len(self.prompt_token_ids))


def _logits(rows, vocabulary=4):
    import torch

    return torch.arange(rows * vocabulary, dtype=torch.float32).reshape(rows, vocabulary)


def perf_metrics():
    """Made-up metrics, in the shape of the executor's `RequestPerfMetrics`."""
    import datetime

    def at(microseconds):
        return datetime.timedelta(seconds=PERF_START, microseconds=microseconds)

    return SimpleNamespace(
        kv_cache_metrics=SimpleNamespace(
            num_reused_blocks=1,
            num_new_allocated_blocks=2,
            num_total_allocated_blocks=3,
            num_missed_blocks=3,
            kv_cache_hit_rate=0.25,
        ),
        timing_metrics=SimpleNamespace(
            arrival_time=at(0),
            first_scheduled_time=at(1),
            first_token_time=at(2),
            last_token_time=at(3),
        ),
        speculative_decoding=SimpleNamespace(
            acceptance_rate=0.5, total_accepted_draft_tokens=4, total_draft_tokens=8
        ),
    )


class LLM:
    """The engine's place: answers each request at once with `answers.answer`."""

    def __init__(self, model, **arguments):
        self.args = SimpleNamespace(model=model, **arguments)
        self.tokenizer = None
        if answers.TOKENIZER:
            from tensorrt_llm.text import Tokenizer

            self.tokenizer = Tokenizer(answers.TOKENIZER)
        self._ids = itertools.count(1)
        answers.record("LLM", model=model, arguments=arguments)

    def generate_async(self, inputs, sampling_params=None, streaming=False, **others):
        """Others: lora_request, kv_cache_retention_config, priority and the like, recorded as given."""
        params, streaming = sampling_params or SamplingParams(), bool(streaming)
        params.prepare(self.tokenizer)
        result = RequestOutput(next(self._ids), inputs, params, streaming, self.tokenizer)
        if answers.RECORD:
            answers.record(
                "generate_async",
                id=result.id,
                inputs=inputs,
                sampling_params=params.given,
                streaming=streaming,
                others=others,
            )
        return result

    if os.environ.get("STANDIN_PRIORITY"):
        _generate = generate_async

        def generate_async(
            self, inputs, sampling_params=None, streaming=False, priority=None, **others
        ):
            """As a release has it whose call takes a priority by name."""
            if priority is not None:
                others["priority"] = priority
            return self._generate(inputs, sampling_params, streaming, **others)

    def get_stats(self, timeout=None):
        return [_stats()]

    async def get_stats_async(self, timeout=None):
        yield _stats()

    def shutdown(self):
        answers.record("shutdown")


def _stats():
    """One made-up iteration, in upstream's JSON names; nothing runs and half the blocks are used."""
    return {
        "iter": 1,
        "timestamp": time.strftime("%m-%d-%Y %H:%M:%S"),
        "numActiveRequests": 0,
        "numQueuedRequests": 0,
        "maxNumActiveRequests": 8,
        "gpuMemUsage": 0,
        "inflightBatchingStats": {
            "numScheduledRequests": 0,
            "numContextRequests": 0,
            "numGenRequests": 0,
            "numPausedRequests": 0,
            "numCtxTokens": 0,
            "microBatchId": 0,
        },
        "kvCacheStats": {
            "maxNumBlocks": 100,
            "freeNumBlocks": 50,
            "usedNumBlocks": 50,
            "tokensPerBlock": 32,
            "reusedBlocks": 0,
        },
    }
