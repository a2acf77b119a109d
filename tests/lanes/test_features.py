"""The engine lane's `tensorrt_llm` config and build flags, for every version and set of features."""

from __future__ import annotations

import json

import pytest

from engineroom.catalog import Catalog
from engineroom.errors import UsageError
from engineroom.lanes import LANES, RepositoryRequest
from engineroom.lanes.engine.build import build_flags
from engineroom.names import LaneName, RuntimeName
from engineroom.render import render_tree
from engineroom.render.tree import parse_model_config
from engineroom.runner import xgrammar_info
from tests.conftest import TINY
from tests.lanes.test_commands import VERSIONS, request

ENGINE_VERSIONS = VERSIONS[:4]
SIZES = {
    "lookahead_window_size": 7, "lookahead_ngram_size": 7, "lookahead_verification_set_size": 7,
}  # fmt: skip
OFF = dict.fromkeys(
    ("chat", "bad_words", "log_probs", "sequences", "usage", "perf_metrics", "kv_retention"), False
)
SETS = {
    "default": {},
    "all-off": {"features": OFF, "streaming": False},
    "logits": {"features": {"context_logits": True, "generation_logits": True}},
    "guided": {"features": {"guided_decoding": "xgrammar"}},
    "lora": {"features": {"lora": {"max_rank": 32, "target_modules": ["attn_q", "mlp_gate"]}}},
    "draft": {"features": {"speculative": {"mode": "draft_target", "max_draft_tokens": 5}}},
    "medusa": {"features": {"speculative": {"mode": "medusa", "max_draft_tokens": 63, "choices": "{0}, {0, 0}"}}},
    "eagle": {"features": {"speculative": {"mode": "eagle", "choices": "{0}, {1}"}}},
    "lookahead": {"features": {"speculative": {"mode": "lookahead", **SIZES}}},
    "redrafter": {"features": {"speculative": {"mode": "redrafter"}}},
    "queues": {"max_queue_size": 9, "max_queue_delay_microseconds": 100, "priority_levels": 3},
    "evicting": {"scheduler_policy": "max_utilization", "chunked_context": True, "kv_block_reuse": False},
}  # fmt: skip


def config(catalog: Catalog, version="1.2.1", *, serving=None, **kw):
    """(ModelConfig message, text of tensorrt_llm/config.pbtxt)."""
    lane_request = request(catalog, version, "engine", serving=serving, **kw)
    context = LANES[LaneName.ENGINE].repository_context(
        RepositoryRequest(lane_request, RuntimeName.TENSORRT_LLM, "/art", "/tok")
    )
    roots = tuple(root / "model_repo_templates" for root in catalog.roots)
    name = "tensorrt_llm/config.pbtxt"
    text = next(
        f.text for f in render_tree(roots, context.layout, context.variables) if f.path == name
    )
    return parse_model_config(text, name), text


def parameters(message) -> dict[str, str]:
    return {key: value.string_value for key, value in message.parameters.items()}


def flags(catalog, version="1.2.1", **kw) -> dict[str, tuple[str, ...]]:
    return build_flags(request(catalog, version, "engine", **kw))[0]


@pytest.mark.parametrize("version", ENGINE_VERSIONS)
@pytest.mark.parametrize("name", SETS)
def test_config_has_what_the_contract_lists_and_nothing_else(catalog, version, name):
    message, text = config(catalog, version, serving=SETS[name])
    facts = catalog.contract(version).family("inflight_batcher_llm")["tensorrt_llm"]
    assert [t.name for t in message.input] == [t["name"] for t in facts["inputs"]]
    assert [t.name for t in message.output] == [t["name"] for t in facts["outputs"]]
    known = {p["key"] for p in facts["parameters"]}
    written = parameters(message)
    assert set(written) - known == {"engineroom_runtime"}
    # Read unguarded: without one of them the model does not load.
    assert {
        "gpt_model_type", "tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path",
    } <= set(written)  # fmt: skip
    # Only ranks that are started beforehand have ids; with spawned ones they are refused.
    assert "participant_ids" not in written
    assert "${" not in text
    may_be_empty = {"guided_decoding_backend", "xgrammar_tokenizer_info_path"}
    assert {key for key, value in written.items() if not value} <= may_be_empty


@pytest.mark.parametrize("version", ENGINE_VERSIONS)
@pytest.mark.parametrize("name", SETS)
def test_flags_are_valid_by_contract(catalog, version, name):
    found, why = build_flags(request(catalog, version, "engine", serving=SETS[name]))
    known = catalog.contract(version).build_flags
    for flag, words in found.items():
        kind, choices = known[flag]["type"], known[flag]["choices"]
        assert choices is None or set(words) <= set(map(str, choices)), flag
        if kind == "store_true":
            assert words == (), flag
        elif not kind.startswith("list"):
            assert len(words) == 1, flag
    assert set(why) == set(found)
    assert all(why.values())


def test_features_that_the_engine_is_not_built_for_add_no_flag(catalog):
    assert flags(catalog) == flags(catalog, serving=SETS["guided"])
    assert set(flags(catalog)) == set(flags(catalog, serving=SETS["queues"]))


def test_logits(catalog):
    found = flags(catalog, serving=SETS["logits"])
    assert found["--gather_context_logits"] == found["--gather_generation_logits"] == ()
    # The backend compares the declared type with the engine's.
    assert found["--logits_dtype"] == ("float32",)
    message, _ = config(catalog, serving=SETS["logits"])
    kinds = {t.name: t.data_type for t in message.output}
    assert kinds["context_logits"] == kinds["generation_logits"] == 11  # TYPE_FP32
    argv = (
        LANES[LaneName.ENGINE]
        .steps(request(catalog, "1.2.1", "engine", serving=SETS["logits"]))[0]
        .argv
    )
    assert argv[argv.index("--gather_context_logits") + 1].startswith("--")


def test_lora(catalog):
    found = flags(catalog, serving=SETS["lora"])
    assert found["--lora_plugin"] == ("auto",)
    assert found["--max_lora_rank"] == ("32",)
    assert found["--lora_target_modules"] == ("attn_q", "mlp_gate")
    assert "--lora_dir" not in found
    written = parameters(config(catalog, serving=SETS["lora"])[0])
    assert written["lora_cache_max_adapter_size"] == "32"
    assert "lora_cache_max_adapter_size" not in parameters(config(catalog)[0])


def test_a_lora_module_that_the_version_does_not_have(catalog):
    serving = {"features": {"lora": {"target_modules": ["attn_q", "q_proj"]}}}
    with pytest.raises(UsageError, match=r"--lora_target_modules q_proj; it allows .*attn_qkv"):
        flags(catalog, serving=serving)


@pytest.mark.parametrize(
    ("weights", "kv", "kind"), [("bf16", "bf16", "TYPE_BF16"), ("fp16", "fp16", "TYPE_FP16")]
)
def test_lora_weights_have_the_models_type(catalog, weights, kv, kind):
    """The runtime refuses weights of another type than the base model's."""
    from tritonclient.grpc import model_config_pb2

    message, _ = config(catalog, weights=weights, kv=kv)
    tensor = next(t for t in message.input if t.name == "lora_weights")
    assert model_config_pb2.DataType.Name(tensor.data_type) == kind


@pytest.mark.parametrize(
    ("name", "mode", "length"),
    [
        ("draft", "draft_tokens_external", "5"), ("medusa", "medusa", "63"), ("eagle", "eagle", "4"),
        # 7 - 2 + (7 - 1 + 7) * (7 - 1)
        ("lookahead", "lookahead_decoding", "83"), ("redrafter", "explicit_draft_tokens", "4"),
    ],
)  # fmt: skip
def test_speculative_build(catalog, name, mode, length):
    found = flags(catalog, serving=SETS[name])
    assert found["--speculative_decoding_mode"] == (mode,)
    assert found["--max_draft_len"] == (length,)


def test_draft_tokens_from_outside_need_paged_fmha(catalog):
    base = {"kv_block_reuse": False, "chunked_context": False}
    assert flags(catalog, serving=base)["--use_paged_context_fmha"] == ("disable",)
    assert flags(catalog, serving={**base, **SETS["draft"]})["--use_paged_context_fmha"] == (
        "enable",
    )


@pytest.mark.parametrize("mode", ["ngram", "mtp"])
def test_a_mode_that_engines_do_not_have(catalog, mode):
    with pytest.raises(UsageError, match=f"no speculative mode `{mode}`"):
        flags(catalog, serving={"features": {"speculative": {"mode": mode}}})


@pytest.mark.parametrize(
    ("name", "limits", "expected"),
    [
        ("default", {}, {"decoding_mode": "top_k_top_p", "max_beam_width": "1"}),
        ("default", {"max_beam_width": 4}, {"decoding_mode": "beam_search", "max_beam_width": "4"}),
        ("draft", {}, {"decoding_mode": None}),
        ("medusa", {}, {"decoding_mode": "medusa", "medusa_choices": "{0}, {0, 0}", "eagle_choices": None}),
        ("eagle", {}, {"decoding_mode": "eagle", "eagle_choices": "{0}, {1}", "medusa_choices": None}),
        ("redrafter", {}, {"decoding_mode": "redrafter"}),
        ("lookahead", {}, {"decoding_mode": "lookahead", **dict.fromkeys(SIZES, "7")}),
    ],
)  # fmt: skip
def test_decoding_mode(catalog, name, limits, expected):
    written = parameters(config(catalog, serving=SETS[name], limits=limits)[0])
    assert {key: written.get(key) for key in expected} == expected


def test_guided_decoding_names_the_file_of_the_artefact(catalog):
    written = parameters(config(catalog, serving=SETS["guided"])[0])
    assert written["guided_decoding_backend"] == "xgrammar"
    assert written["xgrammar_tokenizer_info_path"] == "/art/xgrammar_tokenizer_info.json"
    steps = LANES[LaneName.ENGINE].steps(
        request(catalog, "1.2.1", "engine", serving=SETS["guided"])
    )
    assert [step.outputs for step in steps][1] == ("xgrammar_tokenizer_info.json",)
    off = parameters(config(catalog)[0])
    assert (off["guided_decoding_backend"], off["xgrammar_tokenizer_info_path"]) == ("", "")


def test_queue_settings(catalog):
    batching = config(catalog, serving=SETS["queues"])[0].dynamic_batching
    assert batching.max_queue_delay_microseconds == 100
    assert batching.default_queue_policy.max_queue_size == 9
    assert (batching.priority_levels, batching.default_priority_level) == (3, 2)
    plain = config(catalog)[0].dynamic_batching
    assert not plain.HasField("default_queue_policy")
    assert (plain.priority_levels, plain.default_priority_level) == (0, 0)
    assert list(plain.preferred_batch_size) == [64]


@pytest.mark.parametrize(("levels", "middle"), [(1, 1), (2, 2), (3, 2), (100, 51)])
def test_a_request_without_priority_gets_a_level_that_exists(catalog, levels, middle):
    batching = config(catalog, serving={"priority_levels": levels})[0].dynamic_batching
    assert batching.default_priority_level == middle
    assert 1 <= middle <= levels


def test_gpu_sets(catalog):
    message, _ = config(catalog, tensor_parallel=2, gpu_device_ids=[[0, 1], [2, 3]])
    assert parameters(message)["gpu_device_ids"] == "0,1;2,3"
    assert message.instance_group[0].count == 2
    plain, _ = config(catalog, tensor_parallel=2)
    assert "gpu_device_ids" not in parameters(plain)
    assert plain.instance_group[0].count == 1


def test_settings_of_the_spec_reach_the_config(catalog):
    serving = {**SETS["evicting"], "kv_cache_free_gpu_mem_fraction": 0.35}
    written = parameters(config(catalog, serving=serving)[0])
    assert written["batch_scheduler_policy"] == "max_utilization"
    assert written["kv_cache_free_gpu_mem_fraction"] == "0.35"
    assert (written["enable_kv_cache_reuse"], written["enable_chunked_context"]) == (
        "false",
        "true",
    )
    assert (written["exclude_input_in_output"], written["normalize_log_probs"]) == ("true", "true")
    assert (written["cancellation_check_period_ms"], written["num_nodes"]) == ("100", "1")


# ---- the tokenizer file of guided decoding
def test_tokenizer_file(tmp_path):
    """Against the tokenizers library: each id with its text, and the ids that end an answer."""
    import tokenizers

    target = tmp_path / "info.json"
    xgrammar_info.write(TINY, target, "generation_config")
    info = json.loads(target.read_text())
    library = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    assert info["encoded_vocab"] == [
        library.id_to_token(i) for i in range(library.get_vocab_size(with_added_tokens=True))
    ]
    again = tokenizers.Tokenizer.from_str(info["tokenizer_str"])
    assert again.encode("a b").ids == library.encode("a b").ids
    stated = json.loads((TINY / "generation_config.json").read_text())["eos_token_id"]
    assert info["stop_token_ids"] == (stated if isinstance(stated, list) else [stated])


def test_end_ids_of_the_spec(tmp_path):
    xgrammar_info.write(TINY, tmp_path / "info.json", (7, 9))
    assert json.loads((tmp_path / "info.json").read_text())["stop_token_ids"] == [7, 9]


def test_vocabularies_of_other_families():
    """Unigram lists, ids without a token, and added tokens that replace one."""
    unigram = {
        "model": {"vocab": [["<unk>", 0.0], ["▁a", -1.5]]},
        "added_tokens": [{"id": 3, "content": "<eot>"}],
    }
    assert xgrammar_info.ordered_vocabulary(unigram) == ["<unk>", "▁a", "", "<eot>"]
    words = {"model": {"vocab": {"b": 1, "a": 0}}, "added_tokens": [{"id": 1, "content": "[B]"}]}
    assert xgrammar_info.ordered_vocabulary(words) == ["a", "[B]"]


@pytest.mark.parametrize(
    "text",
    ['{"model": {"vocab": {"a": -1}}}', '{"model": {"vocab": {"a": 99999999999}}}', '{"model": {"vocab": {}}}',
     '{"model": 3}', "[]", "{", '{"model": {"vocab": [1]}}', '{"model": {"vocab": {"a": true}}}'],
)  # fmt: skip
def test_broken_tokenizers_get_one_clear_error(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(UsageError, match="no vocabulary can be read"):
        xgrammar_info.write(tmp_path, tmp_path / "info.json", (1,))


def test_tokenizers_without_what_is_needed(tmp_path):
    with pytest.raises(UsageError, match=r"needs a tokenizer\.json"):
        xgrammar_info.write(tmp_path, tmp_path / "info.json", (1,))
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    with pytest.raises(UsageError, match="no id ends an answer"):
        xgrammar_info.write(tmp_path, tmp_path / "info.json", "generation_config")
