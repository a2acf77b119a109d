"""A test double of Triton's C++ `tensorrtllm` backend: it computes nothing and answers at once.

A Python-based Triton backend with the tensors of a `tensorrt_llm` model. It exists for two kinds of
tests: how much work is done around the engine, and which tensors reach the engine. It is not
TensorRT-LLM, and no text it gives says anything about a model.

Environment:
    STANDIN_TOKENS: tokens of an answer, at most the request's request_output_len (which is the
        default).
    STANDIN_IDS: JSON list of the token ids to answer with, from the start again when it ends;
        by default the prompt's own ids. Sequence or beam k starts at place k.
    STANDIN_STEP: tokens of one streamed response, as with stream intervals or draft tokens;
        default 1.
    STANDIN_STEP_MS: pause before each streamed response; default 0. Requests then run at once, and one
        can be stopped while it runs, by a `stop` request with its id or by its client going away.
    STANDIN_HOLD_MS: pause of `execute` itself before it looks at its requests, so that later ones
        queue up in Triton; default 0.
    STANDIN_VOCAB: width of logits, default 4.
    STANDIN_RECORD: a file that gets one JSON line a request: model, request id, tensors (dtype,
        shape, values), requested outputs, and the request's parameters where they are visible.

How the real backend answers (tensorrtllm_backend inflight_batcher_llm/src/model_instance_state.cc
@ v0.19.0, `fillTritonResponse`), and this one: a response holds one prompt's output, so a batch or
several return sequences need the decoupled policy; `batch_index` is there only for batches over 1,
`sequence_index` only for num_return_sequences over 1; log probabilities, logits, counts and
performance metrics only when they were asked for; only outputs that the caller requested are filled.
Beams of one response are padded with -1.
"""

import json
import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
START_NS = 1_700_000_000_000_000_000
"""The made-up times of performance metrics count from here."""
PERF = {
    "kv_cache_alloc_new_blocks": (np.int32, 2),
    "kv_cache_reused_blocks": (np.int32, 1),
    "kv_cache_alloc_total_blocks": (np.int32, 3),
    "arrival_time_ns": (np.int64, START_NS),
    "first_scheduled_time_ns": (np.int64, START_NS + 1_000),
    "first_token_time_ns": (np.int64, START_NS + 2_000),
    "last_token_time_ns": (np.int64, START_NS + 3_000),
    "acceptance_rate": (np.float32, 0.5),
    "total_accepted_draft_tokens": (np.int32, 4),
    "total_draft_tokens": (np.int32, 8),
}
FLAGS = (
    "return_log_probs", "return_context_logits", "return_generation_logits", "return_perf_metrics",
    "return_num_input_tokens", "return_num_output_tokens",
)  # fmt: skip


def jsonable(array):
    """An array's values for JSON: text for bytes (Latin-1 where it is no UTF-8), else numbers."""
    if array.dtype != np.object_:
        return array.tolist()
    flat = []
    for item in array.reshape(-1):
        data = item if isinstance(item, bytes) else str(item).encode()
        try:
            flat.append(data.decode("utf-8"))
        except UnicodeDecodeError:
            flat.append({"latin-1": data.decode("latin-1")})
    return np.array(flat, np.object_).reshape(array.shape).tolist()


def values(tensor):
    """(numpy array, type name): BF16, which numpy does not have, as float32."""
    try:
        array = tensor.as_numpy()
    except Exception:
        import torch

        return torch.from_dlpack(tensor.to_dlpack()).float().numpy(), "bfloat16"
    return array, "BYTES" if array.dtype == np.object_ else array.dtype.name


def describe(request, tensors, model, types):
    """One recorded request. `tensors`: {name: numpy array}; `types`: {name: type name}."""
    entry = {
        "model": model,
        "request_id": request.request_id(),
        "tensors": {
            name: {
                "dtype": types[name],
                "shape": list(array.shape),
                "values": jsonable(array),
            }
            for name, array in sorted(tensors.items())
        },
        "requested_outputs": sorted(request.requested_output_names()),
    }
    for name in ("parameters", "timeout", "correlation_id", "priority"):
        ask = getattr(request, name, None)
        if ask is not None:
            value = ask()
            entry[name] = json.loads(value) if name == "parameters" and value else value
    return entry


def answer_ids(prompt, count, place, ids=None):
    """The `count` token ids that sequence (or beam) `place` answers a prompt with."""
    source = ids or prompt or [0]
    return [source[(place + k) % len(source)] for k in range(count)]


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {k: v.get("string_value") for k, v in config.get("parameters", {}).items()}
        self.name = args["model_name"]
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.exclude = str(parameters.get("exclude_input_in_output")).lower() in ("1", "true")
        self.logits_type = {
            output["name"]: pb_utils.triton_string_to_numpy(output["data_type"])
            for output in config["output"]
            if output["name"].endswith("_logits")
        }
        self.most = int(os.environ.get("STANDIN_TOKENS", str(2**31 - 1)))
        self.ids = json.loads(os.environ.get("STANDIN_IDS", "null"))
        self.step = int(os.environ.get("STANDIN_STEP", "1"))
        self.pause = float(os.environ.get("STANDIN_STEP_MS", "0")) / 1000
        self.hold = float(os.environ.get("STANDIN_HOLD_MS", "0")) / 1000
        self.stopped = set()
        self.vocab = int(os.environ.get("STANDIN_VOCAB", "4"))
        self.record = os.environ.get("STANDIN_RECORD")
        pb_utils.Logger.log_info("[standin] tensorrtllm test double: nothing is computed")

    def execute(self, requests):
        if self.hold:
            time.sleep(self.hold)
        for request in requests:
            sender = request.get_response_sender()
            try:
                read = {t.name(): values(t) for t in request.inputs()}
                tensors = {name: array for name, (array, _) in read.items()}
                if self.record:
                    types = {name: kind for name, (_, kind) in read.items()}
                    with open(self.record, "a", encoding="utf-8") as file:  # noqa: PTH123
                        file.write(json.dumps(describe(request, tensors, self.name, types)) + "\n")
                self._one(request, sender, tensors)
            except Exception as error:
                failure = pb_utils.TritonError(f"[standin] {type(error).__name__}: {error}")
                sender.send(pb_utils.InferenceResponse([], error=failure), flags=FINAL)
        return None

    def _one(self, request, sender, tensors):
        outputs, ident = frozenset(request.requested_output_names()), request.request_id()
        if _row(tensors, "stop", 0, False):
            if not ident:
                raise ValueError("a stop request needs the id of the request to stop")
            self.stopped.add(ident)
            # The empty answer is upstream's.
            if self.decoupled:
                sender.send(flags=FINAL)
            else:
                sender.send(pb_utils.InferenceResponse([]), flags=FINAL)
            return
        ids = tensors["input_ids"]
        batch = ids.shape[0]
        sequences = int(_row(tensors, "num_return_sequences", 0, 1))
        if not self.decoupled and batch > 1:
            raise ValueError("a batch over 1 needs the decoupled transaction policy")
        jobs = [
            _Job(self, tensors, outputs, row, place if sequences > 1 else None)
            for row in range(batch)
            for place in range(sequences)
        ]
        if not jobs[0].streaming:
            for job in jobs:
                sender.send(job.whole(), flags=FINAL if job is jobs[-1] else 0)
            return
        if not self.decoupled:
            raise ValueError("streaming needs the decoupled transaction policy")
        width = max(job.count for job in jobs)
        waiting = [(job, at) for at in range(0, width, self.step) for job in jobs if at < job.count]
        if self.pause:
            self.stopped.discard(ident)
            work = (sender, ident, waiting)
            threading.Thread(target=self._stream, args=work, daemon=True).start()
        else:
            self._stream(sender, "", waiting)

    def _stream(self, sender, ident, waiting):
        for job, at in waiting:
            if self.pause:
                time.sleep(self.pause)
                if sender.is_cancelled() or (ident and ident in self.stopped):
                    sender.send(flags=FINAL)
                    return
            last = job is waiting[-1][0] and at == waiting[-1][1]
            sender.send(job.part(at), flags=FINAL if last else 0)


class _Job:
    """One response series: prompt `row`; `place` is its sequence index, None if there is but one."""

    def __init__(self, model, tensors, outputs, row, place):
        self.model, self.outputs, self.row, self.place = model, outputs, row, place
        length = int(_row(tensors, "input_lengths", row, 0))
        self.prompt = tensors["input_ids"][row].reshape(-1)[:length].tolist()
        self.batch = tensors["input_ids"].shape[0]
        self.count = min(model.most, int(_row(tensors, "request_output_len", row, 0)))
        if self.count < 1:
            raise ValueError("request_output_len must be at least 1")
        self.streaming = bool(_row(tensors, "streaming", row, False))
        given = _row(tensors, "exclude_input_in_output", row, model.exclude)
        self.exclude = bool(given) or self.streaming
        self.flags = {name for name in FLAGS if _row(tensors, name, row, False)}
        beams = int(_row(tensors, "beam_width", row, 1))
        places = range(max(1, beams)) if place is None else [place]
        self.made = [answer_ids(self.prompt, self.count, k, model.ids) for k in places]

    def whole(self):
        before = [] if self.exclude else self.prompt
        return self._response([before + made for made in self.made], 0, self.count)

    def part(self, at):
        end = min(at + self.model.step, self.count)
        return self._response([made[at:end] for made in self.made], at, end)

    def _response(self, rows, start, end):
        ids = np.array([rows], np.int32)
        lengths = np.full((1, len(rows)), len(rows[0]), np.int32)
        found = [pb_utils.Tensor("output_ids", ids), pb_utils.Tensor("sequence_length", lengths)]
        if self.batch > 1 and "batch_index" in self.outputs:
            found.append(pb_utils.Tensor("batch_index", np.array([[self.row]], np.int32)))
        if self.place is not None and "sequence_index" in self.outputs:
            found.append(pb_utils.Tensor("sequence_index", np.array([[self.place]], np.int32)))
        if self.flags:
            for name, array in self._extras(start, end):
                if name in self.outputs:
                    found.append(pb_utils.Tensor(name, array))
        return pb_utils.InferenceResponse(found)

    def _extras(self, start, end):
        """What was asked for, made up: token k has log probability -(k + 1) / 8."""
        beams, new, vocab = len(self.made), end - start, self.model.vocab
        if "return_log_probs" in self.flags:
            each = -(np.arange(start, end, dtype=np.float32) + 1) / 8
            yield "output_log_probs", np.tile(each, (1, beams, 1))
            total = -np.float32(end * (end + 1)) / 16
            yield "cum_log_probs", np.full((1, beams), total, np.float32)
        if "return_context_logits" in self.flags and start == 0:
            kind = self.model.logits_type.get("context_logits", np.float32)
            shape = (1, len(self.prompt), vocab)
            yield "context_logits", np.arange(np.prod(shape)).reshape(shape).astype(kind)
        if "return_generation_logits" in self.flags:
            kind = self.model.logits_type.get("generation_logits", np.float32)
            one = np.arange(start * vocab, end * vocab).reshape(1, 1, new, vocab).astype(kind)
            yield "generation_logits", np.repeat(one, beams, axis=1)
        if "return_num_input_tokens" in self.flags:
            yield "num_input_tokens", np.array([[len(self.prompt)]], np.int32)
        if "return_num_output_tokens" in self.flags:
            yield "num_output_tokens", np.array([[new * beams]], np.int32)
        if "return_perf_metrics" in self.flags:
            for name, (kind, value) in PERF.items():
                yield name, np.array([[value]], kind)


def _row(tensors, name, row, default):
    array = tensors.get(name)
    return default if array is None or array.size == 0 else array.reshape(-1)[row].item()
