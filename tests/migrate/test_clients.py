"""`clients.md` for every fixture: no field is left out, and every new name is one the new model takes."""

from __future__ import annotations

import ast
import json
import shlex

import pytest

from engineroom.lanes.llmapi.tensors import tensors
from engineroom.pipeline.migrate_ab import ab_files, ab_plan
from engineroom.pipeline.migrate_ab_data import ab_data
from engineroom.pipeline.migrate_clients import client_data, client_map
from engineroom.pipeline.migrate_requests import curl, tritonclient
from engineroom.spec.serving import Features
from engineroom.types.migration import Fate, OldModel, OldSetup, OldTensor
from tests.migrate import old_layout as old


@pytest.fixture(scope="module")
def new_tensors(catalog):
    """side -> names that a repository of the new lane declares, everything switched on."""
    family = catalog.contract("1.2.1").family("llmapi")
    on = Features.model_validate(
        {"context_logits": True, "generation_logits": True, "guided_decoding": "xgrammar", "lora": {},
         "multimodal": {}}
    )  # fmt: skip
    return {
        side: {t["name"]: t for t in tensors(family, side, on)} for side in ("inputs", "outputs")
    }


@pytest.mark.parametrize("name", old.NAMES)
def test_every_field_of_the_old_fronts_has_a_line_and_every_new_name_exists(
    name, made, new_tensors, catalog
):
    data = client_data(made(name).setup, made(name).spec, catalog)
    configs = old.configs(name)
    for side, attribute in (("inputs", "input"), ("outputs", "output")):
        declared = {
            tensor.name
            for folder in ("ensemble", "tensorrt_llm_bls")
            if folder in configs
            for tensor in getattr(configs[folder], attribute)
        }
        lines = [line for line in data.fields if line.side == side]
        assert declared == {line.old for line in lines}
        assert len(lines) == len(declared)
        for line in (*lines, *(c for c in data.core if c.side == side)):
            assert set(line.new) <= new_tensors[side].keys(), line
            assert line.source
            assert line.new or line.todo, line  # what has no new place says what to do
            assert line.fate in (Fate.KEPT, Fate.RENAMED, Fate.MOVED, Fate.IMPOSSIBLE)
            assert (line.fate is Fate.KEPT) == (line.new == (line.old,)), line
    engine = next(c for c in configs.values() if c.backend == "tensorrtllm")
    assert {line.old for line in data.core if line.side == "inputs"} == {
        tensor.name for tensor in engine.input
    }


GOLDEN = {
    "text_input": ("text_input",),
    "max_tokens": ("sampling_param_max_tokens",),
    "stop_words": ("sampling_param_stop",),
    "bad_words": ("sampling_param_bad",),
    "min_length": ("sampling_param_min_tokens",),
    "random_seed": ("sampling_param_seed",),
    "stream": ("streaming",),
    "end_id": ("sampling_param_end_id",),
    "exclude_input_in_output": ("sampling_param_exclude_input_from_output",),
    "return_kv_cache_reuse_stats": ("sampling_param_return_perf_metrics",),
    "num_return_sequences": ("sampling_param_n",),
    "lora_task_id": ("lora_id",),
    "lora_weights": (),
    "pad_id": (),
    "embedding_bias_words": (),
    "kv_cache_reused_blocks": ("kv_cache_reused_block",),
    "cum_log_probs": ("cumulative_logprob",),
    "sequence_index": (),
}


def test_the_map_of_one_generation_by_hand(made, catalog):
    """llama2-lora-0.16 against names that were looked up by hand, old and new."""
    data = client_data(made("llama2-lora-0.16").setup, made("llama2-lora-0.16").spec, catalog)
    lines = {line.old: line.new for line in data.fields}
    assert {old_name: lines[old_name] for old_name in GOLDEN} == GOLDEN


@pytest.mark.parametrize(
    ("name", "told", "not_told"),
    [
        ("llama2-lora-0.16", ["**Echo.**", "**Errors.**"], ["Streams are", "Special tokens"]),
        ("mistral-orchestrator-1.0", ["Streams are deltas now"], ["**Echo.**"]),
        ("llama31-fp8-0.21", ["Streams are deltas on both sides"], ["**Echo.**", "Special tokens"]),
        ("llama31-awq-0.18", ["Special tokens of the prompt"], ["Special tokens of the answer"]),
        ("smollm-odd-1.2", ["Special tokens of the prompt", "Special tokens of the answer"], []),
    ],
)
def test_differences_of_answers_are_those_of_the_setup(name, told, not_told, made, catalog):
    text = client_map(made(name).setup, made(name).spec, catalog)
    assert not [words for words in told if words not in text]
    assert not [words for words in not_told if words in text]


@pytest.mark.parametrize("name", old.NAMES)
def test_requests_declare_what_they_send(name, made, new_tensors, catalog):
    """Bodies hold declared names only, shell and Python parse, types and lists are the tensors' own."""
    configs = old.configs(name)
    data = client_data(made(name).setup, made(name).spec, catalog)
    streams = old.setup(name)["streaming"]
    ids = {item.id.rpartition("-")[2] for item in data.exchanges}
    assert ids - {"lora"} == {"whole", "options", *(["stream"] if streams else [])}
    assert ("lora" in ids) is old.setup(name)["lora"]
    for item in data.exchanges:
        declared = {t.name: t for t in configs[item.before.model].input}
        assert set(item.before.body) <= declared.keys()
        assert set(item.after.body) <= new_tensors["inputs"].keys()
        for call in (item.before, item.after):
            words = shlex.split(curl(call))
            body = json.loads(words[words.index("-d") + 1])
            assert {k: v for k, v in body.items() if k != "id"} == dict(call.body)
            ast.parse(tritonclient(call))
        for field, (kind, is_list) in item.after.kinds.items():
            tensor = new_tensors["inputs"][field]
            assert kind.replace("BYTES", "STRING") == tensor["data_type"].removeprefix("TYPE_")
            assert is_list == (list(tensor["dims"]) == [-1]) or field in ("text_input",), field


def test_hostile_names_stay_data(catalog):
    """Names of somebody else's models in a table, a shell line, a URL and Python source."""
    name = "$(rm -rf x)' a`|\n"
    inputs = tuple(
        OldTensor(n, kind, (1,), False, 1)
        for n, kind in (("text_input", "TYPE_STRING"), ("a|b\nc", "${logits_datatype}"))
    )
    model = OldModel("m/config.pbtxt", name, "bls", "python", 4, True, {}, inputs, ())
    setup = OldSetup(old.FIXTURES, (model,), None, None, (), "unknown", None, ())
    spec = {"name": "svc", "targets": [{}]}
    text = client_map(setup, spec, catalog)
    assert "| `a\\|b c` | none |" in text
    (item,) = client_data(setup, spec, catalog).exchanges
    assert shlex.split(curl(item.before))[2] == (
        "localhost:8000/v2/models/%24%28rm%20-rf%20x%29%27%20a%60%7C%0A/generate"
    )
    calls = [
        n for n in ast.walk(ast.parse(tritonclient(item.before))) if isinstance(n, ast.Constant)
    ]
    assert name in [node.value for node in calls]
    plan = ab_data(setup, spec, catalog)
    assert plan.commands["parity"][7] == name
    part = ab_plan(setup, spec, catalog).split("--old-model ")[1].split(" --new ")[0]
    assert shlex.split(part.replace("\\\n", " "))[0] == name


def test_a_setup_without_a_text_model_has_no_requests(catalog):
    model = OldModel(
        "tensorrt_llm/config.pbtxt", "tensorrt_llm", "engine", "tensorrtllm", 4, True, {}, (), ()
    )
    setup = OldSetup(old.FIXTURES, (model,), None, None, (), "unknown", None, ())
    assert "there is no request to show" in client_map(setup, {}, catalog)
    assert "no model that takes text" in ab_plan(setup, {}, catalog)
    assert set(ab_files(setup, {}, catalog)) == {"prompts.jsonl", "parity.py"}
