"""Stand-in for Triton's vLLM backend: engineroom's reference runtime behind its tensors.

A Python-based Triton backend, used by `engineroom serve` on machines without a GPU and never
rendered into a repository. It is not vLLM, and serves only what was rendered for `reference`. As the
backend does it, the prompt is in front of the text unless `exclude_input_in_output` is true or the
answer is streamed; streamed pieces, token counts and log probabilities are deltas.
"""

import contextlib
import json
import os
import queue
import threading

import numpy as np
import triton_python_backend_utils as pb_utils
from runtime_api import Guide, Request, RequestError, make_runtime
from text_codec import TokenCodec

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# Sampling parameters of vLLM that the runtime interface has, with the type of their value.
NUMBERS = {
    "max_tokens": int, "min_tokens": int, "n": int, "seed": int, "top_k": int, "temperature": float,
    "top_p": float, "repetition_penalty": float, "frequency_penalty": float, "presence_penalty": float,
}  # fmt: skip
# Guided decoding in the backend's two spellings, by the kind of guide.
GUIDES = {"json": "json_schema", "regex": "regex", "grammar": "ebnf_grammar"}
# Not computed here: refused unless it is what the runtime does anyway.
NEUTRAL = {
    "skip_special_tokens": True, "detokenize": True, "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False, "min_p": 0, "lora_name": None, "logit_bias": None,
    "prompt_logprobs": None, "truncate_prompt_tokens": None, "allowed_token_ids": None,
}  # fmt: skip
# Tensors that a request may also carry as parameters, and `logprobs`, of which one a token is sent.
BESIDES = ("stream", "exclude_input_in_output", "logprobs")


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {k: v["string_value"] for k, v in config["parameters"].items()}
        if parameters.get("engineroom_runtime") != "reference":
            raise ValueError("this stand-in serves only repositories rendered for `reference`")
        if not pb_utils.using_decoupled_model_transaction_policy(config):
            raise ValueError("vLLM's backend needs the decoupled transaction policy")
        path = os.path.join(args["model_repository"], args["model_version"], "model.json")  # noqa: PTH118
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            self.args = json.load(file)
        self.runtime = make_runtime("reference")
        sizes = {
            "max_batch_size": self.args["max_num_seqs"],
            "max_num_tokens": self.args["max_num_batched_tokens"],
            "max_seq_len": self.args.get("max_model_len"),
            "enable_chunked_prefill": self.args["enable_chunked_prefill"],
            "stream_interval": self.args.get("stream_interval", 1),
            "kv_cache_config": {
                "tokens_per_block": self.args.get("block_size", 16),
                "enable_block_reuse": self.args["enable_prefix_caching"],
            },
        }
        self.runtime.start(self.args["model"], sizes)
        self.codec = TokenCodec(self.args["model"])
        pb_utils.Logger.log_info(
            f"[engineroom] vllm stand-in: runtime=reference checkpoint={self.args['model']}"
        )

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                _Answer(request, sender, self.codec).submit(self.runtime)
            except RequestError as error:
                _fail(sender, str(error))
            except Exception as error:
                _fail(sender, f"{type(error).__name__}: {error}")
        return None

    def finalize(self):
        self.runtime.stop()


class _Answer:
    """One request: what it asked for, and its responses, sent from the runtime's thread."""

    def __init__(self, request, sender, codec):
        self.sender, self.lock = sender, threading.Lock()
        self.prompt = _text(request, "text_input")
        self.stream = bool(_value(request, "stream", False))
        exclude = _value(request, "exclude_input_in_output")
        if exclude is not None and not exclude and self.stream:
            raise RequestError("exclude_input_in_output: false is not allowed when streaming")
        self.echo = not self.stream and not exclude
        self.wants = {
            name: bool(_value(request, f"return_{name}", False))
            for name in (
                "finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens",
                "num_output_tokens",
            )
        }  # fmt: skip
        given = _text(request, "sampling_parameters") or request.parameters() or "{}"
        self.job = self._request(_json_object(given))
        n = self.job.n
        self.texts, self.counts, self.probs = [""] * n, [0] * n, [[] for _ in range(n)]
        self.reasons, self.totals = [None] * n, [0.0] * n
        # Said with every event, and by the runtime only with the last one.
        wanted = self.wants["num_input_tokens"]
        self.prompt_tokens = len(codec.encode(self.prompt)) if wanted else None
        self.open, self.done = n, False
        self.handle = queue.Queue(1)

    def _request(self, params):
        known = {}
        for name, kind in NUMBERS.items():
            value = params.pop(name, None)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, (int, float, str)):
                    raise RequestError(f"sampling_parameters.{name} is no number: {value!r}")
                try:
                    known[name] = kind(value)
                except (ValueError, OverflowError):
                    raise RequestError(
                        f"sampling_parameters.{name} is no number: {value!r}"
                    ) from None
        known["top_k"] = known.get("top_k") if known.get("top_k", 0) > 0 else None  # -1: all
        stop = _listed(params, "stop", str)
        bad = _listed(params, "bad_words", str)
        ends = _listed(params, "stop_token_ids", int)
        guide = _guide(
            params.pop("structured_outputs", None) or params.pop("guided_decoding", None)
        )
        eos = [] if params.pop("ignore_eos", False) else None
        for name, neutral in NEUTRAL.items():
            if params.pop(name, neutral) != neutral:
                raise RequestError(f"sampling_parameters.{name}: not computed by the stand-in")
        for name in BESIDES:
            params.pop(name, None)
        if params:
            raise RequestError(f"sampling_parameters has an unknown name: {sorted(params)[0]}")
        if not 1 <= known.get("n", 1) <= 64:
            raise RequestError("sampling_parameters.n must be 1 to 64")
        return Request(
            prompt=self.prompt,
            stop=stop,
            bad=bad,
            end_ids=eos,
            stop_token_sequences=[[token] for token in ends],
            guide=guide,
            log_probs=self.wants["logprobs"],
            streaming=self.stream,
            **known,
        )

    def submit(self, runtime):
        self.handle.put(runtime.submit(self.job, self._chunk))

    def _chunk(self, chunk):
        with self.lock:
            if self.done:
                return
            if chunk.finish_reason == "error":
                self.done = True
                _fail(self.sender, chunk.stop_reason or "generation failed")
                return
            i = chunk.index
            self.texts[i] += chunk.text
            self.counts[i] += len(chunk.token_ids)
            self.totals[i] = chunk.cumulative_logprob or self.totals[i]
            for token, prob in zip(chunk.token_ids, chunk.log_probs or []):
                # The decoded token is not known here; rank 1 holds for greedy answers alone.
                self.probs[i].append({str(token): {"logprob": float(prob), "rank": None}})
            if chunk.final:
                self.reasons[i] = chunk.finish_reason
                self.open -= 1
            cancelled = chunk.finish_reason == "cancelled" or self.sender.is_cancelled()
            if cancelled:
                self._cancel()
                return
            last = self.open == 0
            if last or (self.stream and (chunk.text or chunk.token_ids)):
                self.done = last
                self.sender.send(self._response(last), flags=FINAL if last else 0)

    def _cancel(self):
        self.done = True
        # Cancelled before submit returned, there is no handle yet: the request ends by max_tokens.
        with contextlib.suppress(queue.Empty):
            self.handle.get_nowait().cancel()
        _fail(self.sender, "Request was cancelled", pb_utils.TritonError.CANCELLED)

    def _response(self, last):
        head = self.prompt if self.echo else ""
        tensors = [_strings("text_output", [head + text for text in self.texts])]
        if self.wants["finish_reason"]:
            tensors.append(_strings("finish_reason", [str(reason) for reason in self.reasons]))
        if self.wants["cumulative_logprob"]:
            totals = np.asarray(self.totals, np.float32)
            tensors.append(pb_utils.Tensor("cumulative_logprob", totals))
        if self.wants["logprobs"]:
            tensors.append(_strings("logprobs", [json.dumps(rows) for rows in self.probs]))
        if self.wants["num_input_tokens"]:
            count = np.asarray([self.prompt_tokens], np.uint32)
            tensors.append(pb_utils.Tensor("num_input_tokens", count))
        if self.wants["num_output_tokens"]:
            counts = np.asarray(self.counts, np.uint32)
            tensors.append(pb_utils.Tensor("num_output_tokens", counts))
        if not last:  # what was sent is not sent again
            n = len(self.texts)
            self.texts, self.counts, self.probs = [""] * n, [0] * n, [[] for _ in range(n)]
        return pb_utils.InferenceResponse(tensors)


def _listed(params, name, kind):
    """A list of texts or ids; one text stands for a list of it."""
    value = params.pop(name, None) or []
    items = [value] if isinstance(value, str) else value
    whole = isinstance(items, list) and all(
        isinstance(item, kind) and not isinstance(item, bool) and item != "" for item in items
    )
    if not whole:
        raise RequestError(f"sampling_parameters.{name} is no list of {kind.__name__}")
    return items


def _guide(value):
    """`structured_outputs` as the backend reads it: the JSON text of an object with one kind of guide."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise RequestError("sampling_parameters.structured_outputs must be JSON as text")
    guide = _json_object(value, "structured_outputs")
    for name, kind in GUIDES.items():
        if guide.get(name) is not None:
            text = guide[name]
            return Guide(kind, text if isinstance(text, str) else json.dumps(text))
    if guide.get("json_object"):
        return Guide("json")
    raise RequestError(f"structured_outputs has none of {', '.join((*GUIDES, 'json_object'))}")


def _json_object(text, name="sampling_parameters"):
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RequestError(f"{name} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(f"{name} is no JSON object")
    return value


def _value(request, name, default=None):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return default
    array = tensor.as_numpy().reshape(-1)
    return array[0] if array.size else default


def _text(request, name):
    value = _value(request, name)
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is no UTF-8: {error}") from None


def _strings(name, texts):
    return pb_utils.Tensor(name, np.array([text.encode("utf-8") for text in texts], np.object_))


def _fail(sender, message, code=None):
    # Triton imports this file once without TritonError, to complete the configuration.
    code = pb_utils.TritonError.INTERNAL if code is None else code
    error = pb_utils.TritonError(f"[engineroom] {message}", code)
    sender.send(pb_utils.InferenceResponse(output_tensors=[], error=error), flags=FINAL)
