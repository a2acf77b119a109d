"""Schema of `deploy/contracts/engine_config.json`: the configuration files around an engine.

It holds, as TensorRT-LLM 0.21 to 1.2 and ModelOpt write them:

* an engine's `config.json`: `pretrained_config`, `build_config` and `plugin_config` fields with type
  and default, and how many `rank<N>.engine` files belong to it;
* a TensorRT-LLM checkpoint's `config.json`, and how the loader tells engine, checkpoint and Hugging
  Face folder apart;
* `hf_quant_config.json` and the `quantization_config` of a Hugging Face `config.json`;
* cross-checks: which engine value bounds which Triton parameter.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from engineroom.catalog.models import Row, Sources
from engineroom.catalog.support_models import unique_ids


class ConfigField(Row):
    """One key; `default_known` false means that no source gave the default."""

    type: str
    default: Any = None
    default_known: bool = True
    required: bool = False
    note: str | None = None


class KeyNote(Row):
    key: str
    note: str


class PretrainedConfig(Row):
    fields: dict[str, ConfigField]
    mapping: tuple[str, ...]
    quantization: tuple[str, ...]
    runtime_defaults: str
    confidence: str


class BuildConfig(Row):
    fields: dict[str, ConfigField]
    confidence: str


class PluginConfig(Row):
    fields: tuple[str, ...]
    value_form: str
    confidence: str


class EngineFiles(Row):
    engine: str
    config: str
    count: str


class EngineConfigJson(Row):
    top_level: tuple[str, ...]
    required_to_be_an_engine: tuple[str, ...]
    legacy_alternative: KeyNote
    pretrained_config: PretrainedConfig
    build_config: BuildConfig
    plugin_config: PluginConfig
    files: EngineFiles
    sources: Sources


class DetectionRule(Row):
    when: str
    format: Literal["TLLM_ENGINE", "TLLM_CKPT", "HF"]


class FormatDetection(Row):
    rule: tuple[DetectionRule, ...]
    note: str
    source: Sources


class CheckpointConfigJson(Row):
    top_level: tuple[str, ...]
    weights: str
    confidence: str


class HfQuantConfigJson(Row):
    top_level: tuple[str, ...]
    producer: tuple[str, ...]
    quantization: dict[str, ConfigField]
    quant_algo_written_by_modelopt: tuple[str, ...]
    not_in_trtllm_enum_read: tuple[str, ...]
    kv_cache_quant_algo_written_by_modelopt: tuple[str | None, ...]
    sources: Sources


class HfQuantizationConfig(Row):
    keys: tuple[str, ...]
    note: str
    group_keys: tuple[str, ...]
    source: Sources


class CrossCheck(Row):
    """An engine value and the Triton setting that must agree with it."""

    id: str
    engine: str
    triton: str | None = None
    rule: str
    severity: Literal["error", "warning", "info"]
    source: str | None = None


class EngineConfigFile(Row):
    """The whole file; see the module's docstring."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    engine_config_json: EngineConfigJson
    format_detection: FormatDetection
    checkpoint_config_json: CheckpointConfigJson
    hf_quant_config_json: HfQuantConfigJson
    hf_config_quantization_config: HfQuantizationConfig
    cross_checks: Annotated[tuple[CrossCheck, ...], AfterValidator(unique_ids)]
