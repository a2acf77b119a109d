"""`matrix diff`: agrees with the contracts' JSON, mirrors, and names only what a spec touches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from engineroom.catalog import Catalog, Contract
from engineroom.catalog.contract_index import index
from engineroom.catalog.renames import names
from engineroom.catalog.version_diff import VersionDiff, diff
from engineroom.errors import UsageError
from engineroom.names import ExitCode
from engineroom.pipeline.matrix import diff_releases
from engineroom.pipeline.matrix_emitted import emitted
from engineroom.pipeline.matrix_spec import diff_spec
from engineroom.spec.model import StackRef
from tests.conftest import ROOT, run_cli, spec_data, write_spec

VERSIONS = ("0.21.0", "1.0.0", "1.1.0", "1.2.1", "1.4.0rc4")
PAIRS = [(a, b) for i, a in enumerate(VERSIONS) for b in VERSIONS[i + 1 :]]


def raw(version: str) -> dict[str, Any]:
    text = (ROOT / f"deploy/contracts/trtllm/{version}.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def between(catalog: Catalog, a: str, b: str) -> VersionDiff:
    result = diff_releases(catalog, a, b, trtllm=True).contracts
    assert result is not None
    return result


def picked(result: VersionDiff, *kinds: str) -> dict[str, tuple[str, ...]]:
    """First old name (else new name) -> new names, of the kinds."""
    return {c.name: c.new_names for c in result.changes if c.kind in kinds}


def top_level(version: str) -> set[str]:
    """Top-level LLM arguments, read from the JSON without engineroom's own index."""
    api = raw(version)["llm_api"]
    parts = (api["fields"], api.get("free_text_fields", {}), api.get("nested_by_field", {}))
    return {name for part in parts for name in part}


# ---- what the contracts say
def test_1_2_1_to_1_4_0rc4_renames(catalog: Catalog):
    renamed = picked(between(catalog, "1.2.1", "1.4.0rc4"), "renamed", "moved")
    assert renamed["enable_sleep"] == ("sleep_config",)
    prefix = "speculative_config."
    assert renamed[prefix + "acceptance_window"] == (prefix + "acceptance_rate_window_size",)
    assert renamed[prefix + "acceptance_length_threshold"] == (
        prefix + "acceptance_rate_threshold",
    )
    old, new = raw("1.2.1")["llm_api"], raw("1.4.0rc4")["llm_api"]
    assert "enable_sleep" in old["fields"]
    assert "enable_sleep" not in top_level("1.4.0rc4")
    assert "sleep_config" in new["free_text_fields"]
    assert "acceptance_window" in old["nested"]["DecodingBaseConfig"]
    assert "acceptance_rate_window_size" in new["nested_by_field"]["speculative_config"]


def test_1_2_1_to_1_4_0rc4_removals(catalog: Catalog):
    removed = picked(between(catalog, "1.2.1", "1.4.0rc4"), "removed")
    flags = raw("1.2.1")["trtllm_build"]["flags"]
    assert len(flags) == 67
    assert set(flags) | {"trtllm-build", "kv_cache_config.onboard_blocks"} <= set(removed)
    families = {k for k, there in raw("1.2.1")["triton"]["families"].items() if there}
    assert {f for f in families if f in removed} == families - {"llmapi"}
    assert "inflight_batcher_llm/tensorrt_llm/parameters/batch_scheduler_policy" in removed
    assert "onboard_blocks" in raw("1.2.1")["llm_api"]["nested"]["KvCacheConfig"]
    assert "onboard_blocks" not in raw("1.4.0rc4")["llm_api"]["nested_by_field"]["kv_cache_config"]


def test_1_2_1_to_1_4_0rc4_values(catalog: Catalog):
    changes = {(str(c.kind), c.name): c for c in between(catalog, "1.2.1", "1.4.0rc4").changes}
    timeout = changes["redefaulted", "cache_transceiver_config.kv_transfer_timeout_ms"]
    assert (timeout.old_value, timeout.new_value, timeout.certain) == (None, 60000, True)
    manager = changes["redefaulted", "kv_cache_config.use_kv_cache_manager_v2"]
    assert (manager.old_value, manager.new_value) == (False, "auto")
    assert ("retyped", "kv_cache_config.use_kv_cache_manager_v2") in changes
    moe = changes["values", "moe_config.backend"]
    assert set(moe.old_value) - set(moe.new_value) == {"WIDEEP"}
    backend = changes["values", "serve --backend"]
    assert set(backend.old_value) - set(backend.new_value) == {"tensorrt"}
    assert ("deprecated", "moe_cluster_parallel_size") in changes
    # The manifest orders them otherwise; a set is a set.
    assert ("values", "attn_backend") not in changes
    # A spelling of the same type, and a default that nobody found, are no changes.
    assert ("retyped", "cache_transceiver_config.kv_transfer_timeout_ms") not in changes
    assert ("redefaulted", "lora_config.max_lora_rank") not in changes


def test_what_a_contract_leaves_out_is_unknown_not_removed(catalog: Catalog):
    """LoraConfig of 1.4.0rc4 was read from a manifest without free text."""
    result = between(catalog, "1.2.1", "1.4.0rc4")
    unknown, removed = picked(result, "unknown"), picked(result, "removed")
    for name in ("lora_config.lora_dir", "moe_config.load_balancer", "model_kwargs"):
        assert name not in removed
    assert {"lora_config.lora_dir", "lora_config.lora_target_modules"} <= set(unknown)
    assert "moe_config.load_balancer.num_slots" not in {**unknown, **removed}
    assert "ray_placement_config" not in unknown


def test_26_02_to_26_07(catalog: Catalog):
    change = diff_releases(catalog, "26.02", "26.07")
    assert (change.old.tensorrt_llm, change.new.tensorrt_llm) == ("1.1.0", "1.2.1")
    facts = {c.name: (c.old_value, c.new_value) for c in change.changes if c.area == "stack"}
    assert facts["toolkit_driver"] == ("580.95.05", "590.44.01")
    assert facts["tensorrt"] == ("10.13.3.9", "10.14.1.48")
    assert "min_driver" not in facts  # one CUDA major line
    assert change.contracts is not None
    renamed = picked(change.contracts, "renamed")
    assert renamed["serve --tp_size"] == ("serve --tensor_parallel_size",)
    assert renamed["speculative_config.speculative_model_dir"] == (
        "speculative_config.speculative_model",
    )
    # Said by the change list of 1.1.0 itself, whose merged snapshots still have the old names.
    assert renamed["enable_trtllm_sampler"] == ("sampler_type",)
    defaults = {c.name: c for c in change.changes if c.kind == "redefaulted"}
    assert "max_batch_size" not in defaults  # still unset in 1.3.0rc3, after the 1.2 line was cut
    moe = defaults["moe_config.backend"]
    assert (moe.old_value, moe.new_value, moe.certain) == ("CUTLASS", "AUTO", True)
    topk = defaults["sparse_attention_config.topk"]
    assert (topk.old_value, topk.new_value, topk.certain) == (128, 64, False)
    assert "one of two sources" in str(topk.note)
    # Listed by the earlier snapshot alone, and removed by the change list: nobody knows.
    assert "build_config" in picked(change.contracts, "unknown")
    assert "trtllm-build" not in picked(change.contracts, "removed")


def test_moves_of_1_0_0(catalog: Catalog):
    result = between(catalog, "0.21.0", "1.0.0")
    moved = picked(result, "moved")
    assert moved["kv_cache_dtype"] == ("kv_cache_config.dtype",)
    assert moved["moe_max_num_tokens"] == ("moe_config.max_num_tokens",)
    assert moved["max_lora_rank"] == ("lora_config.max_lora_rank",)  # "use lora_config.…"
    group = next(c for c in result.changes if "use_cuda_graph" in c.old_names)
    assert len(group.old_names) == 4
    assert set(group.new_names) == {
        f"cuda_graph_config.{key}" for key in ("batch_sizes", "max_batch_size", "enable_padding")
    }
    assert picked(result, "renamed")["mixed_sampler"] == ("enable_mixed_sampler",)


def test_renames_are_followed_through_versions(catalog: Catalog):
    renamed = picked(between(catalog, "0.21.0", "1.2.1"), "renamed")
    assert renamed["mixed_sampler"] == ("sampler_type",)  # by way of enable_mixed_sampler
    assert renamed["autotuner_enabled"] == ("enable_autotuner",)


def test_names_in_a_line():
    assert names("moe_config.{backend,max_num_tokens}; null turns it off") == (
        "moe_config.backend",
        "moe_config.max_num_tokens",
    )
    assert names("a, b (old name still an alias)") == ("a", "b")


def test_similar_names_are_no_rename(catalog: Catalog):
    """Only a change list or an alias makes a rename."""

    def contract(version: str, fields: dict[str, Any], **changes: Any) -> Contract:
        data = {
            "version": version,
            "llm_api": {"fields": fields},
            "triton": {"families": {}},
            "changes_since_previous": {"previous": "1.0", **changes},
        }
        return Contract(version, data, "")

    field = {"type": "bool", "default": False}
    old = contract("1.0", {"enable_thing": field, "odd": field})
    plain = diff(old, contract("1.1", {"enable_things": field, "odd": field}))
    assert {(c.kind, c.name) for c in plain.changes} == {
        ("removed", "enable_thing"),
        ("added", "enable_things"),
    }
    rows = [{"old": "enable_thing", "new": "enable_things"}, {"old": "absent", "new": "odd"}]
    stated = diff(old, contract("1.1", {"enable_things": field, "odd": field}, renamed=rows))
    assert [(c.kind, c.old_names, c.new_names) for c in stated.changes] == [
        ("renamed", ("enable_thing",), ("enable_things",))
    ]
    assert [s.text for s in stated.statements] == ["absent -> odd"]


def test_a_gap_in_the_change_lists_is_said(catalog: Catalog):
    old, new = catalog.contract("0.21.0"), catalog.contract("1.2.1")
    assert old is not None
    assert new is not None
    assert any("starts at 1.1.0" in text for text in diff(old, new).unknown)
    full = between(catalog, "0.21.0", "1.2.1")
    assert not any("starts at" in text for text in full.unknown)


# ---- invariants
@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_does_not_differ_from_itself(catalog: Catalog, version: str):
    assert between(catalog, version, version).changes == ()


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_the_other_direction_mirrors(catalog: Catalog, a: str, b: str):
    there, back = between(catalog, a, b), between(catalog, b, a)

    def count(result: VersionDiff, kind: str) -> int:
        return sum(c.kind == kind for c in result.changes)

    assert there.changes
    for kind, other in (("removed", "added"), ("added", "removed"), ("renamed", "renamed")):
        assert count(there, kind) == count(back, other)
    swapped = {(c.new_names, c.old_names) for c in back.changes}
    assert {(c.old_names, c.new_names) for c in there.changes} == swapped


@pytest.mark.parametrize(("a", "b"), [*PAIRS, *((b, a) for a, b in PAIRS)])
def test_top_level_arguments_agree_with_the_json(catalog: Catalog, a: str, b: str):
    old, new = top_level(a), top_level(b)
    changes = [c for c in between(catalog, a, b).changes if c.area == "llm-args"]
    removed = {n for c in changes if c.kind == "removed" for n in c.old_names if "." not in n}
    added = {n for c in changes if c.kind == "added" for n in c.new_names if "." not in n}
    assert removed <= old - new
    assert added <= new - old
    gone = {n for c in changes if c.kind in ("renamed", "moved") for n in c.old_names}
    came = {n for c in changes if c.kind in ("renamed", "moved") for n in c.new_names}
    assert {n for n in gone if "." not in n} <= old
    assert {n for n in came if "." not in n} <= new
    # Nothing is lost: a name that is in one contract only is in exactly one kind of change.
    assert removed | (gone & (old - new)) == old - new
    assert added | (came & (new - old)) == new - old
    kept = {n for c in changes if c.kind in ("redefaulted", "retyped") for n in c.old_names}
    assert {n for n in kept if "." not in n} <= old & new


# ---- a spec
LLMAPI = {"sku": "l4", "lane": "llmapi", "stack": "26.07", "limits": {"max_batch_size": 8}}
ENGINE = {"sku": "h100-sxm", "lane": "engine", "stack": "26.07"}


def test_spec_names_moved_settings_and_no_others(make_job: Any):
    job = make_job(spec_data(targets=[LLMAPI]))
    found = diff_spec(job, diff_releases(job.catalog, "0.21.0", "1.0.0", trtllm=True))
    emitted = {(a.emitted, a.kind, a.setting) for a in found.affected}
    assert emitted == {
        ("kv_cache_dtype", "moved", "precision.kv_cache"),
        ("use_cuda_graph", "moved", "targets[0].llmapi.cuda_graphs"),
        ("cuda_graph_padding_enabled", "moved", "targets[0].llmapi.cuda_graph_padding"),
        ("cuda_graph_max_batch_size", "moved", "targets[0].limits.max_batch_size"),
        ("backend", "deprecated", "targets[0].lane"),
    }
    assert not found.failing
    dtype = next(a for a in found.affected if a.emitted == "kv_cache_dtype")
    assert dtype.value == "fp8"
    assert dtype.emitted_in_new == {"kv_cache_config.dtype": "fp8"}
    assert dtype.rollback[0]["setting"] == "targets[0].stack"
    assert dtype.rollback[0]["value"] == {"trtllm": "0.21.0"}
    lines = Path(str(dtype.where.file)).read_text(encoding="utf-8").splitlines()
    assert "kv_cache" in lines[int(dtype.where.line or 0) - 1]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_name_that_is_written_is_in_the_contract(make_job: Any, version: str):
    job = make_job(spec_data(targets=[LLMAPI, ENGINE]))
    contract = job.catalog.contract(version)
    table = index(contract)
    for item in job.targets:
        has = {"engine": contract.has_engine_lane, "llmapi": contract.has_llmapi_lane}
        if has[str(item.target.lane)]:
            stack = job.catalog.stack(StackRef(trtllm=version))
            found = emitted(job, item, stack, contract, table)
            assert len(found) > 10
            assert set(found) <= set(table.entries)


def test_spec_with_16_bit_kv_is_touched_at_the_same_name(make_job: Any):
    """The neighbour: kv_cache auto still writes kv_cache_dtype, with another value."""
    job = make_job(spec_data(targets=[LLMAPI], precision={"weights": "bf16"}))
    found = diff_spec(job, diff_releases(job.catalog, "0.21.0", "1.0.0", trtllm=True))
    assert next(a.value for a in found.affected if a.emitted == "kv_cache_dtype") == "auto"


def test_llmapi_spec_is_not_touched_by_26_07(make_job: Any):
    """What is written out is not touched by a new default; what is not set is told apart."""
    job = make_job(spec_data(targets=[LLMAPI]))
    found = diff_spec(job, diff_releases(job.catalog, "26.02", "26.07"))
    assert found.affected == ()
    assert not found.failing
    reached = {name for _, name, *_ in found.new_defaults}
    assert "moe_config.backend" in reached
    assert not reached & {"max_batch_size", "max_beam_width", "backend"}  # written out
    assert not any(name.startswith("sparse_attention_config.") for name in reached)  # off


def test_engine_spec_loses_everything_on_1_4(make_job: Any):
    job = make_job(spec_data(targets=[LLMAPI, ENGINE]))
    found = diff_spec(job, diff_releases(job.catalog, "1.2.1", "1.4.0rc4", trtllm=True))
    assert found.failing
    assert {a.target for a in found.affected} == {"engine-h100-sxm-tp1pp1-26-07"}
    by_name = {a.emitted: a for a in found.affected}
    assert by_name[None].setting == "targets[1].lane"
    assert "removed after the 1.2 line" in by_name[None].effect
    assert by_name["--max_batch_size"].setting == "targets[1].limits.max_batch_size"
    policy = by_name["inflight_batcher_llm/tensorrt_llm/parameters/batch_scheduler_policy"]
    assert (policy.setting, policy.value) == ("serving.scheduler_policy", "guaranteed_no_evict")
    assert {a.kind for a in found.affected} == {"removed"}
    assert found.unknown == ()


def test_default_left_to_upstream_is_touched(make_job: Any, tmp_path: Path):
    """attention_backend: auto writes nothing, so a new default of attn_backend reaches it."""
    overlay = tmp_path / "overlay/deploy/contracts/trtllm"
    overlay.mkdir(parents=True)
    data = raw("1.2.1")
    data["version"] = "1.2.9"
    data["llm_api"]["fields"]["attn_backend"]["default"] = "FLASHINFER"
    data["changes_since_previous"] = {"previous": "1.2.1"}
    (overlay / "1.2.9.json").write_text(json.dumps(data), encoding="utf-8")
    catalog = Catalog(tmp_path / "overlay")
    change = diff_releases(catalog, "1.2.1", "1.2.9", trtllm=True)
    assert change.counts() == {"redefaulted": 1}
    found = diff_spec(make_job(spec_data(targets=[LLMAPI])), change)
    assert [(a.setting, a.kind) for a in found.affected] == [
        ("serving.attention_backend", "redefaulted")
    ]
    assert found.affected[0].rollback[1] == {
        "area": "spec",
        "setting": "serving.attention_backend",
        "value": "TRTLLM",
        "note": "old default",
    }
    assert found.failing
    pinned = spec_data(targets=[LLMAPI], serving={"attention_backend": "TRTLLM"})
    assert diff_spec(make_job(pinned), change).affected == ()


def test_driver_of_a_spec(make_job: Any):
    for driver, touched in (("580.95.05", True), ("590.44.01", False)):
        job = make_job(spec_data(targets=[{**LLMAPI, "driver": driver}]))
        found = diff_spec(job, diff_releases(job.catalog, "26.02", "26.07"))
        assert [a.setting for a in found.affected] == (["targets[0].driver"] if touched else [])


def test_lost_support_of_a_format(make_job: Any):
    """12.1 is known from 1.0 on: going back to 0.21 loses the SKU's formats."""
    job = make_job(spec_data(targets=[{**LLMAPI, "sku": "gb10"}]))
    back = diff_spec(job, diff_releases(job.catalog, "1.2.1", "0.21.0", trtllm=True))
    lost = [a for a in back.affected if a.area == "support"]
    assert ("precision.weights", "support") in {(a.setting, a.kind) for a in lost}
    assert back.failing
    same = diff_spec(job, diff_releases(job.catalog, "26.06", "26.07"))
    assert same.affected == ()


# ---- command line
def test_json_and_exit_codes(tmp_path: Path):
    spec = write_spec(tmp_path, spec_data(targets=[ENGINE]))
    args = ("matrix", "diff", "--trtllm", "1.2.1", "1.4.0rc4", "-f", str(spec))
    done = run_cli(*args, "--format", "json")
    assert done.returncode == ExitCode.OK, done.stderr
    data = json.loads(done.stdout)
    assert data["schema_version"] == 1
    assert data["from"]["tensorrt_llm"] == "1.2.1"
    assert data["to"]["contract"] is True
    assert data["counts"]["removed"] == sum(c["kind"] == "removed" for c in data["changes"])
    lane = next(a for a in data["affected"] if a["area"] == "lane")
    assert (lane["setting"], lane["kind"], lane["file"]) == (
        "targets[0].lane",
        "removed",
        str(spec),
    )
    assert yaml.safe_load(spec.read_text(encoding="utf-8"))["targets"][0]["lane"] == "engine"
    assert "lane: engine" in spec.read_text(encoding="utf-8").splitlines()[lane["line"] - 1]
    assert data["sources"]["changes"]["1.4.0rc4"]
    done = run_cli(*args, "--fail-on", "affected")
    assert done.returncode == ExitCode.FINDINGS
    assert "rollback: set targets[0].stack: {trtllm: 1.2.1}" in done.stdout


def test_table_of_a_diff():
    done = run_cli("matrix", "diff", "26.02", "26.07")
    assert done.returncode == ExitCode.OK, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert any(line.startswith("llm-args  moe_config.backend: CUTLASS -> AUTO") for line in lines)
    assert "stack  toolkit_driver: 580.95.05 -> 590.44.01" in lines


def test_stack_without_contract_is_unknown_not_empty():
    done = run_cli("matrix", "diff", "26.02", "26.03", "--format", "json")
    assert done.returncode == ExitCode.OK, done.stderr
    data = json.loads(done.stdout)
    assert data["to"]["contract"] is False
    assert {c["area"] for c in data["changes"]} == {"stack"}
    assert any("no contract of TensorRT-LLM 1.2.0" in text for text in data["unknown"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("26.02", "26.70"), "`26.07`"),
        (("1.2.1", "1.4.0rc4"), "goes with --trtllm"),
        (("--trtllm", "1.2.1", "new"), "is not a version"),
        (("26.02", "26.07", "--fail-on", "affected"), "--file"),
        (("26.02", "26.07", "-f", "absent.yaml"), "does not exist"),
    ],
)
def test_bad_arguments(args: tuple[str, ...], words: str):
    done = run_cli("matrix", "diff", *args)
    assert done.returncode == ExitCode.USAGE
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_every_pair_of_stacks(catalog: Catalog):
    """Nothing fails, A to A is empty, and B to A has what A to B has."""
    pairs = (("removed", "added"), ("deprecated", "restored"))
    swapped = {**dict(pairs), **{new: old for old, new in pairs}}
    for a in catalog.stacks:
        assert diff_releases(catalog, a, a).changes == ()
        for b in catalog.stacks:
            if a < b:
                there, back = diff_releases(catalog, a, b), diff_releases(catalog, b, a)
                kinds = sorted(swapped.get(str(c.kind), str(c.kind)) for c in there.changes)
                assert kinds == sorted(str(c.kind) for c in back.changes), (a, b)
                json.dumps(there.as_dict(), allow_nan=False)


def test_a_release_is_no_version(catalog: Catalog):
    """26.02 would be an unheard-of TensorRT-LLM 26.2, of which nothing is known."""
    with pytest.raises(UsageError) as caught:
        diff_releases(catalog, "26.02", "26.07", trtllm=True)
    assert "drop --trtllm" in caught.value.hint
