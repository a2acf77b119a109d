"""The TensorRT-LLM implementation of `runtime_api`: its LLM API, driven from one event loop.

Written against the LLM API of 0.21 to 1.4 as recorded in the contracts. No TensorRT-LLM was available
where it was written: what is tested is that the calls below are the ones made.
"""

import asyncio
import importlib
import io
import json
import time
import traceback

from event_loop import SharedLoop
from runtime_api import Chunk, Stats
from text_codec import bos_token, end_ids
from trtllm_output import Progress
from trtllm_request import Converter, in_steps, open_codec

# Seconds between two looks at the iteration statistics, and the longest wait for a new one. In the
# releases that hand them over in a queue, upstream closes it after that wait until the next request:
# short waits would lose the rest of a request whose prompt takes longer.
STATS_PERIOD, STATS_WAIT, RPC_WAIT = 0.1, 30, 2
# Of an iteration: what is about requests and not about the cache or the machine.
OF_REQUESTS = ("numActiveRequests", "numQueuedRequests", "inflightBatchingStats")
MAX_PIXELS = 64_000_000  # of one image; decoded it takes three bytes a pixel


class Handle:
    """One request: what cancels it, and what was sent of it.

    Attributes:
        ids: of the prompt, or None. result: upstream's, once the request was handed over.
    """

    __slots__ = ("_loop", "cancelled", "ids", "on_chunk", "request", "result", "task")

    def __init__(self, request, ids, on_chunk, loop):
        self.request, self.ids, self.on_chunk, self._loop = request, ids, on_chunk, loop
        self.result = self.task = None
        self.cancelled = False

    def cancel(self):
        """From any thread; a request that is not handed over yet never is."""
        self.cancelled = True
        self._loop.call_soon_threadsafe(self._abort)

    def _abort(self):
        if self.result is not None and not (self.task is not None and self.task.done()):
            self.result.abort()


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
    """TensorRT-LLM's `LLM`.

    Attributes:
        merge_events: tokens that are ready before the previous ones have left go out in one chunk.
    """

    name = "tensorrt_llm"
    merge_events = True

    def start(self, model, args):
        """Load the model.

        Args:
            model: checkpoint folder, or a hub id.
            args: LLM arguments; `logits_post_processors`, {name: "module:attribute"}, is not upstream's.
        """
        import tensorrt_llm

        args = dict(args)
        processors = {
            name: _processor(name, spec)
            for name, spec in args.pop("logits_post_processors", {}).items()
        }
        if getattr(tensorrt_llm, "__version__", "").startswith("0."):
            # Before 1.0 the plain name is the TensorRT engine backend.
            from tensorrt_llm._torch import LLM
        else:
            LLM = tensorrt_llm.LLM
        self._llm = LLM(**_arguments({"model": model, **args}))
        folder = str(args.get("tokenizer") or model)
        self._ends, bos = end_ids(folder) or end_ids(model), bos_token(folder)
        self._codec = open_codec(folder)
        self._convert = Converter(self._llm, tensorrt_llm, self._ends, bos, processors, self._codec)
        self._shared = SharedLoop("llmapi")
        self._loop = self._shared.loop
        self._running, self._seen = 0, False
        self._latest, self._latest_us, self._stale = {}, None, False
        self._watching = self._loop.create_task(self._watch())
        self._shared.start()

    def stop(self):
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(timeout=30)
        self._shared.close()
        self._llm.shutdown()

    async def _end(self):
        self._watching.cancel()
        await asyncio.wait([self._watching])

    # ---- statistics
    def stats(self):
        """The newest iteration's statistics, or none before the first one; returns at once."""
        latest = self._latest
        if isinstance(latest, str):
            # Most iterations are never looked at, so they are not parsed when they arrive.
            latest = json.loads(latest)
        if self._stale:
            latest = {name: value for name, value in latest.items() if name not in OF_REQUESTS}
        return to_stats(latest, self._latest_us, self._running)

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
        self._latest, self._latest_us, self._stale = item, time.time_ns() // 1000, False

    # ---- requests
    def submit(self, request, on_chunk):
        """Hand over a request without waiting for its tokens.

        `on_chunk` is called from whichever thread runs the event loop, perhaps before this returns,
        also with what is wrong with the request.
        """
        # Here and not on the loop: other requests go on meanwhile.
        handle = Handle(request, self._convert.prompt_ids(request), on_chunk, self._loop)
        self._shared.run(self._start, handle)
        return handle

    def _start(self, handle):
        # Held on the handle: the event loop itself keeps only a weak reference to a task.
        handle.task = self._loop.create_task(self._serve(handle))

    async def _serve(self, handle):
        try:
            if handle.cancelled:
                handle.on_chunk(Chunk([], "", "cancelled"))
                return
            self._begin(handle)
        except ValueError as error:
            handle.on_chunk(Chunk([], "", "error", str(error), invalid=True))
            return
        except Exception as error:
            self._failed(handle, error)
            return
        try:
            await self._chunks(handle)
        except Exception as error:
            self._failed(handle, error)
        finally:
            self._running -= 1

    @staticmethod
    def _failed(handle, error):
        traceback.print_exc()
        handle.on_chunk(Chunk([], "", "error", f"{type(error).__name__}: {error}"))

    def _begin(self, handle):
        request = handle.request
        inputs, params, more = self._convert.arguments(request, handle.ids)
        handle.result = self._llm.generate_async(
            inputs, params, streaming=in_steps(request), **more
        )
        if not self._running:
            # What the last step before a pause said of requests is not about this one.
            self._stale = True
        self._running, self._seen = self._running + 1, True

    async def _chunks(self, handle):
        progress, waiting = Progress(handle.request, handle.result, self._ends, self._codec), False

        def hand_on():
            nonlocal waiting
            waiting = False
            for chunk in progress.chunks(output):
                if progress.over and not progress.finished:
                    handle.result.abort()  # a stop word that upstream did not see
                handle.on_chunk(chunk)

        async for output in handle.result:
            if not self.merge_events or output.finished:
                hand_on()
            elif progress.steps and not waiting:
                # Runs when this loop really waits: tokens that are there already go out together.
                waiting = True
                self._loop.call_soon(hand_on)
            if progress.over:
                return
        # Aborted: every request gets a last response.
        handle.on_chunk(Chunk([], "", "cancelled"))

    @staticmethod
    def decode_image(data):
        """Bytes of an image file as what the LLM API takes; called from any thread.

        Raises:
            Exception: Pillow cannot read it, or it has more than `MAX_PIXELS`.
        """
        from PIL import Image

        image = Image.open(io.BytesIO(data))
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels")
        return image.convert("RGB")


def _arguments(args):
    """LLM arguments with nested ones as the objects that this release wants, by upstream's own rule."""
    try:
        from tensorrt_llm.llmapi.llm_utils import update_llm_args_with_extra_dict
    except ImportError:
        return args
    return update_llm_args_with_extra_dict({}, args)


def _processor(name, spec):
    module, _, path = spec.partition(":")
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        found = found() if isinstance(found, type) else found
    except Exception as error:
        raise ValueError(f"logits_post_processors: {name}: {spec!r}: {error}") from error
    return found
