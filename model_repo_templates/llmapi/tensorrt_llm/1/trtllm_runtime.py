"""The TensorRT-LLM implementation of `runtime_api`: its LLM API, driven from one event loop.

Written against the LLM API of 1.0 to 1.2 as recorded in the contracts. No TensorRT-LLM was
available where it was written: what is tested is that the calls below are the ones made.
"""

import asyncio
import json
import threading
import time
import traceback

from runtime_api import Chunk, RequestError, Stats

# Seconds between two looks at the iteration statistics, and the longest wait for a new one. In the
# releases that hand them over in a queue, upstream closes it after that wait until the next request:
# short waits would lose the rest of a request whose prompt takes longer.
STATS_PERIOD, STATS_WAIT, RPC_WAIT = 0.1, 30, 2


class Handle:
    def __init__(self, result):
        self._result = result

    def cancel(self):
        self._result.abort()


def to_stats(item, timestamp_us, running):
    """`Stats` of one iteration (upstream's JSON names) with `running` requests unfinished by our count.

    Upstream counts requests before a step and reports nothing while idle, so its last figures keep
    showing the requests that this step ended: with none unfinished these are 0. Memory other than
    the GPU's is a constant 0 there, and not taken.
    """
    batch, kv = item.get("inflightBatchingStats") or {}, item.get("kvCacheStats") or {}

    def now(value):
        return value if running else 0

    active, scheduled = item.get("numActiveRequests"), batch.get("numScheduledRequests")
    queued = item.get("numQueuedRequests")
    waiting = None
    if None not in (active, scheduled, queued):
        # Beyond the executor's limit they are queued; within it some may miss a step.
        waiting = queued + max(0, active - scheduled)
    return Stats(
        active=now(active),
        max_active=item.get("maxNumActiveRequests"),
        scheduled=now(scheduled),
        context=now(batch.get("numContextRequests")),
        generation=now(batch.get("numGenRequests")),
        waiting=now(waiting),
        paused=now(batch.get("numPausedRequests")),
        context_tokens=now(batch.get("numCtxTokens")),
        micro_batch=batch.get("microBatchId"),
        kv_max=kv.get("maxNumBlocks"),
        kv_free=kv.get("freeNumBlocks"),
        kv_used=kv.get("usedNumBlocks"),
        kv_tokens_per_block=kv.get("tokensPerBlock"),
        kv_reused=kv.get("reusedBlocks"),
        gpu_bytes=item.get("gpuMemUsage"),
        iteration=item.get("iter"),
        timestamp_us=timestamp_us,
    )


class TrtllmRuntime:
    name = "tensorrt_llm"

    def start(self, model, args):
        import tensorrt_llm

        self._sampling_params = tensorrt_llm.SamplingParams
        if getattr(tensorrt_llm, "__version__", "").startswith("0."):
            # Before 1.0 the plain name is the TensorRT engine backend.
            from tensorrt_llm._torch import LLM
        else:
            LLM = tensorrt_llm.LLM
        self._llm = LLM(model=model, **args)
        self._loop = asyncio.new_event_loop()
        self._running, self._seen, self._latest, self._latest_us = 0, False, {}, None
        self._watching = self._loop.create_task(self._watch())
        self._thread = threading.Thread(target=self._loop.run_forever, name="llmapi", daemon=True)
        self._thread.start()

    def stop(self):
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        self._thread.join(timeout=30)
        self._llm.shutdown()

    async def _end(self):
        self._watching.cancel()
        await asyncio.wait([self._watching])
        self._loop.stop()

    def stats(self):
        """The newest iteration's statistics, or none before the first one; returns at once."""
        return to_stats(self._latest, self._latest_us, self._running)

    async def _watch(self):
        """Keep the newest iteration's statistics; on the event loop, without blocking it."""
        failed = False
        while True:
            await asyncio.sleep(STATS_PERIOD)
            if not self._seen:  # upstream has none before the first request, and prints so
                continue
            try:
                if getattr(getattr(self._llm, "_executor", None), "rpc_client", None) is not None:
                    # The asynchronous call is a blocking one here, so the plain one in a thread.
                    for item in await asyncio.to_thread(self._llm.get_stats, timeout=RPC_WAIT):
                        self._keep(item)
                else:
                    # The plain call returns only when the queue is empty: under load, never.
                    async for item in self._llm.get_stats_async(timeout=STATS_WAIT):
                        self._keep(item)
            except Exception:
                if not failed:
                    traceback.print_exc()
                failed = True

    def _keep(self, item):
        self._latest = json.loads(item) if isinstance(item, str) else item
        self._latest_us = time.time_ns() // 1000

    def submit(self, request, on_chunk):
        """Start a request on the event loop; `on_chunk` is called from the loop's thread."""
        return asyncio.run_coroutine_threadsafe(self._begin(request, on_chunk), self._loop).result()

    async def _begin(self, request, on_chunk):
        wanted = {
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_k": request.top_k,
            "top_p": request.top_p,
            "frequency_penalty": request.frequency_penalty,
            "presence_penalty": request.presence_penalty,
            "seed": request.seed,
            "best_of": request.best_of,
            "stop": request.stop or None,
        }
        if request.end_ids:
            wanted["end_id"], *more = request.end_ids
            wanted["stop_token_ids"] = more or None
        try:
            params = self._sampling_params(**{k: v for k, v in wanted.items() if v is not None})
            result = self._llm.generate_async(
                request.prompt if request.prompt_ids is None else request.prompt_ids,
                params,
                streaming=request.streaming,
            )
        except ValueError as error:
            raise RequestError(str(error)) from None
        # Held on the handle: the event loop itself keeps only a weak reference to a task.
        handle = Handle(result)
        if not self._running:
            # What the last step before a pause said of requests is not about this one.
            gone = ("numActiveRequests", "numQueuedRequests", "inflightBatchingStats")
            self._latest = {k: v for k, v in self._latest.items() if k not in gone}
        self._running, self._seen = self._running + 1, True
        handle.task = self._loop.create_task(self._follow(result, on_chunk))
        return handle

    async def _follow(self, result, on_chunk):
        try:
            await self._chunks(result, on_chunk)
        finally:
            self._running -= 1

    @staticmethod
    async def _chunks(result, on_chunk):
        tokens = text = 0
        final = False
        prompt = getattr(result, "prompt_token_ids", None)
        try:
            async for output in result:
                best = output.outputs[0]
                whole = best.text
                if best.finish_reason is None:
                    # An unfinished character shows as U+FFFD until its other bytes arrive.
                    whole = whole.rstrip("\ufffd")
                new_ids, delta = list(best.token_ids[tokens:]), whole[text:]
                tokens, text = len(best.token_ids), max(text, len(whole))
                final = best.finish_reason is not None
                on_chunk(
                    Chunk(
                        new_ids,
                        delta,
                        best.finish_reason,
                        None if best.stop_reason is None else str(best.stop_reason),
                        best.cumulative_logprob,
                        None if prompt is None else len(prompt),
                    )
                )
            if not final:  # aborted: every request gets a last response
                on_chunk(Chunk([], "", "cancelled"))
        except Exception as error:
            on_chunk(Chunk([], "", "error", f"{type(error).__name__}: {error}"))
