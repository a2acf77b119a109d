"""Triton Python model: a request's fields to what the engine takes, for the engine lane's ensemble.

Checks every input of the ensemble, whether it uses it or only the engine does, so that a wrong one
is answered with an error that names the client's field. Runs in NVIDIA's stock container: standard
library, numpy, triton_python_backend_utils and the files beside it.
"""

import json

import triton_python_backend_utils as pb_utils
from engine_prompt import PromptMaker
from request_fields import Fields

# Upstream's names of this model's inputs, and what a client calls them.
NAMES = {
    "QUERY": "text_input",
    "DECODER_QUERY": "decoder_text_input",
    "REQUEST_OUTPUT_LEN": "max_tokens",
    "BAD_WORDS_DICT": "bad_words",
    "STOP_WORDS_DICT": "stop_words",
    "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
    "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
    "END_ID": "end_id",
    "PAD_ID": "pad_id",
    "PROMPT_TABLE_EXTRA_ID": "prompt_table_extra_id",
}


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {k: v["string_value"] for k, v in config["parameters"].items()}
        self.prompts = PromptMaker(parameters)
        pb_utils.Logger.log_info(
            f"[engineroom] preprocessing tokenizer={parameters['tokenizer_dir']} "
            f"ends={self.prompts.ends}"
        )

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        try:
            return pb_utils.InferenceResponse(self._one(Fields(request, NAMES)))
        except Exception as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            return pb_utils.InferenceResponse(
                [], error=pb_utils.TritonError(f"[engineroom] {kind}{error}")
            )

    def _one(self, fields):
        """Only what the engine needs: an output that is not made is an optional input not sent."""
        prompt, Tensor = self.prompts(fields), pb_utils.Tensor
        outputs = [
            Tensor("INPUT_ID", prompt.input_ids()),
            Tensor("REQUEST_INPUT_LEN", prompt.lengths()),
            Tensor("REQUEST_OUTPUT_LEN", prompt.limits()),
        ]
        for name, array in (
            ("OUT_END_ID", prompt.end_column()),
            ("STOP_WORDS_IDS", prompt.stop_list()),
            ("BAD_WORDS_IDS", prompt.bad_list()),
            ("EMBEDDING_BIAS", prompt.bias),
        ):
            if array is not None:
                outputs.append(Tensor(name, array))
        return outputs
