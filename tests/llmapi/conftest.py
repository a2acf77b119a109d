"""Puts the files that a server executes on sys.path, as Triton does, and a double of its utilities."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests.conftest import ROOT

FOLDERS = ("shared", "llmapi/tensorrt_llm/1")
FILES = (
    "inputs", "input_table", "outputs", "media", "fetch", "model", "metrics", "runtime_api",
    "request_fields", "chat_template", "stop_text", "text_codec", "trtllm_runtime",
    "trtllm_request", "trtllm_output", "event_loop",
)  # fmt: skip


class Tensor:
    """`pb_utils.Tensor`: a name and an array."""

    def __init__(self, name, array):
        self._name, self._array = name, array

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array


class TritonError:
    INVALID_ARG, CANCELLED, UNAVAILABLE = "INVALID_ARG", "CANCELLED", "UNAVAILABLE"

    def __init__(self, message, code=None):
        self.text, self.code = message, code


class InferenceResponse:
    def __init__(self, output_tensors, error=None):
        self.error = error
        self.tensors = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}


class Sender:
    """Keeps what was sent as (response, flags); `left` is whether the client has gone."""

    def __init__(self):
        self.sent, self.left, self.broken = [], False, False

    def send(self, response=None, flags=0):
        if self.broken:
            raise RuntimeError("the sender is closed")
        assert not (self.sent and self.sent[-1][1]), "nothing may follow the last response"
        self.sent.append((response, flags))

    def is_cancelled(self):
        assert not (self.sent and self.sent[-1][1]), "the server crashes on this"
        return self.left

    @property
    def ended(self):
        return bool(self.sent) and bool(self.sent[-1][1])

    def texts(self, name="text_output"):
        return [[item.decode() for item in r.tensors[name]] for r, _ in self.sent]

    def error(self):
        return self.sent[-1][0].error


class Request:
    """A Triton request of keyword inputs: text, numbers, lists of either, or arrays."""

    def __init__(self, sender=None, ident="", **inputs):
        self.sender, self.ident = sender or Sender(), ident
        self._tensors = [Tensor(name, array(value)) for name, value in inputs.items()]

    def inputs(self):
        return self._tensors

    def get_response_sender(self):
        return self.sender

    def request_id(self):
        return self.ident


def array(value):
    if isinstance(value, np.ndarray):
        return value
    items = value if isinstance(value, list) else [value]
    if items and isinstance(items[0], str | bytes):
        data = [item.encode() if isinstance(item, str) else item for item in items]
        return np.array(data, np.object_)
    kind = {bool: np.bool_, int: np.int32, float: np.float32}[type(items[0])] if items else None
    return np.array(items, kind)


@pytest.fixture(autouse=True)
def _template_path(monkeypatch):
    for name in FOLDERS:
        monkeypatch.syspath_prepend(str(ROOT / "model_repo_templates" / name))
    double = SimpleNamespace(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
        Tensor=Tensor,
        TritonError=TritonError,
        InferenceResponse=InferenceResponse,
        Logger=SimpleNamespace(
            log_info=lambda text: None, log_warn=lambda text: None, log_error=lambda text: None
        ),
        using_decoupled_model_transaction_policy=lambda config: config["decoupled"],
    )
    for name in FILES:  # so that each test's double is the one they see
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", double)
    yield
    for name in FILES:
        sys.modules.pop(name, None)
