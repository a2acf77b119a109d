"""The least that a Python model of the llmapi lane's configuration can cost: no engine, no loop.

In the place of its model.py. It reads the four inputs that the comparison sends and answers from inside
execute() with as many events as were asked for tokens, or with one; the text is the prompt's words.
With STANDIN_TOKENIZER it also tokenizes the prompt and decodes as many tokens, by the fastest calls
that the `tokenizers` library has: what no model file of this lane can save.
"""

import os

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
MOST = int(os.environ.get("STANDIN_TOKENS", "16"))
FOLDER = os.environ.get("STANDIN_TOKENIZER")


class TritonPythonModel:
    def initialize(self, args):
        self.tokenizer = None
        if FOLDER:
            from tokenizers import Tokenizer

            self.tokenizer = Tokenizer.from_file(f"{FOLDER}/tokenizer.json")

    def text_work(self, text):
        ids = self.tokenizer.encode_batch_fast([text])[0].ids
        return self.tokenizer.decode(ids[:MOST])

    def execute(self, requests):
        for request in requests:
            values = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            text = values["text_input"].reshape(-1)[0]
            words = text.split()[:MOST]
            if self.tokenizer is not None:
                self.text_work(text.decode())
            if not values.get("streaming", np.zeros(1)).reshape(-1)[0]:
                words = [b" ".join(words)]
            sender, last = request.get_response_sender(), len(words) - 1
            for place, word in enumerate(words):
                tensor = pb_utils.Tensor("text_output", np.array([word], np.object_))
                sender.send(
                    pb_utils.InferenceResponse([tensor]), flags=FINAL if place == last else 0
                )
        return None
