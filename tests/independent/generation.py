"""Greedy text of plain transformers, weights and KV cache dequantized independently."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache

from tests.independent.formats import dequantize, e4m3_round_trip


class RoundTripCache(DynamicCache):
    """Stores K and V as an E4M3 cache would give them back, by the table of `formats`."""

    def __init__(self, config, scales):
        super().__init__(config=config)
        self.scales = scales

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        if layer_idx in self.scales:
            k, v = self.scales[layer_idx]
            key_states = torch.from_numpy(e4m3_round_trip(key_states.numpy(), k))
            value_states = torch.from_numpy(e4m3_round_trip(value_states.numpy(), v))
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


class Plain:
    """transformers' own `generate` on the dequantized checkpoint."""

    def __init__(self, folder: Path):
        torch.set_num_threads(1)  # the model is tiny: threads would wait for each other
        self._known: dict[tuple[object, ...], list[int]] = {}
        weights, self.kv = dequantize(folder)
        config = AutoConfig.from_pretrained(folder)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        self.model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        state = {name: torch.from_numpy(array.copy()) for name, array in weights.items()}
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        assert not unexpected
        assert set(missing) <= {"lm_head.weight"}
        self.model.tie_weights()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def ids(self, prompt: str, max_tokens: int, ends: list[int]) -> list[int]:
        """New token ids under greedy decoding, end ids left out."""
        key = (prompt, max_tokens, *ends)
        if key not in self._known:
            self._known[key] = self._ids(prompt, max_tokens, ends)
        return list(self._known[key])

    def _ids(self, prompt: str, max_tokens: int, ends: list[int]) -> list[int]:
        inputs = self.tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=inputs.input_ids,
                attention_mask=torch.ones_like(inputs.input_ids),
                past_key_values=RoundTripCache(self.model.config, self.kv),
                max_new_tokens=max_tokens,
                do_sample=False,
                eos_token_id=ends,
                pad_token_id=0,
            )[0, inputs.input_ids.shape[1] :].tolist()
        for i, token in enumerate(out):
            if token in ends:
                return out[:i]
        return out

    def logits(self, ids: list[int]) -> np.ndarray:
        """Logits after each of `ids`, float32 [len(ids), vocabulary]."""
        with torch.inference_mode():
            out = self.model(
                input_ids=torch.tensor([ids]),
                past_key_values=RoundTripCache(self.model.config, self.kv),
            )
        return out.logits[0].float().numpy()

    def greedy(
        self,
        prompt: list[int],
        max_tokens: int,
        ends: list[int],
        change: Callable[[np.ndarray, list[int], int], None],
    ) -> list[int]:
        """New token ids where `change(logits, prompt and answer, length of the answer)` is applied
        to the logits [vocabulary] before each choice; end ids left out."""
        ids = list(prompt)
        while len(ids) < len(prompt) + max_tokens:
            logits = self.logits(ids)[-1].copy()
            change(logits, ids, len(ids) - len(prompt))
            token = int(logits.argmax())
            if token in ends:
                break
            ids.append(token)
        return ids[len(prompt) :]

    def text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
