"""LoRA adapters against the modules that the runtime has LoRA for."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic

OUTSIDE_LAYERS = declare(
    "lora-module-outside-layers", Topic.LORA, Severity.ERROR,
    says="an adapter changes only modules inside the layers",
    why="there is no LoRA module for the embedding or the head: the loader skips their low-rank weights without "
    "a word, and answers are not those of the training",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/lora_manager.py (iterate_hf_lora, "
    "get_default_trtllm_modules_to_hf_modules) @ 0.17",
)  # fmt: skip

_SKIPPED = ("lm_head", "embed_tokens")


@about(Topic.LORA)
def modules_carried(c: Context) -> Iterator[Answer]:
    adapter = c.evidence.adapter_config
    targets = adapter.target_modules if adapter else None
    if not targets:
        return
    skipped = [n for n in targets if n.rsplit(".", 1)[-1] in _SKIPPED]
    if skipped:
        yield OUTSIDE_LAYERS.found(
            c, "adapter_config.target_modules",
            f"target_modules has {', '.join(skipped)}: these low-rank weights are not loaded",
            "train without them, or save them whole (modules_to_save) and merge them into the base model",
        )  # fmt: skip


RULES = (modules_carried,)
