"""What the old files say in many forms, and what the new spec says for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engineroom.catalog import Catalog
from engineroom.errors import UsageError
from engineroom.pipeline.migrate import migrate
from engineroom.types.migration import Fate, Migration
from tests.conftest import TINY
from tests.migrate.setups import BLS, engine_pbtxt, setting, write_engine, write_repo

Migrate = Callable[..., Migration]

# ---- precision: (options of the converter, SKU, weights, KV cache, fate of the weights)
PRECISION = [
    ("quantize.py --qformat fp8 --kv_cache_dtype fp8", "h100-sxm", "fp8", "fp8", Fate.MOVED),
    ("quantize.py --qformat fp8", "a100-sxm-80gb", "bf16", "auto", Fate.IMPOSSIBLE),
    ("quantize.py --qformat fp8 --dtype float16 --kv_cache_dtype int8", "a100-sxm-80gb", "fp16", "auto",
     Fate.IMPOSSIBLE),
    ("quantize.py --qformat int8_sq", "h100-sxm", "fp8", "auto", Fate.IMPOSSIBLE),
    ("quantize.py --qformat int8_sq --dtype float16", "a100-sxm-80gb", "fp16", "auto", Fate.IMPOSSIBLE),
    ("quantize.py --qformat int4_awq --awq_block_size 64", "l4", "w4a16_awq", "auto", Fate.MOVED),
    ("quantize.py --qformat w4a8_awq --kv_cache_dtype fp8", "l40s", "w4a16_awq", "fp8", Fate.IMPOSSIBLE),
    ("quantize.py --qformat int8_wo", "l4", "fp8", "auto", Fate.IMPOSSIBLE),
    ("quantize.py --qformat int4_wo", "a10g", "w4a16_awq", "auto", Fate.IMPOSSIBLE),
    ("quantize.py --qformat full_prec --dtype float16", "l4", "fp16", "auto", Fate.MOVED),
    ("quantize.py --autoq_format fp8,int4_awq --auto_quantize_bits 6", "l4", "fp8", "auto", Fate.IMPOSSIBLE),
    ("convert_checkpoint.py --use_fp8", "l4", "fp8", "auto", Fate.MOVED),
    ("convert_checkpoint.py --use_fp8_rowwise --fp8_kv_cache", "h100-sxm", "fp8", "fp8", Fate.IMPOSSIBLE),
    ("convert_checkpoint.py --smoothquant 0.5 --per_token --int8_kv_cache", "l40s", "fp8", "fp8",
     Fate.IMPOSSIBLE),
    ("convert_checkpoint.py --use_weight_only --weight_only_precision int4", "l4", "w4a16_awq", "auto",
     Fate.IMPOSSIBLE),
    ("convert_checkpoint.py --use_weight_only", "l4", "fp8", "auto", Fate.IMPOSSIBLE),
    ("convert_checkpoint.py --use_weight_only --weight_only_precision=int4_gptq", "l4", "w4a16_awq", "auto",
     Fate.IMPOSSIBLE),
]  # fmt: skip


@pytest.mark.parametrize(("call", "sku", "weights", "kv", "fate"), PRECISION)
def test_precision_of_converters(
    call: str, sku: str, weights: str, kv: str, fate: Fate, run: Migrate
) -> None:
    done = run(script=f"python3 {call} --model_dir /m --output_dir /c\n", sku=sku)
    assert (done.spec["precision"]["weights"], done.spec["precision"]["kv_cache"]) == (weights, kv)
    rows = [s for s in done.settings if s.new_key == "precision.weights" and "--dtype" not in s.key]
    assert {s.fate for s in rows} == {fate}
    assert ("calibration" in done.spec) == (weights not in ("bf16", "fp16") or kv != "auto")
    assert done.passes, done.findings


ALGOS = [
    ("FP8", "FP8", "fp8", "fp8"), ("W4A16_AWQ", None, "w4a16_awq", "auto"), ("W4A8_AWQ", None, "w4a16_awq", "auto"),
    ("W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "INT8", "fp8", "fp8"), ("W8A16", None, "fp8", "auto"),
    ("FP8_PER_CHANNEL_PER_TOKEN", None, "fp8", "auto"), ("W4A8_QSERVE_PER_GROUP", None, "w4a16_awq", "auto"),
    ("MIXED_PRECISION", "FP8", "fp8", "fp8"), (None, None, "fp16", "auto"), (None, "FP8", "fp16", "fp8"),
]  # fmt: skip


@pytest.mark.parametrize(("algo", "kv_algo", "weights", "kv"), ALGOS)
def test_precision_of_engines(
    algo: str | None, kv_algo: str | None, weights: str, kv: str, run: Migrate
) -> None:
    quantization = {"quantization": {"quant_algo": algo, "kv_cache_quant_algo": kv_algo}}
    done = run(engine={"pretrained_config": quantization})
    assert (done.spec["precision"]["weights"], done.spec["precision"]["kv_cache"]) == (weights, kv)


# ---- the engine lane's parameters: (key, text, spec key, value, fate)
PARAMETERS: list[tuple[str, str, str | None, Any, Fate]] = [
    ("kv_cache_free_gpu_mem_fraction", "0.5", "kv_cache_free_gpu_mem_fraction", 0.5, Fate.KEPT),
    ("kv_cache_free_gpu_mem_fraction", "95%", "kv_cache_free_gpu_mem_fraction", None, Fate.REDEFAULTED),
    ("batch_scheduler_policy", "max_utilization", "scheduler_policy", "max_utilization", Fate.RENAMED),
    ("batch_scheduler_policy", "guaranteed_completion", "scheduler_policy", None, Fate.REDEFAULTED),
    ("enable_kv_cache_reuse", "true", "kv_block_reuse", True, Fate.RENAMED),
    ("enable_kv_cache_reuse", "False", "kv_block_reuse", False, Fate.RENAMED),
    ("enable_chunked_context", "TRUE", "chunked_context", True, Fate.RENAMED),
    ("exclude_input_in_output", "false", None, True, Fate.REDEFAULTED),
    ("decoding_mode", "top_k_top_p", None, None, Fate.MOVED),
    ("decoding_mode", "medusa", None, None, Fate.IMPOSSIBLE),
    ("num_nodes", "1", None, None, Fate.REDEFAULTED),
    ("num_nodes", "2", None, None, Fate.IMPOSSIBLE),
    ("gpu_weights_percent", "1.0", None, None, Fate.REDEFAULTED),
    ("gpu_weights_percent", "0.4", None, None, Fate.IMPOSSIBLE),
    ("kv_cache_host_memory_bytes", "0", None, None, Fate.REDEFAULTED),
    ("kv_cache_host_memory_bytes", "45000000000", None, 45000000000, Fate.RENAMED),
    ("max_tokens_in_paged_kv_cache", "2560", None, 2560, Fate.RENAMED),
    ("max_tokens_in_paged_kv_cache", "all", None, None, Fate.REDEFAULTED),
    ("multi_block_mode", "maybe", None, None, Fate.REDEFAULTED),
    ("max_num_sequences", "64", None, 16, Fate.MOVED),
    ("enable_trt_overlap", "false", None, None, Fate.REDEFAULTED),
    ("guided_decoding_backend", "outlines", None, "off", Fate.REDEFAULTED),
    ("participant_ids", "1,2", None, None, Fate.MOVED),
    ("cross_kv_cache_fraction", "0.5", None, None, Fate.IMPOSSIBLE),
    ("my_own_parameter", "7", None, None, Fate.LEFTOVER),
    ("medusa_choices", "", None, None, Fate.LEFTOVER),
    ("kv_cache_free_gpu_mem_fraction", "${kv_cache_free_gpu_mem_fraction}", "kv_cache_free_gpu_mem_fraction",
     None, Fate.LEFTOVER),
]  # fmt: skip


def _group(row: tuple[Any, ...]) -> int:
    """Rows of one key go into different repositories."""
    before = PARAMETERS[: PARAMETERS.index(row)]
    return sum(other[0] == row[0] for other in before)


@pytest.fixture(scope="module")
def grouped(
    tmp_path_factory: pytest.TempPathFactory, catalog: Catalog
) -> Callable[[int], Migration]:
    """The migration of a repository with all parameters of a group; made once."""

    @cache
    def get(group: int) -> Migration:
        folder = tmp_path_factory.mktemp(f"group{group}")
        values = {row[0]: row[1] for row in PARAMETERS if _group(row) == group}
        models = {"tensorrt_llm": engine_pbtxt(values), "tensorrt_llm_bls": BLS}
        return migrate(
            write_repo(folder / "old", models), engine=write_engine(folder / "engine"), sku="h100-sxm",
            model=str(TINY), out=folder / "new", catalog=catalog,
        )  # fmt: skip

    return get


@pytest.mark.parametrize("row", PARAMETERS, ids=lambda row: f"{row[0]}={row[1]}")
def test_parameters_of_the_engine_model(
    row: tuple[str, str, str | None, Any, Fate], grouped: Callable[[int], Migration]
) -> None:
    key, _, spec_key, value, fate = row
    done = grouped(_group(row))
    found = setting(done, f"parameters.{key}")
    assert found.fate is fate, found.what
    if spec_key is not None and value is not None:
        assert done.spec["serving"][spec_key] == value
        assert found.new_value == value
    elif spec_key is not None:
        assert spec_key not in done.spec["serving"]
    elif value is not None:
        assert found.new_value == value
    assert done.passes, done.findings


@pytest.mark.parametrize(
    ("backend", "text", "value"),
    # C++ compares with eight words, Python with `1` and `true`: deploy/support/triton_parameters.yaml.
    [("tensorrtllm", "yes", None), ("tensorrtllm", "1", True), ("python", "yes", False), ("python", "True", True)],
)  # fmt: skip
def test_booleans_are_read_as_their_reader_does(
    backend: str, text: str, value: bool | None, run: Migrate
) -> None:
    config = engine_pbtxt({"enable_chunked_context": text}).replace('"tensorrtllm"', f'"{backend}"')
    assert run({"tensorrt_llm": config}).spec["serving"].get("chunked_context") is value


def test_defaults_of_the_old_release_are_kept(run: Migrate) -> None:
    """0.19 began to share KV blocks unless told not to."""
    assert run(engine={"version": "0.18.2"}).spec["serving"]["kv_block_reuse"] is False
    assert "kv_block_reuse" not in run(engine={"version": "0.19.0"}).spec["serving"]
    assert run().spec["serving"]["kv_block_reuse"] is False  # and nothing says that it is newer


# ---- limits and GPUs
def test_limits_without_an_engine_come_from_the_script(run: Migrate) -> None:
    done = run(script="trtllm-build --checkpoint_dir c --output_dir e --max_batch_size=32 --max_seq_len 4096 \\\n"
               "  --max_num_tokens 2048 --max_beam_width 2\n")  # fmt: skip
    assert done.spec["targets"][0]["limits"] == {
        "max_batch_size": 32, "max_num_tokens": 2048, "max_seq_len": 4096
    }  # fmt: skip


def test_prompt_and_answer_of_old_builds_make_the_length(run: Migrate) -> None:
    done = run(script="trtllm-build --output_dir e --max_input_len 3000 --max_output_len 1000\n")
    assert done.spec["targets"][0]["limits"]["max_seq_len"] == 4000


def test_engine_holds_where_the_script_says_otherwise(run: Migrate) -> None:
    done = run(engine={}, script="trtllm-build --output_dir /engines/e --max_batch_size 999\n")
    assert done.spec["targets"][0]["limits"]["max_batch_size"] == 16
    assert "16, which holds" in setting(done, "trtllm-build[0].--max_batch_size").what


def test_beams_are_what_the_engine_was_built_for(run: Migrate) -> None:
    repo = {"tensorrt_llm": engine_pbtxt({"max_beam_width": "8"})}
    done = run(repo, engine={"build_config": {"max_beam_width": 4, "max_num_tokens": 4096}})
    assert done.spec["targets"][0]["limits"]["max_beam_width"] == 4


def test_batch_is_never_above_the_tokens_of_a_step(run: Migrate) -> None:
    done = run(engine={"build_config": {"max_batch_size": 2048, "max_num_tokens": 512}})
    assert done.spec["targets"][0]["limits"]["max_batch_size"] == 512
    assert done.passes


@pytest.mark.parametrize(
    ("text", "ids", "tensor", "fate"),
    [("0,1;2,3", [[0, 1], [2, 3]], 2, Fate.MOVED), ("4,5", [[4, 5]], 2, Fate.MOVED),
     ("0,1;1,2", None, 2, Fate.REDEFAULTED), ("0;1,2", None, 1, Fate.REDEFAULTED)],
)  # fmt: skip
def test_gpus_of_instances(
    text: str, ids: list[list[int]] | None, tensor: int, fate: Fate, run: Migrate
) -> None:
    done = run({"tensorrt_llm": engine_pbtxt({"gpu_device_ids": text})})
    target = done.spec["targets"][0]
    assert (target.get("gpu_device_ids"), target.get("tensor_parallel", 1)) == (ids, tensor)
    assert setting(done, "parameters.gpu_device_ids").fate is fate


def test_experts_over_ranks(run: Migrate) -> None:
    script = "python3 convert_checkpoint.py --model_dir a/moe --output_dir c --tp_size 4 --moe_ep_size {}\n"
    done = run(script=script.format(2), model="a/moe")
    assert done.spec["targets"][0]["llmapi"] == {"moe_expert_parallel_size": 2}
    assert "llmapi" not in run(script=script.format(3), model="a/moe").spec["targets"][0]


def test_more_gpus_than_a_node_has_are_asked_about(run: Migrate) -> None:
    mapping = {"mapping": {"world_size": 16, "tp_size": 8, "pp_size": 2}}
    done = run(engine={"pretrained_config": mapping}, model="a/b")
    assert not done.passes
    assert any("16 GPUs" in text for text in done.missing)


def test_sku_of_the_cluster_key(run: Migrate) -> None:
    built = {"build_config": {"auto_parallel_config": {"cluster_key": "A100-SXM-80GB"}}}
    done = run(engine=built, sku=None)
    assert done.spec["targets"][0]["sku"] == "a100-sxm-80gb"
    assert (
        setting(done, "build_config.auto_parallel_config.cluster_key").new_value == "a100-sxm-80gb"
    )
    assert run(engine=built, sku="l4").spec["targets"][0]["sku"] == "l4"


def test_stack_may_be_a_release_or_a_version(run: Migrate) -> None:
    assert run().spec["targets"][0]["stack"] == "26.07"
    assert run(stack="26.04").spec["targets"][0]["stack"] == "26.04"
    assert run(stack="1.4.0rc4").spec["targets"][0]["stack"] == {"trtllm": "1.4.0rc4"}


# ---- drafting, LoRA, logits
DRAFT_SCRIPT = """
python3 convert_checkpoint.py --model_dir {draft} --output_dir /c/draft --dtype float16
python3 convert_checkpoint.py --model_dir /m/target --output_dir /c/target --dtype float16
trtllm-build --checkpoint_dir /c/draft --output_dir /engines/draft --max_batch_size 4 --max_seq_len 512
trtllm-build --checkpoint_dir /c/target --output_dir /engines/e --max_batch_size 8 --max_seq_len 1024 \\
  --speculative_decoding_mode draft_tokens_external --max_draft_len 10
"""


def _two_engines() -> dict[str, str]:
    names = {
        "tensorrt_llm_model_name": "tensorrt_llm",
        "tensorrt_llm_draft_model_name": "tensorrt_llm_draft",
    }
    bls = BLS + "".join(
        f'parameters: {{ key: "{k}" value: {{ string_value: "{v}" }} }}\n' for k, v in names.items()
    )
    draft = engine_pbtxt({"gpt_model_path": "/engines/draft"}).replace(
        '"tensorrt_llm"', '"tensorrt_llm_draft"'
    )
    return {"tensorrt_llm": engine_pbtxt(), "tensorrt_llm_draft": draft, "tensorrt_llm_bls": bls}


def test_draft_model_follows_its_engine(run: Migrate) -> None:
    done = run(_two_engines(), script=DRAFT_SCRIPT.format(draft=TINY))
    assert done.spec["serving"]["features"]["speculative"] == {
        "mode": "draft_target", "max_draft_tokens": 10, "draft_model": str(TINY)
    }  # fmt: skip
    assert done.spec["targets"][0]["limits"] == {"max_batch_size": 8, "max_seq_len": 1024}
    assert setting(done, "parameters.tensorrt_llm_draft_model_name").fate is Fate.MOVED
    assert done.passes, done.findings


def test_draft_model_that_is_not_here_is_asked_for(run: Migrate) -> None:
    done = run(_two_engines(), script=DRAFT_SCRIPT.format(draft="/m/draft"))
    assert "features" not in done.spec["serving"]
    found = setting(done, "trtllm-build[1].--speculative_decoding_mode")
    assert found.fate is Fate.IMPOSSIBLE
    assert "draft_target" in found.todo


@pytest.mark.parametrize("mode", [4, 8, 16, 32, "MEDUSA"])
def test_heads_in_the_engine_are_impossible(mode: Any, run: Migrate) -> None:
    done = run(engine={"build_config": {"speculative_decoding_mode": mode, "max_draft_len": 63}})
    assert setting(done, "build_config.speculative_decoding_mode").fate is Fate.IMPOSSIBLE
    assert done.passes


def test_adapters_that_are_here_are_listed(run: Migrate, tmp_path: Path) -> None:
    adapter = tmp_path / "my adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 8, "target_modules": ["q_proj", "v_proj"]}'
    )
    script = (
        f"trtllm-build --output_dir /engines/e --lora_plugin auto --max_lora_rank 16 --lora_dir '{adapter}' /gone \\\n"
        "  --lora_target_modules attn_q attn_v\n"
    )
    done = run(script=script)
    lora = done.spec["serving"]["features"]["lora"]
    assert lora["max_rank"] == 16
    assert lora["target_modules"] == ["attn_q", "attn_v"]
    assert lora["adapters"] == [{"name": "my-adapter", "source": str(adapter), "task_id": 1}]
    assert "/gone" in "\n".join(done.notes)
    assert done.passes, done.findings


def test_logits_of_the_build(run: Migrate) -> None:
    done = run(engine={"build_config": {"gather_generation_logits": True}})
    assert done.spec["serving"]["features"] == {"generation_logits": True}
    both = run(script="trtllm-build --output_dir /engines/e --gather_all_token_logits\n")
    assert both.spec["serving"]["features"] == {"context_logits": True, "generation_logits": True}


def test_encoder_decoder_models_stay(run: Migrate) -> None:
    done = run({"tensorrt_llm": engine_pbtxt({"encoder_model_path": "/engines/encoder"})})
    assert not done.passes
    assert any("encoder-decoder" in text for text in done.missing)
    assert setting(done, "parameters.encoder_model_path").fate is Fate.IMPOSSIBLE


# ---- placeholders and the calls that fill them
TEMPLATE = engine_pbtxt(
    {"max_beam_width": "${max_beam_width}"}, decoupled="${decoupled_mode}"
).replace("max_batch_size: 8", "max_batch_size: ${triton_max_batch_size}")


def test_placeholders_that_nobody_fills(run: Migrate) -> None:
    done = run({"tensorrt_llm": TEMPLATE})
    found = setting(done, "model_transaction_policy.decoupled")
    assert found.fate is Fate.LEFTOVER
    assert "could not read this file" in found.what
    assert "streaming" not in done.spec["serving"]
    assert setting(done, "max_batch_size").fate is Fate.LEFTOVER
    beams = setting(done, "parameters.max_beam_width")
    assert beams.fate is Fate.LEFTOVER
    assert "default 1" in beams.what


def test_placeholders_that_the_script_fills(run: Migrate) -> None:
    script = (
        "F='tools/fill_template.py'\nB=4\n"
        'python3 $F -i repo/tensorrt_llm/config.pbtxt "triton_max_batch_size:$B,decoupled_mode:True,'
        'max_beam_width:2,gpu_device_ids:0\\,1"\n'
    )
    done = run({"tensorrt_llm": TEMPLATE}, script=script)
    assert done.spec["serving"]["streaming"] is True
    assert done.spec["targets"][0]["limits"]["max_beam_width"] == 2
    assert done.setup.models[0].max_batch_size == 4
    assert done.setup.models[0].filled["gpu_device_ids"] == "0,1"
    assert "decoupled_mode = True" in setting(done, "model_transaction_policy.decoupled").what


# ---- the model
def test_model_of_the_script(run: Migrate) -> None:
    done = run(
        script=f'M={TINY}\npython3 convert_checkpoint.py --model_dir "$M" --output_dir c\n',
        model=None,
    )
    assert done.spec["model"]["source"] == str(TINY)
    assert done.spec["name"] == "tiny-llama"


def test_model_of_the_tokenizer(run: Migrate) -> None:
    bls = BLS + f'parameters: {{ key: "tokenizer_dir" value: {{ string_value: "{TINY}" }} }}\n'
    done = run({"tensorrt_llm": engine_pbtxt(), "tensorrt_llm_bls": bls}, model=None)
    assert done.spec["model"]["source"] == str(TINY)
    assert "weights" in "\n".join(done.notes)
    assert done.passes


def test_tokenizer_of_its_own_is_kept(run: Migrate, tmp_path: Path) -> None:
    own = tmp_path / "tokenizer"
    own.mkdir()
    bls = BLS + f'parameters: {{ key: "tokenizer_dir" value: {{ string_value: "{own}" }} }}\n'
    done = run({"tensorrt_llm": engine_pbtxt(), "tensorrt_llm_bls": bls})
    assert done.spec["model"] == {"source": str(TINY), "tokenizer": str(own)}


def test_hub_id_of_the_script(run: Migrate) -> None:
    done = run(
        script="python3 convert_checkpoint.py --model_dir Qwen/Qwen3-8B --output_dir c\n",
        model=None,
    )
    assert done.spec["model"]["source"] == "Qwen/Qwen3-8B"
    assert done.passes


def test_model_that_is_not_here_is_asked_for_and_the_rest_is_checked(run: Migrate) -> None:
    script = "python3 quantize.py --model_dir /no/such --qformat fp8 --output_dir c\n"
    done = run(script=script, model=None)
    assert done.spec["model"]["source"] == "/no/such"
    assert [text.split(":")[0] for text in done.missing] == ["model.source"]
    assert "unknown-model-shape" in {f["code"] for f in done.findings}
    assert not done.passes
    nothing = run(model=None)
    assert nothing.spec["model"]["source"] == "FILL-IN"
    assert not nothing.passes


JUNK: list[Any] = [None, True, -1, 0, 3.5, 10**30, "", "x", "FP8", [], [1], {}, {"a": {"b": []}}]
PLACES = [
    ("version",), ("pretrained_config",), ("build_config",), ("pretrained_config", "dtype"),
    ("pretrained_config", "mapping"), ("pretrained_config", "mapping", "tp_size"),
    ("pretrained_config", "quantization"), ("pretrained_config", "quantization", "quant_algo"),
    ("pretrained_config", "quantization", "kv_cache_quant_algo"),
    ("pretrained_config", "quantization", "group_size"), ("build_config", "max_batch_size"),
    ("build_config", "max_seq_len"), ("build_config", "max_beam_width"), ("build_config", "lora_config"),
    ("build_config", "lora_config", "lora_target_modules"), ("build_config", "lora_config", "max_lora_rank"),
    ("build_config", "plugin_config"), ("build_config", "plugin_config", "lora_plugin"),
    ("build_config", "speculative_decoding_mode"), ("build_config", "gather_context_logits"),
    ("build_config", "auto_parallel_config"), ("build_config", "auto_parallel_config", "cluster_key"),
]  # fmt: skip


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(p, id=".".join(p), marks=() if i % 8 == 4 else pytest.mark.full)
        for i, p in enumerate(PLACES)
    ],
)
def test_odd_values_in_an_engine_give_a_report_or_one_error(
    place: tuple[str, ...], run: Migrate
) -> None:
    """Whatever stands there: a report with every value, or an error of the usage class."""
    for junk in JUNK:
        data: dict[str, Any] = {"pretrained_config": {}, "build_config": {}}
        here = data
        for name in place[:-1]:
            here = here.setdefault(name, {})
        here[place[-1]] = junk
        try:
            done = run(engine=data)
        except UsageError:
            continue
        assert len(done.settings) == len(done.setup.leaves)
        assert done.passes or done.missing or done.findings


def test_what_no_file_says_is_noted(run: Migrate) -> None:
    notes = "\n".join(run().notes)
    assert "precision.weights is bf16: no file says" in notes
    assert "targets[0].limits: no file says all of them" in notes
    assert "no file says" not in "\n".join(run(engine={}).notes)
