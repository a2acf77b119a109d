"""The vllm lane: what it emits, against the contract of every vLLM version it claims."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from engineroom.catalog import Catalog
from engineroom.catalog.load import in_range
from engineroom.checks.contract_values import misfit
from engineroom.errors import CatalogError, FindingsError, SpecError, UsageError
from engineroom.lanes import LANES, LaneRequest, RepositoryRequest
from engineroom.lanes.launch import LaunchRequest
from engineroom.names import LaneName, RuntimeName, Support
from engineroom.render import render_tree
from engineroom.render.tree import parse_model_config
from engineroom.spec import parse_spec
from engineroom.types import ModelShape
from tests.conftest import golden_tree, spec_data

LANE = LANES[LaneName.VLLM]
GOLDEN = Path(__file__).parent / "golden"
VERSIONS = Catalog().vllm_versions
FULL = {
    "gpu_memory_utilization": 0.8,
    "kv_block_reuse": False,
    "chunked_context": True,
    "stream_interval": 4,
    "vllm": {
        "block_size": 32, "enforce_eager": True, "enable_sleep_mode": True, "cpu_offload_gb": 2,
        "health_check": True,
    },
    "features": {
        "guided_decoding": "llguidance",
        "lora": {
            "max_rank": 32, "max_adapters": 2, "max_cpu_adapters": 4,
            "adapters": [{"name": "alpaca", "source": "/lora/alpaca", "task_id": 1}],
        },
        "speculative": {"mode": "ngram", "max_draft_tokens": 3},
    },
}  # fmt: skip


def shape_of(dtype):
    """A small model's sizes; only the type matters here."""
    config = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "dtype": dtype,
    }  # fmt: skip
    return ModelShape.from_config(config)


def request(catalog, version, *, serving=None, weights="fp8", kv="fp8", dtype="bfloat16", **target):
    data = spec_data(
        "some/model",
        precision={"weights": weights, "kv_cache": kv},
        serving=serving or {},
        targets=[{"sku": "h100-sxm", "lane": "vllm", "stack": {"vllm": version}, **target}],
    )
    spec = parse_spec(yaml.safe_dump(data)).spec
    chosen = spec.targets[0]
    stack = catalog.lane_stack(chosen.stack, LaneName.VLLM)
    return LaneRequest(
        spec=spec,
        target=chosen,
        sku=catalog.sku(chosen.sku),
        stack=stack,
        contract=catalog.lane_contract(LaneName.VLLM, stack.runtime_version),
        weight_recipe=catalog.weight_recipe(weights),
        kv_recipe=catalog.kv_recipe(spec.precision.kv_cache),
        max_seq_len=4096,
        checkpoint="checkpoints/c",
        shape=shape_of(dtype),
    )


def files(catalog, version="0.24.0", *, runtime=RuntimeName.TENSORRT_LLM, **kw):
    context = LANE.repository_context(
        RepositoryRequest(request(catalog, version, **kw), runtime, "/art", "/tok")
    )
    roots = tuple(root / "model_repo_templates" for root in catalog.roots)
    return {f.path: f.text for f in render_tree(roots, context.layout, context.variables)}


def model_json(catalog, version="0.24.0", **kw):
    return json.loads(files(catalog, version, **kw)["vllm_model/1/model.json"])


@pytest.mark.parametrize(("name", "serving"), [("default", {}), ("full", FULL)])
def test_golden_tree(catalog, name, serving):
    """Whole trees: contents, missing, extra. ENGINEROOM_UPDATE_GOLDEN=1 writes them again."""
    rendered = files(catalog, serving=serving)
    assert rendered == golden_tree(GOLDEN / name, rendered)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("serving", [{}, FULL], ids=["default", "full"])
def test_model_json_is_in_the_contract(catalog, version, serving):
    """An unknown key is a TypeError at load; a value outside a closed list is refused too."""
    known = catalog.vllm_contract(version).engine_args
    written = model_json(catalog, version, serving=serving)
    assert set(written) <= set(known)
    for name, value in written.items():
        assert misfit(known[name], value) is None, name
        assert value in known[name].get("allowed", [value]), name
    step = LANE.steps(request(catalog, version, serving=serving))[0]
    assert step.argv == ()  # nothing is compiled
    assert set(step.reasons) == set(written) - {"model"}
    document = LANE.documents(request(catalog, version, serving=serving))["engine_args.yaml"]
    assert document == {k: v for k, v in written.items() if k != "model"}


@pytest.mark.parametrize("version", VERSIONS)
def test_config_is_what_the_backend_asks_for(catalog, version):
    rendered = files(catalog, version)
    config = parse_model_config(rendered["vllm_model/config.pbtxt"], "t")
    backend = catalog.vllm_contract(version).backend
    assert [t.name for t in config.input] == [t["name"] for t in backend["inputs"]]
    assert [t.name for t in config.output] == [t["name"] for t in backend["outputs"]]
    assert {t.name for t in config.input if not t.optional} == {"text_input"}
    assert config.backend == "vllm"
    assert config.max_batch_size == 0
    assert config.model_transaction_policy.decoupled  # the backend asserts it
    assert config.instance_group[0].Kind.Name(config.instance_group[0].kind) == "KIND_MODEL"
    assert set(config.parameters) == {"REPORT_CUSTOM_METRICS"}
    assert LANE.client.parameters_json in {t.name for t in config.input}


def test_decisions_of_a_comparison_are_always_written(catalog):
    written = model_json(catalog)
    assert written["gpu_memory_utilization"] == 0.90
    assert written["enable_prefix_caching"] is True
    assert written["enable_chunked_prefill"] is False
    assert (written["max_num_seqs"], written["max_num_batched_tokens"]) == (64, 8192)
    assert written["max_model_len"] == 4096
    assert written["model"] == "/art/checkpoint"
    assert (written["tensor_parallel_size"], written["pipeline_parallel_size"]) == (1, 1)
    defaults = {
        version: catalog.vllm_contract(version).engine_args["gpu_memory_utilization"]["default"]
        for version in VERSIONS
    }
    assert set(defaults.values()) == {0.9, 0.92}  # the reason for writing it
    assert (defaults["0.19.0"], defaults["0.21.0"]) == (0.9, 0.92)


def test_kv_dtype_is_never_left_out(catalog):
    """auto takes FP8 from a checkpoint with KV scales, so a 16-bit cache is named, where it can be."""
    assert model_json(catalog, kv="fp8")["kv_cache_dtype"] == "fp8"
    assert model_json(catalog, kv="bf16")["kv_cache_dtype"] == "bfloat16"
    assert model_json(catalog, kv="fp16")["kv_cache_dtype"] == "float16"
    assert model_json(catalog, kv="auto")["kv_cache_dtype"] == "bfloat16"
    assert model_json(catalog, kv="auto", dtype="float16")["kv_cache_dtype"] == "float16"
    assert model_json(catalog, "0.10.2", kv="bf16")["kv_cache_dtype"] == "auto"
    assert model_json(catalog, "0.11.0", kv="bf16")["kv_cache_dtype"] == "bfloat16"


def test_quantization_names_the_loader(catalog):
    assert model_json(catalog, weights="fp8")["quantization"] == "modelopt"
    assert model_json(catalog, weights="nvfp4")["quantization"] == "modelopt_fp4"
    assert "quantization" not in model_json(catalog, weights="bf16")
    with pytest.raises(FindingsError, match="W4A16_AWQ"):
        model_json(catalog, weights="w4a16_awq")


def test_guided_decoding_argument_follows_the_version(catalog):
    serving = {"features": {"guided_decoding": "llguidance"}}
    assert model_json(catalog, "0.11.1", serving=serving)["guided_decoding_backend"] == "guidance"
    later = model_json(catalog, "0.13.0", serving=serving)
    assert later["structured_outputs_config"] == {"backend": "guidance"}
    assert "guided_decoding_backend" not in later


def test_lora_adapters_are_a_file_of_names(catalog):
    rendered = files(catalog, serving=FULL)
    assert json.loads(rendered["vllm_model/1/multi_lora.json"]) == {
        "alpaca": "/art/adapters/alpaca"
    }
    assert set(files(catalog)) == {"vllm_model/config.pbtxt", "vllm_model/1/model.json"}


def test_reference_is_visible_and_only_there(catalog):
    text = files(catalog, runtime=RuntimeName.REFERENCE)["vllm_model/config.pbtxt"]
    config = parse_model_config(text, "t")
    assert config.parameters["engineroom_runtime"].string_value == "reference"
    assert "engineroom_runtime" not in files(catalog)["vllm_model/config.pbtxt"]


def test_launch_is_one_process(catalog):
    req = request(catalog, "0.24.0", tensor_parallel=2)
    plan = LANE.launch(LaunchRequest(req.spec, req.target, "/repository"))
    assert (plan.wrapper, len(plan.processes)) == ((), 1)


def test_contract_of_an_overlay_may_lack_an_argument(catalog, tmp_path):
    folder = tmp_path / "deploy/contracts/vllm"
    folder.mkdir(parents=True)
    data = json.loads(Path(catalog.vllm_contract("0.24.0").file).read_text())
    data["version"] = "0.24.1"
    del data["engine_args"]["enable_prefix_caching"]
    (folder / "0.24.1.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match="enable_prefix_caching"):
        model_json(Catalog(tmp_path), "0.24.1")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"version": "9.9"}, "version"),
        ({"kind": "trtllm"}, "kind"),
        ({"block_sizes": "x"}, "block"),
    ],
)
def test_a_broken_contract_names_file_and_key(catalog, tmp_path, change, key):
    folder = tmp_path / "deploy/contracts/vllm"
    folder.mkdir(parents=True)
    data = json.loads(Path(catalog.vllm_contract("0.24.0").file).read_text()) | change
    (folder / "0.24.0.json").write_text(json.dumps(data))
    with pytest.raises(CatalogError) as error:
        Catalog(tmp_path).vllm_contract("0.24.0")
    assert error.value.where.file.endswith("0.24.0.json")
    assert key in str(error.value.where.key)


def test_stacks_name_the_vllm_container(catalog):
    """Every release has one; its contract is known, except where no source of it could be had."""
    unknown = set()
    for name, stack in catalog.stacks.items():
        own = catalog.lane_stack(name, LaneName.VLLM)
        assert own.image == f"nvcr.io/nvidia/tritonserver:{name}-vllm-python-py3"
        assert own.tensorrt_llm == ""
        assert stack.image.endswith("-trtllm-python-py3")
        assert own.runtime_name == "vLLM"
        assert own.cuda.split(".")[0] in ("12", "13")
        version = own.runtime_version
        claimed = in_range(version, LANE.stack_versions)
        if claimed and catalog.lane_contract(LaneName.VLLM, version) is None:
            unknown.add(version)
    assert unknown == {"0.15.1"}
    assert catalog.lane_stack("26.07", LaneName.VLLM).runtime_version == "0.24.0"
    assert catalog.lane_stack("25.12", LaneName.VLLM).runtime_version == "0.11.1"


def test_explicit_versions_go_with_their_lane(make_job):
    def targets(lane, stack):
        return make_job(spec_data(targets=[{"sku": "l4", "lane": lane, "stack": stack}])).targets

    assert targets("vllm", {"vllm": "v0.21.0"})[0].contract.version == "0.21.0"
    for lane, stack, words in (
        ("vllm", {"trtllm": "1.2.1"}, "has no vLLM container"),
        ("llmapi", {"vllm": "0.21.0"}, "names a vLLM version"),
        ("vllm", {"vllm": "not a version"}, "is not a version"),
    ):
        with pytest.raises(SpecError, match=words):
            targets(lane, stack)
    with pytest.raises(SpecError, match="exactly one of `trtllm` and `vllm`"):
        targets("vllm", {"trtllm": "1.2.1", "vllm": "0.21.0"})


def test_precision_table_is_what_the_loaders_say(catalog):
    """Below a loader's minimum the table says no, and never yes for what the loader does not list."""
    for version in VERSIONS:
        contract = catalog.vllm_contract(version)
        least = contract.data["modelopt"]["min_compute_capability"]
        for sku in catalog.skus.values():
            for fmt, algo in (("fp8", "FP8"), ("nvfp4", "NVFP4"), ("w4a16_awq", "W4A16_AWQ")):
                cell = catalog.precision_cell(
                    LaneName.VLLM, version, "weights", fmt, sku.compute_capability
                )
                listed = algo in contract.quant_algos
                floor = tuple(map(int, least.get(algo, "99.0").split(".")))
                runs = listed and sku.cc_tuple >= floor
                assert (cell.support is Support.NO) is (not runs), (version, sku.id, fmt)
