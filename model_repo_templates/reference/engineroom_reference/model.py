"""A checkpoint as a float32 transformers model with its KV cache round-tripped through scales."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from engineroom_reference.dequant import dequantized

E4M3_MAX = 448.0


def fp8_round_trip(x, scale):
    """x as it comes back from an FP8 (E4M3) cache: saturating cast of x / scale, times scale."""
    return (x / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(x.dtype) * scale


class ScaledCache(DynamicCache):
    """A KV cache that stores what an FP8 cache would give back.

    Args:
        kv_scales: {layer: (k_scale, v_scale)}; empty for a 16-bit cache, kept in float32 here.
    """

    def __init__(self, config, kv_scales):
        super().__init__(config=config)
        self._kv_scales = kv_scales

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        if layer_idx in self._kv_scales:
            k_scale, v_scale = self._kv_scales[layer_idx]
            key_states = fp8_round_trip(key_states, k_scale)
            value_states = fp8_round_trip(value_states, v_scale)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


class ReferenceModel:
    """Forward passes of one sequence at a time, so that no result depends on a batch."""

    def __init__(self, folder):
        state, self.kv_scales = dequantized(folder)
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        # The quantization is undone already; transformers must not try to apply it.
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        self.config = config
        # Built whole, not on the meta device: buffers such as rotary frequencies are in no file.
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
        missing, unexpected = model.load_state_dict(state, strict=False)
        model.tie_weights()
        allowed = {"lm_head.weight"} if config.tie_word_embeddings else set()
        if unexpected or set(missing) - allowed:
            raise ValueError(
                f"{folder}: missing tensors {sorted(set(missing) - allowed)[:3]}, "
                f"unexpected {sorted(unexpected)[:3]}"
            )
        self.model = model.eval()

    def new_cache(self):
        return ScaledCache(self.config, self.kv_scales)

    @torch.inference_mode()
    def logits(self, ids, cache):
        """Logits [tokens, vocabulary] of `ids`, which are appended to `cache`."""
        out = self.model(torch.tensor([ids]), past_key_values=cache, use_cache=True)
        return out.logits[0].float()
