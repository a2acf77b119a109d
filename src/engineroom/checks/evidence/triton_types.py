"""The right value of a field of config.pbtxt, where the field and the engine say it."""

from __future__ import annotations

from typing import Any

from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence.context import Context
from engineroom.checks.evidence.triton_values import CHANGES, REFUSES, Outcome
from engineroom.names import Severity
from engineroom.reading import cpp_values
from engineroom.reading.model_config import Value, whole
from engineroom.reading.model_config_fields import ENUMS

# Names that torch, NumPy, Hugging Face and Triton's clients give to Triton's data types
# (server docs/user_guide/model_configuration.md, table of data types).
_TYPES = {
    "float32": "TYPE_FP32", "float": "TYPE_FP32", "fp32": "TYPE_FP32", "single": "TYPE_FP32",
    "f32": "TYPE_FP32", "float16": "TYPE_FP16", "half": "TYPE_FP16", "fp16": "TYPE_FP16",
    "f16": "TYPE_FP16", "bfloat16": "TYPE_BF16", "bf16": "TYPE_BF16", "float64": "TYPE_FP64",
    "double": "TYPE_FP64", "fp64": "TYPE_FP64", "int8": "TYPE_INT8", "int16": "TYPE_INT16",
    "int32": "TYPE_INT32", "int": "TYPE_INT32", "int64": "TYPE_INT64", "long": "TYPE_INT64",
    "uint8": "TYPE_UINT8", "uint16": "TYPE_UINT16", "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64", "bool": "TYPE_BOOL", "boolean": "TYPE_BOOL", "string": "TYPE_STRING",
    "bytes": "TYPE_STRING", "str": "TYPE_STRING", "object": "TYPE_STRING",
}  # fmt: skip
_LOGITS = ("context_logits", "generation_logits", "draft_logits")
_COUNTS = {repo.BLS: "engine"}


def data_type(word: str) -> str | None:
    """Triton's name of a data type, whatever framework the word is from."""
    plain = word.strip().strip("'\"").lower().replace("-", "_")
    for prefix in ("torch.", "np.", "numpy.", "type_", "kdt_", "dt_"):
        plain = plain.removeprefix(prefix)
    return _TYPES.get(plain.replace("_", ""))


def engine_type(c: Context) -> str | None:
    """The data type that the engine computes in."""
    config = c.evidence.engine_config
    dtype = config.pretrained_config.dtype if config and config.pretrained_config else None
    return data_type(dtype) if dtype else None


def engine_batch(c: Context) -> int | None:
    config = c.evidence.engine_config
    return config.build_config.max_batch_size if config and config.build_config else None


def right_for(c: Context, value: Value, role: str | None) -> Any:
    """What belongs into a field; None where neither the text nor the engine says it."""
    kind, text = value.kind or "", value.scalar.text
    left = bool(value.scalar.placeholders)
    tensor, _, field = value.path.rpartition(".")
    tensor = tensor.rpartition(".")[2]
    if kind == "enum:DataType":
        if not left and (named := data_type(text)):
            return named
        return "TYPE_FP32" if tensor in _LOGITS else engine_type(c)
    if kind.startswith("enum:"):
        upper = text.strip("'\"").upper()
        names = ENUMS[kind[5:]]
        return next((n for n in names if upper in (n, n.removeprefix("KIND_"))), None)
    if kind == "bool":
        meant = None if left else cpp_values.meant_bool(text)
        return False if meant is None and field == "decoupled" and not wants_stream(c) else meant
    if value.path == "backend":
        return {repo.ENGINE: "tensorrtllm"}.get(role or "", "python" if role else None)
    if kind in ("int32", "int64", "uint32", "uint64"):
        meant_number = None if left else cpp_values.meant_number(text)
        if meant_number is not None and meant_number == int(meant_number) and meant_number > 0:
            return int(meant_number)
        return _count(c, value.path, role)
    return None


def wants_stream(c: Context) -> bool:
    return any(r.stream for r in c.evidence.requests or ())


def _count(c: Context, path: str, role: str | None) -> int | None:
    if path in ("max_batch_size", "dynamic_batching.preferred_batch_size"):
        return engine_batch(c)
    if path.endswith(("max_queue_delay_microseconds", "max_queue_size")):
        return 0  # tools/fill_template.py @ v0.19.0 puts these in itself
    if path == "instance_group.count":
        return engine_batch(c) if role in _COUNTS else 1
    return None


def legal_but_wrong(c: Context, value: Value, role: str | None) -> Outcome | None:
    """Values that the parser accepts and something behind it does not."""
    text = value.scalar.text
    if value.path == "backend" and role == repo.ENGINE and text not in (repo.CPP, repo.PYTHON):
        return Outcome(
            REFUSES, Severity.ERROR, f"there is no backend `{text[:60]}` in the container: it is "
            "tensorrtllm, or python for the Python runtime", right=repo.CPP,
        )  # fmt: skip
    number = whole(value.scalar)
    if value.path.endswith("preferred_batch_size") and number is not None and number < 1:
        return Outcome(
            REFUSES, Severity.ERROR, f"`{value.path}` is {number}, and a preferred size is positive",
            right=engine_batch(c),
        )  # fmt: skip
    if value.path == "max_batch_size" and number is not None and number < 0:
        return Outcome(
            REFUSES, Severity.ERROR, f"`max_batch_size` is {number}, and it is not negative",
            right=engine_batch(c),
        )  # fmt: skip
    if value.path == "instance_group.count" and number is not None and number < 1:
        return Outcome(
            REFUSES, Severity.ERROR, f"`instance_group.count` is {number}: no instance",
            right=_count(c, value.path, role),
        )  # fmt: skip
    if value.path == "input.prompt_embedding_table.data_type" and text != (engine_type(c) or text):
        return Outcome(
            CHANGES, Severity.WARN, f"the engine computes in {engine_type(c)}: requests with a prompt "
            "table are refused", right=engine_type(c),
        )  # fmt: skip
    logits = value.path in [f"output.{name}.data_type" for name in _LOGITS]
    if logits and text in ENUMS["DataType"] and text not in ("TYPE_FP32", "TYPE_FP16"):
        return Outcome(
            CHANGES, Severity.WARN, f"logits are returned as FP32 or FP16 only, not as {text}: "
            "requests that ask for logits fail", right="TYPE_FP32",
        )  # fmt: skip
    return None
