"""`config.json` of an engine or of a TensorRT-LLM checkpoint, and every value in it as a leaf."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from engineroom.errors import UsageError, Where
from engineroom.types.migration import EngineFacts, Leaf

LIMITS = (
    "max_batch_size", "max_num_tokens", "max_seq_len", "max_beam_width", "max_input_len",
    "max_output_len", "max_draft_len",
)  # fmt: skip
MAX_LEAVES = 5000
MAX_DEPTH = 20
MAX_NESTED = 60


def parse_object(file: str, text: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        UsageError: not JSON, not an object, a number in it is NaN or infinite, or it is nested deeply.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}", where=Where(file)) from None
    if not isinstance(data, dict):
        raise UsageError("not a JSON object", where=Where(file))
    _finite(file, data)
    return data


def _finite(file: str, data: Any) -> None:
    """Raises UsageError for NaN and infinities, which Python's reader takes and JSON does not have, and for
    objects in objects that no such file has."""
    left: list[tuple[str, int, Any]] = [("", 0, data)]
    while left:
        path, depth, value = left.pop()
        if depth > MAX_NESTED:
            raise UsageError(
                f"nested deeper than {MAX_NESTED} levels", where=Where(file, key=path[:80]),
                hint="name the config.json that TensorRT-LLM wrote",
            )  # fmt: skip
        if isinstance(value, dict):
            left += [
                (f"{path}.{key}" if path else str(key), depth + 1, item)
                for key, item in value.items()
            ]
        elif isinstance(value, list):
            left += [(f"{path}[{at}]", depth + 1, item) for at, item in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            raise UsageError(
                f"{value} is no JSON number, and no setting of an engine",
                where=Where(file, key=path), hint="write a number or null",
            )  # fmt: skip


def is_huggingface(data: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is a model's own: what TensorRT-LLM writes has no `architectures`."""
    return "architectures" in data and "pretrained_config" not in data


def read_engine(file: str, data: Mapping[str, Any]) -> EngineFacts:
    """Facts of an engine (`pretrained_config`, `build_config`) or of a checkpoint (one level up).

    Raises:
        UsageError: neither.
    """
    build = _mapping(data.get("build_config")) or _mapping(data.get("builder_config"))
    model = _mapping(data.get("pretrained_config"))
    what = "engine" if model or build else "checkpoint"
    if what == "checkpoint":
        if not isinstance(data.get("architecture"), str) and "mapping" not in data:
            raise UsageError(
                "neither the config.json of an engine (`pretrained_config`, `build_config`) nor that of "
                "a TensorRT-LLM checkpoint (`architecture`, `mapping`)",
                where=Where(file),
                hint="name the folder that trtllm-build or convert_checkpoint.py wrote",
            )
        model = data
    quantization, mapping = _mapping(model.get("quantization")), _mapping(model.get("mapping"))
    producer = _mapping(model.get("producer"))
    return EngineFacts(
        file=file,
        what=what,
        version=_text(data.get("version")) or _text(producer.get("version")),
        architecture=_text(model.get("architecture")),
        dtype=_text(model.get("dtype")) or _text(build.get("precision")),
        quant_algo=_text(quantization.get("quant_algo")),
        kv_cache_quant_algo=_text(quantization.get("kv_cache_quant_algo")),
        group_size=_size(quantization.get("group_size")),
        tp_size=_size(mapping.get("tp_size")) or _size(build.get("tensor_parallel")) or 1,
        pp_size=_size(mapping.get("pp_size")) or _size(build.get("pipeline_parallel")) or 1,
        limits={key: n for key in LIMITS if (n := _size(build.get(key))) is not None},
        data=data,
    )


def leaves(file: str, data: Mapping[str, Any]) -> Iterator[Leaf]:
    """Every value: a list, and an object without keys, is one.

    Raises:
        UsageError: more values than such a file has.
    """
    for count, (key, value) in enumerate(_walk(data, "", 0)):
        if count >= MAX_LEAVES:
            raise UsageError(f"more than {MAX_LEAVES} values", where=Where(file))
        yield Leaf(file, key, None, value)


def _walk(data: Mapping[str, Any], path: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        here = f"{path}.{name}" if path else str(name)
        if isinstance(value, dict) and value and depth < MAX_DEPTH:
            yield from _walk(value, here, depth + 1)
        else:
            yield here, value


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
