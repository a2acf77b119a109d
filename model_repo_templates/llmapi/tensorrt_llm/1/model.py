"""Triton Python model of the llmapi lane: text or chat messages in, text out.

Runs in NVIDIA's stock container: standard library, numpy, triton_python_backend_utils and the files
beside it. What computes the tokens is chosen by the model parameter `runtime`.

Streamed `text_output` is a delta: the pieces concatenate to the whole answer. `stream_cumulative`
asks for all of the text so far in each response, which is what upstream's model sends.
"""

import collections
import gc
import json
import os
import threading
import time
import traceback

import triton_python_backend_utils as pb_utils
from inputs import Limits, Reader, client_message
from metrics import PERIOD_MS, Exporter
from outputs import CANCELLED, FINAL, INVALID, UNAVAILABLE, Reply, fail, strings
from runtime_api import Request, RequestError, make_runtime

# Asking whether a client has gone is a call to the server's process and back: one look a period for
# requests that last, and for so many at a time.
CANCEL_PERIOD, CANCEL_LOOKS = 0.1, 64


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


def instance_gpus(parameter, name):
    """(number of this instance, its GPUs as text) of `gpu_device_ids`, such as ``0,1;2,3``.

    Triton numbers the instances of a group at the end of their names.
    """
    groups = [group.strip() for group in parameter.split(";")]
    tail = name.rsplit("_", 1)[-1]
    number = int(tail) if tail.isdigit() else 0
    if number >= len(groups):
        raise ValueError(f"gpu_device_ids has {len(groups)} groups: none for instance {name}")
    return number, groups[number]


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {k: v["string_value"] for k, v in config["parameters"].items()}
        folder = os.path.join(args["model_repository"], args["model_version"])  # noqa: PTH118
        model, triton, llm_args = read_model_yaml(folder)
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        if self.decoupled != triton["decoupled"]:
            raise ValueError("config.pbtxt and model.yaml disagree about `decoupled`")
        instance = None
        if parameters.get("gpu_device_ids"):
            instance, gpus = instance_gpus(
                parameters["gpu_device_ids"], args["model_instance_name"]
            )
            # Before anything imports torch: a process keeps the GPUs that it saw first.
            os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["TRTLLM_VISIBLE_DEVICES"] = gpus
        stop_ids = parameters["stop_ids"]
        # None leaves it to the runtime, which reads generation_config.json itself.
        self.end_ids = None if stop_ids == "generation_config" else json.loads(stop_ids)
        features = json.loads(parameters.get("features", "{}"))
        adapters = json.loads(parameters.get("lora_adapters", "[]"))
        self.reader = Reader(Limits(llm_args), features, adapters)
        self.chat = self.media = None
        if features.get("chat"):
            from chat_template import ChatTemplate

            self.chat = ChatTemplate(llm_args.get("tokenizer") or model)
        queue = int(parameters.get("max_queue_size") or 0)
        self.most = queue and queue + (llm_args.get("max_batch_size") or 0)
        self.running, self.ids = {}, collections.defaultdict(list)
        self.lock, self.closing = threading.Lock(), threading.Event()
        self.runtime = make_runtime(parameters["runtime"])
        self.runtime.merge_events = parameters.get("merge_events", "true") == "true"
        self.runtime.start(model, llm_args)
        if features.get("multimodal"):
            from fetch import Rules
            from media import Media

            rules = Rules(json.loads(parameters["multimodal"]))
            self.media = Media(rules, getattr(self.runtime, "decode_image", None))
        self.exporter = Exporter(
            pb_utils,
            args["model_name"],
            args["model_version"],
            self.runtime.stats,
            int(parameters.get("stats_check_period_ms") or PERIOD_MS),
            instance,
        )
        self.watcher = threading.Thread(target=self._watch, name="cancellation", daemon=True)
        self.watcher.start()
        pb_utils.Logger.log_info(f"[engineroom] runtime={parameters['runtime']} model={model}")
        # What start-up made stays: collections need not look at it again.
        gc.collect()
        gc.freeze()

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._one(request, sender)
            except ValueError as error:  # RequestError, and those of the shared helpers
                fail(sender, str(error), INVALID)
            except Exception as error:
                pb_utils.Logger.log_error(f"[engineroom] {traceback.format_exc()}")
                fail(sender, f"{type(error).__name__}: {error}")
        return None

    def _one(self, request, sender):
        wanted = self.reader.read(request)
        ident = request.request_id()
        if wanted.stop:
            if not ident:
                raise RequestError("stop: the request id of what is to be cancelled is missing")
            with self.lock:
                found = list(self.ids.get(ident, ()))
            for reply in found:
                reply.cancel()
            sender.send(pb_utils.InferenceResponse([strings("text_output", [""])]), flags=FINAL)
            return
        if wanted.streaming and not self.decoupled:
            raise RequestError("streaming needs a repository rendered with serving.streaming: true")
        if self.most and len(self.running) >= self.most:
            fail(sender, f"the queue is full: {self.most} requests are under way", UNAVAILABLE)
            return
        fields = wanted.fields
        prompt = wanted.prompt
        if wanted.messages is not None:
            prompt = self._chat(wanted)
            fields["add_special_tokens"] = False
        fields["prompt"] = prompt
        if self.end_ids is not None:
            fields.setdefault("end_ids", self.end_ids)
        reply = Reply(
            sender,
            wanted,
            prompt if wanted.echo else "",
            lambda reply, given, made: self._ended(ident, reply, given, made),
            pb_utils.Logger.log_error,
        )
        self._begun(ident, reply)
        if not wanted.images:
            self._submit(reply, fields)
            return
        self.media.fetch(
            wanted.images,
            lambda images: self._submit(reply, {**fields, "media": images}),
            lambda message: reply.error(message, CANCELLED if reply.cancelled else INVALID),
            lambda: reply.cancelled,
        )

    def _chat(self, wanted):
        if wanted.images:
            from media import with_places

            return self.chat.prompt(with_places(wanted.messages, len(wanted.images)))
        return self.chat.prompt(wanted.messages)

    def _submit(self, reply, fields):
        """Hand a request to the runtime; what it refuses is the request's answer."""
        if reply.cancelled:
            reply.error("the request was cancelled", CANCELLED)
            return
        try:
            reply.follow(self.runtime.submit(Request(**fields), reply))
        except ValueError as error:
            reply.error(client_message(error), INVALID)
        except Exception as error:
            pb_utils.Logger.log_error(f"[engineroom] {traceback.format_exc()}")
            reply.error(f"{type(error).__name__}: {error}")

    # ---- what is running
    def _begun(self, ident, reply):
        self.running[reply] = None
        if ident:
            with self.lock:
                self.ids[ident].append(reply)

    def _ended(self, ident, reply, prompt_tokens, tokens):
        self.running.pop(reply, None)
        if ident:
            with self.lock:
                left = self.ids[ident]
                if reply in left:
                    left.remove(reply)
                if not left:
                    del self.ids[ident]
        if tokens is not None:
            self.exporter.request_ended(prompt_tokens, tokens)

    def _watch(self):
        """Cancel requests whose client has gone, without waiting for their next token."""
        while not self.closing.wait(CANCEL_PERIOD):
            before = time.monotonic() - CANCEL_PERIOD
            for reply in [r for r in self.running.copy() if r.started < before][:CANCEL_LOOKS]:
                try:
                    if not reply.cancelled and reply.gone():
                        reply.cancel()
                except Exception as error:
                    pb_utils.Logger.log_warn(f"[engineroom] cancellation: {error}")
                # To the end of the line: with many under way each gets its turn.
                if self.running.pop(reply, reply) is None:
                    self.running[reply] = None
                if reply.done:
                    self.running.pop(reply, None)

    def finalize(self):
        self.closing.set()
        self.exporter.close()
        if self.media is not None:
            self.media.close()
        self.runtime.stop()
        self.watcher.join(timeout=5)
