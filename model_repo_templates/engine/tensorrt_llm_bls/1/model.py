"""Triton Python model: text in, text out, around the engine lane's `tensorrt_llm` model (BLS).

Tokenizes and detokenizes in this process, so a request passes one Python stub. `execute` hands each
request to a worker thread, which waits for the engine (an exec of Triton's Python backend blocks);
many requests run at once in one instance. Streamed `text_output` is a delta: the pieces concatenate
to exactly the whole answer.

Parameters of config.pbtxt: see `BLS` in engineroom's lanes/engine/repository.py.
"""

import json
import threading
import time

import triton_python_backend_utils as pb_utils
from engine import stop
from engine_prompt import PromptMaker
from job import Job
from request_fields import Fields
from workers import Workers

WORKERS = 512
"""Requests in this model at once; more wait in its queue."""
CANCEL_SECONDS = 0.1
"""How often running requests are looked at; the C++ backend's own default period."""
STOP_AGAIN_SECONDS = 1.0
"""A stop is lost if it overtakes its request on the way into the engine."""


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {k: v["string_value"] for k, v in config["parameters"].items()}
        self.prompts = PromptMaker(parameters)
        self.codec = self.prompts.codec
        self.skip = parameters["skip_special_tokens"] == "true"
        self.interval = int(parameters["stream_interval"])
        self.engine = parameters["tensorrt_llm_model_name"]
        self.draft = parameters.get("tensorrt_llm_draft_model_name") or None
        # The engine model is rendered with the same transaction policy as this one.
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.workers = Workers(WORKERS)
        # Requests that wait for the engine's first response; see config.pbtxt.
        self.calls = threading.BoundedSemaphore(int(parameters["engine_calls"]))
        self.running, self.lock, self.serial = {}, threading.Lock(), 0
        self.busy, self.closed = threading.Event(), False
        self.watcher = threading.Thread(target=self._watch, name="bls-cancel", daemon=True)
        self.watcher.start()
        pb_utils.Logger.log_info(
            f"[engineroom] tensorrt_llm_bls tokenizer={parameters['tokenizer_dir']} "
            f"ends={self.prompts.ends}"
        )

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                job = Job(self, request, sender, Fields(request))
            except Exception as error:
                fail(sender, error)
            else:
                self.workers.submit(job.run)
        return None

    def enter(self, job, ident):
        """The id of a job's engine request: the client's, made different where it is taken."""
        with self.lock:
            if not ident or ident in self.running:
                self.serial += 1
                ident = f"{ident}~{self.serial}"
            self.running[ident] = job
        if not self.busy.is_set():
            self.busy.set()
        return ident

    def leave(self, ident):
        with self.lock:
            self.running.pop(ident, None)

    def stop_engine(self, ident):
        """Cancel an engine request; the engine's own answer to it ends the wait for responses."""
        stop(self.engine, self.decoupled, ident)

    def _watch(self):
        """Stop the engine's work for clients that are gone. One thread for all requests."""
        while not self.closed:
            self.busy.wait()
            time.sleep(CANCEL_SECONDS)
            with self.lock:
                jobs = list(self.running.items())
                if not jobs:
                    self.busy.clear()
            now = time.monotonic()
            for ident, job in jobs:
                if now - job.since < CANCEL_SECONDS or not job.gone():
                    continue
                if job.asked and now - job.stopped_at >= STOP_AGAIN_SECONDS:
                    job.stopped_at = now
                    self.stop_engine(ident)

    def finalize(self):
        self.closed = True
        self.busy.set()
        self.workers.close(0)


def fail(sender, error):
    """Answer with an error and nothing else; internal ones say their type."""
    kind = "" if isinstance(error, (ValueError, RuntimeError)) else f"{type(error).__name__}: "
    triton = pb_utils.TritonError(f"[engineroom] {kind}{error}")
    sender.send(
        pb_utils.InferenceResponse(output_tensors=[], error=triton),
        flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    )
