"""The least that a Python model of the llmapi lane's configuration can cost: no engine, no loop.

In the place of its model.py. It reads the four inputs that the comparison sends and answers from inside
execute() with as many events as were asked for tokens, or with one; the text is the prompt's words.
"""

import os

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
MOST = int(os.environ.get("STANDIN_TOKENS", "16"))


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            words = values["text_input"].reshape(-1)[0].split()[:MOST]
            if not values.get("streaming", np.zeros(1)).reshape(-1)[0]:
                words = [b" ".join(words)]
            sender, last = request.get_response_sender(), len(words) - 1
            for place, word in enumerate(words):
                tensor = pb_utils.Tensor("text_output", np.array([word], np.object_))
                sender.send(
                    pb_utils.InferenceResponse([tensor]), flags=FINAL if place == last else 0
                )
        return None
