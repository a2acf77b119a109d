"""Triton Python model: token ids to text, for the engine lane's ensemble.

A streamed answer arrives as one call per token. Triton lets no tensor but the engine's own into a
step after it, so nothing tells this model which stream a call belongs to, except the request id.
With an id, unfinished characters are kept until their other bytes arrive, so the pieces concatenate
to the whole text. Without one, a piece that splits a character is answered with an error that says
so: wrong text behind a status of 200 is worse. A call with several tokens and no open stream is a
whole answer. (Speculative decoding, with several tokens a step, needs the BLS model.)
"""

import collections
import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils
from text_codec import TextStream, TokenCodec

MAX_STREAMS = 4096
STREAM_SECONDS = 300
"""The end of a stream is not announced here: idle ones are forgotten after this time."""


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {k: v["string_value"] for k, v in config["parameters"].items()}
        self.codec = TokenCodec(parameters["tokenizer_dir"])
        self.skip = parameters["skip_special_tokens"] == "true"
        self.streaming = parameters["streaming"] == "true"
        self.streams, self.lock = collections.OrderedDict(), threading.Lock()

    def execute(self, requests):
        responses = []
        for request in requests:
            try:
                responses.append(pb_utils.InferenceResponse([self._one(request)]))
            except Exception as error:
                message = f"[engineroom] postprocessing: {error}"
                responses.append(
                    pb_utils.InferenceResponse([], error=pb_utils.TritonError(message))
                )
        return responses

    def _one(self, request):
        tokens = _array(request, "TOKENS_BATCH")
        lengths = _array(request, "SEQUENCE_LENGTH").reshape(tokens.shape[0], -1)
        index = (_index(request, "BATCH_INDEX"), _index(request, "SEQUENCE_INDEX"))
        texts = []
        for row, row_lengths in zip(tokens, lengths):
            for beam, length in zip(row, row_lengths):
                texts.append(self._text(request.request_id(), index, beam[:length].tolist()))
        out = np.array([text.encode("utf-8") for text in texts], np.object_)
        return pb_utils.Tensor("OUTPUT", out.reshape(tokens.shape[0], -1))

    def _text(self, ident, index, ids):
        key = (ident, *index)
        with self.lock:
            stream, since = self.streams.pop(key, (None, 0.0))
            if stream is None or time.monotonic() - since > STREAM_SECONDS:
                stream = None
            if not ident or not self.streaming or (stream is None and len(ids) > 1):
                text = self.codec.decode(ids, self.skip)
                if self.streaming and not ident and len(ids) == 1 and "\ufffd" in text:
                    raise ValueError(
                        "this token is part of a character; send a request id (JSON field "
                        '"id") with streamed requests, so that its bytes can be put together'
                    )
                return text
            stream = stream or TextStream(self.codec, self.skip, ends=False)
            self.streams[key] = (stream, time.monotonic())
            if len(self.streams) > MAX_STREAMS:
                self.streams.popitem(last=False)
            return stream.push(ids)


def _array(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def _index(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return 0 if tensor is None else int(tensor.as_numpy().reshape(-1)[0])
