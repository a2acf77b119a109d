"""What upstream re-defaulted between two versions is written out, or there is a reason why not.

The list is the contracts' own difference: a new pair of contracts with a new difference fails here.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from engineroom.catalog import Catalog
from engineroom.catalog.contract_index import index
from engineroom.catalog.contract_parts import Area, Entry
from engineroom.lanes import LANES
from engineroom.lanes.engine.build import build_flags
from engineroom.names import LaneName
from engineroom.types import ModelShape
from tests.conftest import ROOT
from tests.lanes.test_commands import VERSIONS, request

OTHER_MODELS = "sparse attention is a part of some models, which set it up themselves"
DISAGGREGATED = "between servers that split prefill and decode, which is not implemented"
NOT_WRITTEN = {
    "sampler_type": "1.1 has it in one of two snapshots, and 1.4's manifest does not list it",
    "torch_compile_config.max_num_streams": "torch.compile stays off: its object is never written",
    "cache_transceiver_config.kv_transfer_timeout_ms": DISAGGREGATED,
    **{
        f"kv_connector_config.connector_{name}": DISAGGREGATED
        for name in ("module", "scheduler_class", "worker_class")
    },
    **{
        f"scheduler_config.dynamic_batch_config.{name}": "TensorRT engines only (dynamic-batch-torch)"
        for name in (
            "dynamic_batch_moving_average_window",
            "enable_batch_size_tuning",
            "enable_max_num_tokens_tuning",
        )
    },
    **{
        f"sparse_attention_config.{name}": OTHER_MODELS
        for name in ("kernel_size", "page_size", "prompt_budget", "topk", "topr", "window_size")
    },
}
IN_DOUBT = {
    ("kv_cache_config.use_kv_cache_manager_v2", "1.2.1"): "only a later snapshot has it",
}


def moe_shape() -> ModelShape:
    data = json.loads((ROOT / "tests/data/configs/Qwen--Qwen3-30B-A3B.json").read_text())
    return ModelShape.from_config(data["config"])


def redefaulted(catalog: Catalog, area: Area) -> dict[str, set[str]]:
    """Names with more than one known default, and the versions that list them."""
    found: dict[str, dict[str, Entry]] = {}
    for version in VERSIONS:
        for (part, name), entry in index(catalog.contract(version)).entries.items():
            if part is area:
                found.setdefault(name, {})[version] = entry
    return {
        name: set(rows)
        for name, rows in found.items()
        if len({repr(e.default) for e in rows.values() if e.default_known}) > 1
        or any("default" in e.unsure for e in rows.values())
    }


def written(catalog: Catalog, version: str) -> set[str]:
    """Dotted names that the llmapi lane writes there for some spec: experts, and MTP drafts."""
    serving = {"features": {"speculative": {"mode": "mtp"}}} if version != "0.21.0" else {}
    wanted = dataclasses.replace(
        request(catalog, version, "llmapi", serving=serving), shape=moe_shape()
    )
    (args,) = LANES[LaneName.LLMAPI].documents(wanted).values()

    def names(prefix: str, value: Any) -> set[str]:
        if not isinstance(value, dict):
            return {prefix}
        return {n for k, v in value.items() for n in names(f"{prefix}.{k}" if prefix else k, v)}

    return names("", args)


def test_llm_arguments(catalog):
    changed = redefaulted(catalog, Area.LLM_ARGS)
    assert {"max_batch_size", "moe_config.backend", "max_input_len", "backend"} <= set(changed)
    for name, versions in changed.items():
        if name in NOT_WRITTEN:
            continue
        for version in versions:
            if (name, version) not in IN_DOUBT:
                assert name in written(catalog, version), f"{name} is not written for {version}"
    assert set(NOT_WRITTEN) <= set(changed), "a reason for what upstream did not change"
    for version in VERSIONS:
        assert not set(NOT_WRITTEN) & written(catalog, version)


def test_an_argument_that_only_one_source_has_is_not_written(catalog):
    """An unknown key stops the server, so `unknown` is no yes."""
    manager = "kv_cache_config.use_kv_cache_manager_v2"
    assert manager not in written(catalog, "1.2.1")
    assert manager in written(catalog, "1.4.0rc4")


def test_build_flags(catalog):
    """Nothing was re-defaulted between the versions at hand; what was before them is written out."""
    assert redefaulted(catalog, Area.BUILD) == {}
    for version in VERSIONS[:4]:
        flags = build_flags(request(catalog, version, "engine"))[0]
        # `tokens_per_block` 64 to 32 in 0.17, `use_paged_context_fmha` off to on; see deploy/support.
        assert {"--tokens_per_block", "--use_paged_context_fmha", "--kv_cache_type"} <= set(flags)
