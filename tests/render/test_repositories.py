"""Rendered repositories: golden trees, the contract's tensors, and strings that stay in place."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from engineroom.catalog import Catalog
from engineroom.errors import InternalError
from engineroom.lanes import LANES, RepositoryRequest
from engineroom.names import LaneName, RuntimeName
from engineroom.render import TreeLayout, render_tree
from engineroom.render.filters import json_yaml, pbtxt
from engineroom.render.tree import parse_model_config
from engineroom.runner.files import dump_yaml
from tests.lanes.test_commands import request

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = "a\"b\\n\n\t${HOME}'; drop: {x} %s é 漢 \x7f\x01 <no value> {{ y }} #"


def files(catalog, lane, version="1.2.1", *, artefact="/art", tokenizer="/tok", **kw):
    lane_request = request(catalog, version, lane, **kw)
    context = LANES[LaneName(lane)].repository_context(
        RepositoryRequest(lane_request, RuntimeName.TENSORRT_LLM, artefact, tokenizer)
    )
    roots = tuple(root / "model_repo_templates" for root in catalog.roots)
    return {f.path: f.text for f in render_tree(roots, context.layout, context.variables)}


@pytest.mark.parametrize("lane", ["llmapi", "engine"])
def test_golden_tree(catalog, lane):
    """Whole trees: contents, missing, extra. ENGINEROOM_UPDATE_GOLDEN=1 writes them again."""
    rendered = {p: t for p, t in files(catalog, lane).items() if not p.endswith(".py")}
    folder = GOLDEN / lane
    if os.environ.get("ENGINEROOM_UPDATE_GOLDEN"):
        for path, text in rendered.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    golden = {
        p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8")
        for p in folder.rglob("*")
        if p.is_file()
    }
    assert rendered == golden


def test_trees_have_the_files_that_triton_needs(catalog):
    assert set(files(catalog, "llmapi")) == {
        "tensorrt_llm/config.pbtxt", "tensorrt_llm/1/model.py", "tensorrt_llm/1/model.yaml",
        "tensorrt_llm/1/runtime_api.py", "tensorrt_llm/1/trtllm_runtime.py",
        "tensorrt_llm/1/metrics.py",
    }  # fmt: skip
    models = {path.split("/")[0] for path in files(catalog, "engine")}
    assert models == {"preprocessing", "tensorrt_llm", "postprocessing", "ensemble"}


@pytest.mark.parametrize("version", ["0.21.0", "1.0.0", "1.1.0", "1.2.1"])
def test_engine_tensors_are_the_contracts(catalog, version):
    rendered = files(catalog, "engine", version)
    family = catalog.contract(version).family("inflight_batcher_llm")
    config = parse_model_config(rendered["tensorrt_llm/config.pbtxt"], "t")
    for kind in ("input", "output"):
        want = {t["name"]: list(t["dims"]) for t in family["tensorrt_llm"][f"{kind}s"]}
        assert {t.name: list(t.dims) for t in getattr(config, kind)} == want
    known = {p["key"] for p in family["tensorrt_llm"]["parameters"]}
    assert set(config.parameters) - known == {"engineroom_runtime"}
    ensemble = parse_model_config(rendered["ensemble/config.pbtxt"], "e")
    wanted = {t["name"] for t in family["ensemble"]["inputs"]}
    assert {t.name for t in ensemble.input} <= wanted


@pytest.mark.parametrize("version", ["0.21.0", "1.0.0", "1.1.0", "1.2.1", "1.4.0rc4"])
def test_llmapi_tensors_are_the_contracts(catalog, version):
    rendered = files(catalog, "llmapi", version)
    family = catalog.contract(version).family("llmapi")
    config = parse_model_config(rendered["tensorrt_llm/config.pbtxt"], "t")
    assert [t.name for t in config.input] == [t["name"] for t in family["inputs"] if t["dims"]]
    assert [t.name for t in config.output] == [t["name"] for t in family["outputs"]]
    document = json.loads(rendered["tensorrt_llm/1/model.yaml"])
    assert yaml.safe_load(rendered["tensorrt_llm/1/model.yaml"]) == document
    assert set(document) - set(catalog.contract(version).llm_fields) == {"triton_config"}


def test_ensemble_wiring_is_closed(catalog):
    """Each step's tensors exist in that model, and each value is made before it is used."""
    rendered = files(catalog, "engine")
    configs = {
        name: parse_model_config(rendered[f"{name}/config.pbtxt"], name)
        for name in ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble")
    }
    ensemble = configs["ensemble"]
    known = {t.name for t in ensemble.input}
    used = set()
    for step in ensemble.ensemble_scheduling.step:
        model = configs[step.model_name]
        assert set(step.input_map) <= {t.name for t in model.input}
        required = {t.name for t in model.input if not t.optional}
        assert required <= set(step.input_map), step.model_name
        assert set(step.input_map.values()) <= known
        assert set(step.output_map) <= {t.name for t in model.output}
        used |= set(step.input_map.values())
        known |= set(step.output_map.values())
    assert {t.name for t in ensemble.input} <= used  # Triton refuses inputs that no step takes
    assert {t.name for t in ensemble.output} <= known


def test_streaming_sets_every_model(catalog):
    for streaming in (True, False):
        rendered = files(catalog, "engine", serving={"streaming": streaming})
        config = parse_model_config(rendered["tensorrt_llm/config.pbtxt"], "t")
        assert config.model_transaction_policy.decoupled is streaming
        post = parse_model_config(rendered["postprocessing/config.pbtxt"], "p")
        assert post.parameters["streaming"].string_value == str(streaming).lower()
        rendered = files(catalog, "llmapi", serving={"streaming": streaming})
        config = parse_model_config(rendered["tensorrt_llm/config.pbtxt"], "t")
        assert config.model_transaction_policy.decoupled is streaming
        document = json.loads(rendered["tensorrt_llm/1/model.yaml"])
        assert document["triton_config"]["decoupled"] is streaming


def test_stop_ids_reach_both_lanes(catalog):
    for lane, model in (("llmapi", "tensorrt_llm"), ("engine", "preprocessing")):
        for value, text in (([5, 7], "[5, 7]"), ("generation_config", "generation_config")):
            rendered = files(catalog, lane, serving={"stop_ids": value})
            config = parse_model_config(rendered[f"{model}/config.pbtxt"], "c")
            assert config.parameters["stop_ids"].string_value == text


def test_fp8_engine_on_blackwell_is_served_without_reuse(catalog):
    for sku, reuse in (("h100-sxm", "true"), ("b200-sxm", "false")):
        rendered = files(catalog, "engine", sku=sku)
        config = parse_model_config(rendered["tensorrt_llm/config.pbtxt"], "t")
        assert config.parameters["enable_kv_cache_reuse"].string_value == reuse


def test_same_input_same_bytes(catalog):
    for lane in ("llmapi", "engine"):
        assert files(catalog, lane) == files(Catalog(), lane)


def test_hostile_paths_stay_in_place(catalog):
    rendered = files(catalog, "engine", artefact=HOSTILE, tokenizer=HOSTILE)
    config = parse_model_config(rendered["tensorrt_llm/config.pbtxt"], "t")
    assert config.parameters["gpt_model_path"].string_value == HOSTILE
    plain = parse_model_config(files(catalog, "engine")["tensorrt_llm/config.pbtxt"], "t")
    assert set(config.parameters) == set(plain.parameters)
    pre = parse_model_config(rendered["preprocessing/config.pbtxt"], "p")
    assert pre.parameters["tokenizer_dir"].string_value == HOSTILE
    rendered = files(catalog, "llmapi", artefact=HOSTILE)
    document = json.loads(rendered["tensorrt_llm/1/model.yaml"])
    assert document["model"] == HOSTILE + "/checkpoint"
    assert set(document) == set(json.loads(files(catalog, "llmapi")["tensorrt_llm/1/model.yaml"]))


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=60)


@settings(max_examples=300, deadline=None)
@given(text)
def test_any_string_round_trips(value):
    config = parse_model_config(f"name: {pbtxt(value)}", "x")
    assert config.name == value
    assert json.loads(json_yaml({"v": value}))["v"] == value
    assert yaml.safe_load(dump_yaml({"v": value}))["v"] == value


def test_undefined_and_broken_templates_are_refused(tmp_path):
    (tmp_path / "a.j2").write_text("{{ missing }}")
    (tmp_path / "b.j2").write_text('name: "x')
    with pytest.raises(InternalError, match="missing"):
        render_tree((tmp_path,), TreeLayout({"a": "a.j2"}, {}), {})
    with pytest.raises(InternalError, match=r"m/config\.pbtxt is not a valid ModelConfig"):
        render_tree((tmp_path,), TreeLayout({"m/config.pbtxt": "b.j2"}, {}), {})
