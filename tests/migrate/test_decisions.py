"""Where old files leave something open or contradict each other: what is taken, and what is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engineroom.types.migration import Fate, Migration
from tests.conftest import TINY
from tests.migrate.setups import BLS, engine_pbtxt, parameters, setting

Migrate = Callable[..., Migration]


# ---- one spec is one service
def _engine(name: str, values: dict[str, str], **more: Any) -> str:
    text = engine_pbtxt({"gpt_model_path": f"/engines/{name}", **values}, **more)
    return text.replace('name: "tensorrt_llm"', f'name: "{name}"')


def _bls(name: str, engine: str, **values: str) -> str:
    named = parameters({"tensorrt_llm_model_name": engine, **values})
    return BLS.replace("tensorrt_llm_bls", name) + named


TWO = {
    "a_engine": _engine(
        "a_engine", {"max_tokens_in_paged_kv_cache": "111", "kv_cache_free_gpu_mem_fraction": "0.3",
                     "max_beam_width": "3", "enable_kv_cache_reuse": "true"}, decoupled="true",
    ),
    "b_engine": _engine("b_engine", {"kv_cache_free_gpu_mem_fraction": "0.7"}),
    "a_bls": _bls("z_bls", "a_engine", accumulate_tokens="true"),
    "b_bls": _bls("b_bls", "b_engine"),
}  # fmt: skip
TWO_BUILDS = """
python3 convert_checkpoint.py --model_dir /m/a --output_dir /c/a --tp_size 4
trtllm-build --checkpoint_dir /c/a --output_dir /engines/a_engine --max_batch_size 7
python3 convert_checkpoint.py --model_dir /m/b --output_dir /c/b --tp_size 2
trtllm-build --checkpoint_dir /c/b --output_dir /engines/b_engine --max_batch_size 9 --max_seq_len 512
"""


def test_second_engine_says_nothing_about_the_first(run: Migrate) -> None:
    models = {k: v for k, v in TWO.items() if k != "a_bls"}
    done = run(models, script=TWO_BUILDS)
    target, serving = done.spec["targets"][0], done.spec["serving"]
    assert target["limits"] == {"max_batch_size": 9, "max_seq_len": 512}
    assert target["tensor_parallel"] == 2
    assert "llmapi" not in target
    assert serving == {
        "streaming": False, "kv_cache_free_gpu_mem_fraction": 0.7, "kv_block_reuse": False
    }  # fmt: skip
    others = [s for s in done.settings if s.file.startswith("a_engine/")]
    assert {s.fate for s in others} == {Fate.IMPOSSIBLE}
    assert {s.todo for s in others} == {"another engine: migrate it as a service of its own"}
    assert setting(done, "trtllm-build[0].--max_batch_size").fate is Fate.IMPOSSIBLE
    assert setting(done, "convert_checkpoint.py[0].--tp_size").fate is Fate.IMPOSSIBLE
    assert setting(done, "trtllm-build[1].--max_batch_size").new_value == 9
    assert not done.passes
    assert [text.split(":")[0] for text in done.missing] == ["2 engines (`b_engine`, `a_engine`)"]


def test_fronts_of_another_engine_are_not_this_service(run: Migrate) -> None:
    """The first BLS model is the main front; the other one's settings stay out."""
    done = run(TWO, script=TWO_BUILDS)
    engine = done.setup.engine_model
    assert engine is not None
    assert engine.name == "a_engine"
    assert [m.name for m in done.setup.fronts] == ["z_bls"]
    assert done.spec["targets"][0]["llmapi"] == {"max_tokens": 111}
    assert setting(done, "parameters.accumulate_tokens", "a_bls/config.pbtxt").fate is Fate.RENAMED
    assert {s.fate for s in done.settings if s.file == "b_bls/config.pbtxt"} == {Fate.IMPOSSIBLE}
    assert "b_bls" not in done.paths["clients"].read_text()


def test_engine_of_a_draft_is_of_the_same_service(run: Migrate) -> None:
    draft = _engine(
        "tensorrt_llm_draft", {"kv_cache_free_gpu_mem_fraction": "0.1"}, decoupled="true"
    )
    bls = _bls(
        "tensorrt_llm_bls", "tensorrt_llm", tensorrt_llm_draft_model_name="tensorrt_llm_draft"
    )
    done = run({"a_draft": draft, "tensorrt_llm": engine_pbtxt(), "tensorrt_llm_bls": bls})
    assert done.spec["serving"] == {"streaming": False, "kv_block_reuse": False}
    found = setting(done, "parameters.kv_cache_free_gpu_mem_fraction")
    assert (found.fate, found.new_value) == (Fate.REDEFAULTED, None)
    assert done.passes, done.missing


EMBEDDER = """name: "embedder"
platform: "onnxruntime_onnx"
max_batch_size: 4
input [ { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "vector" data_type: TYPE_FP32 dims: [ 384 ] } ]
dynamic_batching { max_queue_delay_microseconds: 50 }
"""
PIPELINE = """name: "embed"
platform: "ensemble"
max_batch_size: 4
input [ { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "vector" data_type: TYPE_FP32 dims: [ 384 ] } ]
ensemble_scheduling { step [ { model_name: "embedder" model_version: -1
  input_map { key: "ids" value: "ids" } output_map { key: "vector" value: "vector" } } ] }
"""


def test_models_of_other_families_stay_beside_the_new_one(run: Migrate, tmp_path: Path) -> None:
    (tmp_path / "old/embedder/1").mkdir(parents=True)
    (tmp_path / "old/embedder/1/model.plan").write_bytes(b"x")
    done = run({
        "tensorrt_llm": engine_pbtxt(), "tensorrt_llm_bls": BLS, "embedder": EMBEDDER, "a_embed": PIPELINE
    })  # fmt: skip
    assert "beside the new one" in setting(done, "(file)", "model.plan").todo
    rows = [s for s in done.settings if s.file in ("embedder/config.pbtxt", "a_embed/config.pbtxt")]
    assert len(rows) > 10
    assert {s.fate for s in rows} == {Fate.IMPOSSIBLE}
    assert all("keep this model beside the new one" in s.todo for s in rows)
    assert [m.name for m in done.setup.fronts] == ["tensorrt_llm_bls"]
    assert done.passes, done.missing


# ---- parallel sizes
CONVERT = "python3 convert_checkpoint.py --model_dir /m --output_dir /c {}\n"
BUILD = "trtllm-build --checkpoint_dir /c --output_dir /engines/e --max_batch_size 8 --max_seq_len 512\n"
UNKNOWN = CONVERT.format("--tp_size $1") + BUILD


def test_parallel_size_that_only_a_run_would_tell_is_asked_for(run: Migrate) -> None:
    done = run(script=UNKNOWN)
    assert [text.split(":")[0] for text in done.missing] == ["targets[0].tensor_parallel"]
    assert not done.passes
    assert "holds" not in setting(done, "convert_checkpoint.py[0].--tp_size").what


@pytest.mark.parametrize(
    ("convert", "launch", "tensor", "stages"),
    [
        ("--tp_size $1", "python3 launch_triton_server.py --world_size 4 --model_repo r", 4, 1),
        ("--tp_size $1", "mpirun -n 4 --allow-run-as-root tritonserver --model-repository=r", 4, 1),
        ("--tp_size $1", "mpirun -np 2 tritonserver --id=1 : -n 2 tritonserver --id=2", 4, 1),
        ("--tp_size $1 --pp_size 2", "mpirun -n 4 tritonserver --model-repository=r", 2, 2),
        ("--tp_size 2 --pp_size $1", "mpirun -n 4 tritonserver --model-repository=r", 2, 2),
        ("--world_size 4 --tp_size $1 --pp_size 2", "", 2, 2),
        ("", "mpirun -n 2 tritonserver --model-repository=r", 2, 1),
    ],
)
def test_launch_line_says_the_ranks(
    convert: str, launch: str, tensor: int, stages: int, run: Migrate
) -> None:
    done = run(script=CONVERT.format(convert) + BUILD + launch + "\n", model="a/b")
    target = done.spec["targets"][0]
    assert (target.get("tensor_parallel", 1), target.get("pipeline_parallel", 1)) == (
        tensor,
        stages,
    )
    assert done.passes, done.missing
    assert any("_parallel is " in note for note in done.notes)
    if launch.startswith("mpirun"):
        rows = [s for s in done.settings if s.key.startswith("mpirun[0].-n")]
        assert [(s.fate, s.new_key) for s in rows] == [(Fate.MOVED, "targets[0].tensor_parallel")]


@pytest.mark.parametrize(
    ("convert", "launch", "key"),
    [
        (
            "--tp_size 2",
            "mpirun -n 8 tritonserver --model-repository=r",
            "targets[0].tensor_parallel",
        ),
        ("--tp_size $1", "mpirun -n 4 python3 run.py", "targets[0].tensor_parallel"),
        ("--tp_size $1 --pp_size 3", "mpirun -n 4 tritonserver", "targets[0].tensor_parallel"),
        (
            "--tp_size $1",
            "TRTLLM_ORCHESTRATOR=1\nmpirun -n 1 tritonserver",
            "targets[0].tensor_parallel",
        ),
    ],
)
def test_ranks_that_do_not_fit_are_asked_about(
    convert: str, launch: str, key: str, run: Migrate
) -> None:
    done = run(script=CONVERT.format(convert) + BUILD + launch + "\n", model="a/b")
    assert key in {text.split(":")[0] for text in done.missing}
    assert not done.passes


@pytest.mark.parametrize(
    "launch",
    ["python3 launch_triton_server.py --world_size $1", "mpirun -n $1 tritonserver --id=1"],
)
def test_ranks_that_only_a_run_would_tell_are_asked_for(launch: str, run: Migrate) -> None:
    done = run(script=BUILD + launch + "\n")
    assert [text.split(":")[0] for text in done.missing] == ["targets[0].tensor_parallel"]


def test_engine_says_the_ranks_whatever_the_script_leaves_open(run: Migrate) -> None:
    done = run(engine={}, script=UNKNOWN)
    assert done.passes, done.missing
    assert "tensor_parallel" not in done.spec["targets"][0]


# ---- one value against another
def test_filled_placeholder_is_compared_by_its_value(run: Migrate) -> None:
    repo = {"tensorrt_llm": engine_pbtxt({"max_beam_width": "${max_beam_width}"})}
    fill = "python3 fill_template.py -i r/tensorrt_llm/config.pbtxt max_beam_width:{}\n"
    same = setting(run(repo, script=fill.format(1)), "parameters.max_beam_width").what
    assert "holds" not in same
    assert "is taken" not in same
    wide = setting(run(repo, engine={}, script=fill.format(4)), "parameters.max_beam_width").what
    assert "another file or option says 1, which holds" in wide


def test_nobody_is_said_to_say_what_nobody_says(run: Migrate) -> None:
    done = run(engine={"build_config": {"max_batch_size": 1000, "max_num_tokens": 512}})
    told = setting(done, "build_config.max_batch_size")
    assert told.new_value == 512
    assert "another file" not in told.what
    assert "512 is taken" in told.what


def test_engine_holds_where_the_script_quantizes(run: Migrate) -> None:
    done = run(
        engine={},
        script="python3 quantize.py --model_dir /m --output_dir /c --qformat fp8 --kv_cache_dtype fp8\n",
    )
    assert done.spec["precision"] == {"weights": "fp16", "kv_cache": "auto"}
    for flag, new in (("--qformat", "fp16"), ("--kv_cache_dtype", "auto")):
        found = setting(done, f"quantize.py[0].{flag}")
        assert (found.fate, found.new_value) == (Fate.REDEFAULTED, new)
        assert "which holds" in found.what
    algo = setting(done, "pretrained_config.quantization.quant_algo")
    assert (algo.fate, algo.what) == (Fate.MOVED, "not quantized")


def test_engine_is_quantized_and_the_script_is_not(run: Migrate) -> None:
    quantization = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    done = run(
        engine={"pretrained_config": quantization},
        script="python3 quantize.py --model_dir /m --output_dir /c --qformat int4_awq\n",
    )
    assert done.spec["precision"] == {"weights": "fp8", "kv_cache": "fp8"}
    assert "W4A16 AWQ" in setting(done, "quantize.py[0].--qformat").what
    assert setting(done, "quantize.py[0].--qformat").fate is Fate.REDEFAULTED


@pytest.mark.parametrize("word", ["none", "auto", "None", "$1"])
def test_kv_cache_of_16_bits_is_not_impossible(word: str, run: Migrate) -> None:
    script = f"python3 quantize.py --model_dir /m --output_dir /c --qformat fp8 --kv_cache_qformat {word}\n"
    done = run(script=script)
    assert done.spec["precision"]["kv_cache"] == "auto"
    found = setting(done, "quantize.py[0].--kv_cache_qformat")
    assert found.fate is (Fate.REDEFAULTED if word == "$1" else Fate.MOVED)


# ---- 16 bits: (option, the model's own type, oldest or newest tensor of the repository, what is taken)
@pytest.mark.parametrize(
    ("option", "own", "parameter", "weights", "noted"),
    [
        ("--dtype auto", "float16", None, "fp16", False),
        ("--dtype auto", "bfloat16", None, "bf16", False),
        ("", "float16", "guided_decoding_backend", "fp16", False),  # from 0.19
        ("", "bfloat16", "guided_decoding_backend", "bf16", False),
        ("", "bfloat16", "tokenizer_type", "fp16", True),  # up to 0.8: float16
        ("", "bfloat16", None, "bf16", True),
        ("--dtype float16", "bfloat16", None, "fp16", False),
    ],
)
def test_sixteen_bits(
    option: str, own: str, parameter: str | None, weights: str, noted: bool, run: Migrate, tmp_path: Path
) -> None:  # fmt: skip
    model = tmp_path / "hf-model"
    model.mkdir()
    for file in TINY.iterdir():
        if file.is_file() and file.name != "config.json":
            (model / file.name).symlink_to(file)
    data = json.loads((TINY / "config.json").read_text())
    del data["dtype"]
    (model / "config.json").write_text(json.dumps({**data, "torch_dtype": own}))
    repo = {
        "tensorrt_llm": engine_pbtxt({parameter: "x"} if parameter else None),
        "tensorrt_llm_bls": BLS,
    }
    done = run(repo, script=CONVERT.format(option), model=str(model))
    assert done.spec["precision"]["weights"] == weights
    assert any(note.startswith("precision.weights") for note in done.notes) == noted


def test_own_type_of_a_model_that_is_not_here_is_noted(run: Migrate) -> None:
    done = run(script=CONVERT.format("--dtype auto"), model="a/b")
    assert done.spec["precision"]["weights"] == "bf16"
    assert any("--dtype auto" in note and "`a/b`" in note for note in done.notes)


# ---- defaults of old releases
@pytest.mark.parametrize(
    ("values", "stated"),
    [
        ({"enable_kv_cache_reuse": "${enable_kv_cache_reuse}", "decoding_mode": "auto"}, False),
        ({"guided_decoding_backend": "xgrammar"}, None),  # a parameter that came with 0.19
        ({"enable_kv_cache_reuse": "true"}, True),
    ],
)
def test_block_reuse_without_a_version(
    values: dict[str, str], stated: bool | None, run: Migrate
) -> None:
    done = run({"tensorrt_llm": engine_pbtxt(values), "tensorrt_llm_bls": BLS})
    assert done.spec["serving"].get("kv_block_reuse") is stated
    assert any("kv_block_reuse is false" in note for note in done.notes) == (stated is False)


def test_defaults_of_the_builder_stand_beside_ours(run: Migrate) -> None:
    """2048 and 8192: trtllm-build of 1.2.1 (the contract); 64 and 8192: the spec."""
    built = {"build_config": {"max_batch_size": 2048, "max_num_tokens": 8192}}
    done = run(engine=built)
    for key, old, ours in (("max_batch_size", 2048, 64), ("max_num_tokens", 8192, 8192)):
        what = setting(done, f"build_config.{key}").what
        assert f"{old} is the engine builder's default" in what
        assert f"the spec's own default is {ours}" in what
    script = "trtllm-build --checkpoint_dir /c --output_dir /engines/e --max_seq_len 512\n"
    notes = "\n".join(run(script=script).notes)
    assert (
        "max_batch_size is 64, the spec's default: the build gave no --max_batch_size, which was 2048"
        in notes
    )
    chosen = run(
        engine=built, script=script.replace("--max_seq", "--max_batch_size 2048 --max_seq")
    )
    assert "default" not in setting(chosen, "build_config.max_batch_size").what


# ---- which build, which model
def test_builds_that_differ_are_asked_about(run: Migrate) -> None:
    builds = "".join(
        f"trtllm-build --checkpoint_dir /c --output_dir /tmp/{n} --max_batch_size {n} --max_seq_len 512\n"
        for n in (8, 16)
    )
    done = run(script=builds)
    assert any("2 trtllm-build calls that differ" in text for text in done.missing)
    assert not done.passes
    assert run(engine={}, script=builds).passes
    assert run(script=builds.replace("--max_batch_size 16", "--max_batch_size 8")).passes
    assert run(script=builds.replace("/tmp/8", "/engines/e")).spec["targets"][0]["limits"][
        "max_batch_size"] == 8  # fmt: skip


@pytest.mark.parametrize(
    "text", ["models/llama", "./llama", "hf/llama", "../m", "checkpoints/x", "weights/x"]
)
def test_folder_that_is_not_here_is_no_hub_id(text: str, run: Migrate) -> None:
    script = f"python3 convert_checkpoint.py --model_dir {text} --output_dir /c\n"
    done = run(script=script, model=None)
    assert any(x.startswith("model.source") for x in done.missing)
    assert not done.passes


def test_model_that_the_user_names_is_below_their_own_folder(
    run: Migrate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here/models").mkdir(parents=True)
    (tmp_path / "here/models/llama").symlink_to(TINY)
    monkeypatch.chdir(tmp_path / "here")
    done = run(model="models/llama")
    assert done.spec["model"]["source"] == str(tmp_path / "here/models/llama")
    assert done.passes, done.missing


# ---- what was off is not missed
@pytest.mark.parametrize(
    ("key", "value", "fate"),
    [
        ("normalize_log_probs", "False", Fate.REDEFAULTED), ("normalize_log_probs", "true", Fate.IMPOSSIBLE),
        ("gpu_weights_percent", "1", Fate.REDEFAULTED), ("gpu_weights_percent", "0", Fate.IMPOSSIBLE),
        ("max_num_images", "0", Fate.REDEFAULTED), ("max_num_images", "4", Fate.IMPOSSIBLE),
        ("speculative_decoding_fast_logits", "0", Fate.REDEFAULTED),
    ],
)  # fmt: skip
def test_features_that_were_off(key: str, value: str, fate: Fate, run: Migrate) -> None:
    done = run({"tensorrt_llm": engine_pbtxt({key: value}), "tensorrt_llm_bls": BLS})
    found = setting(done, f"parameters.{key}")
    assert found.fate is fate, found.what
    assert bool(found.todo) == (fate is Fate.IMPOSSIBLE)


LOOKAHEAD = (
    'input [ { name: "lookahead_window_size" data_type: TYPE_INT32 dims: [ 1 ] optional: true } ]\n'
)


@pytest.mark.parametrize(
    ("mode", "fate"), [(None, Fate.REDEFAULTED), (1, Fate.REDEFAULTED), (8, Fate.IMPOSSIBLE)]
)
def test_lookahead_inputs_of_an_engine_without_it(
    mode: int | None, fate: Fate, run: Migrate
) -> None:
    build = {"max_prompt_embedding_table_size": 0, "weight_streaming": False}
    build |= {"speculative_decoding_mode": mode} if mode else {}
    done = run(
        {"tensorrt_llm": engine_pbtxt(more=LOOKAHEAD), "tensorrt_llm_bls": BLS},
        engine={"build_config": build},
    )
    assert setting(done, "input.lookahead_window_size").fate is fate
    assert setting(done, "build_config.weight_streaming").fate is Fate.REDEFAULTED
    assert setting(done, "build_config.max_prompt_embedding_table_size").fate is Fate.REDEFAULTED


@pytest.mark.parametrize(("folder", "doubt"), [("r/$1", True), ("r/other", False)])
def test_placeholders_that_an_unknown_call_may_have_filled(
    folder: str, doubt: bool, run: Migrate
) -> None:
    repo = {
        "tensorrt_llm": engine_pbtxt({"gpt_model_type": "${batching_strategy}"}, decoupled="${decoupled_mode}"),
    }  # fmt: skip
    script = f"python3 fill_template.py -i {folder}/config.pbtxt batching_strategy:inflight\n"
    done = run(repo, script=script)
    for key in ("parameters.gpt_model_type", "model_transaction_policy.decoupled"):
        what = setting(done, key).what
        assert ("unless the fill_template.py call of line 1" in what) == doubt
    assert ("could not read" in setting(done, "model_transaction_policy.decoupled").what) != doubt
