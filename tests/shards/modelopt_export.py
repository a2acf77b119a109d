"""Run as a child: ModelOpt's own exports of the tiny model for several layouts, into the folder of argv[1].

The layouts that it refuses are printed. Not a test itself: torch and ModelOpt stay out of pytest.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from pathlib import Path
from typing import Any

FORMATS = {
    "fp8": "FP8_DEFAULT_CFG",
    "awq": "INT4_AWQ_CFG",
    "nvfp4": "NVFP4_DEFAULT_CFG",
    "bf16": None,
}
LAYOUTS = ((1, 1), (2, 1), (4, 1), (1, 3), (2, 3), (1, 2))


OTHERS = ("Qwen2", "Mistral", "Llama")


def _recipe(name: str) -> Any:
    import modelopt.torch.quantization as mtq

    if FORMATS[name] is None:
        return None
    config = copy.deepcopy(getattr(mtq, FORMATS[name]))
    for entry in config["quant_cfg"]:
        blocks = (entry.get("cfg") or {}).get("block_sizes")
        if name == "awq" and blocks and -1 in blocks:
            blocks[-1] = 64
    config["quant_cfg"] = [*config["quant_cfg"], *mtq.FP8_KV_CFG["quant_cfg"]]
    return config


def _quantize(model: Any, name: str) -> None:
    import modelopt.torch.quantization as mtq
    import torch

    recipe = _recipe(name)
    if recipe is not None:
        ids = torch.randint(3, 900, (2, 64))
        with torch.no_grad():
            mtq.quantize(model, recipe, lambda inner: inner(ids))


def tiny_layouts(target: Path, source: str) -> None:
    """The tests' tiny model, cut by ModelOpt itself."""
    import torch
    from modelopt.torch.export import export_tensorrt_llm_checkpoint
    from transformers import AutoModelForCausalLM

    refused = []
    for name in FORMATS:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()
        _quantize(model, name)
        for tp, pp in LAYOUTS:
            try:
                export_tensorrt_llm_checkpoint(
                    copy.deepcopy(model), "llama", torch.bfloat16,
                    export_dir=target / f"{name}-{tp}x{pp}",
                    inference_tensor_parallel=tp, inference_pipeline_parallel=pp,
                )  # fmt: skip
            except AssertionError:
                refused.append([name, tp, pp])
    (target / "refused.json").write_text(json.dumps(refused))


def other_models(target: Path) -> None:
    """Random models of the other architectures of the contract, and a Llama with biases, by our exporter."""
    import torch
    import transformers

    from engineroom.runner import trtllm_export
    from engineroom.runner.quantize_child import merge_config

    sizes = {
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
        "max_position_embeddings": 512, "tie_word_embeddings": False,
    }  # fmt: skip
    own = {"Qwen2": {"rope_theta": 1e6}, "Mistral": {"head_dim": 64},
           "Llama": {"attention_bias": True, "rope_theta": 5e5}}  # fmt: skip
    for family in OTHERS:
        config = getattr(transformers, f"{family}Config")(**sizes, **own[family])
        config.architectures = [f"{family}ForCausalLM"]
        for name in FORMATS:
            torch.manual_seed(0)
            made = getattr(transformers, f"{family}ForCausalLM")(copy.deepcopy(config))
            model = made.to(torch.bfloat16).eval()
            for parameter, values in model.named_parameters():
                if parameter.endswith("bias"):
                    values.data.normal_()
            _quantize(model, name)
            said = merge_config(json.loads(model.config.to_json_string()), {})
            trtllm_export.export(model, target / f"{family}-{name}", torch.bfloat16, said)
            assert model.config.vocab_size == 1000


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    tiny_layouts(Path(sys.argv[1]), sys.argv[2])
    other_models(Path(sys.argv[1]))
