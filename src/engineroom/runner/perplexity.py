"""Perplexity before and after, with an interval over documents; runs inside the quantization child."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def evaluate(
    source: Path,
    hf: Path,
    tokenizer: Any,
    documents: list[str],
    request: Mapping[str, Any],
    emit: Callable[..., None],
) -> dict[str, Any]:
    """Perplexity of the source and of the exported artefact, document by document.

    Both in float32: the source as it is, the artefact by the reference runtime's dequantization, with
    K and V through the cache's scales. Returns `bootstrap`'s figures and how they were made.
    """
    import torch
    from transformers import AutoModelForCausalLM

    for folder in request["reference_paths"]:
        sys.path.insert(0, folder)
    from engineroom_reference.model import ReferenceModel

    limit = request["seq_len"]
    rows = [tokenizer(text, add_special_tokens=True)["input_ids"][:limit] for text in documents]
    rows = [row for row in rows if len(row) >= 2]
    if not rows:
        return {"verdict": "not measured", "why": "no held-out document has two tokens"}
    emit("phase", name="evaluate", total=2 * len(rows))

    def losses(forward: Callable[[list[int]], Any], done: int) -> list[float]:
        result = []
        for i, row in enumerate(rows):
            with torch.inference_mode():
                logits = forward(row)[:-1]
            target = torch.tensor(row[1:])
            loss = torch.nn.functional.cross_entropy(logits, target, reduction="sum")
            result.append(float(loss))
            emit("progress", phase="evaluate", done=done + i + 1, total=2 * len(rows), number=1)
        return result

    base = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, trust_remote_code=bool(request["trust_remote_code"])
    ).eval()
    before = losses(lambda row: base(torch.tensor([row])).logits[0].float(), 0)
    reference = ReferenceModel(str(hf))
    after = losses(lambda row: reference.logits(row, reference.new_cache()), len(rows))
    tokens = [len(row) - 1 for row in rows]
    return {
        **bootstrap(before, after, tokens, request["seed"]),
        "documents": len(rows),
        "method": "emulated" if request["weights"] == "nvfp4" else "dequantized",
        "what": "exported artefact in the reference runtime: weights dequantized, K and V through "
        "the cache's scales, activations not quantized",
    }


def bootstrap(
    before: list[float], after: list[float], tokens: list[int], seed: int, rounds: int = 1000
) -> dict[str, Any]:
    """Perplexities, their change in percent, and its 95 % interval over resampled documents."""

    def change(chosen: list[int]) -> float:
        n = sum(tokens[i] for i in chosen)
        delta = sum(after[i] - before[i] for i in chosen) / n
        return 100 * (math.exp(delta) - 1)

    every = list(range(len(tokens)))
    generator = random.Random(seed)
    drawn = sorted(change(generator.choices(every, k=len(every))) for _ in range(rounds))
    low, high = drawn[int(0.025 * rounds)], drawn[int(0.975 * rounds) - 1]
    total = sum(tokens)
    return {
        "before": round(math.exp(sum(before) / total), 4),
        "after": round(math.exp(sum(after) / total), 4),
        "change_percent": round(change(every), 3),
        "interval_95_percent": [round(low, 3), round(high, 3)],
        "verdict": "within noise" if low <= 0 <= high else "changed",
        "tokens": total,
    }
