"""Requests to an old front and the same ones to the new model: bodies, curl calls, tritonclient code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from engineroom.lanes import LANES
from engineroom.names import LaneName
from engineroom.pipeline.migrate_fields import FieldLine
from engineroom.types.migration import OldModel, OldSetup

PROMPT = "The import statement"
NEW_MODEL = LANES[LaneName.LLMAPI].client.model
_BASE: dict[str, Any] = {"text_input": PROMPT, "max_tokens": 16}
# Values that change nothing about a greedy answer, or that show what the field is for.
_SAMPLES: dict[str, Any] = {
    "stop_words": ["\n\n\n"],
    "bad_words": ["zebra"],
    "top_k": 1,
    "top_p": 1.0,
    "temperature": 1.0,
    "repetition_penalty": 1.0,
    "min_length": 1,
    "min_tokens": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "random_seed": 7,
    "seed": 7,
}
_KINDS = {
    "TYPE_STRING": "BYTES", "TYPE_INT32": "INT32", "TYPE_UINT64": "UINT64", "TYPE_BOOL": "BOOL",
    "TYPE_FP32": "FP32",
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One request.

    Attributes:
        batched: tensors begin with a dimension of one row (gRPC); over HTTP both are written alike.
        decoupled: over gRPC the model is called by a stream.
        kinds: Triton data type of each field (``BYTES``), and whether it is a list.
    """

    model: str
    body: Mapping[str, Any]
    stream: bool
    batched: bool
    decoupled: bool
    kinds: Mapping[str, tuple[str, bool]]


@dataclass(frozen=True)
class Exchange:
    """The same request before and after.

    Attributes:
        id: ``ensemble-whole``, ``tensorrt_llm_bls-stream``, ``…-options`` or ``…-lora``.
        sent: a client can send it as it stands; False where names or numbers are the reader's own.
    """

    id: str
    title: str
    before: Call
    after: Call
    sent: bool = True


def echoes(setup: OldSetup) -> bool:
    """Whether whole answers of the old fronts begin with the prompt unless a request says otherwise.

    The C++ backend's own default is that they do: `exclude_input_in_output` is false. Source:
    triton-inference-server/tensorrtllm_backend docs/model_config.md @ v0.19.0.
    """
    return (setup.parameter("exclude_input_in_output", "engine") or "false").lower() != "true"


def flag(text: str | None, default: bool) -> bool:
    """A flag as upstream's Python models read it: t, y, yes and 1 count as true.

    Source: preprocessing/1/model.py, tensorrt_llm_bls/1/model.py @ v0.16.0.
    """
    return default if text is None else text.lower() in ("true", "1", "t", "y", "yes")


def cumulative(setup: OldSetup) -> bool:
    """Whether each response of the old BLS model's streams has all of the text so far."""
    return flag(setup.parameter("accumulate_tokens", "bls"), False)


def exchanges(
    setup: OldSetup, spec: Mapping[str, Any], lines: Sequence[FieldLine]
) -> list[Exchange]:
    """Requests that the old setup takes, each with the one that gives the same on the new side."""
    new_streams = bool((spec.get("serving") or {}).get("streaming", True))
    names = {line.old: line for line in lines if line.side == "inputs"}
    found: list[Exchange] = []
    for model in setup.fronts:
        make = _Maker(setup, model, names, new_streams)
        body = {n: v for n, v in _BASE.items() if n in make.declared}
        if "text_input" not in body:
            continue  # a model of somebody's own: what it wants is not known
        found.append(make("whole", "A whole answer", body, stream=False))
        if make.old_streams and new_streams:
            found.append(make("stream", "A streamed answer", body, stream=True))
        options = {n: v for n, v in _SAMPLES.items() if n in make.declared and names[n].new}
        if options:
            options = {**body, **options}
            found.append(
                make("options", "All sampling fields of this model", options, stream=False)
            )
        if "lora_task_id" in make.declared and _adapters(setup):
            lora = {**body, "lora_task_id": 1}
            found.append(make("lora", "An adapter", lora, stream=False, sent=False))
    return found


def _adapters(setup: OldSetup) -> bool:
    """Whether the engine takes adapters: it was built for them; its config.json wins over the script."""
    if setup.engine is not None:
        build = setup.engine.data.get("build_config")
        plugins = build.get("plugin_config") if isinstance(build, dict) else None
        if isinstance(plugins, dict) and "lora_plugin" in plugins:
            return _on(plugins["lora_plugin"])
    flags = (c.flag("--lora_plugin") for c in setup.calls if c.tool == "trtllm-build")
    return any(flag is not None and _on(flag.value or "auto") for flag in flags)


def _on(value: Any) -> bool:
    """A plugin's value: `auto` or a data type switch it on, `disable` and null off.

    Source: NVIDIA/TensorRT-LLM tensorrt_llm/plugin/plugin.py, PluginConfig @ v0.16.0.
    """
    if isinstance(value, str):
        return value.strip().lower() not in ("", "disable", "none", "null", "false")
    return value is True


class _Maker:
    """Exchanges of one old front."""

    def __init__(
        self, setup: OldSetup, model: OldModel, names: Mapping[str, FieldLine], new_streams: bool
    ) -> None:
        self.model, self.names, self.new_streams = model, names, new_streams
        engine = setup.engine_model
        # An ensemble has no policy of its own: it is decoupled when a model in it is.
        decoupled = model.decoupled if model.kind == "bls" else engine and engine.decoupled
        self.decoupled = bool(decoupled)
        self.echo = echoes(setup)
        self.declared = {tensor.name: tensor for tensor in model.inputs}
        self.old_streams = self.decoupled and "stream" in self.declared

    def __call__(
        self, slug: str, title: str, body: Mapping[str, Any], *, stream: bool, sent: bool = True
    ) -> Exchange:
        before = dict(body)
        after: dict[str, Any] = {}
        kinds_after: dict[str, tuple[str, bool]] = {}
        for name, value in body.items():
            new = self.names[name].new[0] if name in self.names else name
            after[new] = value
            kinds_after[new] = self._kind(name, value)
        kinds = {name: self._kind(name, value) for name, value in before.items()}
        if stream:
            before["stream"], kinds["stream"] = True, ("BOOL", False)
            after["streaming"], kinds_after["streaming"] = True, ("BOOL", False)
        elif self.echo:
            key = "sampling_param_exclude_input_from_output"
            after[key], kinds_after[key] = False, ("BOOL", False)
        if stream and self.model.kind == "ensemble":
            title += " (each with an id of its own)"
        name = self.model.name
        return Exchange(
            f"{name}-{slug}",
            f"{title}: {name}",
            Call(name, before, stream, bool(self.model.max_batch_size), self.decoupled, kinds),
            Call(NEW_MODEL, after, stream, False, self.new_streams, kinds_after),
            sent,
        )

    def _kind(self, name: str, value: Any) -> tuple[str, bool]:
        tensor = self.declared.get(name)
        kind = _KINDS.get(tensor.data_type or "" if tensor else "", "BYTES")
        return kind, isinstance(value, list)


# ---- text
def model_path(model: str) -> str:
    """Triton's path of a model, safe in a URL and in a shell."""
    return f"/v2/models/{quote(model, safe='')}"


def curl(call: Call) -> str:
    """The request over HTTP, in one line of shell."""
    where, how = ("generate_stream", "-sN") if call.stream else ("generate", "-s")
    body = {"id": "r1", **call.body} if call.stream else dict(call.body)
    quoted = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
    return f"curl {how} localhost:8000{model_path(call.model)}/{where} \\\n  -d '{quoted}'"


_TENSOR = """\
def tensor(name, kind, values):
    array = np.array({wrap}, KINDS[kind])
    item = {module}.InferInput(name, list(array.shape), kind)
    item.set_data_from_numpy(array)
    return item
"""
# close(): without it the program hung at its end once in 120 runs, in grpc's Channel.close called by __del__.
_STREAMED = """\
answers = queue.Queue()
client = grpc.InferenceServerClient("localhost:8001")
client.start_stream(lambda result, error: answers.put((result, error)))
client.async_stream_infer({model!r}, inputs, request_id="r1", enable_empty_final_response=True)
final = False
while not final:
    result, error = answers.get(timeout=60)
    if error is not None:
        raise error
    text = result.as_numpy("text_output")
    if text is not None:
        print(text.reshape(-1)[0].decode(), end="")
    final = result.get_response().parameters["triton_final_response"].bool_param
client.stop_stream()
client.close()"""
_WHOLE = """\
client = http.InferenceServerClient("localhost:8000")
answer = client.infer({model!r}, inputs)
print(answer.as_numpy("text_output").reshape(-1)[0].decode(), end="")
client.close()"""


def tritonclient(call: Call) -> str:
    """The request with tritonclient: by a gRPC stream where the model is decoupled, else over HTTP."""
    module = "grpc" if call.decoupled else "http"
    kinds = sorted({kind for kind, _ in call.kinds.values()})
    table = {
        "BYTES": "np.object_", "INT32": "np.int32", "UINT64": "np.uint64", "BOOL": "np.bool_",
        "FP32": "np.float32",
    }  # fmt: skip
    wanted = ", ".join(f'"{kind}": {table[kind]}' for kind in kinds)
    rows = ",\n    ".join(
        f'tensor("{name}", "{call.kinds[name][0]}", {_values(value)})'
        for name, value in call.body.items()
    )
    head = "import queue\n\n" if call.decoupled else ""
    send = (_STREAMED if call.decoupled else _WHOLE).format(model=call.model)
    return (
        f"{head}import numpy as np\nimport tritonclient.{module} as {module}\n\n"
        f"KINDS = {{{wanted}}}\n\n\n"
        + _TENSOR.format(wrap="[values]" if call.batched else "values", module=module)
        + f"\n\ninputs = [\n    {rows},\n]\n{send}\n"
    )


def _values(value: Any) -> str:
    """A list of Python literals; text as bytes, which is what tritonclient sends."""
    items = value if isinstance(value, list) else [value]
    return repr([item.encode() if isinstance(item, str) else item for item in items])
