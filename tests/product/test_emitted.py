"""Whatever is emitted is in the contract, and whatever is forbidden is refused: over the catalog.

Every SKU, weight and KV format, lane and version with a contract. `make test` takes one SKU for each
compute capability, `make test-full` all of them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engineroom.catalog import Catalog
from engineroom.checks.contract_values import misfit
from engineroom.checks.evidence import Context, judge
from engineroom.checks.evidence.build_flags import command_problems
from engineroom.checks.evidence.llm_args import DEPRECATED, argument_problems
from engineroom.errors import FindingsError, UsageError
from engineroom.names import KvCacheFormat, LaneName, Severity, Support, WeightFormat
from engineroom.pipeline import Job, build, check, open_job
from engineroom.planning.support_matrix import lane_support
from engineroom.reading import Evidence
from engineroom.types import Finding
from tests.conftest import TINY, spec_data, write_spec

CATALOG = Catalog()
VERSIONS = CATALOG.contract_versions
# What is servable and yet not made here: the only reasons to refuse what the matrix allows.
NOT_MADE = {
    "recipe-not-implemented", "kv-recipe-not-implemented", "engine-checkpoint-not-implemented",
    "engine-awq-multiple", "engine-nvfp4-padded-scales",
}  # fmt: skip
FORMATS = [str(f) for f in WeightFormat]
KV = [str(f) for f in KvCacheFormat]


def one_sku_per_capability() -> list[str]:
    seen: dict[str, str] = {}
    for name, sku in sorted(CATALOG.skus.items()):
        seen.setdefault(sku.compute_capability, name)
    return sorted(seen.values())


Lanes = list[tuple[str, str]]


def job_of(folder: Path, sku: str, weights: str, kv: str, lanes: Lanes) -> Job:
    """A job with a target for each (lane, version)."""
    targets = [
        {
            "sku": sku, "lane": lane,
            "stack": {"vllm" if lane == "vllm" else "trtllm": version, "image": "example/image:1"},
            "limits": {"max_batch_size": 8},
        }
        for lane, version in lanes
    ]  # fmt: skip
    precision: dict[str, Any] = {"weights": weights, "kv_cache": kv}
    if weights == "w4a16_awq":
        precision["group_size"] = 64
    data = spec_data(TINY, targets=targets, precision=precision)
    job = open_job(write_spec(folder, data), out=folder / "out")
    # The catalog is read once for all combinations; it is the shipped one in each.
    object.__setattr__(job, "catalog", CATALOG)
    return job


def errors_of(job: Job) -> list[Finding]:
    return [f for f in check(job) if f.severity is Severity.ERROR]


def outcome(
    folder: Path, sku: str, weights: str, kv: str, lane: str, version: str
) -> tuple[str, Any]:
    """(`emitted`, steps and documents) or (`refused`, findings), checked against each other."""
    job = job_of(folder, sku, weights, kv, [(lane, version)])
    errors = errors_of(job)
    try:
        plans = build(job, dry_run=True)
    except (FindingsError, UsageError):
        assert errors, "refused without a finding that says why"
        return "refused", errors
    assert not errors, f"emitted and forbidden at once: {[f.code for f in errors]}"
    return "emitted", plans


def outcomes(
    folder: Path, sku: str, weights: str, kv: str, lanes: Lanes
) -> Iterator[tuple[str, str, str, Any]]:
    """(lane, version, `emitted` or `refused`, plan or findings) of each lane and version.

    One job for all of them; what has no error must be emitted, so whatever its lane raises fails.
    """
    job = job_of(folder, sku, weights, kv, lanes)
    errors = errors_of(job)
    for item, (lane, version) in zip(job.targets, lanes, strict=True):
        own = [f for f in errors if f.target in (item.target.id, None)]
        if own:
            yield lane, version, "refused", own
            continue
        request = job.lane_request(item, "checkpoints/CHECKPOINT")
        plan = {
            "steps": [step.as_dict() for step in item.lane.steps(request)],
            "documents": dict(item.lane.documents(request)),
        }
        yield lane, version, "emitted", plan


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


def rule_errors(
    sku: str, weights: str, kv: str, lane: str, version: str, plan: dict[str, Any]
) -> list[str]:
    """Errors of the rules that `lint` has for such a command line and such arguments."""
    gpu = CATALOG.skus[sku]
    parts: dict[str, Any] = {
        "spec": {"weights": weights, "kv_cache": kv, "lane": lane},
        "gpu": {"product": gpu.node_label, "compute_capability": gpu.compute_capability},
        "stack": {"tensorrt_llm_version": version},
        "build_argv": next((s["argv"] for s in plan["steps"] if s["argv"]), None),
        "model_yaml": plan["documents"].get("llm_args.yaml"),
    }
    evidence = Evidence.model_validate({k: v for k, v in parts.items() if v is not None})
    found = judge(Context(evidence, CATALOG, {}, {}, None))[0]
    return [f"{f.code}: {f.reason}" for f in found if f.severity is Severity.ERROR]


def unexplained(plan: dict[str, Any]) -> set[str]:
    """Flags and arguments without a reason."""
    reasons = {name.split(".")[0] for step in plan["steps"] for name in step["reasons"]}
    flags = {w for step in plan["steps"] for w in step["argv"] if w.startswith("--")}
    return (flags | {name for d in plan["documents"].values() for name in d}) - reasons


def allowed(sku: str, weights: str, kv: str, lane: str, version: str) -> Support:
    """What the matrix says of lane, weights and KV cache together; unknown is never yes."""
    capability = CATALOG.skus[sku].compute_capability
    cells = [lane_support(CATALOG, LaneName(lane), version)[0]]
    for axis, fmt in (("weights", weights), ("kv_cache", kv)):
        if fmt != "auto":
            cells.append(
                CATALOG.precision_support(LaneName(lane), version, axis, fmt, capability)[0]
            )
    worst = (
        Support.NO,
        Support.NOT_IMPLEMENTED,
        Support.UNKNOWN,
        Support.VERSION_BOUND,
        Support.YES,
    )
    return min(cells, key=worst.index)


def run(
    folder: Path, skus: list[str], kv_formats: list[str], vllm: tuple[str, ...] = ("0.24.0",)
) -> Counter[str]:
    tally: Counter[str] = Counter()
    lanes = [
        (str(lane), version)
        for lane in LaneName
        for version in (vllm if lane is LaneName.VLLM else VERSIONS)
    ]
    rows = (
        (sku, weights, kv, *row)
        for sku, weights, kv in itertools.product(skus, FORMATS, kv_formats)
        for row in outcomes(folder, sku, weights, kv, lanes)
    )
    for sku, weights, kv, lane, version, kind, answer in rows:
        where = f"{sku} {weights} kv {kv} {lane} {version}"
        tally[kind] += 1
        verdict = allowed(sku, weights, kv, lane, version)
        if verdict is Support.NO:
            assert kind == "refused", where
        elif verdict is Support.YES and lane != "vllm" and kind == "refused":
            assert {f.code for f in answer} <= NOT_MADE, (where, [f.code for f in answer])
        if kind == "refused":
            for finding in answer:
                assert isinstance(finding, Finding)
                assert finding.reason, where
                assert finding.fix, where
                assert "engineroom" not in finding.source, (where, finding.source)
            continue
        tally[lane] += 1
        assert contract_problems(version, answer) == [], where
        assert unexplained(answer) == set(), where
        if lane != "vllm":
            assert rule_errors(sku, weights, kv, lane, version, answer) == [], where
    return tally


def test_emitted_or_refused(tmp_path: Path) -> None:
    skus = one_sku_per_capability()
    tally = run(tmp_path, [skus[0], "h100-sxm", "b200-sxm"], ["auto", "fp8", "int8"])
    assert tally["emitted"] > 50
    assert tally["refused"] > 200
    assert min(tally["engine"], tally["llmapi"], tally["vllm"]) > 5


@pytest.mark.parametrize("lane", ["engine", "llmapi"])
def test_build_refuses_what_check_refuses(tmp_path: Path, lane: str) -> None:
    """The product above asks the lanes; `build` itself stops for the same findings, and no others."""
    kinds = Counter(
        outcome(tmp_path, sku, weights, "auto", lane, "1.2.1")[0]
        for sku, weights in itertools.product(["a100-sxm-80gb", "b200-sxm"], FORMATS)
    )
    assert min(kinds["emitted"], kinds["refused"]) > 2


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
