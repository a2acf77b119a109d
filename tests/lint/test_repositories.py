"""`lint` over whole model repositories: our own, and what the rules say about others."""

from __future__ import annotations

from pathlib import Path

import pytest

from engineroom.catalog import Catalog
from engineroom.checks.evidence import Context, judge
from engineroom.names import Severity, Topic
from engineroom.pipeline import lint
from engineroom.reading import Evidence
from tests.lint.full_config import full_text

GOLDEN = Path(__file__).parents[1] / "render/golden"
CATALOG = Catalog()
ENGINE = 'backend: "tensorrtllm"\n'


def param(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def figures(topic: Topic, **parts):
    return judge(Context(Evidence.model_validate(parts), CATALOG), (topic,))


def config(text: str, name: str = "tensorrt_llm"):
    return {"path": f"{name}/config.pbtxt", "text": text}


def worst(findings) -> str:
    rank = min((f.severity.rank for f in findings), default=2)
    return ("error", "warn", "ok")[rank]


@pytest.mark.parametrize("lane", ["engine", "llmapi"])
def test_our_own_repositories_are_sound(lane: str) -> None:
    report = lint([GOLDEN / lane])
    assert [f for f in report.findings if f.severity is not Severity.INFO] == []
    assert report.files


# ---- silent fallback: one word, several readers
@pytest.mark.parametrize(
    ("text", "verdict", "effective"),
    [("true", "ok", True), ("TRUE", "ok", True), ("tRuE", "error", False), ("yes", "error", False),
     ("1", "ok", True), ("off", "error", False), ("", "ok", False)],
)  # fmt: skip
def test_boolean_of_the_cpp_backend(text: str, verdict: str, effective: bool) -> None:
    _, found = figures(
        Topic.SILENT_FALLBACK,
        triton_configs=[config(ENGINE + param("enable_chunked_context", text))],
    )
    field = found["fields"]["parameters.enable_chunked_context"]
    assert (field["verdict"], field["effective"]) == (verdict, effective)


@pytest.mark.parametrize(
    ("model", "key", "text", "verdict", "effective"),
    [
        ("preprocessing", "add_special_tokens", "Yes", "ok", True),
        ("preprocessing", "add_special_tokens", "on", "error", True),
        ("postprocessing", "skip_special_tokens", "f", "ok", False),
        ("postprocessing", "skip_special_tokens", "off", "error", True),
        ("tensorrt_llm_bls", "accumulate_tokens", "yes", "ok", True),
        ("tensorrt_llm_bls", "accumulate_tokens", "y", "error", False),
    ],
)
def test_boolean_of_the_python_models(model, key, text, verdict, effective) -> None:
    _, found = figures(
        Topic.SILENT_FALLBACK,
        triton_configs=[config('backend: "python"\n' + param(key, text), model)],
    )
    field = found["fields"][f"parameters.{key}"]
    assert (field["verdict"], field["effective"]) == (verdict, effective)


@pytest.mark.parametrize(
    ("key", "text", "verdict", "effective", "right"),
    [
        ("max_tokens_in_paged_kv_cache", "1e6", "error", 1, 1_000_000),
        ("max_tokens_in_paged_kv_cache", "8192.0", "ok", 8192, None),
        ("max_tokens_in_paged_kv_cache", "3000000000", "error", None, 3_000_000_000),
        ("kv_cache_free_gpu_mem_fraction", "0,85", "error", None, 0.85),
        ("kv_cache_free_gpu_mem_fraction", "90%", "error", None, 0.9),
        ("kv_cache_free_gpu_mem_fraction", "auto", "error", 0.9, None),
        ("kv_cache_host_memory_bytes", "20GiB", "error", 20, 20 * 2**30),
        ("kv_cache_host_memory_bytes", "-1", "error", 2**64 - 1, -1),
        ("max_beam_width", "0", "error", None, None),
        (
            "batch_scheduler_policy",
            "MAX_UTILIZATION",
            "error",
            "guaranteed_no_evict",
            "max_utilization",
        ),
        ("gpt_model_type", "inflight", "error", None, "inflight_batching"),
        ("decoding_mode", "auto", "error", None, None),
        ("gpu_device_ids", "0,1;a", "error", "0,1", None),
    ],
)
def test_other_values_of_the_cpp_backend(key, text, verdict, effective, right) -> None:
    _, found = figures(Topic.SILENT_FALLBACK, triton_configs=[config(ENGINE + param(key, text))])
    field = found["fields"][f"parameters.{key}"]
    assert field["verdict"] == verdict
    assert field.get("effective") == effective
    if right is not None:
        assert field["right"] == pytest.approx(right) if isinstance(right, float) else right


def test_the_python_runtime_reads_the_same_words_otherwise() -> None:
    text = (
        'backend: "python"\n'
        + param("gpt_model_path", "/e")
        + param("enable_kv_cache_reuse", "yes")
    )
    text += param("batch_scheduler_policy", "Max_Utilization") + param("max_beam_width", "${w}")
    _, found = figures(Topic.SILENT_FALLBACK, triton_configs=[config(text)])
    fields = found["fields"]
    assert fields["parameters.enable_kv_cache_reuse"]["effective"] is False
    assert fields["parameters.batch_scheduler_policy"]["verdict"] == "ok"
    assert fields["parameters.max_beam_width"]["server"] == "ignores"


def test_a_template_name_used_as_key_is_not_read() -> None:
    findings, _ = figures(
        Topic.SILENT_FALLBACK, triton_configs=[config(ENGINE + param("engine_dir", "/e"))]
    )
    assert [f.code for f in findings] == ["parameter-not-read"]
    assert "gpt_model_path" in findings[0].reason


def test_lower_case_policy_of_the_llm_api_is_refused_not_replaced() -> None:
    args = {"scheduler_config": {"capacity_scheduler_policy": "max_utilization"}}
    findings, found = figures(Topic.SILENT_FALLBACK, model_yaml=args, triton_family="llmapi")
    field = found["fields"]["scheduler_config.capacity_scheduler_policy"]
    assert (field["verdict"], field["server"], field["right"]) == (
        "error",
        "refuses",
        "MAX_UTILIZATION",
    )
    assert "does not start" in findings[0].reason


# ---- templates
TEMPLATE = (
    "max_batch_size: ${b}\nmodel_transaction_policy { decoupled: ${d} }\n"
    'backend: "${backend}"\noutput [ { name: "context_logits" data_type: ${l} dims: [ -1 ] } ]\n'
    "instance_group [ { count: ${n} kind: KIND_CPU } ]\n"
)


@pytest.mark.parametrize(
    ("values", "missing", "rights"),
    [
        ({"b": 64, "d": False, "backend": "tensorrtllm", "l": "TYPE_FP32", "n": 1}, [], {}),
        ({"b": "64", "d": "t", "backend": "python", "l": "TYPE_FP16", "n": "01"}, [], {}),
        ({"b": "64.0", "d": "yes", "backend": "tensorrt_llm", "l": "torch.float16", "n": 0}, [],
         {"b": 64, "d": True, "backend": "tensorrtllm", "l": "TYPE_FP16", "n": 1}),
        ({"b": 64}, ["d", "backend", "l", "n"],
         {"d": False, "backend": "tensorrtllm", "l": "TYPE_FP32", "n": 1}),
        ({"b": "many", "d": True, "backend": "tensorrtllm", "l": "bytes", "n": "two"}, [],
         {"b": 32, "l": "TYPE_STRING", "n": 1}),
    ],
)  # fmt: skip
def test_fill_values(values, missing, rights) -> None:
    findings, found = figures(
        Topic.TEMPLATE_FILL,
        triton_template={"path": "tensorrt_llm/config.pbtxt", "text": TEMPLATE},
        fill_values=values,
        engine_config={
            "build_config": {"max_batch_size": 32},
            "pretrained_config": {"dtype": "bfloat16"},
        },
    )
    assert sorted(found["missing_placeholders"]) == sorted(missing)
    assert found["fill_values_right"] == rights
    assert bool(rights) is (worst(findings) == "error")


# ---- layout and launch
def test_two_models_get_ranks_in_turn_and_a_sound_layout_stays() -> None:
    def ids(*texts: str, ranks: int):
        return figures(
            Topic.MPI_LAUNCH,
            launch={"mode": "orchestrator", "spawn_processes": False, "mpi_ranks": ranks},
            engine_config={"pretrained_config": {"mapping": {"tp_size": 2, "pp_size": 2}}},
            triton_configs=[config(ENGINE + param("participant_ids", t), f"m{i}") for i, t in enumerate(texts)],
        )  # fmt: skip

    findings, found = ids("0,1,2,3", "4,5,6,7", ranks=8)
    assert found["participant_ids"] == ["1,2,3,4", "5,6,7,8"]
    assert found["mpi_ranks"] == 9
    assert worst(findings) == "error"
    findings, found = ids("5,6,7,8", "1,2,3,4", ranks=9)
    assert (findings, found["participant_ids"]) == ([], ["5,6,7,8", "1,2,3,4"])


@pytest.mark.parametrize(
    ("argv", "world", "verdict"),
    [
        (["launch_triton_server.py", "--world_size", "4", "--model_repo=r"], 4, "ok"),
        (["launch_triton_server.py", "--world_size=1"], 4, "error"),
        (["launch_triton_server.py", "--multi-model"], 4, "ok"),
        (["launch_triton_server.py", "--multi-model", "--world_size", "4"], 4, "error"),
        (["launch_triton_server.py", "--multi-model", "--disable-spawn-processes", "--world_size", "5"], 4, "ok"),
        (["mpirun", "-np", "4", "--allow-run-as-root", "tritonserver"], 4, "ok"),
    ],
)  # fmt: skip
def test_ranks_from_the_command_line(argv, world, verdict) -> None:
    findings, _ = figures(
        Topic.MPI_LAUNCH, launch={"argv": argv},
        engine_config={"pretrained_config": {"mapping": {"tp_size": world}}},
    )  # fmt: skip
    assert worst(findings) == verdict


def test_gpu_sets_keep_what_is_sound() -> None:
    def sets(text: str, count: int, gpus: int):
        groups = f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]\n"
        return figures(
            Topic.PARALLEL_LAYOUT, node={"gpu_count": gpus},
            engine_config={"pretrained_config": {"mapping": {"tp_size": 2}}},
            triton_configs=[config(ENGINE + groups + param("gpu_device_ids", text))],
        )  # fmt: skip

    findings, found = sets("2,3", 2, 4)
    assert found["gpu_device_ids"] == "2,3;0,1"
    assert worst(findings) == "error"
    findings, found = sets("0,1", 2, 2)
    assert found["instance_group"] == [{"kind": "KIND_CPU", "count": 1}]
    assert sets("3,2;0,1", 2, 4)[0] == []


# ---- requests
def test_bls_and_batches() -> None:
    bls = config("instance_group [ { count: 64 kind: KIND_CPU } ]\n", "tensorrt_llm_bls")
    engine = {"build_config": {"max_batch_size": 64}}
    findings, found = figures(
        Topic.BATCHING, triton_configs=[bls], engine_config=engine, load={"concurrency": 500},
        requests=[{"model": "tensorrt_llm_bls"}],
    )  # fmt: skip
    assert (findings, found["bls_instance_count"]) == ([], 64)


@pytest.mark.parametrize(
    ("plugins", "chunked", "longest"),
    [
        ({}, "false", 2048),
        ({"use_paged_context_fmha": True}, "true", 8191),
        ({"use_paged_context_fmha": False}, "true", 2048),
        ({"context_fmha": False}, "false", 8191),
    ],
)
def test_longest_prompt_of_an_engine(plugins, chunked, longest) -> None:
    _, found = figures(
        Topic.SEQUENCE_LIMITS,
        engine_config={"build_config": {"max_seq_len": 8192, "max_num_tokens": 2048, "plugin_config": plugins}},
        triton_configs=[config(ENGINE + param("enable_chunked_context", chunked))],
    )  # fmt: skip
    assert found["max_prompt_tokens"] == longest


def test_tokens_of_a_later_engine_after_a_cap() -> None:
    """A cap in tokens counts in bytes where the model's sizes are known."""
    hf = {
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
    }
    _, found = figures(
        Topic.KV_CACHE, hf_config=hf, spec={"kv_cache": "fp16"}, gpu={"memory_mib": 40960},
        memory={"engine_bytes": 10 * 2**30}, launch={"load_order": ["b", "a"]},
        triton_configs=[config(ENGINE, "a"),
                        config(ENGINE + param("max_tokens_in_paged_kv_cache", "8192"), "b")],
    )  # fmt: skip
    each = 2 * 32 * 8 * 128 * 2
    assert found["free_bytes_for_model"] == {"b": 40 * 2**30, "a": 30 * 2**30 - 8192 * each}


def test_stop_words_tensor_layout() -> None:
    _, found = figures(Topic.TOKENISATION, requests=[{"stop_words_ids": [[[1, 2], [3]], [[4]]]}])
    assert found["stop_words_tensor"] == [[[1, 2, 3], [2, 3, -1]], [[4, 0, 0], [1, -1, -1]]]


def test_a_complete_config_of_a_new_backend_needs_three_more_parameters() -> None:
    text = full_text().replace('key: "guided_decoding_backend"', 'key: "other"')
    for version, codes in (("1.2.1", ["required-parameter-absent"]), ("0.18.0", [])):
        findings, _ = figures(
            Topic.TEMPLATE_FILL,
            triton_configs=[config(text)],
            stack={"tensorrt_llm_version": version},
        )
        assert [f.code for f in findings] == codes


def test_processes_of_a_log_that_load_everything() -> None:
    line = 'I0223 11:55:15.5359{p} {p} model_lifecycle.cc:472] "loading: {m}:1"'
    both = "\n".join(
        line.format(p=p, m=m) for p in (120, 121) for m in ("tensorrt_llm", "preprocessing")
    )
    findings, _ = figures(Topic.MPI_LAUNCH, log=both)
    assert [f.code for f in findings] == ["rank-loads-other-models"]
    assert "preprocessing" in findings[0].reason
    sound = "\n".join(
        line.format(p=p, m=m)
        for p, m in ((120, "tensorrt_llm"), (121, "tensorrt_llm"), (120, "preprocessing"))
    )
    assert figures(Topic.MPI_LAUNCH, log=sound)[0] == []


def test_ranks_named_by_an_assertion() -> None:
    log = (
        "[TensorRT-LLM][INFO] MPI size: 1, rank: 0\nAssertion failed: mpiSize == tp * pp (1 != 4)\n"
    )
    findings, found = figures(Topic.MPI_LAUNCH, log=log, launch={"mode": "leader"})
    assert (found["world_size"], found["mpi_ranks"]) == (4, 4)
    assert [f.code for f in findings] == ["mpi-rank-count"]


def test_parameters_of_the_engine_in_the_llmapi_family_are_not_read() -> None:
    text = 'backend: "python"\n' + param("enable_kv_cache_reuse", "true") + param("note", "mine")
    findings, _ = figures(
        Topic.SILENT_FALLBACK, triton_family="llmapi", triton_configs=[config(text)]
    )
    assert [(f.code, "enable_block_reuse" in f.fix) for f in findings] == [
        ("parameter-not-read", True)
    ]


@pytest.mark.parametrize(
    ("text", "request_", "verdict"),
    [
        ("true", {"text_is_templated": True, "text_input": "<s>[INST] hi"}, "error"),
        ("true", {"text_is_templated": True}, "warn"),
        ("${a}", {"text_is_templated": True}, "warn"),
        ("false", {"text_is_templated": True}, "ok"),
        ("true", {"text_is_templated": False}, "ok"),
    ],
)
def test_bos_twice(text, request_, verdict) -> None:
    findings, _ = figures(
        Topic.TOKENISATION, tokenizer={"adds_bos": True, "token_ids": {"<s>": 1}}, requests=[request_],
        tokenizer_config={"bos_token": "<s>"},
        triton_configs=[config(param("add_special_tokens", text), "preprocessing")],
    )  # fmt: skip
    assert worst(findings) == verdict
