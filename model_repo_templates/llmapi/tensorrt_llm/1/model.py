"""Triton Python model of the llmapi lane: text in, text out, one sequence a request.

Runs in NVIDIA's stock container: standard library, numpy, triton_python_backend_utils and the files
beside it. What computes the tokens is chosen by the model parameter `runtime`.

Streamed `text_output` is a delta: the pieces concatenate to the whole answer.
"""

import json
import math
import os
import threading

import numpy as np
import triton_python_backend_utils as pb_utils
from metrics import PERIOD_MS, Exporter
from runtime_api import Request, RequestError, make_runtime

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
PREFIX = "sampling_param_"
# Declared by the contract, not implemented here yet: refused, because ignoring them would answer
# another question than the one asked.
NOT_IMPLEMENTED = (
    "image_url",
    "lora_id",
    "lora_name",
    "lora_path",
    "lora_ckpt_source",
    PREFIX + "return_perf_metrics",
)


def read_model_yaml(folder):
    """LLM arguments and triton_config. The file is YAML in its JSON form, so json reads it."""
    path = os.path.join(folder, "model.yaml")  # noqa: PTH118
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            document = json.load(file)
    except ValueError as error:
        raise ValueError(f"{path} must stay in JSON form: {error}") from None
    triton = document.pop("triton_config")
    model = document.pop("model")
    return model, triton, document


class Fields:
    """Typed access to a request's input tensors, with errors that name the field."""

    def __init__(self, request):
        self._request = request

    def _array(self, name):
        tensor = pb_utils.get_input_tensor_by_name(self._request, name)
        return None if tensor is None else tensor.as_numpy().reshape(-1)

    def given(self, name):
        """Whether the input was sent with something other than false."""
        array = self._array(name)
        return array is not None and array.size > 0 and bool(array.any())

    def texts(self, name):
        array = self._array(name)
        if array is None:
            return []
        try:
            return [x.decode("utf-8") if isinstance(x, bytes) else str(x) for x in array]
        except UnicodeDecodeError as error:
            raise RequestError(f"{name} is not UTF-8: {error.reason}") from None

    def scalar(self, name, default=None):
        array = self._array(name)
        if array is None or array.size == 0:
            return default
        if array.size > 1:
            raise RequestError(f"{name} must have one value, got {array.size}")
        value = array[0].item()
        if isinstance(value, float) and not math.isfinite(value):
            raise RequestError(f"{name} must be a finite number, got {value}")
        return value


def to_request(fields, end_ids=None):
    """A runtime request from the tensors of the llmapi contract."""
    for name in NOT_IMPLEMENTED:
        if fields.given(name):
            raise RequestError(f"{name} is not implemented by this model")
    prompts = fields.texts("text_input")
    if len(prompts) != 1:
        raise RequestError(f"text_input must have one prompt, got {len(prompts)}")
    return Request(
        prompt=prompts[0],
        max_tokens=fields.scalar(PREFIX + "max_tokens", 16),
        temperature=fields.scalar(PREFIX + "temperature"),
        top_k=fields.scalar(PREFIX + "top_k"),
        top_p=fields.scalar(PREFIX + "top_p"),
        frequency_penalty=fields.scalar(PREFIX + "frequency_penalty"),
        presence_penalty=fields.scalar(PREFIX + "presence_penalty"),
        seed=fields.scalar(PREFIX + "seed"),
        best_of=fields.scalar(PREFIX + "best_of"),
        stop=[word for word in fields.texts(PREFIX + "stop") if word],
        streaming=bool(fields.scalar("streaming", False)),
        end_ids=end_ids,
    )


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        folder = os.path.join(args["model_repository"], args["model_version"])  # noqa: PTH118
        model, triton, llm_args = read_model_yaml(folder)
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        if self.decoupled != triton["decoupled"]:
            raise ValueError("config.pbtxt and model.yaml disagree about `decoupled`")
        name = config["parameters"]["runtime"]["string_value"]
        stop_ids = config["parameters"]["stop_ids"]["string_value"]
        # None leaves it to the runtime, which reads generation_config.json itself.
        self.end_ids = None if stop_ids == "generation_config" else json.loads(stop_ids)
        self.runtime = make_runtime(name)
        self.runtime.start(model, llm_args)
        self.handles, self.lock = {}, threading.Lock()
        period = config["parameters"].get("stats_check_period_ms", {}).get("string_value")
        self.exporter = Exporter(
            pb_utils,
            args["model_name"],
            args["model_version"],
            self.runtime.stats,
            int(period or PERIOD_MS),
        )
        pb_utils.Logger.log_info(f"[engineroom] runtime={name} model={model}")

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
        fields = Fields(request)
        ident = request.request_id()
        if fields.scalar("stop", False):
            with self.lock:
                handle = self.handles.get(ident)
            if handle is not None:
                handle.cancel()
            sender.send(flags=FINAL) if self.decoupled else _fail(sender, "stop: request cancelled")
            return
        wanted = to_request(fields, self.end_ids)
        if wanted.streaming and not self.decoupled:
            raise RequestError("streaming needs a repository rendered with serving.streaming: true")
        prompt = ""
        if not fields.scalar(PREFIX + "exclude_input_from_output", True):
            prompt = wanted.prompt
        extras = {
            name: bool(fields.scalar(f"return_{name}", False))
            for name in ("finish_reason", "stop_reason", "cumulative_logprob")
        }

        def ended(input_tokens, output_tokens):
            self._forget(ident)
            self.exporter.request_ended(input_tokens, output_tokens)

        reply = _Reply(sender, wanted.streaming, prompt, extras, ended)
        handle = self.runtime.submit(wanted, reply)
        reply.cancel = handle.cancel
        with self.lock:  # `done` is set before `_forget` takes the lock: no finished handle stays
            if ident and not reply.done:
                self.handles[ident] = handle

    def _forget(self, ident):
        with self.lock:
            self.handles.pop(ident, None)

    def finalize(self):
        self.exporter.close()
        self.runtime.stop()


class _Reply:
    """Turns a runtime's chunks into Triton responses; called from the runtime's thread."""

    def __init__(self, sender, streaming, prompt, extras, on_end):
        self.sender, self.streaming = sender, streaming
        self.text, self.extras, self.on_end = prompt, extras, on_end
        self.done, self.cancel, self.tokens = False, None, 0

    def __call__(self, chunk):
        if self.done:
            return
        self.text += chunk.text
        self.tokens += len(chunk.token_ids)
        if not chunk.final:
            if self.sender.is_cancelled():
                if self.cancel is not None:
                    self.cancel()
                return
            if self.streaming and self.text:
                self.sender.send(pb_utils.InferenceResponse([_text(self.text)]))
                self.text = ""
            return
        self.done = True
        complete = chunk.finish_reason not in ("error", "cancelled")
        self.on_end(chunk.prompt_tokens, self.tokens if complete else None)
        if chunk.finish_reason == "error":
            _fail(self.sender, chunk.stop_reason or "generation failed")
            return
        self.sender.send(pb_utils.InferenceResponse(self._outputs(chunk)), flags=FINAL)

    def _outputs(self, chunk):
        outputs = [_text(self.text)]
        for name in ("finish_reason", "stop_reason"):
            if self.extras[name]:
                value = getattr(chunk, name)
                outputs.append(_string(name, "" if value is None else str(value)))
        if self.extras["cumulative_logprob"]:
            value = np.array([chunk.cumulative_logprob or 0.0], np.float32)
            outputs.append(pb_utils.Tensor("cumulative_logprob", value))
        return outputs


def _string(name, text):
    return pb_utils.Tensor(name, np.array([text.encode("utf-8")], np.object_))


def _text(text):
    return _string("text_output", text)


def _fail(sender, message):
    error = pb_utils.TritonError(f"[engineroom] {message}")
    sender.send(pb_utils.InferenceResponse(output_tensors=[], error=error), flags=FINAL)
