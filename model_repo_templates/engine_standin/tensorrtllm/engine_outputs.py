"""Chunks of the runtime to responses of the `tensorrt_llm` model.

As the C++ backend does (NVIDIA/TensorRT-LLM triton_backend/inflight_batcher_llm/src/
model_instance_state.cc): a response is about one row and one sequence, each tensor begins with a
batch dimension of 1 and then has one of beams, and only tensors that the client asked for and that
apply are sent: `batch_index` with several rows, `sequence_index` with several sequences.
"""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# Output name -> (attribute of runtime_api.Perf, type)
PERF = {
    "kv_cache_alloc_new_blocks": ("kv_new_blocks", np.int32),
    "kv_cache_reused_blocks": ("kv_reused_blocks", np.int32),
    "kv_cache_alloc_total_blocks": ("kv_total_blocks", np.int32),
    "arrival_time_ns": ("arrival_ns", np.int64),
    "first_scheduled_time_ns": ("first_scheduled_ns", np.int64),
    "first_token_time_ns": ("first_token_ns", np.int64),
    "last_token_time_ns": ("last_token_ns", np.int64),
    "acceptance_rate": ("acceptance_rate", np.float32),
    "total_accepted_draft_tokens": ("accepted_draft_tokens", np.int32),
    "total_draft_tokens": ("draft_tokens", np.int32),
}


def fail(sender, message):
    """End a request with an error."""
    error = pb_utils.TritonError(f"[engineroom] {message}")
    sender.send(pb_utils.InferenceResponse(output_tensors=[], error=error), flags=FINAL)


class _Part:
    """What one sequence of one row has to say and has not sent."""

    def __init__(self):
        self.total = 0.0
        self.clear_all()

    def clear_all(self):
        self.ids, self.log_probs, self.logits, self.context = [], [], [], None


class Reply:
    """Collects the chunks of one Triton request; called from the runtime's thread.

    Args:
        jobs: the requests, one a row.
        wanted: names of the outputs that the client asked for.
        exclude: for each row, leave the prompt out of `output_ids`; a stream never has it.
        counts: names among num_input_tokens and num_output_tokens that are to be sent.
        logits_type: numpy type of the logits outputs.
        on_end: called once, with (prompt tokens, output tokens or None after an error).
    """

    def __init__(self, sender, jobs, wanted, exclude, counts, logits_type, on_end):
        self.sender, self._jobs, self._wanted = sender, jobs, wanted
        self._exclude, self._counts, self._logits_type = exclude, counts, logits_type
        self._on_end, self._lock = on_end, threading.Lock()
        self._streaming = jobs[0].streaming
        self._parts = [[_Part() for _ in range(job.n)] for job in jobs]
        self._open, self._made = sum(job.n for job in jobs), 0
        self._handles, self._cancelled, self.done = [], False, False

    def row(self, index):
        return lambda chunk: self._chunk(index, chunk)

    def add(self, handle):
        with self._lock:
            self._handles.append(handle)
            cancelled = self._cancelled
        if cancelled:
            handle.cancel()

    def cancel(self):
        with self._lock:
            self._cancelled, handles = True, list(self._handles)
        for handle in handles:
            handle.cancel()

    def poll(self):
        """Cancel when the client has gone. After the final response Triton must not be asked: the
        lock keeps that one back while it is."""
        with self._lock:
            gone = not self.done and self.sender.is_cancelled()
        if gone:
            self.cancel()

    def fail(self, message):
        """End with an error, once; what still runs is cancelled."""
        with self._lock:
            done, self.done = self.done, True
        if not done:
            self._end(None)
            fail(self.sender, message)
        self.cancel()

    def _end(self, made):
        self._on_end(sum(len(job.prompt_ids) for job in self._jobs), made)

    def _chunk(self, row, chunk):
        if self.done:
            return
        if chunk.finish_reason == "error":
            self.fail(chunk.stop_reason or "generation failed")
            return
        if chunk.finish_reason == "cancelled":
            # One chunk ends all sequences of the row that had not ended.
            parts = [(i, p) for i, p in enumerate(self._parts[row]) if p is not None]
        else:
            parts = [(chunk.index, self._parts[row][chunk.index])]
        for index, part in parts:
            self._take(part, chunk)
            if chunk.final:
                self._open -= 1
                self._parts[row][index] = None
                if self._open == 0:
                    with self._lock:
                        self.done = True
                    self._end(None if chunk.finish_reason == "cancelled" else self._made)
            if self._streaming or chunk.final:
                tensors = self._tensors(row, index, part, chunk)
                response = pb_utils.InferenceResponse(tensors)
                self.sender.send(response, flags=FINAL if self.done else 0)
                part.clear_all()

    def _take(self, part, chunk):
        part.ids.extend(chunk.token_ids)
        self._made += len(chunk.token_ids)
        if chunk.log_probs:
            part.log_probs.extend(chunk.log_probs)
            part.total += sum(chunk.log_probs)
        if chunk.cumulative_logprob is not None:
            part.total = chunk.cumulative_logprob  # has the end token as well
        if chunk.generation_logits is not None:
            part.logits.append(chunk.generation_logits)
        if chunk.context_logits is not None:
            part.context = chunk.context_logits

    def _tensors(self, row, index, part, chunk):
        job, wanted, found = self._jobs[row], self._wanted, []

        def put(name, value, kind):
            if name in wanted:
                found.append(pb_utils.Tensor(name, np.asarray(value, kind)))

        ids = part.ids
        if not (self._streaming or self._exclude[row]):
            ids = job.prompt_ids + ids
        put("output_ids", np.asarray(ids, np.int32).reshape(1, 1, -1), np.int32)
        put("sequence_length", [[len(ids)]], np.int32)
        if job.log_probs:
            put("output_log_probs", np.asarray(part.log_probs).reshape(1, 1, -1), np.float32)
            put("cum_log_probs", [[part.total]], np.float32)
        if part.context is not None:
            put("context_logits", part.context[None], self._logits_type)
        if part.logits:
            put("generation_logits", np.concatenate(part.logits)[None, None], self._logits_type)
        if len(self._jobs) > 1:
            put("batch_index", [[row]], np.int32)
        if job.n > 1:
            put("sequence_index", [[index]], np.int32)
        if "num_input_tokens" in self._counts:
            put("num_input_tokens", [[len(job.prompt_ids)]], np.int32)
        if "num_output_tokens" in self._counts:
            put("num_output_tokens", [[len(ids)]], np.int32)
        if chunk.perf is not None:
            for name, (attribute, kind) in PERF.items():
                put(name, [[getattr(chunk.perf, attribute)]], kind)
        return found
