"""Triton Python model: text to token ids, for the engine lane's ensemble.

Runs in NVIDIA's stock container: standard library, numpy, triton_python_backend_utils and
text_codec.py beside it.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils
from text_codec import TokenCodec, end_ids


def word_lists(codec, rows):
    """Stop or bad words of a batch in the engine's layout.

    Args:
        rows: for each sequence, a list of words (text) or token-id tuples.

    Returns:
        int32 [batch, 2, length]: row 0 the ids of all words in a line, row 1 the end offset of each
        word, padded with -1.
    """
    flat = []
    for words in rows:
        ids, offsets = [], []
        for word in words:
            tokens = list(word) if isinstance(word, tuple) else codec.encode(word, False)
            if tokens:
                ids.extend(tokens)
                offsets.append(len(ids))
        flat.append((ids, offsets))
    length = max(1, max(len(ids) for ids, _ in flat))
    out = np.zeros((len(flat), 2, length), np.int32)
    out[:, 1] = -1
    for i, (ids, offsets) in enumerate(flat):
        out[i, 0, : len(ids)] = ids
        out[i, 1, : len(offsets)] = offsets
    return out


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {k: v["string_value"] for k, v in config["parameters"].items()}
        folder = parameters["tokenizer_dir"]
        self.codec = TokenCodec(folder)
        self.add_special_tokens = parameters["add_special_tokens"] == "true"
        if parameters["stop_ids"] == "generation_config":
            self.ends = end_ids(folder)
        else:
            self.ends = json.loads(parameters["stop_ids"])
        pb_utils.Logger.log_info(f"[engineroom] preprocessing tokenizer={folder} ends={self.ends}")

    def execute(self, requests):
        responses = []
        for request in requests:
            try:
                responses.append(pb_utils.InferenceResponse(self._one(request)))
            except Exception as error:
                message = f"[engineroom] preprocessing: {error}"
                responses.append(
                    pb_utils.InferenceResponse([], error=pb_utils.TritonError(message))
                )
        return responses

    def _one(self, request):
        texts = _texts(request, "QUERY")
        if texts is None:
            raise ValueError("text_input is missing")
        rows = [self.codec.encode(row[0], self.add_special_tokens) for row in texts]
        if not all(rows):
            raise ValueError("text_input has no tokens")
        batch = len(rows)
        end = _numbers(request, "END_ID")
        pad = _numbers(request, "PAD_ID")
        default_end = self.ends[0] if self.ends else -1
        end = np.full((batch, 1), default_end, np.int32) if end is None else end
        pad = np.where(end >= 0, end, 0).astype(np.int32) if pad is None else pad
        ids = np.zeros((batch, max(map(len, rows))), np.int32)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
            ids[i, len(row) :] = pad[i, 0]
        stops = _texts(request, "STOP_WORDS_DICT") or [[] for _ in rows]
        # The engine ends on one id only; a model with several (Llama 3, SmolLM) needs the others
        # as stop words, or its chat never ends.
        more = [(token,) for token in self.ends if token != default_end]
        stops = [[word for word in row if word] + more for row in stops]
        bads = _texts(request, "BAD_WORDS_DICT") or [[] for _ in rows]
        lengths = np.array([[len(row)] for row in rows], np.int32)
        return [
            pb_utils.Tensor("INPUT_ID", ids),
            pb_utils.Tensor("REQUEST_INPUT_LEN", lengths),
            pb_utils.Tensor("REQUEST_OUTPUT_LEN", _numbers(request, "REQUEST_OUTPUT_LEN")),
            pb_utils.Tensor("STOP_WORDS_IDS", word_lists(self.codec, stops)),
            pb_utils.Tensor("BAD_WORDS_IDS", word_lists(self.codec, bads)),
            pb_utils.Tensor("OUT_END_ID", end),
            pb_utils.Tensor("OUT_PAD_ID", pad),
        ]


def _texts(request, name):
    """Rows of text [batch][n], or None when the input was not sent."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None
    array = tensor.as_numpy()
    try:
        return [
            [x.decode("utf-8") if isinstance(x, bytes) else str(x) for x in row.reshape(-1)]
            for row in array.reshape(array.shape[0], -1)
        ]
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8: {error.reason}") from None


def _numbers(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().reshape(-1, 1).astype(np.int32)
