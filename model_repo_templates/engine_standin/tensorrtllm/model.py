"""Stand-in for the C++ `tensorrtllm` backend: engineroom's reference runtime behind its tensors.

A Python-based Triton backend, used by `engineroom serve` on machines without a GPU and never
rendered into a repository. It is not TensorRT-LLM. The engine folder (`gpt_model_path`) must hold a
build-plan.json, which names the checkpoint to compute with.
"""

import json
import os
import threading

import numpy as np
import triton_python_backend_utils as pb_utils
from runtime_api import Request, RequestError, make_runtime

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# Asked for with a non-neutral value, these are refused: the reference runtime has no such thing.
REFUSED = {
    "beam_width": 1,
    "num_return_sequences": 1,
    "len_penalty": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "return_log_probs": False,
    "return_context_logits": False,
    "return_generation_logits": False,
}


def words(array, row):
    """Token sequences of one row of a [batch, 2, length] word list."""
    if array is None:
        return []
    ids, offsets = array[row]
    found, start = [], 0
    for end in offsets.tolist():
        if end < 0:
            break
        found.append(ids[start:end].tolist())
        start = end
    return found


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {k: v["string_value"] for k, v in config["parameters"].items()}
        if parameters.get("engineroom_runtime") != "reference":
            raise ValueError("this stand-in serves only repositories rendered for `reference`")
        folder = parameters["gpt_model_path"]
        with open(os.path.join(folder, "build-plan.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            plan = json.load(file)
        checkpoint = os.path.normpath(os.path.join(folder, plan["reference_checkpoint"]))  # noqa: PTH118
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.exclude = parameters.get("exclude_input_in_output") == "true"
        self.runtime = make_runtime("reference")
        self.runtime.start(checkpoint, plan["limits"])
        self.handles, self.lock = {}, threading.Lock()
        pb_utils.Logger.log_info(
            f"[engineroom] tensorrtllm stand-in: runtime=reference checkpoint={checkpoint}"
        )

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._one(request, sender)
            except RequestError as error:
                _fail(sender, str(error))
            except Exception as error:
                _fail(sender, f"{type(error).__name__}: {error}")
        return None

    def _one(self, request, sender):
        ident = request.request_id()
        if _scalar(request, "stop", 0, False):
            with self.lock:
                handles = list(self.handles.get(ident, []))
            for handle in handles:
                handle.cancel()
            sender.send(flags=FINAL) if self.decoupled else _fail(sender, "stop: cancelled")
            return
        for name, neutral in REFUSED.items():
            value = _scalar(request, name, 0, neutral)
            if value != neutral:
                raise RequestError(f"the reference stand-in does not compute {name} = {value}")
        streaming = bool(_scalar(request, "streaming", 0, False))
        if streaming and not self.decoupled:
            raise RequestError("streaming needs a repository rendered with serving.streaming: true")
        ids = _array(request, "input_ids")
        ids = ids.reshape(ids.shape[0], -1)
        lengths = _array(request, "input_lengths").reshape(-1)
        batch = ids.shape[0]
        exclude = bool(_scalar(request, "exclude_input_in_output", 0, self.exclude)) or streaming
        stops = _array(request, "stop_words_list")
        jobs = []
        for row in range(batch):
            end = _scalar(request, "end_id", row, -1)
            jobs.append(
                Request(
                    prompt_ids=ids[row, : int(lengths[row])].tolist(),
                    max_tokens=int(_scalar(request, "request_output_len", row, 16)),
                    temperature=_scalar(request, "temperature", row),
                    top_k=_scalar(request, "runtime_top_k", row),
                    top_p=_scalar(request, "runtime_top_p", row),
                    seed=_scalar(request, "seed", row),
                    end_ids=[end] if end >= 0 else [],
                    stop_token_sequences=words(stops, row),
                    with_text=False,
                    streaming=streaming,
                )
            )
        reply = _Reply(sender, jobs, streaming, exclude, lambda: self._forget(ident))
        for row, job in enumerate(jobs):
            handle = self.runtime.submit(job, reply.row(row))
            reply.handles.append(handle)
        with self.lock:  # as in the llmapi model: no finished handle stays
            if ident and reply.open:
                self.handles[ident] = reply.handles

    def _forget(self, ident):
        with self.lock:
            self.handles.pop(ident, None)

    def finalize(self):
        self.runtime.stop()


class _Reply:
    """Collects the rows of one request; called from the runtime's thread."""

    def __init__(self, sender, jobs, streaming, exclude, on_end):
        self.sender, self.jobs, self.streaming = sender, jobs, streaming
        self.exclude, self.on_end = exclude, on_end
        self.made, self.open = [[] for _ in jobs], len(jobs)
        self.handles, self.failed = [], False

    def row(self, index):
        return lambda chunk: self._chunk(index, chunk)

    def _chunk(self, index, chunk):
        if self.failed:
            return
        if chunk.finish_reason == "error":
            self.failed = True
            self.on_end()
            _fail(self.sender, chunk.stop_reason or "generation failed")
            return
        self.made[index].extend(chunk.token_ids)
        if chunk.final:
            self.open -= 1
        last = self.open == 0
        if last:
            self.on_end()
        if self.sender.is_cancelled():
            for handle in self.handles:
                handle.cancel()
        if self.streaming:
            if chunk.token_ids:
                self.sender.send(_response([chunk.token_ids], [index]), flags=FINAL if last else 0)
            elif last:
                self.sender.send(flags=FINAL)
        elif last:
            rows = [m if self.exclude else j.prompt_ids + m for j, m in zip(self.jobs, self.made)]
            self.sender.send(_response(rows, list(range(len(rows)))), flags=FINAL)


def _response(rows, indices):
    width = max(1, max(len(row) for row in rows))
    ids = np.zeros((len(rows), 1, width), np.int32)
    for i, row in enumerate(rows):
        ids[i, 0, : len(row)] = row
    lengths = np.array([[len(row)] for row in rows], np.int32)
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("output_ids", ids),
            pb_utils.Tensor("sequence_length", lengths),
            pb_utils.Tensor("batch_index", np.array([[i] for i in indices], np.int32)),
            pb_utils.Tensor("sequence_index", np.zeros((len(rows), 1), np.int32)),
        ]
    )


def _array(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def _scalar(request, name, row, default=None):
    array = _array(request, name)
    return default if array is None or array.size == 0 else array.reshape(-1)[row].item()


def _fail(sender, message):
    error = pb_utils.TritonError(f"[engineroom] {message}")
    sender.send(pb_utils.InferenceResponse(output_tensors=[], error=error), flags=FINAL)
