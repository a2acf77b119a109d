"""Files of other tools, as far as rules read them. Excerpts: a missing key is no fault by itself."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from engineroom.reading.base import Count, Excerpt, Id, Number, Size, Text, as_list, token_text

TokenIds = Annotated[tuple[Id, ...], BeforeValidator(as_list)]
SpecialToken = Annotated[Text | None, BeforeValidator(token_text)]


class SourceQuantization(Excerpt):
    """`quantization_config` of a ready-made checkpoint (GPTQ, AWQ, FP8)."""

    quant_method: Text | None = None
    bits: Size | None = None
    group_size: int | None = None
    desc_act: bool | None = None


class RopeScaling(Excerpt):
    """`rope_scaling`; older files name the kind `type`."""

    rope_type: Text | None = None
    type: Text | None = None
    factor: Number | None = None
    original_max_position_embeddings: Size | None = None


def _of_text_model(data: Any) -> Any:
    """Multimodal configs keep the language model's sizes in `text_config`."""
    if isinstance(data, dict) and "hidden_size" not in data:
        text = data.get("text_config")
        if isinstance(text, dict):
            return {**data, **{k: v for k, v in text.items() if k != "architectures"}}
    return data


def _one_size(value: Any) -> Any:
    """A few models give one width per layer; no single number is true of those."""
    return None if isinstance(value, list) else value


class HfConfig(Excerpt):
    """A model's Hugging Face `config.json`."""

    architectures: tuple[Text, ...] | None = None
    model_type: Text | None = None
    hidden_size: Size | None = None
    intermediate_size: Annotated[Size | None, BeforeValidator(_one_size)] = None
    num_hidden_layers: Size | None = None
    num_attention_heads: Size | None = None
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    vocab_size: Size | None = None
    tie_word_embeddings: bool | None = None
    max_position_embeddings: Size | None = None
    quantization_config: SourceQuantization | None = None
    rope_scaling: RopeScaling | None = None
    rope_theta: Number | None = None
    rope_parameters: dict[str, Any] | None = None
    transformers_version: Text | None = None
    num_experts: Count | None = None
    num_local_experts: Count | None = None
    n_routed_experts: Count | None = None
    moe_intermediate_size: Annotated[Count | None, BeforeValidator(_one_size)] = None

    @model_validator(mode="before")
    @classmethod
    def _language_model(cls, data: Any) -> Any:
        return _of_text_model(data)

    @property
    def has_experts(self) -> bool:
        return any(
            (self.num_experts, self.num_local_experts, self.n_routed_experts,
             self.moe_intermediate_size)
        )  # fmt: skip

    @property
    def kv_heads(self) -> int | None:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int | None:
        """The explicit head size where there is one, else hidden size / heads when that is whole."""
        if self.head_dim:
            return self.head_dim
        if not self.hidden_size or not self.num_attention_heads:
            return None
        return self.hidden_size // self.num_attention_heads


class GenerationConfig(Excerpt):
    """`generation_config.json`."""

    eos_token_id: TokenIds | None = None


class TokenizerConfig(Excerpt):
    """`tokenizer_config.json`."""

    bos_token: SpecialToken = None
    eos_token: SpecialToken = None


class Quantization(Excerpt):
    """The one object of `hf_quant_config.json`."""

    quant_algo: Text | None = None
    kv_cache_quant_algo: Text | None = None
    group_size: Size | None = None
    exclude_modules: tuple[Text, ...] | None = None


class Producer(Excerpt):
    """Who wrote the checkpoint."""

    name: Text | None = None
    version: Text | None = None


class QuantConfig(Excerpt):
    """`hf_quant_config.json` of a ModelOpt checkpoint."""

    producer: Producer | None = None
    quantization: Quantization | None = None


class Mapping_(Excerpt):
    """A parallel mapping as TensorRT-LLM writes it."""

    world_size: Size | None = None
    tp_size: Size | None = None
    pp_size: Size | None = None


class WeightIndex(Excerpt):
    """`*.safetensors.index.json`: which file holds which tensor."""

    weight_map: dict[str, str] | None = None


class CheckpointConfig(Excerpt):
    """`config.json` of a TensorRT-LLM checkpoint."""

    architecture: Text | None = None
    mapping: Mapping_ | None = None


class PluginConfig(Excerpt):
    paged_kv_cache: bool | None = None
    use_paged_context_fmha: bool | None = None
    context_fmha: bool | None = None
    remove_input_padding: bool | None = None


class LoraBuild(Excerpt):
    max_lora_rank: Size | None = None


class BuildConfig(Excerpt):
    max_batch_size: Size | None = None
    max_num_tokens: Size | None = None
    max_seq_len: Size | None = None
    max_beam_width: Size | None = None
    lora_config: LoraBuild | None = None
    plugin_config: PluginConfig | None = None


class PretrainedConfig(Excerpt):
    architecture: Text | None = None
    dtype: Text | None = None
    mapping: Mapping_ | None = None
    quantization: Quantization | None = None


class EngineConfig(Excerpt):
    """`config.json` of an engine folder."""

    version: Text | None = None
    pretrained_config: PretrainedConfig | None = None
    build_config: BuildConfig | None = None


class AdapterConfig(Excerpt):
    """`adapter_config.json` of a LoRA adapter."""

    r: Size | None = None
    target_modules: Annotated[tuple[Text, ...], BeforeValidator(as_list)] | None = None


class TextFile(Excerpt):
    """A file whose syntax is part of the question."""

    path: Text
    text: Text


class VllmModel(Excerpt):
    """A `model.json` of Triton's vLLM backend, and the instances of its `config.pbtxt`.

    `own_gpu`: placed by KIND_GPU, where each instance sees one GPU.
    """

    path: Text
    args: Annotated[dict[str, Any], Field(max_length=10_000)]
    instances: Size = 1
    own_gpu: bool = False


LlmArgs = Annotated[dict[str, Any], Field(max_length=10_000)]
"""LLM API arguments: judged against the contract of a version, so kept as they are."""
