"""A contract of an overlay that is not of a contract's shape is one error with file and key."""

from __future__ import annotations

import copy
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from engineroom.catalog import Catalog
from engineroom.catalog.contract_index import index
from engineroom.checks.lanes import LANE
from engineroom.errors import CatalogError, UsageError
from engineroom.names import LaneName, Support
from engineroom.pipeline import open_job
from engineroom.pipeline.check import check
from engineroom.planning.support_matrix import lane_support
from tests.conftest import ROOT, spec_data, write_spec

SHIPPED = {
    version: json.loads((ROOT / f"deploy/contracts/trtllm/{version}.json").read_text())
    for version in ("1.1.0", "1.2.1", "1.4.0rc4")
}


def overlay(root: Path, data: Any, version: str = "1.2.1") -> Path:
    path = root / f"deploy/contracts/trtllm/{version}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def changed(dotted: str, value: Any, version: str = "1.2.1") -> dict[str, Any]:
    data = copy.deepcopy(SHIPPED[version])
    *parents, last = [int(p) if p.isdigit() else p for p in dotted.split("/")]
    place: Any = data
    for part in parents:
        place = place[part]
    place[last] = value
    return data


@pytest.mark.parametrize(
    ("place", "value", "key", "message"),
    [
        ("version", 1.2, "version", "wanted text, found a number"),
        ("version", "1.2.2", "version", "it says 1.2.2, the file name says 1.2.1"),
        ("llm_api", [], "llm_api", "wanted a mapping, found a list"),
        ("llm_api/fields", {}, "llm_api.fields", "lists no argument"),
        ("llm_api/fields/max_batch_size", True, "llm_api.fields.max_batch_size", "wanted a mapping, found true or false"),
        ("llm_api/fields/max_batch_size/type", ["int"], "llm_api.fields.max_batch_size.type", "wanted text"),
        ("llm_api/fields/dtype/allowed", "auto", "llm_api.fields.dtype.allowed", "wanted a list, found text"),
        ("llm_api/fields/dtype/required", "yes", "llm_api.fields.dtype.required", "true or false"),
        ("llm_api/nested/KvCacheConfig", ["x"], "llm_api.nested.KvCacheConfig", "wanted a mapping"),
        ("llm_api/nested/KvCacheConfig/dtype", 3, "llm_api.nested.KvCacheConfig.dtype", "wanted text, found a number"),
        ("trtllm_build/flags", [], "trtllm_build.flags", "wanted a mapping"),
        ("trtllm_build/flags/--workers", None, "trtllm_build.flags.--workers", "found null"),
        ("trtllm_build/command_exists", "no", "trtllm_build.command_exists", "true or false"),
        ("trtllm_serve/serve/--port", [1], "trtllm_serve.serve.--port", "wanted a mapping"),
        ("triton/families", ["llmapi"], "triton.families", "wanted a mapping"),
        ("triton/llmapi", "there", None, None),
        ("triton/inflight_batcher_llm", "there", None, None),
        ("triton/llmapi/inputs/0/name", None, "triton.llmapi.inputs[0].name", "found null"),
        ("triton/inflight_batcher_llm/ensemble/steps", [1], "triton.inflight_batcher_llm.ensemble.steps[0]", "a mapping"),
        ("triton/inflight_batcher_llm/tensorrt_llm/parameters/0", {}, "triton.inflight_batcher_llm.tensorrt_llm.parameters[0].key", "missing"),
        ("quantization/quant_algo", {"FP8": 1}, "quantization.quant_algo", "wanted a list"),
        ("pins", ["torch"], "pins", "wanted a mapping"),
        ("changes_since_previous", [], "changes_since_previous", "wanted a mapping"),
        ("changes_since_previous/renamed", [{"old": 1, "new": "b"}], "changes_since_previous.renamed[0].old", "wanted text"),
        ("confidence", {"overall": 1}, "confidence.overall", "wanted text"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(tmp_path, place, value, key, message):
    path = overlay(tmp_path, changed(place, value))
    if key is None:  # a remark where facts could be: only a lane that wants them is refused
        with pytest.raises(CatalogError, match="does not describe"):
            Catalog(tmp_path).contract("1.2.1").family(place.split("/")[1])
        return
    with pytest.raises(CatalogError) as caught:
        Catalog(tmp_path).contract("1.2.1")
    assert caught.value.where.file == path.as_posix()
    assert caught.value.where.key == key
    assert message in caught.value.message
    assert int(caught.value.exit_code) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"version": NaN}', "NaN is no number"),
        ('{"version": 1e999}', "too large a number"),
        ('{"version": "1.2.1", "version": "1.2.1"}', "`version` is written twice"),
        ('{"version": ' + "9" * 5000 + "}", "not JSON"),
        ("\ufeff[]", "wanted a mapping, found a list"),
        (" " * (8 << 20) + "{}", "larger than"),
    ],
)
def test_a_text_that_is_no_contract(tmp_path, text, message):
    path = overlay(tmp_path, text)
    started = time.process_time()
    with pytest.raises(CatalogError) as caught:
        Catalog(tmp_path).contract("1.2.1")
    assert time.process_time() - started < 2
    assert caught.value.where.file == path.as_posix()
    assert message in caught.value.message


def test_shipped_contracts_have_the_shape(catalog):
    for version in catalog.contract_versions:
        assert catalog.contract(version) is catalog.contract(version)  # read once
        for family in ("llmapi", "inflight_batcher_llm"):
            if catalog.contract(version).data["triton"]["families"].get(family):
                assert catalog.contract(version).family(family)


def test_a_version_without_the_command_has_no_flags(catalog):
    """`flags` is null there, which is no mapping."""
    assert SHIPPED["1.4.0rc4"]["trtllm_build"]["flags"] is None
    assert dict(catalog.contract("1.4.0rc4").build_flags) == {}


def test_a_class_of_one_source_is_unwrapped(catalog):
    """1.1.0 has AttentionDpConfig from one of two sources only, wrapped to say so."""
    contract = catalog.contract("1.1.0")
    keys = {"enable_balance", "timeout_iters", "batching_wait_iters"}
    assert set(contract.nested_facts("attention_dp_config")) == keys
    assert contract.nested_fields("attention_dp_config", "AttentionDpConfig") == keys


@pytest.mark.parametrize(
    ("place", "value", "missing"),
    [
        ("triton/llmapi/inputs", [], "its inputs"),
        ("triton/llmapi/inputs/0/dims", ["${x}"], "type and shape of"),
        ("triton/inflight_batcher_llm/ensemble/steps", None, "the steps preprocessing"),
        ("triton/inflight_batcher_llm/preprocessing", None, "the model"),
    ],
)
def test_a_family_that_is_not_described_is_not_rendered(tmp_path, place, value, missing):
    data = changed(place, value)
    data["triton"]["llmapi"]["inputs"] = [
        {**tensor, "optional": False} for tensor in data["triton"]["llmapi"]["inputs"]
    ]
    path = overlay(tmp_path, data)
    contract = Catalog(tmp_path).contract("1.2.1")
    with pytest.raises(CatalogError) as caught:
        contract.family(place.split("/")[1])
    assert missing in caught.value.message
    assert caught.value.where.file == path.as_posix()


def test_a_contract_without_families_does_not_deny_a_lane(catalog, tmp_path):
    """As `matrix capture` writes it where no Triton models are at hand: the table decides alone."""
    overlay(tmp_path, {**changed("triton/families", {}), "version": "7.0"}, "7.0")
    mine = Catalog(tmp_path)
    for lane in LaneName:
        assert lane_support(mine, lane, "7.0") == lane_support(catalog, lane, "7.0")
    assert lane_support(mine, LaneName.LLMAPI, "7.0")[0] is Support.YES
    spec = spec_data(targets=[{"sku": "l4", "lane": "llmapi", "stack": {"trtllm": "7.0"}}])
    codes = [f.code for f in check(open_job(write_spec(tmp_path, spec), catalog=tmp_path))]
    assert "unknown-trtllm-version" in codes
    assert LANE.id not in codes


@pytest.mark.parametrize("name", ["v1.2.2", "1.2.2RC1", "latest", "01.2"])
def test_a_file_name_is_the_version_itself(tmp_path, name):
    overlay(tmp_path, SHIPPED["1.2.1"], name)
    with pytest.raises(CatalogError) as caught:
        _ = Catalog(tmp_path).contract_versions
    assert caught.value.hint.startswith("name it deploy/contracts/trtllm/")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["build/skus/x.yaml", "deploy/contracts/trtllm/9.9.json"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path, make, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    make(path)
    with pytest.raises(CatalogError) as caught:
        _ = Catalog(tmp_path).digest
    assert caught.value.where.file == path.as_posix()


def test_a_folder_with_other_things_is_no_overlay(tmp_path):
    """The usual slip: the folder of the contracts themselves, or a parent of the overlay."""
    overlay(tmp_path / "mine", SHIPPED["1.2.1"])
    assert Catalog(tmp_path / "mine").contract("1.2.1")
    for wrong in (tmp_path, tmp_path / "mine/deploy/contracts/trtllm"):
        with pytest.raises(UsageError, match="no catalog overlay"):
            Catalog(wrong)
    (tmp_path / "empty").mkdir()
    assert Catalog(tmp_path / "empty").digest == Catalog().digest


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += _paths(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value[:1]):
            found += _paths(inner, (*path, i))
    return found


BAD = (None, 1, "x", [], {}, [1], [{}], {"a": 1}, [[["x"]]], {"type": []}, True)


def test_whatever_stands_there_it_is_refused_or_understood(tmp_path):
    """Every 40th place of two contracts, each with some wrong value: no other exception."""
    for version in ("1.2.1", "1.4.0rc4"):
        places = _paths(SHIPPED[version])
        for number, place in enumerate(places[::40]):
            data = copy.deepcopy(SHIPPED[version])
            here: Any = data
            for part in place[:-1]:
                here = here[part]
            here[place[-1]] = copy.deepcopy(BAD[number % len(BAD)])
            path = overlay(tmp_path, data, version)
            refused = None
            try:
                contract = Catalog(tmp_path).contract(version)
                _ = contract.has_engine_lane, contract.has_llmapi_lane, contract.confidence
                _ = contract.build_flags, contract.refuses_unknown_arguments
                for field in contract.llm_fields:
                    assert isinstance(contract.nested_facts(field), dict)
                assert index(contract).entries
            except CatalogError as error:
                refused = error
            assert refused is None or refused.where.file == path.as_posix()
            assert refused is None or refused.where.key
