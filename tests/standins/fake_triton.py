"""`triton_python_backend_utils` for tests without a server: tensors, requests, senders that keep."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

TYPES = {"TYPE_FP32": np.float32, "TYPE_FP16": np.float16, "TYPE_INT32": np.int32}


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError:
    def __init__(self, message: str) -> None:
        self.text = message

    def message(self) -> str:
        return self.text


class InferenceResponse:
    def __init__(self, output_tensors: Any = (), error: TritonError | None = None) -> None:
        self.tensors = {t.name(): t.as_numpy() for t in output_tensors}
        self.error = error


class Sender:
    def __init__(self) -> None:
        self.sent: list[tuple[InferenceResponse | None, int]] = []

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        self.sent.append((response, flags))

    def is_cancelled(self) -> bool:
        return False


class Request:
    def __init__(self, tensors: dict[str, Any], ident: str = "", outputs: Any = ()) -> None:
        self._tensors = [Tensor(name, array) for name, array in tensors.items()]
        self._ident, self._outputs, self.sender = ident, list(outputs), Sender()

    def inputs(self) -> list[Tensor]:
        return self._tensors

    def request_id(self) -> str:
        return self._ident

    def requested_output_names(self) -> list[str]:
        return self._outputs

    def parameters(self) -> str:
        return '{"priority": 3}'

    def get_response_sender(self) -> Sender:
        return self.sender


def module() -> types.ModuleType:
    """The module to put into `sys.modules`."""
    made: Any = types.ModuleType("triton_python_backend_utils")
    made.Tensor, made.InferenceResponse, made.TritonError = Tensor, InferenceResponse, TritonError
    made.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    made.Logger = types.SimpleNamespace(log_info=lambda text: None)
    made.triton_string_to_numpy = TYPES.__getitem__
    made.using_decoupled_model_transaction_policy = lambda config: config["decoupled"]
    return made
