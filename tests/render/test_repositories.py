"""Rendered repositories: golden trees, the contract's tensors, and strings that stay in place."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import DataType

from engineroom.catalog import Catalog
from engineroom.errors import InternalError
from engineroom.lanes import LANES, RepositoryRequest
from engineroom.names import LaneName, RuntimeName
from engineroom.render import TreeLayout, render_tree
from engineroom.render.filters import json_yaml, pbtxt
from engineroom.render.tree import parse_model_config
from engineroom.runner.files import dump_yaml
from tests.conftest import golden_tree
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


ALL_ON = {
    "context_logits": True, "generation_logits": True, "guided_decoding": "xgrammar",
    "lora": {"adapters": [{"name": "a", "source": "adapters/a", "task_id": 1}]},
    "speculative": {"mode": "draft_target", "max_draft_tokens": 3, "draft_model": "some/draft"},
}  # fmt: skip
ALL_OFF = dict.fromkeys(
    ("chat", "bad_words", "log_probs", "sequences", "usage", "perf_metrics", "kv_retention"), False
)
SPECS = {
    "engine": ("engine", "1.2.1", {}),
    "engine-0.21-ensemble-not-streaming": (
        "engine", "0.21.0", {"fronts": ["ensemble"], "streaming": False, "features": ALL_OFF},
    ),
    "engine-1.1-bls-all-features": (
        "engine", "1.1.0", {"fronts": ["bls"], "stream_interval": 4, "features": ALL_ON},
    ),
    "llmapi": ("llmapi", "1.2.1", {}),
    "llmapi-1.0-not-streaming": (
        "llmapi", "1.0.0", {"streaming": False, "stop_ids": [5, 7], "features": ALL_OFF},
    ),
    "llmapi-1.2-guided": ("llmapi", "1.2.1", {"features": {"guided_decoding": "xgrammar"}}),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_golden_tree(catalog, name):
    """Whole trees: contents, missing, extra. ENGINEROOM_UPDATE_GOLDEN=1 writes them again."""
    lane, version, serving = SPECS[name]
    tree = files(catalog, lane, version, serving=serving)
    rendered = {path: text for path, text in tree.items() if not path.endswith(".py")}
    assert rendered == golden_tree(GOLDEN / name, rendered)


@pytest.mark.parametrize("features", [ALL_ON, ALL_OFF], ids=["on", "off"])
@pytest.mark.parametrize("version", ["0.21.0", "1.0.0", "1.1.0", "1.2.1"])
def test_every_version_renders_with_every_feature_set(catalog, version, features):
    """Rendering parses each config.pbtxt; no input depends on the switches, or it would be ignored."""
    for fronts, streaming in ((["bls"], True), (["ensemble"], False), (["ensemble", "bls"], True)):
        serving = {"fronts": fronts, "streaming": streaming}
        plain = files(catalog, "engine", version, serving=serving)
        rendered = files(catalog, "engine", version, serving={**serving, "features": features})
        assert set(rendered) == set(plain)
        for path in (p for p in rendered if p.endswith("config.pbtxt")):
            configs = [parse_model_config(x[path], path) for x in (plain, rendered)]
            names = [[t.name for t in config.input] for config in configs]
            assert set(names[0]) ^ set(names[1]) <= {"SEQUENCE_INDEX"}
            if features is ALL_OFF and not path.startswith(("tensorrt_llm/", "pre", "post")):
                assert [t.name for t in configs[1].output] == ["text_output", "batch_index"]


def test_trees_have_the_files_that_triton_needs(catalog):
    assert set(files(catalog, "llmapi")) >= {
        "tensorrt_llm/config.pbtxt", "tensorrt_llm/1/model.py", "tensorrt_llm/1/model.yaml",
        "tensorrt_llm/1/runtime_api.py", "tensorrt_llm/1/trtllm_runtime.py",
        "tensorrt_llm/1/metrics.py",
    }  # fmt: skip
    bls, three = {"tensorrt_llm_bls"}, {"preprocessing", "postprocessing", "ensemble"}
    for fronts, models in (
        (["bls"], bls),
        (["ensemble"], three),
        (["bls", "ensemble"], bls | three),
    ):
        rendered = files(catalog, "engine", serving={"fronts": fronts})
        assert {path.split("/")[0] for path in rendered} == {"tensorrt_llm", *models}


def test_model_files_find_what_they_import(catalog):
    """Every sibling that a model file imports is in its folder, and nothing that none imports."""
    engine, llmapi = files(catalog, "engine"), files(catalog, "llmapi")
    for rendered, model in (
        (engine, "tensorrt_llm_bls"), (engine, "preprocessing"), (engine, "postprocessing"),
        (llmapi, "tensorrt_llm"),
    ):  # fmt: skip
        here = {
            p.split("/")[2][:-3]: text
            for p, text in rendered.items()
            if p.startswith(f"{model}/1/") and p.endswith(".py")
        }
        known = {p.stem for p in (catalog.roots[0] / "model_repo_templates").rglob("*.py")}
        wanted, todo = set(), ["model"]
        while todo:
            name = todo.pop()
            if name in wanted:
                continue
            wanted.add(name)
            for node in ast.walk(ast.parse(here[name])):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [node.module] if isinstance(node, ast.ImportFrom) else []
                todo += [n for n in names if n in known and n != "model"]
        assert wanted == set(here), model


LOGITS = {"context_logits": True, "generation_logits": True}


@pytest.mark.parametrize("version", ["0.21.0", "1.0.0", "1.1.0", "1.2.1"])
def test_engine_tensors_are_the_contracts(catalog, version):
    """With everything on that has outputs: those of a feature that is off are not declared."""
    rendered = files(catalog, "engine", version, serving={"features": LOGITS})
    family = catalog.contract(version).family("inflight_batcher_llm")
    config = parse_model_config(rendered["tensorrt_llm/config.pbtxt"], "t")
    for kind in ("input", "output"):
        want = {t["name"]: list(t["dims"]) for t in family["tensorrt_llm"][f"{kind}s"]}
        assert {t.name: list(t.dims) for t in getattr(config, kind)} == want
    known = {p["key"] for p in family["tensorrt_llm"]["parameters"]}
    assert set(config.parameters) - known == {"engineroom_runtime"}
    engine = {t.name for t in config.input}
    for front in ("tensorrt_llm_bls", "ensemble"):
        config = parse_model_config(rendered[f"{front}/config.pbtxt"], front)
        for kind in ("input", "output"):
            want = {t["name"]: list(t["dims"]) for t in family[front][f"{kind}s"]}
            got = {t.name: list(t.dims) for t in getattr(config, kind)}
            # Beyond the contract's front: messages, and inputs of the engine under its own names.
            assert want.items() <= got.items(), front
            assert set(got) - set(want) <= ({"messages", *engine} if kind == "input" else set())
        types = {t["name"]: t["data_type"] for t in family[front]["inputs"]}
        for tensor in config.input:
            want = types.get(tensor.name, "$")
            assert want.startswith("$") or tensor.name == "lora_weights" or (
                DataType.Name(tensor.data_type) == want
            )  # fmt: skip


@pytest.mark.parametrize("version", ["0.21.0", "1.0.0", "1.1.0", "1.2.1", "1.4.0rc4"])
def test_llmapi_tensors_are_the_contracts(catalog, version):
    rendered = files(catalog, "llmapi", version)
    family = catalog.contract(version).family("llmapi")
    config = parse_model_config(rendered["tensorrt_llm/config.pbtxt"], "t")
    # The contract's first, then what only this repository has (messages, guided decoding, ...).
    for kind in ("input", "output"):
        want = [t["name"] for t in family[f"{kind}s"] if t["dims"]]
        got = [t.name for t in getattr(config, kind)]
        assert got[: len(want)] == want
        assert len(got) == len(set(got))
    document = json.loads(rendered["tensorrt_llm/1/model.yaml"])
    assert yaml.safe_load(rendered["tensorrt_llm/1/model.yaml"]) == document
    assert set(document) - set(catalog.contract(version).llm_fields) == {"triton_config"}


@pytest.mark.parametrize("version", ["0.21.0", "1.0.0", "1.1.0", "1.2.1"])
def test_ensemble_wiring_is_closed(catalog, version):
    """Each step's tensors exist in that model, and each value is made before it is used."""
    rendered = files(catalog, "engine", version)
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
    # Every input is checked where errors name the client's field.
    checked = ensemble.ensemble_scheduling.step[0]
    assert checked.model_name == "preprocessing"
    assert set(checked.input_map.values()) == {t.name for t in ensemble.input}
    # What only optional inputs can be left without, the engine's mandatory ones get.
    engine = ensemble.ensemble_scheduling.step[1].input_map
    assert {"input_ids", "input_lengths", "request_output_len"} <= set(engine)


SWITCHES = {
    "chat": False, "bad_words": False, "log_probs": False, "sequences": False, "usage": False,
    "perf_metrics": False, "kv_retention": False, "context_logits": True,
    "generation_logits": True, "guided_decoding": "xgrammar", "lora": {},
    "speculative": {"mode": "draft_target"},
}  # fmt: skip


@pytest.mark.parametrize("name", SWITCHES)
def test_each_feature_reaches_the_models(catalog, name):
    """As a switch in the parameter `features`; the tensors stay declared."""
    default, changed = (
        files(catalog, "engine", serving={"features": features})
        for features in ({}, {name: SWITCHES[name]})
    )
    for model in ("tensorrt_llm_bls", "preprocessing"):
        before, after = (
            parse_model_config(rendered[f"{model}/config.pbtxt"], model)
            for rendered in (default, changed)
        )
        assert [t.name for t in before.input] == [t.name for t in after.input]
        switches = [json.loads(c.parameters["features"].string_value) for c in (before, after)]
        differ = {key for key in switches[0] if switches[0][key] != switches[1][key]}
        assert differ == {name}
        assert switches[1][name] is (SWITCHES[name] is not False)
    draft = parse_model_config(changed["tensorrt_llm_bls/config.pbtxt"], "b").parameters
    want = "tensorrt_llm_draft" if name == "speculative" else ""
    assert draft["tensorrt_llm_draft_model_name"].string_value == want


def test_every_input_of_bls_goes_somewhere(catalog):
    """It is used, passed to an engine tensor of that version, or refused by name."""
    tables = [catalog.roots[0] / "model_repo_templates" / path for path in (
        "engine/tensorrt_llm_bls/1/engine.py", "engine/tensorrt_llm_bls/1/job.py",
        "shared/engine_prompt.py", "shared/request_fields.py",
    )]  # fmt: skip
    words = {
        node.value
        for path in tables
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    for version in ("0.21.0", "1.0.0", "1.1.0", "1.2.1"):
        config = parse_model_config(
            files(catalog, "engine", version)["tensorrt_llm_bls/config.pbtxt"], "b"
        )
        assert {t.name for t in config.input} <= words


def test_stream_interval_and_limits_reach_bls(catalog):
    rendered = files(catalog, "engine", serving={"stream_interval": 5})
    parameters = parse_model_config(rendered["tensorrt_llm_bls/config.pbtxt"], "b").parameters
    assert parameters["stream_interval"].string_value == "5"
    assert parameters["max_seq_len"].string_value == "4096"
    assert 0 < int(parameters["max_input_len"].string_value) <= 4096


def test_streaming_sets_every_model(catalog):
    for streaming in (True, False):
        rendered = files(catalog, "engine", serving={"streaming": streaming})
        config = parse_model_config(rendered["tensorrt_llm/config.pbtxt"], "t")
        assert config.model_transaction_policy.decoupled is streaming
        post = parse_model_config(rendered["postprocessing/config.pbtxt"], "p")
        assert post.parameters["streaming"].string_value == str(streaming).lower()
        bls = parse_model_config(rendered["tensorrt_llm_bls/config.pbtxt"], "b")
        assert bls.model_transaction_policy.decoupled is streaming
        rendered = files(catalog, "llmapi", serving={"streaming": streaming})
        config = parse_model_config(rendered["tensorrt_llm/config.pbtxt"], "t")
        assert config.model_transaction_policy.decoupled is streaming
        document = json.loads(rendered["tensorrt_llm/1/model.yaml"])
        assert document["triton_config"]["decoupled"] is streaming


def test_stop_ids_reach_both_lanes(catalog):
    for lane, model in (
        ("llmapi", "tensorrt_llm"), ("engine", "preprocessing"), ("engine", "tensorrt_llm_bls"),
    ):  # fmt: skip
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
