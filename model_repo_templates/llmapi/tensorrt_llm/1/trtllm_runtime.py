"""The TensorRT-LLM implementation of `runtime_api`: its LLM API, driven from one event loop.

Written against the LLM API of 1.0 to 1.2 as recorded in the contracts. No TensorRT-LLM was
available where it was written: what is tested is that the calls below are the ones made.
"""

import asyncio
import threading

from runtime_api import Chunk, RequestError


class Handle:
    def __init__(self, result):
        self._result = result

    def cancel(self):
        self._result.abort()


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
        self._thread = threading.Thread(target=self._loop.run_forever, name="llmapi", daemon=True)
        self._thread.start()

    def stop(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=30)
        self._llm.shutdown()

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
        handle.task = self._loop.create_task(self._follow(result, on_chunk))
        return handle

    @staticmethod
    async def _follow(result, on_chunk):
        tokens = text = 0
        final = False
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
                    )
                )
            if not final:  # aborted: every request gets a last response
                on_chunk(Chunk([], "", "cancelled"))
        except Exception as error:
            on_chunk(Chunk([], "", "error", f"{type(error).__name__}: {error}"))
