"""Shape facts of a model, read from its `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads")
# Generous ceilings: a value above is a broken file, and would make the arithmetic run for hours.
_MOST = {
    "hidden_size": 1_000_000,
    "num_hidden_layers": 10_000,
    "num_attention_heads": 100_000,
    "num_key_value_heads": 100_000,
    "head_dim": 100_000,
    "intermediate_size": 10_000_000,
    "vocab_size": 100_000_000,
    "max_position_embeddings": 2**31 - 1,
}


@dataclass(frozen=True)
class ModelShape:
    """Sizes that decide weights, KV cache and sharding.

    ``head_dim`` comes from its own key when present: some models (Qwen3, Mistral Small) have a
    head size that is not ``hidden_size / num_attention_heads``.
    """

    architecture: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool
    dtype: str
    max_position_embeddings: int | None
    has_experts: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Build from a Hugging Face ``config.json`` object.

        Raises:
            KeyError: a size key is missing, no whole number, or outside 1 .. a generous limit; the key
                is the argument.
        """
        text = config.get("text_config") if "hidden_size" not in config else None
        cfg: Mapping[str, Any] = text if isinstance(text, Mapping) else config
        for key, most in _MOST.items():
            value = cfg.get(key)
            if value is None and key not in _REQUIRED:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
                raise KeyError(key)
        heads = int(cfg["num_attention_heads"])
        hidden = int(cfg["hidden_size"])
        architectures = config.get("architectures") or ["unknown"]
        return cls(
            architecture=str(architectures[0]),
            model_type=str(cfg.get("model_type", config.get("model_type", "unknown"))),
            hidden_size=hidden,
            intermediate_size=int(cfg.get("intermediate_size") or 4 * hidden),
            num_hidden_layers=int(cfg["num_hidden_layers"]),
            num_attention_heads=heads,
            num_key_value_heads=int(cfg.get("num_key_value_heads") or heads),
            head_dim=int(cfg.get("head_dim") or hidden // heads),
            vocab_size=int(cfg.get("vocab_size") or 0),
            tie_word_embeddings=bool(cfg.get("tie_word_embeddings", True)),
            dtype=str(cfg.get("dtype") or cfg.get("torch_dtype") or "bfloat16"),
            max_position_embeddings=(
                int(cfg["max_position_embeddings"]) if cfg.get("max_position_embeddings") else None
            ),
            has_experts=any(
                cfg.get(key)
                for key in (
                    "num_experts",
                    "num_local_experts",
                    "n_routed_experts",
                    "moe_intermediate_size",
                )
            ),
        )

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """(out_features, in_features) of the quantizable linears of one dense decoder layer."""
        q = self.num_attention_heads * self.head_dim
        kv = self.num_key_value_heads * self.head_dim
        return {
            "q_proj": (q, self.hidden_size),
            "k_proj": (kv, self.hidden_size),
            "v_proj": (kv, self.hidden_size),
            "o_proj": (self.hidden_size, q),
            "gate_proj": (self.intermediate_size, self.hidden_size),
            "up_proj": (self.intermediate_size, self.hidden_size),
            "down_proj": (self.hidden_size, self.intermediate_size),
        }

    @property
    def allowed_tensor_parallel(self) -> tuple[int, ...]:
        """TP sizes up to one 8-GPU node that split the heads evenly.

        Query heads must divide; KV heads either divide or are replicated evenly
        (TensorRT-LLM converters assert ``tp % kv_heads == 0`` when duplicating).
        """
        kv = self.num_key_value_heads
        return tuple(
            tp
            for tp in range(1, 9)
            if self.num_attention_heads % tp == 0 and (kv % tp == 0 or tp % kv == 0)
        )
