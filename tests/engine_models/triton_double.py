"""A small double of triton_python_backend_utils: what the engine lane's model files use of it."""

from __future__ import annotations

import importlib
import json
import sys
import threading
import types
from contextlib import contextmanager
from pathlib import Path

import numpy as np

FINAL = 1
SHARED = Path(__file__).parents[2] / "model_repo_templates" / "shared"
ENGINE = Path(__file__).parents[2] / "model_repo_templates" / "engine"


class Tensor:
    def __init__(self, name, array):
        assert isinstance(array, np.ndarray), name
        self._name, self._array = name, array

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array


class TritonError:
    def __init__(self, message):
        self._message = message

    def message(self):
        return self._message


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self.tensors, self._error = list(output_tensors), error

    def output_tensors(self):
        return self.tensors

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error

    def array(self, name):
        return next(t.as_numpy() for t in self.tensors if t.name() == name)

    def names(self):
        return {t.name() for t in self.tensors}


class InferenceRequest:
    """A BLS request: `engine` (set by `triton`) answers it."""

    engine = None

    def __init__(self, model_name, inputs, requested_output_names, request_id=""):
        self.model_name, self.request_id = model_name, request_id
        self.inputs = {t.name(): t.as_numpy() for t in inputs}
        assert len(self.inputs) == len(inputs), "an input was sent twice"
        self.outputs = list(requested_output_names)

    def exec(self, decoupled=False):
        answers = type(self).engine(self)
        return iter(answers) if decoupled else next(iter(answers))


class Sender:
    """Collects responses; `done` is set by the last."""

    def __init__(self):
        self.responses, self.done, self.cancelled = [], threading.Event(), False

    def send(self, response=None, flags=0):
        assert not self.done.is_set(), "a response after the last"
        if response is not None:
            self.responses.append(response)
        if flags == FINAL:
            self.done.set()

    def is_cancelled(self):
        return self.cancelled

    def wait(self):
        assert self.done.wait(10), "no last response"
        return self.responses


class Request:
    """A client's request, with a batch dimension in front."""

    def __init__(self, ident="", **inputs):
        self._ident, self.sender = ident, Sender()
        self._inputs = [Tensor(name, array) for name, array in inputs.items()]

    def inputs(self):
        return self._inputs

    def request_id(self):
        return self._ident

    def get_response_sender(self):
        return self.sender


def text(*rows):
    """STRING [batch, n]: each row a text or a list of texts."""
    rows = [[row] if isinstance(row, (str, bytes)) else row for row in rows]
    data = [[x if isinstance(x, bytes) else x.encode() for x in row] for row in rows]
    return np.array(data, np.object_).reshape(len(rows), -1)


def numbers(*values, kind=np.int32):
    """[batch, 1]."""
    return np.array(values, kind).reshape(-1, 1)


def answer(*sequences, batch=None, index=None, **extras):
    """One engine response: token ids of one prompt's sequences, [1, sequences, length]."""
    width = max(len(ids) for ids in sequences)
    ids = np.full((1, len(sequences), width), -1, np.int32)
    for place, row in zip(ids[0], sequences):
        place[: len(row)] = row
    tensors = [
        Tensor("output_ids", ids),
        Tensor("sequence_length", np.array([[len(row) for row in sequences]], np.int32)),
    ]
    if batch is not None:
        tensors.append(Tensor("batch_index", numbers(batch)))
    if index is not None:
        tensors.append(Tensor("sequence_index", numbers(index)))
    return InferenceResponse([*tensors, *(Tensor(n, a) for n, a in extras.items())])


@contextmanager
def model(name, parameters, engine=None, decoupled=True):
    """An initialized TritonPythonModel of `model_repo_templates/engine/<name>/1`."""
    utils = types.ModuleType("triton_python_backend_utils")
    utils.Tensor, utils.TritonError = Tensor, TritonError
    utils.InferenceResponse = InferenceResponse
    utils.InferenceRequest = type("InferenceRequest", (InferenceRequest,), {"engine": engine})
    utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    utils.Logger = types.SimpleNamespace(log_info=lambda _: None)
    utils.using_decoupled_model_transaction_policy = lambda _: decoupled
    folder, before = str(ENGINE / name / "1"), dict(sys.modules)
    own = [path.stem for path in (ENGINE / name / "1").glob("*.py")]
    sys.modules["triton_python_backend_utils"] = utils
    sys.path[:0] = [folder, str(SHARED)]
    instance = None
    try:
        for module in own:
            sys.modules.pop(module, None)
        instance = importlib.import_module("model").TritonPythonModel()
        config = {"parameters": {k: {"string_value": v} for k, v in parameters.items()}}
        instance.initialize({"model_config": json.dumps(config)})
        yield instance
    finally:
        if instance is not None and hasattr(instance, "finalize"):
            instance.finalize()
        del sys.path[:2]
        for module in [*own, "triton_python_backend_utils"]:
            sys.modules.pop(module, None)
            if module in before:
                sys.modules[module] = before[module]
