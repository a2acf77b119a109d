"""`targets[].llmapi`: LLM arguments that the version, the model or another setting does not take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engineroom.catalog import Contract
from engineroom.catalog.load import in_range
from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.checks.features_speculative import DECODING_TYPES, RENAMED_TYPES
from engineroom.names import LaneName, Severity, Topic
from engineroom.types import Finding

_ARGS = "NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py"
VERSION = declare(
    "llmapi-option-not-in-version", Topic.LLM_ARGS, Severity.ERROR,
    says="an LLM argument that the spec sets exists in the version",
    why="since 1.0 unknown arguments stop the server, and before they were dropped without a word",
    source=f"{_ARGS} of the version",
)  # fmt: skip
VALUE = declare(
    "llmapi-option-value", Topic.LLM_ARGS, Severity.ERROR,
    says="an LLM argument that the spec sets has a value that the version takes",
    why="the server stops at start with a validation error",
    source=f"{_ARGS} of the version",
)  # fmt: skip
DENSE = declare(
    "moe-option-on-dense-model", Topic.LLM_ARGS, Severity.ERROR,
    says="options of experts are set for a mixture of experts",
    why="a dense model has no experts, and nothing would read them",
    source="NVIDIA/TensorRT-LLM docs/source/features/parallel-strategy.md (dense models, MoE models)",
)  # fmt: skip
ONE_RANK = declare(
    "attention-dp-on-one-rank", Topic.LLM_ARGS, Severity.ERROR,
    says="enable_attention_dp is set with tensor_parallel over 1",
    why="requests are spread over the ranks of tensor_parallel; on one there is nothing to spread",
    source="NVIDIA/TensorRT-LLM docs/source/features/parallel-strategy.md (attention data parallelism)",
)  # fmt: skip
CHUNKING = declare(
    "chunking-policy-without-chunks", Topic.LLM_ARGS, Severity.ERROR,
    says="context_chunking_policy is set with chunked_context",
    why="without chunks there is no order of chunks",
    source=f"{_ARGS} (ContextChunkingPolicy)",
)  # fmt: skip
SPECULATIVE = declare(
    "speculative-arguments-unknown", Topic.LLM_ARGS, Severity.ERROR,
    says="the arguments of a speculative mode are known in the version",
    why="the version has the mode, and its contract does not list what it takes: nothing is written on a guess",
    source=f"{_ARGS} of the version (DecodingBaseConfig and the class of the mode)",
)  # fmt: skip
PIPELINE = declare(
    "speculative-with-pipeline", Topic.LLM_ARGS, Severity.ERROR,
    says="speculative decoding goes with pipeline_parallel 1",
    why="the feature matrix of later releases says No to the two together",
    source="NVIDIA/TensorRT-LLM docs/source/features/feature-combination-matrix.md @ 01edceae",
)  # fmt: skip
LORA = declare(
    "lora-arguments-unknown", Topic.LLM_ARGS, Severity.ERROR,
    says="the place of LoRA's target modules is known in the version",
    why="the version has LoRA, and its contract does not list lora_target_modules: nothing is written on a guess",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/usage/llm_args_golden_manifest.json (leaves lists of free text out)",
)  # fmt: skip

MOE_OPTIONS = ("moe_expert_parallel_size", "moe_backend", "moe_max_num_tokens")
PLACES: dict[str, tuple[tuple[str, ...], ...]] = {
    "moe_expert_parallel_size": (("moe_expert_parallel_size",),),
    "moe_backend": (("moe_config", "backend"), ("moe_backend",)),
    "moe_max_num_tokens": (("moe_config", "max_num_tokens"), ("moe_max_num_tokens",)),
    "enable_attention_dp": (("enable_attention_dp",),),
    "tokens_per_block": (("kv_cache_config", "tokens_per_block"),),
    "host_cache_size": (("kv_cache_config", "host_cache_size"),),
    "max_tokens": (("kv_cache_config", "max_tokens"),),
    "enable_partial_reuse": (("kv_cache_config", "enable_partial_reuse"),),
    "context_chunking_policy": (("scheduler_config", "context_chunking_policy"),),
    "cuda_graph_batch_sizes": (("cuda_graph_config", "batch_sizes"), ("cuda_graph_batch_sizes",)),
    "disable_overlap_scheduler": (("disable_overlap_scheduler",),),
    "enable_autotuner": (("enable_autotuner",), ("autotuner_enabled",)),
    "allreduce_strategy": (("allreduce_strategy",),),
}  # fmt: skip
"""Where versions have an option of `targets[].llmapi`, newest first; the contract decides which."""


def place_of(contract: Contract, option: str) -> tuple[tuple[str, ...], dict[str, Any]] | None:
    """(path of the argument, its facts) of an option in a version, or None where it has none."""
    for path in PLACES[option]:
        facts = (contract.llm_fields if len(path) == 1 else contract.nested_facts(path[0])).get(
            path[-1]
        )
        if facts is not None:
            return path, dict(facts)
    return None


def llm_arguments(c: TargetContext) -> Iterator[Finding]:
    """Each option that is set, against the version's contract."""
    if c.target.lane is not LaneName.LLMAPI or c.contract is None:
        return
    options, contract = c.target.llmapi, c.contract
    for name in sorted(options.model_fields_set & set(PLACES)):
        value = getattr(options, name)
        if value is None:
            continue
        found = place_of(contract, name)
        key = f"@.llmapi.{name}"
        if found is None:
            yield VERSION.found(
                c, key, f"TensorRT-LLM {contract.version} has no `{name}`",
                "leave it out, or use a stack that has it",
            )  # fmt: skip
            continue
        presence = str(found[1].get("presence", ""))
        if presence.startswith("only"):
            yield VERSION.found(
                c, key,
                f"whether TensorRT-LLM {contract.version} has `{name}` is unknown: {presence}",
                "try it in the container first, or leave it out", severity=Severity.WARN,
            )  # fmt: skip
        allowed = found[1].get("allowed")
        if allowed and isinstance(value, str) and value not in allowed:
            yield VALUE.found(
                c, key, f"TensorRT-LLM {contract.version} takes {', '.join(allowed)}, not `{value}`",
                f"write one of them, such as {allowed[0]}",
            )  # fmt: skip


def llm_combinations(c: TargetContext) -> Iterator[Finding]:
    options = c.target.llmapi
    if c.target.lane is not LaneName.LLMAPI:
        return
    asked = [name for name in MOE_OPTIONS if getattr(options, name) is not None]
    if asked and c.model is not None and not c.model.has_experts:
        yield DENSE.found(
            c, f"@.llmapi.{asked[0]}", f"{c.model.architecture} has no experts", "leave it out"
        )  # fmt: skip
    if options.enable_attention_dp and c.target.tensor_parallel == 1:
        yield ONE_RANK.found(
            c, "@.llmapi.enable_attention_dp", "tensor_parallel is 1", "leave it out"
        )  # fmt: skip
    if options.context_chunking_policy is not None and not c.spec.serving.chunked_context:
        yield CHUNKING.found(
            c, "@.llmapi.context_chunking_policy", "serving.chunked_context is false",
            "set serving.chunked_context: true, or leave the policy out",
        )  # fmt: skip


def decoding_kind(contract: Contract, name: str) -> str | None:
    """`decoding_type` of a mode: a new name where every snapshot around the release has it, else the old.

    None where neither is listed.
    """
    listed = contract.nested_facts("speculative_config").get("decoding_type", {}).get("allowed")
    if listed is None:
        listed = contract.data["llm_api"].get("nested", {}).get("decoding_type_values", ())
    snapshots = listed.values() if isinstance(listed, dict) else (listed,)
    rows = [{str(value) for value in row} for row in snapshots]
    new = RENAMED_TYPES.get(name)
    if new is not None and all(new in row for row in rows):
        return new
    return next((n for n in (name, new) if any(n in row for row in rows)), None)


def decoding_fields(contract: Contract, name: str) -> frozenset[str]:
    """Arguments of a decoding type; empty where they are not known."""
    nested = contract.data["llm_api"].get("nested_by_field", {}).get("speculative_config")
    if nested:
        return contract.nested_fields("speculative_config", "")
    base = contract.nested_fields("speculative_config", "DecodingBaseConfig")
    own = contract.nested_fields("speculative_config", f"{name}DecodingConfig")
    return (base | own) if base else frozenset()


def lora_modules_known(contract: Contract) -> bool:
    return "lora_target_modules" in contract.nested_fields("lora_config", "LoraConfig")


def feature_arguments(c: TargetContext) -> Iterator[Finding]:
    """Features whose arguments nobody at hand lists for the version, or that exclude each other there."""
    contract, features = c.contract, c.spec.serving.features
    if c.target.lane is not LaneName.LLMAPI or contract is None or not contract.has_llmapi_lane:
        return
    name = DECODING_TYPES.get(features.speculative.mode) if features.speculative else None
    known = name is None or (decoding_fields(contract, name) and decoding_kind(contract, name))
    if not known:
        yield SPECULATIVE.found(
            c, "serving.features.speculative.mode",
            f"the contract of TensorRT-LLM {contract.version} lists no arguments of {name}",
            "use a stack from 1.0 on, leave it out, or capture the contract with `engineroom matrix capture`",
        )  # fmt: skip
    stages = c.target.pipeline_parallel
    row = c.catalog.constraint("spec-pp")
    if features.speculative and stages > 1 and in_range(contract.version, row.versions):
        yield PIPELINE.found(
            c, "@.pipeline_parallel",
            f"pipeline_parallel {stages} with speculative decoding on TensorRT-LLM {contract.version}",
            "use tensor_parallel for these GPUs, or leave speculative decoding out",
        )  # fmt: skip
    if features.lora is not None and not lora_modules_known(contract):
        yield LORA.found(
            c, "serving.features.lora",
            f"the contract of TensorRT-LLM {contract.version} lists no lora_target_modules",
            "use another stack, leave lora out, or capture the contract with `engineroom matrix capture`",
        )  # fmt: skip


RULES = (llm_arguments, llm_combinations, feature_arguments)
