"""Triton Python model: token ids to text, for the engine lane's ensemble.

A streamed answer arrives as one call per token. Triton lets no tensor but the engine's own into a
step after it, so nothing tells this model which stream a call belongs to, except the request id, nor
where the stream ends, nor which words stop it: tensorrt_llm_bls has none of these limits.

With an id, unfinished characters are kept until their other bytes arrive, so the pieces concatenate
to the whole text. Without one, a piece that splits a character is answered with an error that says
so: wrong text behind a status of 200 is worse. A call with several tokens and no open stream is a
whole answer. (Speculative decoding, with several tokens a step, needs the BLS model.)

One instance, and requests in the order of their arrival: Triton may hand over several at once, but
never changes their order.
"""

import collections
import json
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
        self.streams = collections.OrderedDict()

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        try:
            return pb_utils.InferenceResponse([self._one(request)])
        except Exception as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            return pb_utils.InferenceResponse(
                [], error=pb_utils.TritonError(f"[engineroom] {kind}{error}")
            )

    def _one(self, request):
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        tokens, lengths = tensors["TOKENS_BATCH"], tensors["SEQUENCE_LENGTH"]
        index = tensors.get("SEQUENCE_INDEX")
        first = 0 if index is None else int(index.flat[0])
        if tokens.shape[:2] == (1, 1):
            ids = tokens[0, 0, : lengths.flat[0]].tolist()
            text = self._text(request.request_id(), first, ids)
            return pb_utils.Tensor("OUTPUT", np.array([[text.encode("utf-8", "replace")]], object))
        batch, beams = tokens.shape[:2]
        texts = [
            self._text(request.request_id(), first + i, row[:length].tolist())
            for i, (row, length) in enumerate(
                zip(tokens.reshape(batch * beams, -1), lengths.reshape(-1).tolist())
            )
        ]
        out = np.array([text.encode("utf-8", "replace") for text in texts], object)
        return pb_utils.Tensor("OUTPUT", out.reshape(batch, beams))

    def _text(self, ident, index, ids):
        key = (ident, index)
        stream, since = self.streams.pop(key, (None, 0.0)) if ident else (None, 0.0)
        if stream is not None and time.monotonic() - since > STREAM_SECONDS:
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
