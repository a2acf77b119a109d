"""Small old setups made by a test: a repository, an engine's config.json and a build script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engineroom.types.migration import Migration, SettingReport

ENGINE_INPUTS = """
input [
  { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } },
  { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] }
]
output [ { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] } ]
"""


def parameters(values: Mapping[str, str]) -> str:
    return "".join(
        f'parameters: {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
        for key, value in values.items()
    )


def engine_pbtxt(
    values: Mapping[str, str] | None = None, *, decoupled: str = "false", more: str = ""
) -> str:
    given = {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": "/engines/e",
        **(values or {}),
    }
    return (
        'name: "tensorrt_llm"\nbackend: "tensorrtllm"\nmax_batch_size: 8\n'
        f"model_transaction_policy {{ decoupled: {decoupled} }}\n{ENGINE_INPUTS}{parameters(given)}{more}"
    )


BLS = """name: "tensorrt_llm_bls"
backend: "python"
max_batch_size: 8
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
        { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
"""


def write_repo(folder: Path, models: Mapping[str, str] | None = None) -> Path:
    """A repository; by default an engine model and a BLS model."""
    for name, text in (models or {"tensorrt_llm": engine_pbtxt(), "tensorrt_llm_bls": BLS}).items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.pbtxt").write_text(text, encoding="utf-8")
    return folder


def engine_json(**changes: Any) -> dict[str, Any]:
    """`config.json` of an engine; `pretrained_config`, `build_config` … are merged one level deep."""
    data: dict[str, Any] = {
        "version": "0.16.0",
        "pretrained_config": {
            "architecture": "LlamaForCausalLM", "dtype": "float16",
            "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
            "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        },
        "build_config": {
            "max_batch_size": 16, "max_num_tokens": 4096, "max_seq_len": 2048, "max_beam_width": 1,
            "plugin_config": {"lora_plugin": None},
        },
    }  # fmt: skip
    for key, value in changes.items():
        data[key] = (
            {**data[key], **value}
            if isinstance(value, dict) and isinstance(data.get(key), dict)
            else value
        )
    return data


def write_engine(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(engine_json(**changes)), encoding="utf-8")
    return folder


def setting(done: Migration, key: str, file: str = "") -> SettingReport:
    return next(s for s in done.settings if s.key == key and s.file.endswith(file))
