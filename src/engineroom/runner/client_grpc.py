"""Triton's gRPC service through tritonclient: plain calls, and streams for decoupled models.

tritonclient is imported where it is used: it brings grpc along, half a second at every start.
"""

from __future__ import annotations

import contextlib
import queue
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from engineroom.errors import ExternalToolError, UsageError, Where
from engineroom.runner.client_http import shown
from engineroom.runner.client_model import ModelInfo, TensorInfo, model_info

_MAX_MESSAGE = 500
_ABSENT = ("StatusCode.NOT_FOUND", "StatusCode.INVALID_ARGUMENT", "StatusCode.UNAVAILABLE")


class GrpcTransport:
    """One server by its gRPC address.

    Args:
        url: ``host:port``; ``grpcs://`` or ``https://`` in front asks for TLS.
        timeout: seconds to wait for a call, and between two responses of a stream.
    """

    def __init__(self, url: str, timeout: float = 600) -> None:
        self.url, self.timeout = url, timeout
        match = re.fullmatch(r"(?:(grpcs?|https?)://)?(?:[^/@\s]*@)?([^/@\s]+:\d{1,5})/?", url)
        if match is None or not 0 < int(match[2].rpartition(":")[2]) < 65536:
            raise UsageError(
                f"`{self.shown}` is no gRPC address",
                where=Where(key="--url"),
                hint="write host:port, e.g. 127.0.0.1:8001",
            )
        self._address, self._tls = match[2], match[1] in ("grpcs", "https")
        self._models: dict[str, ModelInfo] = {}

    @property
    def shown(self) -> str:
        return shown(self.url)

    def model(self, name: str, timeout: float = 10) -> ModelInfo | None:
        """A model's metadata and configuration; None when the server has no such model.

        Raises:
            ExternalToolError: no server there, or an error of its own.
        """
        if name in self._models:
            return self._models[name]
        grpc, errors = _modules()
        with contextlib.closing(self._client(grpc)) as client:
            try:
                if not client.is_server_live(client_timeout=timeout):
                    raise ExternalToolError(f"{self.shown} is a server that is not live")
                metadata = client.get_model_metadata(name, as_json=True, client_timeout=timeout)
                config = client.get_model_config(name, as_json=True, client_timeout=timeout)
            except errors.InferenceServerException as error:
                if error.status() in _ABSENT and "Request for unknown model" in str(error):
                    return None
                raise self._failed(error) from None
        info = model_info(name, metadata, self.shown)
        self._models[name] = replace(info, config=config.get("config", {}))
        return self._models[name]

    def config(self, name: str, timeout: float = 10) -> dict[str, Any]:
        """A model's configuration as JSON."""
        return dict(self._info(name, timeout).config or {})

    def ask(
        self, model: str, body: Mapping[str, Any], *, ident: str, stream: bool
    ) -> Iterator[dict[str, Any]]:
        """Responses, each {output: value}; closing the iterator cancels the request.

        A model that is not decoupled is called plainly: `stream` is a matter of its inputs then.

        Raises:
            ExternalToolError: no connection, or the server's own error.
        """
        grpc, errors = _modules()
        info = self._info(model, 10)
        inputs = [_tensor(grpc, info, name, value) for name, value in body.items()]
        with contextlib.closing(self._client(grpc)) as client:
            try:
                if self._decoupled(info):
                    yield from self._stream(client, model, inputs, ident)
                else:
                    result = client.infer(
                        model, inputs, request_id=ident, client_timeout=self.timeout
                    )
                    yield _outputs(result)
            except errors.InferenceServerException as error:
                raise self._failed(error) from None

    def _stream(
        self, client: Any, model: str, inputs: list[Any], ident: str
    ) -> Iterator[dict[str, Any]]:
        """Responses up to the one that is marked final, which may be empty."""
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client.start_stream(callback=lambda result, error: results.put((result, error)))
        done = False
        try:
            client.async_stream_infer(
                model, inputs, request_id=ident, enable_empty_final_response=True
            )
            while not done:
                try:
                    result, error = results.get(timeout=self.timeout)
                except queue.Empty:
                    raise ExternalToolError(
                        f"no answer from {self.shown} within {self.timeout:g} s",
                        hint="raise --timeout",
                    ) from None
                if error is not None:
                    raise error
                final = result.get_response().parameters.get("triton_final_response")
                done = final is not None and final.bool_param
                outputs = _outputs(result)
                if outputs:
                    yield outputs
        finally:
            # Leaving early (an error, Ctrl-C, a closed iterator) must stop the server's work too.
            client.stop_stream(cancel_requests=not done)

    def _decoupled(self, info: ModelInfo) -> bool:
        """Of the model itself, or of any model that an ensemble calls."""
        return info.decoupled or any(self._info(step, 10).decoupled for step in info.steps)

    def _info(self, name: str, timeout: float) -> ModelInfo:
        info = self.model(name, timeout)
        if info is None:
            raise ExternalToolError(f"{self.shown} has no model `{name}`")
        return info

    def _client(self, grpc: Any) -> Any:
        return grpc.InferenceServerClient(self._address, ssl=self._tls)

    def _failed(self, error: Any) -> ExternalToolError:
        status, text = error.status(), str(error.message() or error)
        if status == "StatusCode.UNAVAILABLE":
            return ExternalToolError(
                f"no answer from {self.shown}: {text[:_MAX_MESSAGE]}",
                hint="is the server running, and is this its gRPC address? `engineroom serve` prints it",
            )
        if status == "StatusCode.DEADLINE_EXCEEDED":
            return ExternalToolError(
                f"no answer from {self.shown} within {self.timeout:g} s", hint="raise --timeout"
            )
        name = str(status or "an error").removeprefix("StatusCode.")
        return ExternalToolError(f"the server answered {name}: {text[:_MAX_MESSAGE]}")


def _modules() -> tuple[Any, Any]:
    import tritonclient.grpc as grpc
    import tritonclient.utils as errors

    return grpc, errors


def _tensor(grpc: Any, info: ModelInfo, name: str, value: Any) -> Any:
    """A value as an input tensor: one row of it where the model is batched.

    Raises:
        UsageError: the model has no such input, or the value is not of its type.
    """
    import numpy as np
    from tritonclient.utils import triton_to_np_dtype

    tensor = info.inputs.get(name, TensorInfo(name))
    if tensor.datatype is None:
        raise UsageError(f"`{info.name}` has no input `{name}`")
    if isinstance(value, np.ndarray):
        array = value
    else:
        flat = value if isinstance(value, list) else [value]
        if tensor.datatype == "BYTES":
            array = np.array([_bytes(name, item) for item in flat], np.object_)
        else:
            try:
                array = np.array(flat, triton_to_np_dtype(tensor.datatype))
            except (ValueError, TypeError, OverflowError) as error:
                raise UsageError(f"`{name}` ({tensor.datatype}): {error}") from None
        if info.batched:
            array = array[None]
    made = grpc.InferInput(name, list(array.shape), tensor.datatype)
    made.set_data_from_numpy(array)
    return made


def _bytes(name: str, value: Any) -> bytes:
    try:
        return value if isinstance(value, bytes) else str(value).encode()
    except UnicodeEncodeError:  # undecodable bytes of a command line
        raise UsageError(f"`{name}` is not UTF-8") from None


def _outputs(result: Any) -> dict[str, Any]:
    """Outputs of one response as plain values; one value is no list, as in the generate JSON."""
    found: dict[str, Any] = {}
    for output in result.get_response().outputs:
        array = result.as_numpy(output.name)
        if array is None:
            continue
        flat = [
            x.decode("utf-8", "replace") if isinstance(x, bytes) else x
            for x in array.reshape(-1).tolist()
        ]
        found[output.name] = flat[0] if len(flat) == 1 else flat
    return found
