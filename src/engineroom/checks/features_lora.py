"""LoRA adapters: their rank and modules against what engine and server are made for."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import AdapterFacts, TargetContext
from engineroom.checks.codes import declare
from engineroom.names import LaneName, Severity, Topic
from engineroom.spec.serving import Lora
from engineroom.types import Finding

_UTILS = "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/runtime/loraUtils.cpp (loraValidateRequestTensors)"
_MANAGER = "NVIDIA/TensorRT-LLM tensorrt_llm/lora_manager.py"
_DOC = "triton-inference-server/tensorrtllm_backend docs/lora.md"
RANK = declare(
    "lora-rank-over-maximum", Topic.LORA, Severity.ERROR,
    says="no adapter has a rank over lora.max_rank",
    why="engine and caches are sized for the maximum, and an adapter above it is refused",
    source=f"{_UTILS}; {_DOC} (--max_lora_rank)",
)  # fmt: skip
MODULES = declare(
    "lora-module-not-a-target", Topic.LORA, Severity.ERROR,
    says="adapters change only modules that lora.target_modules names",
    why="the engine has low-rank paths for those modules alone; weights for others have no place",
    source=f"{_UTILS}; {_MANAGER} (get_default_trtllm_modules_to_hf_modules)",
)  # fmt: skip
TARGETS = declare(
    "lora-target-module-unknown", Topic.LORA, Severity.ERROR,
    says="lora.target_modules are TensorRT-LLM's own module names",
    why="trtllm-build refuses other names, and Hugging Face's names (q_proj) are not its own (attn_q)",
    source=f"{_MANAGER} (LORA_MODULE_IDS); trtllm-build --lora_target_modules",
)  # fmt: skip
NOT_HERE = declare(
    "lora-adapter-not-here", Topic.LORA, Severity.WARN,
    says="adapters are on this machine, so that their rank and modules can be checked",
    why="without adapter_config.json a rank over the maximum shows at the first request",
    source="huggingface/peft documentation, LoraConfig (adapter_config.json: r, target_modules)",
)  # fmt: skip
CONVERTED = declare(
    "lora-adapters-not-converted", Topic.LORA, Severity.WARN,
    says="the engine lane's server gets the adapters' weights from somewhere",
    why="converting them for lora_prefetch_dir is not implemented: the first request of an adapter must bring "
    "lora_weights and lora_config, later ones its lora_task_id alone",
    source=f"{_DOC} (hf_lora_convert.py, lora_prefetch_dir)",
)  # fmt: skip
COUNTS = declare(
    "lora-adapter-counts-unused", Topic.LORA, Severity.INFO,
    says="max_adapters and max_cpu_adapters are set where they are read",
    why="the C++ backend sizes its caches in bytes (lora_cache_gpu_memory_fraction, "
    "lora_cache_host_memory_bytes), whose defaults stay",
    source=f"{_DOC} (LoRA Cache)",
)  # fmt: skip
TYPE = declare(
    "lora-adapter-type", Topic.LORA, Severity.ERROR,
    says="an adapter is LoRA, without DoRA's magnitudes",
    why="the lane builds low-rank paths only; magnitudes are another plugin's, and other adapter types have "
    "no loader",
    source=f"{_MANAGER}; trtllm-build --dora_plugin; huggingface/peft documentation, LoraConfig (use_dora)",
)  # fmt: skip

_MODULE_OF = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "qkv_proj": "attn_qkv",
    "o_proj": "attn_dense", "gate_proj": "mlp_h_to_4h", "up_proj": "mlp_gate",
    "down_proj": "mlp_4h_to_h",
}  # fmt: skip
"""Hugging Face's module name to TensorRT-LLM's."""
_LANES = (LaneName.ENGINE, LaneName.LLMAPI)


def targets_known(c: TargetContext) -> Iterator[Finding]:
    lora = c.spec.serving.features.lora
    if lora is None or c.contract is None or c.target.lane not in _LANES:
        return
    names = c.contract.build_flags.get("--lora_target_modules", {}).get("choices") or ()
    wrong = [m for m in lora.target_modules if names and m not in names]
    if wrong:
        ours = {_MODULE_OF[m] for m in wrong if m in _MODULE_OF}
        yield TARGETS.found(
            c, "serving.features.lora.target_modules",
            f"TensorRT-LLM {c.contract.version} has no LoRA module {', '.join(wrong)}",
            f"write {', '.join(sorted(ours))}" if ours else f"use some of {', '.join(map(str, names[:8]))}",
        )  # fmt: skip


def adapters(c: TargetContext) -> Iterator[Finding]:
    lora = c.spec.serving.features.lora
    if lora is None or c.target.lane not in _LANES:
        return
    for i, adapter in enumerate(lora.adapters):
        facts = c.adapters.get(adapter.name)
        key = f"serving.features.lora.adapters[{i}].source"
        if facts is None:
            yield NOT_HERE.found(
                c, key, f"`{adapter.source}` has no adapter_config.json on this machine",
                "download the adapter and name its folder",
            )  # fmt: skip
            continue
        yield from _fits(c, lora, key, adapter.name, facts)


def _fits(
    c: TargetContext, lora: Lora, key: str, name: str, facts: AdapterFacts
) -> Iterator[Finding]:
    if facts.rank is not None and facts.rank > lora.max_rank:
        yield RANK.found(
            c, key, f"adapter `{name}` has rank {facts.rank}, and lora.max_rank is {lora.max_rank}",
            f"set serving.features.lora.max_rank: {facts.rank}",
        )  # fmt: skip
    if facts.kind not in (None, "LORA") or facts.dora:
        what = "DoRA" if facts.dora else str(facts.kind)
        yield TYPE.found(
            c, key, f"adapter `{name}` is {what}, which is not implemented", "train it as plain LoRA"
        )  # fmt: skip
    wanted = [_MODULE_OF.get(m.rsplit(".", 1)[-1]) for m in facts.target_modules]
    missing = sorted({m for m in wanted if m is not None} - set(lora.target_modules))
    if "attn_qkv" in lora.target_modules:
        missing = [m for m in missing if m not in ("attn_q", "attn_k", "attn_v")]
    if missing:
        yield MODULES.found(
            c, key, f"adapter `{name}` changes {', '.join(missing)}, which lora.target_modules leaves out",
            f"add {', '.join(missing)} to serving.features.lora.target_modules",
        )  # fmt: skip


def engine_lane(c: TargetContext) -> Iterator[Finding]:
    lora = c.spec.serving.features.lora
    if lora is None or c.target.lane is not LaneName.ENGINE:
        return
    if lora.adapters:
        names = ", ".join(adapter.name for adapter in lora.adapters[:6])
        yield CONVERTED.found(
            c, "serving.features.lora.adapters",
            f"the server starts without the weights of {names}: converting adapters is not implemented",
            "send lora_weights and lora_config with the first request of each, or use lane: llmapi",
        )  # fmt: skip
    stated = {"max_adapters", "max_cpu_adapters"} & lora.model_fields_set
    if stated:
        yield COUNTS.found(
            c, f"serving.features.lora.{sorted(stated)[0]}",
            f"{' and '.join(sorted(stated))}: not read on the engine lane",
            "leave them out, or use lane: llmapi",
        )  # fmt: skip


RULES = (targets_known, adapters, engine_lane)
