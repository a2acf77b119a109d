"""ModelOpt's TensorRT-LLM exporter, inside the quantization child: TP 1 x PP 1, in every format.

The exporter is pinned with ModelOpt (0.47): it is deprecated in 0.48 and gone in 0.49. Larger layouts
are cut from what it writes (`engineroom.runner.trtllm_shards`), without the model in memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engineroom.errors import UsageError


def export(model: Any, out: Path, dtype: Any, source_config: Mapping[str, Any]) -> None:
    """Write `config.json` and `rank0.safetensors` into `out`; the model is as before afterwards.

    Args:
        model: a transformers model, quantized or not, not packed yet.
        dtype: torch type of what is not quantized.
        source_config: the model's own `config.json`, with `rope_theta` and `rope_scaling` where the
            model has them (`merge_config` of the unified export writes both).

    Raises:
        UsageError: ModelOpt has no such layout for the model.
    """
    from modelopt.torch.export import export_tensorrt_llm_checkpoint, get_model_type

    name = type(model).__name__
    kind = get_model_type(model)
    if kind is None:
        raise _no_layout(name, "it does not know the model")
    amax = _amax_to_restore(model)
    vocab = model.config.vocab_size  # the exporter pads it for AWQ, in the model's own config too
    try:
        export_tensorrt_llm_checkpoint(
            model, kind, dtype, export_dir=out, inference_tensor_parallel=1
        )
    except (NotImplementedError, AssertionError, ValueError, KeyError, AttributeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise _no_layout(name, first) from None
    model.config.vocab_size = vocab
    for path, module in model.named_modules():
        if path in amax:
            module._amax = amax[path]
    written = out / "config.json"
    exported = json.loads(written.read_text(encoding="utf-8"))
    text = json.dumps(complete_config(exported, source_config), indent=4) + "\n"
    written.write_text(text, encoding="utf-8")


def _no_layout(name: str, why: str) -> UsageError:
    return UsageError(
        f"ModelOpt has no TensorRT-LLM layout for {name}: {why}",
        hint="use lane: llmapi for this model",
    )


def _amax_to_restore(model: Any) -> dict[str, Any]:
    """What the exporter changes in place and the unified checkpoint must not depend on.

    It fuses Q, K and V (and gate and up) by giving them one amax. AWQ is another matter: there it
    scales the weights anew with a common pre-quant scale, which the unified exporter does as well,
    in the same way; the amax belongs to the new weights and stays.
    """
    rescaled = {
        f"{path}.weight_quantizer"
        for path, module in model.named_modules()
        if getattr(getattr(module, "input_quantizer", None), "_pre_quant_scale", None) is not None
    }
    return {
        path: module._amax.detach().clone()
        for path, module in model.named_modules()
        if path not in rescaled and getattr(module, "_amax", None) is not None
    }


def complete_config(exported: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """The exporter's `config.json` with what it leaves out and the loader would guess.

    Under transformers 5 the model's config has no `rope_theta` any more, so the exporter writes no
    `rotary_base`, and TensorRT-LLM takes 10000: wrong text for Llama 3, SmolLM2, Qwen2 and others.
    Keys and defaults: contract `trtllm_checkpoint.json`, `config.from_source_config`.
    """
    config = dict(exported)
    theta, scaling = source.get("rope_theta"), source.get("rope_scaling")
    if theta is not None:
        config["rotary_base"] = float(theta)
    if isinstance(scaling, Mapping):
        kind = scaling.get("type", scaling.get("rope_type"))
        if kind not in (None, "default"):
            config["rotary_scaling"] = {**scaling, "type": kind, "rope_type": kind}
    for key, of_source in (("attn_bias", "attention_bias"), ("mlp_bias", "mlp_bias")):
        if of_source in source:
            config[key] = bool(source[of_source])
    model_type = str(source.get("model_type", ""))
    if model_type.startswith("qwen"):
        config["qwen_type"] = model_type
    return config
