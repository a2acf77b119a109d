"""What goes over the wire to a Triton server, by the test's own hands: no client of engineroom.

An answer is a list of responses, each {tensor name: numpy array} in flat order. Over HTTP the generate
endpoints give JSON values; they are made arrays too, so that one check serves both protocols.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

KINDS = {"BYTES": np.object_, "BOOL": np.bool_, "INT32": np.int32, "INT64": np.int64,
         "UINT64": np.uint64, "BF16": np.float32, "FP32": np.float32, "FP16": np.float16, "UINT8": np.uint8}  # fmt: skip


class Response(dict[str, np.ndarray]):
    """{tensor name: flat array}; `shapes` has those that gRPC sends: {tensor name: dims}."""

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        super().__init__(tensors)
        self.shapes: dict[str, list[int]] = {}


class Refused(Exception):
    """The server's error message."""


def http_generate(port: int, model: str, body: Mapping[str, Any], timeout: float = 60) -> Response:
    """One response of `/generate`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    with contextlib.closing(connection):
        connection.request("POST", f"/v2/models/{model}/generate", _json(body))
        answer = connection.getresponse()
        raw = answer.read()
    if answer.status != 200:
        raise Refused(_message(raw))
    return _arrays(json.loads(raw))


def http_stream(
    port: int, model: str, body: Mapping[str, Any], *, take: int | None = None, timeout: float = 60
) -> list[Response]:
    """Responses of `/generate_stream`; after `take` of them the connection is closed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    found: list[Response] = []
    with contextlib.closing(connection):
        connection.request("POST", f"/v2/models/{model}/generate_stream", _json(body))
        answer = connection.getresponse()
        if answer.status != 200:
            raise Refused(_message(answer.read()))
        if take == 0:
            return found
        for event in _events(answer):
            if "error" in event:
                raise Refused(str(event["error"]))
            found.append(_arrays(event))
            if take is not None and len(found) >= take:
                break
    return found


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in answer:
        if line.startswith(b"data:"):
            yield json.loads(line[5:])


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps({"id": uuid.uuid4().hex, **body}).encode()


def _message(raw: bytes) -> str:
    try:
        return str(json.loads(raw)["error"])
    except (ValueError, KeyError, TypeError):
        return raw.decode("utf-8", "replace")


def _arrays(event: Mapping[str, Any]) -> Response:
    ours = {k: v for k, v in event.items() if k not in ("id", "model_name", "model_version")}
    return Response(
        {
            name: np.array(value if isinstance(value, list) else [value], _dtype(value))
            for name, value in ours.items()
        }
    )


def _dtype(value: Any) -> Any:
    first = value[0] if isinstance(value, list) and value else value
    return np.object_ if isinstance(first, str) else None


class Grpc:
    """One gRPC connection; each `ask` is a stream of its own."""

    def __init__(self, port: int) -> None:
        import tritonclient.grpc as triton

        self._triton, self._address = triton, f"127.0.0.1:{port}"
        self._meta = triton.InferenceServerClient(self._address)
        self._types: dict[str, dict[str, tuple[str, list[int]]]] = {}

    def close(self) -> None:
        self._meta.close()

    def types(self, model: str) -> dict[str, tuple[str, list[int]]]:
        """{input: (data type, dims without the batch dimension)}."""
        if model not in self._types:
            config = self._meta.get_model_config(model).config
            names = config.DESCRIPTOR.fields_by_name["input"].message_type
            kinds = names.fields_by_name["data_type"].enum_type.values_by_number
            self._types[model] = {
                item.name: (kinds[item.data_type].name.removeprefix("TYPE_"), list(item.dims))
                for item in config.input
            }
            self._batched = {**getattr(self, "_batched", {}), model: config.max_batch_size > 0}
        return self._types[model]

    def inputs(self, model: str, body: Mapping[str, Any]) -> list[Any]:
        """Plain values as tensors of the model's declared types, one row where it is batched."""
        types, made = self.types(model), []
        for name, value in body.items():
            kind = types[name][0]
            kind = {"STRING": "BYTES"}.get(kind, kind)
            if isinstance(value, np.ndarray):
                array = value
            else:
                flat = value if isinstance(value, list) else [value]
                if kind == "BYTES":
                    flat = [x.encode() if isinstance(x, str) else x for x in flat]
                array = np.array(flat, KINDS[kind])
            if self._batched[model]:
                array = array[None]
            item = self._triton.InferInput(name, list(array.shape), kind)
            if kind == "BF16":  # the upper half of a float32
                item._raw_content = (array.view(np.uint32) >> 16).astype(np.uint16).tobytes()
            else:
                item.set_data_from_numpy(array)
            made.append(item)
        return made

    def ask(
        self,
        model: str,
        body: Mapping[str, Any],
        *,
        take: int | None = None,
        request_id: str | None = None,
        timeout: float = 60,
    ) -> list[Response]:
        """Responses until the final one; after `take` of them the stream is cancelled."""
        inbox: queue.Queue[Any] = queue.Queue()
        found: list[Response] = []
        left = True  # before the final response
        client = self._triton.InferenceServerClient(self._address)
        try:
            client.start_stream(lambda result, error: inbox.put((result, error)))
            client.async_stream_infer(
                model, self.inputs(model, body), request_id=request_id or uuid.uuid4().hex,
                enable_empty_final_response=True,
            )  # fmt: skip
            while take is None or len(found) < take:
                try:
                    result, error = inbox.get(timeout=timeout)
                except queue.Empty:
                    raise TimeoutError(f"no response in {timeout} s") from None
                if error is not None:
                    raise Refused(str(error))
                message = result.get_response()
                if message.outputs:
                    found.append(_tensors(result, message))
                if message.parameters["triton_final_response"].bool_param:
                    left = False
                    break
        finally:
            client.stop_stream(cancel_requests=left)
            client.close()
        return found


def _tensors(result: Any, message: Any) -> Response:
    found = Response({})
    for output in message.outputs:
        found.shapes[output.name] = list(output.shape)
        array = result.as_numpy(output.name).reshape(-1)
        if array.dtype == np.object_:
            array = np.array([x.decode() if isinstance(x, bytes) else x for x in array], np.object_)
        found[output.name] = array
    return found


def text(responses: list[Response], index: int = 0) -> str:
    """The text of one sequence, pieces put together by `sequence_index` where it is sent."""
    pieces = []
    for response in responses:
        where = response.get("sequence_index")
        values = response.get("text_output", np.array([], np.object_))
        if where is not None and len(values) == 1:
            if int(where.reshape(-1)[0]) == index:
                pieces.append(str(values[0]))
        elif index < len(values):
            pieces.append(str(values[index]))
    return "".join(pieces)
