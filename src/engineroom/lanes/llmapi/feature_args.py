"""LLM arguments that `serving.features` needs, in the words of the version's contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engineroom.catalog import Contract
from engineroom.checks.features_speculative import DECODING_TYPES
from engineroom.checks.llmapi_options import decoding_fields, decoding_kind, lora_modules_known
from engineroom.errors import UsageError, Where
from engineroom.lanes.attached import draft_path
from engineroom.lanes.base import LaneRequest
from engineroom.spec.serving import Lora, Speculative

Argument = tuple[str, Any, str]
"""(name, value, reason)"""

_OWN_LENGTH = {"mtp": "num_nextn_predict_layers", "ngram": "max_draft_len"}


def feature_arguments(request: LaneRequest, root: str) -> Iterator[Argument]:
    """Arguments of features that are on.

    Args:
        root: where the package is, for what lies in it.

    Raises:
        UsageError: the version has no place for what the spec asks.
    """
    serving, contract = request.spec.serving, request.contract
    features = serving.features
    if serving.stream_interval != 1:
        yield "stream_interval", serving.stream_interval, "serving.stream_interval"
    if features.generation_logits and "gather_generation_logits" in contract.llm_fields:
        yield "gather_generation_logits", True, "serving.features.generation_logits"
    if features.guided_decoding != "off":
        yield (
            "guided_decoding_backend",
            features.guided_decoding,
            "serving.features.guided_decoding",
        )
    if features.lora is not None:
        yield "enable_lora", True, "serving.features.lora"
        yield "lora_config", _lora(features.lora, contract), "serving.features.lora"
    if features.speculative is not None:
        value = _speculative(features.speculative, contract, root)
        yield "speculative_config", value, "serving.features.speculative"
    if request.target.gpu_device_ids:
        yield (
            "gpus_per_node",
            request.target.ranks,
            "each instance sees the GPUs of its own set only",
        )


def _lora(lora: Lora, contract: Contract) -> dict[str, Any]:
    known = contract.nested_fields("lora_config", "LoraConfig")
    if not lora_modules_known(contract):
        raise _no_place(contract, "serving.features.lora", "`lora_config.lora_target_modules`")
    values = {
        "lora_target_modules": list(lora.target_modules),
        "max_lora_rank": lora.max_rank,
        "max_loras": lora.max_adapters,
        "max_cpu_loras": lora.max_cpu_adapters,
    }
    return {name: value for name, value in values.items() if name in known}


def _speculative(spec: Speculative, contract: Contract, root: str) -> dict[str, Any]:
    key = "serving.features.speculative"
    name = DECODING_TYPES.get(spec.mode)
    if name is None:
        raise UsageError(
            f"the llmapi lane has no speculative mode `{spec.mode}`",
            where=Where(key=f"{key}.mode"),
            hint=f"use {', '.join(DECODING_TYPES)}, or lane: engine",
        )
    kind = decoding_kind(contract, name)
    known = decoding_fields(contract, name)
    if kind is None or not known:
        raise _no_place(contract, f"{key}.mode", f"fields of the decoding type {name}")
    values: dict[str, Any] = {"decoding_type": kind}
    length = _OWN_LENGTH.get(spec.mode, "max_draft_len")
    values[length] = spec.max_draft_tokens
    if spec.draft_model is not None:
        # Where both are listed the older one is the alias that snapshots on either side accept.
        place = next(
            (n for n in ("speculative_model_dir", "speculative_model") if n in known), None
        )
        if place is None:
            raise _no_place(contract, f"{key}.draft_model", "a draft model")
        values[place] = draft_path(spec, root)
    if length not in known:
        raise _no_place(contract, f"{key}.max_draft_tokens", f"`{length}` of {name}")
    return values


def _no_place(contract: Contract, key: str, what: str) -> UsageError:
    return UsageError(
        f"the contract of TensorRT-LLM {contract.version} lists no {what}",
        where=Where(contract.file, key=key),
        hint="choose another stack, leave it out, or capture the contract with "
        "`engineroom matrix capture`",
    )
