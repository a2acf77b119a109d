"""LLM arguments and repositories of features, in the words of each version's contract."""

from __future__ import annotations

import json

import pytest

from engineroom.errors import UsageError
from engineroom.lanes import LANES, RepositoryRequest
from engineroom.lanes.llmapi.llm_args import llm_args
from engineroom.lanes.llmapi.tensors import ADDITIONS, additions
from engineroom.names import LaneName, RuntimeName
from engineroom.render import render_tree
from engineroom.render.tree import parse_model_config
from engineroom.spec.serving import Features
from tests.lanes.test_commands import request

VERSIONS = ["0.21.0", "1.0.0", "1.1.0", "1.2.1", "1.4.0rc4"]
LORA = {
    "max_rank": 8, "max_adapters": 2, "max_cpu_adapters": 3, "target_modules": ["attn_q"],
    "adapters": [{"name": "fr", "source": "/adapters/fr", "task_id": 7}],
}  # fmt: skip
ALL = {
    "lora": LORA, "guided_decoding": "xgrammar", "context_logits": True, "generation_logits": True,
    "multimodal": {"allowed_hosts": ["img.example"]},
}  # fmt: skip


def args(catalog, version, serving=None, **target):
    return llm_args(request(catalog, version, "llmapi", serving=serving, **target))


def features(catalog, version, **switched):
    return args(catalog, version, {"features": switched})[0]


def rendered(catalog, version="1.2.1", serving=None, **target):
    lane_request = request(catalog, version, "llmapi", serving=serving, **target)
    context = LANES[LaneName.LLMAPI].repository_context(
        RepositoryRequest(lane_request, RuntimeName.TENSORRT_LLM, "/art", "/tok")
    )
    roots = tuple(root / "model_repo_templates" for root in catalog.roots)
    files = {f.path: f.text for f in render_tree(roots, context.layout, context.variables)}
    config = parse_model_config(files["tensorrt_llm/config.pbtxt"], "t")
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    return files, config, parameters


@pytest.mark.parametrize("version", VERSIONS[:4])
def test_lora(catalog, version):
    found = features(catalog, version, lora=LORA)
    assert found["enable_lora"] is True
    assert found["lora_config"] == {
        "lora_target_modules": ["attn_q"], "max_lora_rank": 8, "max_loras": 2, "max_cpu_loras": 3,
    }  # fmt: skip


def test_lora_where_the_contract_has_no_place_for_its_modules(catalog):
    with pytest.raises(UsageError, match="lora_target_modules") as info:
        features(catalog, "1.4.0rc4", lora=LORA)
    assert info.value.where.key == "serving.features.lora"


@pytest.mark.parametrize("version", VERSIONS)
def test_guided_decoding_and_stream_interval(catalog, version):
    found, why = args(
        catalog, version, {"stream_interval": 4, "features": {"guided_decoding": "xgrammar"}}
    )  # fmt: skip
    assert (found["guided_decoding_backend"], found["stream_interval"]) == ("xgrammar", 4)
    assert why["stream_interval"] == "serving.stream_interval"
    plain = args(catalog, version)[0]
    assert not {"guided_decoding_backend", "stream_interval", "enable_lora"} & set(plain)


@pytest.mark.parametrize("version", VERSIONS)
def test_generation_logits(catalog, version):
    assert features(catalog, version, generation_logits=True)["gather_generation_logits"] is True


@pytest.mark.parametrize(
    ("version", "mode", "want"),
    [
        ("1.0.0", "mtp", {"decoding_type": "MTP", "num_nextn_predict_layers": 3}),
        ("1.1.0", "ngram", {"decoding_type": "NGram", "max_draft_len": 3}),
        ("1.2.1", "ngram", {"decoding_type": "NGram", "max_draft_len": 3}),
        ("1.2.1", "eagle",
         {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": "./draft"}),
        ("1.2.1", "draft_target",
         {"decoding_type": "DraftTarget", "max_draft_len": 3, "speculative_model_dir": "./draft"}),
        ("1.4.0rc4", "draft_target",
         {"decoding_type": "Draft_Target", "max_draft_len": 3, "speculative_model": "./draft"}),
        # 1.2.1 may not know Eagle3; 1.4 still takes Eagle, and means Eagle3 by it.
        ("1.4.0rc4", "eagle",
         {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "./draft"}),
        ("1.4.0rc4", "mtp", {"decoding_type": "MTP", "num_nextn_predict_layers": 3}),
    ],
)  # fmt: skip
def test_speculative_decoding(catalog, version, mode, want):
    draft = {"draft_model": "/draft"} if mode in ("eagle", "draft_target") else {}
    spec = {"mode": mode, "max_draft_tokens": 3, **draft}
    assert features(catalog, version, speculative=spec)["speculative_config"] == want


@pytest.mark.parametrize(
    ("version", "mode", "why"),
    [("1.2.1", "medusa", "no speculative mode `medusa`"), ("1.2.1", "lookahead", "`lookahead`"),
     ("0.21.0", "ngram", "0.21.0 lists no fields of the decoding type NGram")],
)  # fmt: skip
def test_speculative_modes_without_a_place(catalog, version, mode, why):
    with pytest.raises(UsageError, match=why):
        features(catalog, version, speculative={"mode": mode})


def test_several_instances_each_on_gpus_of_its_own(catalog):
    _, config, parameters = rendered(
        catalog, tensor_parallel=2, gpu_device_ids=[[0, 1], [2, 3]]
    )  # fmt: skip
    assert parameters["gpu_device_ids"] == "0,1;2,3"
    assert config.instance_group[0].count == 2
    found, _ = args(catalog, "1.2.1", tensor_parallel=2, gpu_device_ids=[[0, 1], [2, 3]])
    assert found["gpus_per_node"] == 2
    assert "gpu_device_ids" not in rendered(catalog)[2]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_off_is_declared_as_an_input_only(catalog, version):
    """Triton ignores inputs that no model declares, so the model must know them to refuse."""
    _, config, parameters = rendered(catalog, version, {"features": {"usage": False}})
    inputs, outputs = {t.name for t in config.input}, {t.name for t in config.output}
    gated = {row.name for row in ADDITIONS if row.side == "inputs" and row.feature}
    assert gated <= inputs
    assert "num_input_tokens" not in outputs
    assert "output_log_probs" in outputs
    assert json.loads(parameters["features"])["usage"] is False
    required = {t.name for t in config.input if not t.optional}
    assert required == set()


def test_a_prompt_is_required_where_there_are_no_messages(catalog):
    _, config, _ = rendered(catalog, serving={"features": {"chat": False}})
    assert {t.name for t in config.input if not t.optional} == {"text_input"}


def test_parameters_of_features(catalog):
    _, _, parameters = rendered(
        catalog, serving={"features": ALL, "max_queue_size": 5, "merge_events": False}
    )  # fmt: skip
    assert json.loads(parameters["lora_adapters"]) == [
        {"name": "fr", "id": 7, "path": "/art/adapters/fr"}
    ]
    assert json.loads(parameters["multimodal"]) == {
        "allowed_hosts": ["img.example"], "max_bytes": 20 * 2**20, "timeout_seconds": 10.0,
    }  # fmt: skip
    assert (parameters["max_queue_size"], parameters["merge_events"]) == ("5", "false")
    on = json.loads(parameters["features"])
    assert all(on[name] for name in ALL)
    plain = rendered(catalog)[2]
    assert not {"lora_adapters", "multimodal", "max_queue_size"} & set(plain)
    assert plain["merge_events"] == "true"


@pytest.mark.parametrize("version", VERSIONS)
def test_additions_are_what_the_contract_lacks(catalog, version):
    family = catalog.contract(version).family("llmapi")
    rows = additions(family, Features(**ALL))
    known = {t["name"] for side in ("inputs", "outputs") for t in family[side] if t.get("dims")}
    assert not {row.name for row in rows} & known
    names = {row.name for row in rows}
    assert ("sampling_param_return_perf_metrics" in names) == (version == "0.21.0")
    assert ("lora_name" in names) == (version != "1.4.0rc4")
    assert ("sampling_param_logits_post_processor_name" in names) == (version == "1.4.0rc4")
    assert all(row.note for row in rows)


def test_every_file_of_the_folder_is_in_the_repository(catalog):
    from tests.conftest import ROOT

    files, _, _ = rendered(catalog)
    own = (ROOT / "model_repo_templates/llmapi/tensorrt_llm/1").glob("*.py")
    assert {f"tensorrt_llm/1/{path.name}" for path in own} <= set(files)
