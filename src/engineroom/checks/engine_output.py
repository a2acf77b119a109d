"""Whether an engine's own `config.json` says that it is what was asked for.

`trtllm-build` writes `version`, `pretrained_config` with its mapping, and `build_config` as it was used
(EngineConfig.to_dict, NVIDIA/TensorRT-LLM tensorrt_llm/builder.py @ 008b2b8d). The compute capability of
the GPU that it was built on is in none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engineroom.reading.base import version_of


@dataclass(frozen=True)
class Wanted:
    """What was asked for. Sizes as in `targets[].limits`; `max_seq_len` None: the builder's choice."""

    version: str
    tensor_parallel: int
    pipeline_parallel: int
    max_batch_size: int
    max_num_tokens: int
    max_beam_width: int
    max_seq_len: int | None
    quant_algo: str | None
    kv_cache_quant_algo: str | None


def differences(config: Any, wanted: Wanted) -> list[str]:
    """Where an engine's config is not what was asked for, in words; what it does not say counts too.

    Args:
        config: parsed `config.json`, of any shape.
    """
    return list(_differences(config, wanted))


def _differences(config: Any, wanted: Wanted) -> Iterator[str]:
    if not isinstance(config, Mapping):
        yield "it is no JSON object"
        return
    version = config.get("version")
    if not isinstance(version, str) or version_of(version) != version_of(wanted.version):
        yield f"version is {version!r}, not {wanted.version}"
    pretrained = _part(config, "pretrained_config")
    mapping = _part(pretrained, "mapping")
    for key, size in (
        ("tp_size", wanted.tensor_parallel),
        ("pp_size", wanted.pipeline_parallel),
    ):
        if mapping.get(key) != size:
            yield f"pretrained_config.mapping.{key} is {mapping.get(key)!r}, not {size}"
    quantization = _part(pretrained, "quantization")
    for key, algo in (
        ("quant_algo", wanted.quant_algo),
        ("kv_cache_quant_algo", wanted.kv_cache_quant_algo),
    ):
        if quantization.get(key) != algo:
            yield f"pretrained_config.quantization.{key} is {quantization.get(key)!r}, not {algo}"
    build = _part(config, "build_config")
    for key, size in _sizes(wanted):
        built = build.get(key)
        # A speculative mode lengthens sequences, and a token budget below a KV block is raised to it.
        if not isinstance(built, int) or isinstance(built, bool) or built < size:
            yield f"build_config.{key} is {built!r}, not {size}"


def _sizes(wanted: Wanted) -> Iterator[tuple[str, int]]:
    tokens = wanted.max_num_tokens
    if wanted.max_seq_len is not None:
        yield "max_seq_len", wanted.max_seq_len
        # The builder cuts it: check_max_num_tokens in tensorrt_llm/_common.py @ 0fccc5b9.
        tokens = min(tokens, wanted.max_seq_len * wanted.max_batch_size)
        yield "max_num_tokens", tokens
    yield "max_batch_size", wanted.max_batch_size
    yield "max_beam_width", wanted.max_beam_width


def _part(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}
