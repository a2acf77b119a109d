"""Stand-in for the C++ `tensorrtllm` backend: engineroom's reference runtime behind its tensors.

A Python-based Triton backend, used by `engineroom serve` on machines without a GPU and never
rendered into a repository. It is not TensorRT-LLM. The engine folder (`gpt_model_path`) must hold a
build-plan.json, which names the checkpoint to compute with.
"""

import collections
import gc
import json
import os
import threading

import numpy as np
import triton_python_backend_utils as pb_utils
from engine_inputs import Inputs, explain, to_requests
from engine_outputs import FINAL, Reply, fail
from runtime_api import RequestError, make_runtime

try:  # the exporter of the llmapi lane; the C++ backend has one of its own
    from metrics import Exporter
except ImportError:
    Exporter = None

_NEEDED = ("output_ids", "sequence_length")
_COUNTS = ("num_input_tokens", "num_output_tokens")


def runtime_args(limits, config, parameters):
    """LLM arguments of the runtime, from the build plan's limits and the model's configuration."""
    queue = config.get("dynamic_batching", {}).get("default_queue_policy", {})
    kv = {
        "enable_block_reuse": parameters.get("enable_kv_cache_reuse", "").lower() in ("true", "1")
    }
    for key, source in (
        ("max_tokens", parameters.get("max_tokens_in_paged_kv_cache")),
        ("tokens_per_block", limits.get("tokens_per_block")),
    ):
        if source:
            kv[key] = int(source)
    return {
        **limits,
        "kv_cache_config": kv,
        "scheduler_config": {
            "capacity_scheduler_policy": parameters.get("batch_scheduler_policy") or None
        },
        "max_queue_size": int(queue.get("max_queue_size") or 0),
    }


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
        self.guided = bool(parameters.get("guided_decoding_backend"))
        types = {output["name"]: output["data_type"] for output in config["output"]}
        half = types.get("context_logits") == "TYPE_FP16"
        self.logits_type = np.float16 if half else np.float32
        self.runtime = make_runtime("reference")
        self.runtime.start(checkpoint, runtime_args(plan["limits"], config, parameters))
        # Replies that are not finished: all, and by the request's id, which clients may use twice.
        self.replies, self.by_id = set(), collections.defaultdict(list)
        self.lock, self.closing = threading.Lock(), threading.Event()
        period = float(parameters.get("cancellation_check_period_ms") or 100)
        self.watcher = threading.Thread(target=self._watch, args=(period / 1000,), daemon=True)
        self.watcher.start()
        self.exporter = None
        if Exporter is not None:
            self.exporter = Exporter(
                pb_utils,
                args["model_name"],
                args["model_version"],
                self.runtime.stats,
                int(parameters.get("stats_check_period_ms") or 100),
            )
        pb_utils.Logger.log_info(
            f"[engineroom] tensorrtllm stand-in: runtime=reference checkpoint={checkpoint}"
        )
        # What start-up made stays: collections need not look at it again.
        gc.collect()
        gc.freeze()

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._one(request, sender)
            except RequestError as error:
                fail(sender, explain(error))
            except Exception as error:
                fail(sender, f"{type(error).__name__}: {error}")
        return None

    def _one(self, request, sender):
        inputs, ident = Inputs(request), request.request_id()
        if inputs.flag("stop"):
            self._stop(ident, sender)
            return
        jobs = to_requests(inputs, self.guided)
        if not self.decoupled:
            if jobs[0].streaming:
                raise RequestError(
                    "streaming needs a repository rendered with serving.streaming: true"
                )
            if len(jobs) > 1:
                raise RequestError("input_ids: several rows need a decoupled model")
            if jobs[0].n > 1:
                raise RequestError("num_return_sequences above 1 needs a decoupled model")
        wanted = frozenset(request.requested_output_names())
        for name in _NEEDED:
            if name not in wanted:
                raise RequestError(f"{name} must be among the requested outputs")
        reply = Reply(
            sender,
            jobs,
            wanted,
            [inputs.flag("exclude_input_in_output", self.exclude, row) for row in range(len(jobs))],
            [name for name in _COUNTS if inputs.flag(f"return_{name}")],
            self.logits_type,
            lambda prompt, made: self._ended(reply, ident, prompt, made),
        )
        with self.lock:
            self.replies.add(reply)
            if ident:
                self.by_id[ident].append(reply)
        try:
            for row, job in enumerate(jobs):
                reply.add(self.runtime.submit(job, reply.row(row)))
        except RequestError as error:
            reply.fail(explain(error))
        except Exception as error:
            reply.fail(f"{type(error).__name__}: {error}")

    def _stop(self, ident, sender):
        if not ident:
            raise RequestError("stop needs the id of the request to stop")
        with self.lock:
            replies = list(self.by_id.get(ident, ()))
        for reply in replies:
            reply.cancel()
        # An unknown id is no error: that request may just have ended.
        sender.send(pb_utils.InferenceResponse([]), flags=FINAL)

    def _ended(self, reply, ident, prompt, made):
        with self.lock:
            self.replies.discard(reply)
            if ident:
                self.by_id[ident].remove(reply)
                if not self.by_id[ident]:
                    del self.by_id[ident]
        if self.exporter is not None:
            self.exporter.request_ended(prompt, made)

    def _watch(self, period):
        """Cancel the requests whose clients have gone."""
        while not self.closing.wait(period):
            with self.lock:
                replies = list(self.replies)
            for reply in replies:
                reply.poll()

    def finalize(self):
        self.closing.set()
        self.runtime.stop()
        if self.exporter is not None:
            self.exporter.close()
        self.watcher.join(timeout=5)
