"""Whatever is emitted is in the contract, and whatever is forbidden is refused: over the catalog.

Every SKU, weight and KV format, lane and version with a contract. `make test` takes one SKU for each
compute capability, `make test-full` all of them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engineroom.catalog import Catalog
from engineroom.checks.contract_values import misfit
from engineroom.checks.evidence.build_flags import command_problems
from engineroom.checks.evidence.llm_args import DEPRECATED, argument_problems
from engineroom.errors import FindingsError, UsageError
from engineroom.names import KvCacheFormat, LaneName, Severity, WeightFormat
from engineroom.pipeline import build, check, open_job
from engineroom.types import Finding
from tests.conftest import TINY, spec_data, write_spec

CATALOG = Catalog()
VERSIONS = CATALOG.contract_versions
FORMATS = [str(f) for f in WeightFormat]
KV = [str(f) for f in KvCacheFormat]


def one_sku_per_capability() -> list[str]:
    seen: dict[str, str] = {}
    for name, sku in sorted(CATALOG.skus.items()):
        seen.setdefault(sku.compute_capability, name)
    return sorted(seen.values())


def outcome(
    folder: Path, sku: str, weights: str, kv: str, lane: str, version: str
) -> tuple[str, Any]:
    """(`emitted`, steps and documents) or (`refused`, findings), checked against each other."""
    target = {
        "sku": sku, "lane": lane,
        "stack": {"vllm" if lane == "vllm" else "trtllm": version, "image": "example/image:1"},
        "limits": {"max_batch_size": 8},
    }  # fmt: skip
    precision: dict[str, Any] = {"weights": weights, "kv_cache": kv}
    if weights == "w4a16_awq":
        precision["group_size"] = 64
    data = spec_data(TINY, targets=[target], precision=precision)
    job = open_job(write_spec(folder, data), out=folder / "out")
    # The catalog is read once for all combinations; it is the shipped one in each.
    object.__setattr__(job, "catalog", CATALOG)
    findings = check(job)
    errors = [f for f in findings if f.severity is Severity.ERROR]
    try:
        plans = build(job, dry_run=True)
    except (FindingsError, UsageError):
        assert errors, "refused without a finding that says why"
        return "refused", errors
    assert not errors, f"emitted and forbidden at once: {[f.code for f in errors]}"
    return "emitted", plans


def contract_problems(version: str, plan: dict[str, Any]) -> list[str]:
    """Unknown, removed and mistyped keys of everything that one target emits."""
    document = plan["documents"].get("engine_args.yaml")
    if document is not None:
        known = CATALOG.vllm_contract(version)
        assert known is not None
        return [
            name
            for name, value in document.items()
            if name not in known.engine_args or misfit(known.engine_args[name], value)
        ]
    contract = CATALOG.contract(version)
    assert contract is not None
    found = []
    for step in plan["steps"]:
        if step["argv"] and step["argv"][0] == "trtllm-build":
            found += [
                f"{flag}: {reason}"
                for flag, _, reason, _ in command_problems(contract, step["argv"])
            ]
    for name, document in plan["documents"].items():
        if name == "llm_args.yaml":
            found += [
                f"{path}: {reason}"
                for path, code, reason, _ in argument_problems(contract, document, VERSIONS)
                if code is not DEPRECATED
            ]
    return found


def run(
    folder: Path, skus: list[str], kv_formats: list[str], vllm: tuple[str, ...] = ("0.24.0",)
) -> Counter[str]:
    tally: Counter[str] = Counter()
    lanes = [
        (str(lane), version)
        for lane in LaneName
        for version in (vllm if lane is LaneName.VLLM else VERSIONS)
    ]
    for sku, weights, kv, (lane, version) in itertools.product(skus, FORMATS, kv_formats, lanes):
        where = f"{sku} {weights} kv {kv} {lane} {version}"
        kind, answer = outcome(folder, sku, weights, kv, lane, version)
        tally[kind] += 1
        if kind == "refused":
            for finding in answer:
                assert isinstance(finding, Finding)
                assert finding.reason, where
                assert finding.fix, where
                assert "engineroom" not in finding.source, (where, finding.source)
            continue
        (plan,) = answer
        tally[lane] += 1
        assert contract_problems(version, plan) == [], where
    return tally


def test_emitted_or_refused(tmp_path: Path) -> None:
    skus = one_sku_per_capability()
    tally = run(tmp_path, [skus[0], "h100-sxm", "b200-sxm"], ["auto", "fp8", "int8"])
    assert tally["emitted"] > 50
    assert tally["refused"] > 200
    assert min(tally["engine"], tally["llmapi"], tally["vllm"]) > 5


@pytest.mark.full
def test_the_whole_catalog(tmp_path: Path) -> None:
    tally = run(tmp_path, sorted(CATALOG.skus), KV, CATALOG.vllm_versions)
    print(f"\n{len(CATALOG.skus)} SKUs x {len(FORMATS)} formats x {len(KV)} KV x (2 lanes x "
          f"{len(VERSIONS)} versions + {len(CATALOG.vllm_versions)} of vLLM): "
          f"{tally['emitted']} emitted, {tally['refused']} refused")  # fmt: skip
    assert tally["emitted"] > 1000


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda d: d.update(max_batch="8"), "max_batch"),
        (lambda d: d["kv_cache_config"].update(reuse=True), "kv_cache_config.reuse"),
        (lambda d: d.update(max_num_tokens="lots"), "max_num_tokens"),
        (lambda d: d["scheduler_config"].update(capacity_scheduler_policy="max_utilization"),
         "capacity_scheduler_policy"),
    ],
)  # fmt: skip
def test_the_validator_finds_what_is_wrong(tmp_path: Path, change: Any, word: str) -> None:
    """The product above would pass with a validator that accepts anything."""
    _, plans = outcome(tmp_path, "h100-sxm", "fp8", "fp8", "llmapi", "1.2.1")
    document = plans[0]["documents"]["llm_args.yaml"]
    change(document)
    assert any(word in problem for problem in contract_problems("1.2.1", plans[0]))
