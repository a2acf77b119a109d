"""Gives `text_input` back: once, or `max_tokens` times when `stream` is true.

What a request costs through this model is what Triton's front ends and one Python process cost;
the comparison subtracts it from both sides. STANDIN_STEP_MS: pause before each event, as in the
stand-ins; default 0.
"""

import os
import threading
import time

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
PAUSE = float(os.environ.get("STANDIN_STEP_MS", "0")) / 1000


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            tensors = {t.name(): t.as_numpy() for t in request.inputs()}
            count = 1
            if "stream" in tensors and tensors["stream"].item():
                count = int(tensors["max_tokens"].item())
            work = (tensors["text_input"], request.get_response_sender(), count)
            if PAUSE:
                threading.Thread(target=answer, args=work, daemon=True).start()
            else:
                answer(*work)
        return None


def answer(out, sender, count):
    for k in range(count):
        if PAUSE:
            time.sleep(PAUSE)
        response = pb_utils.InferenceResponse([pb_utils.Tensor("text_output", out)])
        sender.send(response, flags=FINAL if k == count - 1 else 0)
