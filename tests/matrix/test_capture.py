"""`matrix capture --from-source`: what is read from trees that we wrote, and what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from engineroom.cli.main import run
from engineroom.runner.contract_source import capture_source
from engineroom.runner.contract_source_triton import PbtxtError, parse_pbtxt

TREES = Path(__file__).parent / "trees"


def captured(version: str) -> dict:
    return capture_source(TREES / version)


def unknown(contract: dict) -> set[str]:
    return {item["path"] for item in contract["capture"]["unknown"]}


def copy(tmp_path: Path, version: str = "v2") -> Path:
    return Path(shutil.copytree(TREES / version, tmp_path / "tree"))


# ---- LLM arguments
def test_flat_dataclass_arguments():
    api = captured("v1")["llm_api"]
    assert api["class_name"] == "LlmArgs"
    assert api["extra_fields"] is None  # a dataclass has no such setting
    fields = api["fields"]
    assert fields["model"] == {"type": "str", "default": None, "required": True, "status": None}
    assert fields["kv_fraction"]["type"] == "Optional[float]"
    assert fields["limit"]["default"] == 2048  # a constant of another module, times two
    assert fields["extra"]["default"] == {}
    assert fields["seed"]["default"] == -1
    assert api["nested"] == {
        "CalibConfig": {
            "device": {"type": "Literal", "default": "cuda", "allowed": ["cuda", "cpu"]},
            "samples": {"type": "int", "default": 512},
        }
    }


def test_inherited_and_replaced_fields():
    api = captured("v2")["llm_api"]
    assert (api["class_name"], api["extra_fields"]) == ("TorchLlmArgs", "forbidden")
    assert api["import_path"] == "tensorrt_llm.LLM"
    assert list(api["fields"])[:3] == ["model", "mode", "max_batch_size"]  # the base's come first
    assert (
        api["fields"]["max_batch_size"]["default"] == 2048
    )  # TorchLlmArgs replaces the base's None
    assert set(api["trt_llm_args"]) == {"fast_build", "build_config"}
    assert api["trt_llm_args"]["fast_build"]["default"] is False


def test_types_defaults_and_status():
    fields = captured("v2")["llm_api"]["fields"]
    assert fields["mode"] == {
        "type": "Literal",
        "default": "auto",
        "status": "stable",
        "allowed": ["auto", "slow"],
    }
    assert fields["load_format"]["type"] == "Union[str,LoadFormat]"
    assert fields["load_format"]["allowed"] == ["AUTO", "DUMMY"]  # numbers are shown by name
    assert fields["load_format"]["default"] == "AUTO"
    assert fields["sampler"]["allowed"] == ["TorchSampler", "auto"]  # text by value
    assert fields["policy"]["allowed"] == ["FIRST", "LAST"]  # auto() of strenum keeps the name
    assert fields["kv_cache_config"]["default"] == "default instance"
    assert [fields[n]["status"] for n in ("graph_config", "old", "env", "policy")] == [
        "beta",
        "deprecated",
        "prototype",
        "stable",
    ]
    assert fields["session"]["type"] == "Optional[Session]"  # told by the schema extra


def test_what_is_computed_stays_unknown():
    contract = captured("v2")
    made = contract["llm_api"]["fields"]["made"]
    assert (made["default"], made["default_known"]) == (None, False)
    assert contract["llm_api"]["nested"]["KvCacheConfig"]["budget"]["default_known"] is False
    assert "llm_api.fields.made.default" in unknown(contract)
    assert "trtllm_build.flags.--computed.default" in unknown(contract)
    assert "trtllm_serve.serve.--parser.choices" in unknown(contract)
    assert contract["confidence"]["overall"] == "medium"


def test_nested_types_aliases_and_private_names():
    api = captured("v2")["llm_api"]
    nested = api["nested"]
    assert set(nested) == {
        "KvCacheConfig",
        "GraphConfig",
        "EagleDraft",
        "NGramDraft",
        "LoraConfig",
        "BuildConfig",
    }
    assert api["classes_by_field"]["draft"] == ["EagleDraft", "NGramDraft"]
    eagle = nested["EagleDraft"]
    # No _warned and no `kind`, but the class variable that from_dict takes as a key.
    assert set(eagle) == {"max_draft_len", "speculative_model", "layers", "decoding_type"}
    assert eagle["decoding_type"]["allowed"] == [
        "Eagle",
        "Eagle2",
    ]  # the table's words, not its own
    assert eagle["max_draft_len"]["default"] == 4
    assert eagle["layers"]["type"] == "Optional[int]"  # a quoted annotation
    assert eagle["speculative_model"]["aliases"] == ["speculative_model_dir"]
    assert "only_by_alias" not in eagle["speculative_model"]
    session = api["fields"]["session"]
    assert (session["aliases"], session["only_by_alias"]) == (["_session"], True)
    assert nested["LoraConfig"]["lora_dir"]["default"] == []
    assert nested["KvCacheConfig"]["graph"]["type"] == "GraphConfig"


def test_unions_with_a_bar_and_stdlib_enums():
    contract = captured("v3")
    fields = contract["llm_api"]["fields"]
    assert fields["graph_config"]["type"] == "Union[GraphConfig,None]"
    assert contract["llm_api"]["classes_by_field"]["graph_config"] == ["DecodeGraph", "EncodeGraph"]
    assert fields["queue"]["default"] == "fifo"  # auto() of enum.StrEnum lowers the name
    assert contract["enums"] == {"Queue": ["fifo", "priority"]}
    assert fields["renamed_fraction"]["aliases"] == ["kv_fraction"]
    assert fields["backend"]["allowed"] == ["pytorch"]
    assert contract["llm_api"]["extra_fields"] == "forbidden"
    assert contract["llm_api"]["trt_llm_args"] is None


# ---- command lines
def test_build_flags_of_a_dataclass_plugin_config():
    build = captured("v1")["trtllm_build"]
    flags = build["flags"]
    assert build["command_exists"] is True
    assert flags["--max_batch_size"]["default"] == 256
    assert flags["--strip"]["type"] == "store_true"
    assert flags["--strip"]["aliases"] == ["--strip_plan"]
    assert (flags["--old"]["default"], flags["--old"]["deprecated"]) == (None, True)
    assert flags["--lora_dir"]["type"] == "list[str]"
    assert flags["--origin"]["choices"] == ["hf", "nemo"]
    assert [flags[n]["group"] for n in ("--strip", "--origin", "--block")] == [
        "general",
        "lora",
        "plugin",
    ]
    assert flags["--wide_plugin"]["choices"] == ["auto", "float16", "disable"]
    assert flags["--narrow_plugin"]["default"] == "disable"
    assert flags["--narrow_plugin"]["choices"] == ["fp8", "disable"]
    assert flags["--fused"]["default"] == "enable"
    assert flags["--block"] == {
        "type": "int",
        "default": 64,
        "choices": None,
        "deprecated": False,
        "group": "plugin",
    }
    assert build["plugin_fields_without_flag"] == ["hidden_plugin"]


def test_build_flags_of_a_pydantic_plugin_config():
    build = captured("v2")["trtllm_build"]
    flags = build["flags"]
    assert flags["--max_batch_size"]["default"] == 2048  # BuildConfig.model_fields[...].default
    assert (flags["--cache"]["type"], flags["--cache"]["choices"]) == (
        "enum",
        ["paged", "disabled"],
    )
    assert flags["--log_level"]["choices"] == ["error", "info"]
    assert flags["--computed"]["default_known"] is False
    assert flags["--gemm_plugin"]["default"] is None  # the function names it: None stays None
    assert flags["--other_plugin"]["default"] == "disable"
    assert flags["--gemm_plugin"]["choices"] == ["auto", "fp8", "disable"]
    assert flags["--fused"]["default"] == "disable"
    assert build["plugin_fields_without_flag"] == ["hidden_plugin"]


def test_removed_command_is_absent_not_unknown():
    contract = captured("v3")
    assert contract["trtllm_build"]["command_exists"] is False
    assert contract["trtllm_build"]["flags"] is None
    assert contract["trtllm_serve"] is None
    assert not any(path.startswith("trtllm_build") for path in unknown(contract))


def test_serve_options():
    serve = captured("v2")["trtllm_serve"]
    options = serve["serve"]
    assert serve["positional"] == ["model"]
    assert set(serve) == {"positional", "serve", "mm_embedding_serve", "sources"}
    assert options["--backend"] == {
        "type": "choice",
        "default": "pytorch",
        "choices": ["pytorch", "tensorrt"],
        "choice_aliases": {"trt": "tensorrt"},
        "status": "beta",
    }
    assert options["--log_level"]["aliases"] == ["-l"]
    assert options["--log_level"]["choices"] == ["error", "info"]
    assert options["--tensor_parallel_size"]["aliases"] == ["--tp_size"]
    assert options["--trust"]["type"] == "flag"
    assert (options["--modules"]["type"], options["--modules"]["multiple"]) == ("path", True)
    assert options["--max_seq_len"]["default"] is None
    assert "choices" not in options["--parser"]


# ---- Triton, quantization, pins
def test_triton_templates():
    triton = captured("v1")["triton"]
    assert triton["families"] == {
        "inflight_batcher_llm": True,
        "llmapi": True,
    }  # `tests` has no model
    model = triton["inflight_batcher_llm"]["tensorrt_llm"]
    assert model["inputs"] == [
        {
            "name": "input_ids",
            "data_type": "TYPE_INT32",
            "dims": [-1],
            "optional": False,
            "allow_ragged_batch": True,
        },
        {
            "name": "table",
            "data_type": "${table_type}",
            "dims": [-1, -1],
            "optional": True,
            "reshape": [],
        },
    ]
    assert model["parameters"] == [
        {"key": "gpt_model_path", "template_variable": "engine_dir", "default": None},
        {"key": "ONLY_CPU", "template_variable": None, "default": "no"},
    ]
    assert model["template_variables"] == [
        "triton_backend",
        "triton_max_batch_size",
        "decoupled_mode",
        "table_type",
    ]
    steps = triton["inflight_batcher_llm"]["ensemble"]["steps"]
    assert steps == [
        {
            "model": "tensorrt_llm",
            "inputs": {"input_ids": "text_input"},
            "outputs": {"output_ids": "text_output"},
        }
    ]
    assert triton["llmapi"]["model_yaml"]["keys"] == ["model", "backend", "triton_config"]
    assert triton["llmapi"]["max_batch_size_in_pbtxt"] is False


def test_family_that_went():
    triton = captured("v3")["triton"]
    assert triton["families"] == {"llmapi": True, "inflight_batcher_llm": False}
    assert triton["inflight_batcher_llm"] == {"exists": False}
    assert triton["llmapi"]["max_batch_size_in_pbtxt"] is True
    assert triton["llmapi"]["decoupled_in_pbtxt"] is True


def test_models_of_another_folder():
    alone = captured("v2")
    assert alone["triton"] == {"families": {}}
    assert "triton.families" in unknown(alone)
    models = TREES / "v1/triton_backend/all_models"
    given = capture_source(TREES / "v2", all_models=models)
    assert given["triton"]["families"]["inflight_batcher_llm"] is True
    assert "triton.families" not in unknown(given)


@pytest.mark.parametrize(
    "text",
    ["input [ { name: ", "a: }", "]", "a: [ [", "x: \x00\n]", "{" * 50, "a " + "{ a " * 50, "a: " + "[" * 99],
)  # fmt: skip
def test_broken_pbtxt(text):
    with pytest.raises(PbtxtError):
        parse_pbtxt(text)


def test_broken_pbtxt_is_noted(tmp_path):
    root = copy(tmp_path, "v1")
    path = "triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt"
    (root / path).write_text("input [ {")
    contract = capture_source(root)
    assert "tensorrt_llm" not in contract["triton"]["inflight_batcher_llm"]
    assert path in unknown(contract)


def test_quantization_names():
    assert captured("v1")["quantization"]["weight_quant_excludes"] == ["INT8"]
    found = captured("v2")["quantization"]
    assert found["quant_algo"] == ["W4A16_AWQ", "FP8", "INT8", "NVFP4"]
    assert found["kv_cache_quant_algo"] == ["FP8", "INT8", "NVFP4"]
    assert captured("v3")["quantization"]["quant_algo"] is None


def test_pins():
    pins = captured("v1")["pins"]
    assert pins["torch"] == ">=2.5.1,<=2.6.0a0"
    assert pins["modelopt"] == "~=0.19.0"
    assert pins["transformers"] == "4.45.1"
    image = captured("v2")["pins"]
    assert image["base_image"] == "registry.invalid/pytorch:25.12-py3"
    assert image["triton_base_image"] == "registry.invalid/tritonserver:25.12-py3"
    assert (image["cuda"], image["tensorrt_image"]) == ("13.1", "10.14.1.48")
    assert "cublas_image" not in image  # computed by the script
    assert captured("v3")["pins"]["tensorrt"].startswith("none")


# ---- versions and commits
def test_version_and_commit(tmp_path):
    root = copy(tmp_path)
    (root / ".git").mkdir()
    commit = "0123456789abcdef0123456789abcdef01234567"
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (root / ".git/packed-refs").write_text(f"# pack-refs\n{commit} refs/heads/main\n")
    contract = capture_source(root)
    assert (contract["version"], contract["git"]["commit"]) == ("1.90.0", commit)
    assert captured("v2")["git"]["commit"] is None
    (root / "tensorrt_llm/version.py").unlink()
    assert capture_source(root, "v1.90")["version"] == "1.90"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--version", "1.2.1"], "the code says 1.90.0"),
        (["--version", "no version"], "is not a version"),
        (["--commit", "abc"], "no commit"),
        (["--python", "python3"], "--from-source parses files"),
        (["--all-models", "nowhere"], "not a directory"),
    ],
)
def test_bad_arguments(tmp_path, capsys, argv, words):
    out = tmp_path / "out"
    code = run(
        ["matrix", "capture", "--from-source", str(TREES / "v2"), "--out", str(out), *argv]
    )  # fmt: skip
    assert code == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


# ---- hostile trees
ARGS = "tensorrt_llm/llmapi/llm_args.py"
HOSTILE = {
    "a syntax error": b"class TorchLlmArgs(:\n",
    "a huge line": b"x = '" + b"a" * 200_000 + b"'\n",
    "a huge file": b"# " + b"a" * 78 + b"\n" + b"#\n" * (3 << 20),
    "deep brackets": b"x = " + b"[" * 5000 + b"]" * 5000 + b"\n",
    "deep signs": b"x = " + b"-" * 90_000 + b"1\n",
    "a long chain": b"class TorchLlmArgs:\n    a: " + b"x." * 40_000 + b"y = 1\n",
    "a long sum": b"class TorchLlmArgs:\n    a: int = " + b"1+" * 40_000 + b"1\n",
    "a null byte": b"x = 1\0\n",
    "no text": b"\xff\xfe\n",
    "no class": b"x = 1\n",
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_files_give_one_clear_error(tmp_path, capsys, name):
    root = copy(tmp_path)
    (root / ARGS).write_bytes(HOSTILE[name])
    code = run(["matrix", "capture", "--from-source", str(root), "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert code == 2, error
    assert error.startswith("error: ")
    assert "fix: " in error
    assert len(error) < 1000
    assert not (tmp_path / "out").exists()


def test_a_line_of_ten_megabytes(tmp_path):
    root = copy(tmp_path)
    (root / "tensorrt_llm/commands/build.py").write_bytes(b"x = '" + b"a" * (10 << 20) + b"'\n")
    code = run(["matrix", "capture", "--from-source", str(root), "--out", str(tmp_path / "out")])
    assert code == 2


def test_syntax_error_names_file_and_line(tmp_path, capsys):
    root = copy(tmp_path)
    (root / ARGS).write_text("x = 1\ny = = 2\n")
    run(["matrix", "capture", "--from-source", str(root), "--out", str(tmp_path / "out")])
    assert f"{ARGS}:2: the file is not Python here" in capsys.readouterr().err


def test_syntax_error_beside_the_arguments_is_unknown(tmp_path):
    root = copy(tmp_path)
    (root / "tensorrt_llm/commands/build.py").write_text("def (:\n")
    (root / "tensorrt_llm/quantization/mode.py").write_text("class QuantAlgo(\n")
    contract = capture_source(root)
    assert contract["trtllm_build"]["command_exists"] is None  # unknown is never yes
    assert contract["quantization"]["quant_algo"] is None
    assert {"trtllm_build.flags", "quantization.quant_algo"} <= unknown(contract)


def test_huge_numbers_and_cycles_end(tmp_path):
    root = copy(tmp_path, "v3")
    (root / ARGS).write_text(
        "from pydantic import BaseModel\n"
        "A = B\nB = A\n"
        "class Loop(BaseModel):\n    again: 'Loop' = None\n    back: 'TorchLlmArgs' = None\n"
        "class TorchLlmArgs(BaseModel, Loop):\n"
        "    model: str\n    a: int = 9 ** 9 ** 9\n    b: int = 1 << 10**9\n    c: int = A\n"
        "    d: A = None\n    e: Loop = None\n    f: float = 1e400\n"
    )
    contract = capture_source(root)
    fields = contract["llm_api"]["fields"]
    assert all(fields[n]["default_known"] is False for n in "abcf")
    assert set(contract["llm_api"]["nested"]) == {"Loop", "TorchLlmArgs"}
    json.dumps(contract, allow_nan=False)


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_link_that_leaves_the_tree_is_refused(tmp_path, capsys):
    root = copy(tmp_path)
    secret = tmp_path / "secret.py"
    secret.write_text("class TorchLlmArgs: ...\n")
    (root / ARGS).unlink()
    (root / ARGS).symlink_to(secret)
    code = run(["matrix", "capture", "--from-source", str(root), "--out", str(tmp_path / "out")])
    assert code == 2
    assert "leaves the source tree" in capsys.readouterr().err


def test_nothing_in_the_tree_is_run(tmp_path):
    root = copy(tmp_path)
    path = root / ARGS
    mark = tmp_path / "ran"
    path.write_text(path.read_text() + f"\nopen({str(mark)!r}, 'w').write('x')\n")
    capture_source(root)
    assert not mark.exists()
    assert not any(name.startswith("tensorrt_llm") for name in sys.modules)
