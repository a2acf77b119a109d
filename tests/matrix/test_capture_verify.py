"""`matrix capture` writes an overlay, `matrix verify` lists differences; introspection of doubles."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from engineroom.catalog import Catalog
from engineroom.catalog.contract_diff import differences
from engineroom.catalog.type_text import same_type
from engineroom.cli.main import run
from engineroom.errors import ExternalToolError, MissingError
from engineroom.runner.contract_live import capture_installed

HERE = Path(__file__).parent
SHIPPED = HERE.parents[1] / "deploy/contracts/trtllm"


def capture_tree(tmp_path: Path, version: str, *more: str) -> int:
    tree = HERE / "trees" / version
    return run(["matrix", "capture", "--from-source", str(tree), "--out", str(tmp_path), *more])


def shipped(version: str = "1.2.1") -> dict:
    return json.loads((SHIPPED / f"{version}.json").read_text())


def rows(old: dict, new: dict) -> list[tuple[str, str]]:
    return [(row.kind, row.path) for row in differences(old, new)]


# ---- capture writes
def test_overlay_makes_the_version_known(tmp_path, capsys):
    assert capture_tree(tmp_path, "v1", "--format", "json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["version"], said["llm_arguments"], said["engine_lane"]) == ("0.90.0", 9, True)
    contract = Catalog(tmp_path).contract("0.90.0")
    assert contract is not None
    assert contract.has_engine_lane
    assert contract.has_llmapi_lane
    assert contract.build_flags["--max_batch_size"]["default"] == 256
    assert contract.llm_fields["limit"]["default"] == 2048
    assert contract.confidence == "high"


def test_removed_lane_and_nested_keys_through_the_catalog(tmp_path):
    capture_tree(tmp_path, "v2")
    capture_tree(tmp_path, "v3")
    catalog = Catalog(tmp_path)
    assert not catalog.contract("2.0.0rc1").has_engine_lane
    v2 = catalog.contract("1.90.0")
    assert v2.nested_fields("kv_cache_config", "KvCacheConfig") == {
        "fraction",
        "dtype",
        "graph",
        "budget",
    }


def test_no_overwrite_without_force(tmp_path, capsys):
    assert capture_tree(tmp_path, "v1") == 0
    path = tmp_path / "deploy/contracts/trtllm/0.90.0.json"
    path.write_text("mine")
    assert capture_tree(tmp_path, "v1") == 2
    assert "--force" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert capture_tree(tmp_path, "v1", "--force") == 0
    assert json.loads(path.read_text())["version"] == "0.90.0"
    assert [p.name for p in path.parent.iterdir()] == ["0.90.0.json"]  # no partial file is left


# ---- verify
def test_equal_contracts_have_no_difference(tmp_path, capsys):
    capture_tree(tmp_path, "v2")
    capsys.readouterr()
    code = run(["matrix", "verify", str(tmp_path), "--catalog", str(tmp_path), "--format", "json"])
    said = json.loads(capsys.readouterr().out)
    assert code == 0
    assert said["differences"] == []
    assert {item["path"] for item in said["unknown"]} >= {"triton.families"}


@pytest.mark.parametrize("version", sorted(p.stem for p in SHIPPED.glob("*.json")))
def test_shipped_contracts_agree_with_themselves(version):
    assert differences(shipped(version), shipped(version)) == []


def test_versions_of_the_trees_differ_as_written(tmp_path, capsys):
    capture_tree(tmp_path, "v1")
    capture_tree(tmp_path, "v3")
    path = tmp_path / "deploy/contracts/trtllm/2.0.0rc1.json"
    capsys.readouterr()
    code = run(
        [
            "matrix",
            "verify",
            str(path),
            "--against",
            "0.90.0",
            "--catalog",
            str(tmp_path),
            "--format",
            "json",
        ]
    )
    said = json.loads(capsys.readouterr().out)
    assert code == 1
    found = {(row["kind"], row["path"]) for row in said["differences"]}
    assert ("missing", "trtllm_build.command_exists") in found
    assert ("missing", "triton.families.inflight_batcher_llm") in found
    assert ("missing", "llm_api.fields.use_cuda_graph") in found
    assert ("extra", "llm_api.fields.queue") in found
    assert ("alias", "llm_api.fields.kv_fraction") in found  # now an alias of renamed_fraction
    assert ("extra", "triton.llmapi.parameters.gpu_device_ids") in found
    assert ("pin", "pins.torch") in found
    assert said["counts"]["alias"] == 1
    # What the tree does not tell is no difference.
    assert not any(path.startswith(("quantization", "trtllm_serve")) for _, path in found)


CHANGES = {
    "a default": (("llm_api", "fields", "tensor_parallel_size", "default"), 2),
    "a type": (("llm_api", "fields", "tensor_parallel_size", "type"), "str"),
    "a status": (("llm_api", "fields", "tensor_parallel_size", "status"), "beta"),
    "words": (("llm_api", "fields", "tokenizer_mode", "allowed"), ["auto"]),
    "choices": (("trtllm_build", "flags", "--profiling_verbosity", "choices"), ["none"]),
    "aliases": (("trtllm_build", "flags", "--max_seq_len", "aliases"), []),
    "a serve default": (("trtllm_serve", "serve", "--port", "default"), 8001),
    "a pin": (("pins", "transformers"), "4.1"),
}
KINDS = ("default", "type", "status", "allowed", "choices", "alias", "default", "pin")


@pytest.mark.parametrize(("name", "kind"), zip(CHANGES, KINDS))
def test_one_change_is_one_row(name, kind):
    old, new = shipped(), copy.deepcopy(shipped())
    keys, value = CHANGES[name]
    place = new
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    end = keys if kind == "pin" else keys[:-1]
    assert rows(old, new) == [(kind, ".".join(end))]


def test_missing_and_extra():
    old, new = shipped(), copy.deepcopy(shipped())
    del new["llm_api"]["fields"]["dtype"]
    new["trtllm_build"]["flags"]["--brand_new"] = {"type": "int", "default": 1}
    new["quantization"]["quant_algo"] = [*new["quantization"]["quant_algo"], "FP2"]
    del new["triton"]["inflight_batcher_llm"]["ensemble"]["inputs"][0]
    assert rows(old, new) == [
        ("missing", "llm_api.fields.dtype"),
        ("extra", "quantization.quant_algo.FP2"),
        ("missing", "triton.inflight_batcher_llm.ensemble.inputs.text_input"),
        ("extra", "trtllm_build.flags.--brand_new"),
    ]


def test_unknown_is_no_difference():
    old, new = shipped(), copy.deepcopy(shipped())
    new["llm_api"]["fields"]["dtype"] |= {"default": None, "default_known": False}
    new["trtllm_build"]["flags"]["--workers"]["default"] = None
    new["trtllm_serve"] = None
    new["triton"] = {"families": {}}
    new["capture"] = {"unknown": [{"path": "trtllm_build.flags.--workers.default", "reason": "x"}]}
    assert rows(old, new) == []
    new["capture"] = {"unknown": []}
    assert rows(old, new) == [("default", "trtllm_build.flags.--workers")]


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("str|Path", "Union[str,Path]", True),
        ("Optional[int]", "Union[None,int]", True),
        ("int", "PositiveInt", True),
        ("Optional[int>0]", "Optional[PositiveInt]", True),
        ("Dict[str,str]", "dict", True),
        ("List[int]", "list[int]", True),
        ("object", "Optional[KvCacheConfig]", True),
        ("Optional[int]", "int", False),
        ("List[int]", "List[str]", False),
        ("Literal", "str", False),
        ("((", "int", False),
    ],
)
def test_type_texts(old, new, same):
    assert same_type(old, new) is same


def test_shapes_of_two_contracts_meet(tmp_path):
    """1.4.0rc4 lists nested keys by field, captures list them by class."""
    old = shipped("1.4.0rc4")
    new = copy.deepcopy(shipped())
    found = differences(old, new)
    nested = [row.path for row in found if row.path.startswith("llm_api.fields.kv_cache_config.")]
    assert nested  # keys are compared below the field
    assert not any(row.path.startswith("llm_api.nested") for row in found)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not a contract"),
        (b"[]", "wanted a mapping, found a list"),
        (b'{"version": "1.2.1"}', "`llm_api`: not a contract: missing"),
        (b"[" * 100_000, "not a contract"),
        (b"\xff", "not a contract"),
    ],
)
def test_what_is_no_contract(tmp_path, capsys, content, words):
    path = tmp_path / "c.json"
    path.write_bytes(content)
    assert run(["matrix", "verify", str(path)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["nowhere"], ["{dir}"], ["{file}", "--against", "9.9"]])
def test_nothing_to_compare(tmp_path, capsys, argv):
    file = tmp_path / "c.json"
    file.write_text(json.dumps(shipped()))
    words = [item.format(dir=tmp_path, file=file) for item in argv]
    assert run(["matrix", "verify", *words]) == 2
    assert "fix: " in capsys.readouterr().err


# ---- introspection, of doubles that the tests ship
@pytest.fixture
def double(monkeypatch):
    def use(name: str) -> str:
        monkeypatch.setenv("PYTHONPATH", str(HERE / "doubles" / name))
        return sys.executable

    return use


def test_installed_double(double):
    contract = capture_installed(double("full"))
    assert (contract["version"], contract["capture"]["method"]) == ("1.91.0", "installed")
    api = contract["llm_api"]
    assert api["extra_fields"] == "forbidden"
    assert api["fields"]["model"]["required"] is True
    assert api["fields"]["mode"]["allowed"] == ["auto", "slow"]
    assert api["fields"]["load_format"] == {
        "type": "Union[str,LoadFormat]",
        "default": "AUTO",
        "status": "stable",
        "allowed": ["AUTO", "DUMMY"],
    }
    assert api["fields"]["session"]["only_by_alias"] is True
    assert api["fields"]["draft"]["status"] == "beta"
    assert api["classes_by_field"]["draft"] == ["Eagle", "NGram"]
    assert api["nested"]["Eagle"]["speculative_model"]["aliases"] == ["speculative_model_dir"]
    assert api["nested"]["KvCacheConfig"]["far"]["default_known"] is False  # infinity is not JSON
    assert api["nested"]["LoraConfig"]["max_rank"]["default"] == 64
    assert api["trt_llm_args"] == {
        "fast_build": {"type": "bool", "default": False, "status": "stable"}
    }
    flags = contract["trtllm_build"]["flags"]
    assert flags["--cache"]["choices"] == ["paged", "disabled"]
    assert flags["--cache"]["default"] is None
    assert flags["--strip"]["aliases"] == ["--strip_plan"]
    assert [flags[n]["group"] for n in flags] == ["general", "general", "general", "lora", "plugin"]
    options = contract["trtllm_serve"]["serve"]
    assert options["--log_level"]["choices"] == ["info", "error"]
    assert options["--trust"]["type"] == "flag"
    assert contract["quantization"]["weight_quant_excludes"] == ["INT8"]
    assert contract["pins"]["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert "triton.families" in {item["path"] for item in contract["capture"]["unknown"]}


def test_installed_double_through_the_verb(double, tmp_path):
    python = double("full")
    models = HERE / "trees/v1/triton_backend/all_models"
    code = run(
        [
            "matrix",
            "capture",
            "--python",
            python,
            "--out",
            str(tmp_path),
            "--all-models",
            str(models),
        ]
    )
    assert code == 0
    contract = Catalog(tmp_path).contract("1.91.0")
    assert contract.has_engine_lane
    assert contract.has_llmapi_lane
    assert run(["matrix", "verify", str(tmp_path), "--catalog", str(tmp_path)]) == 0


def test_absent_package(double):
    with pytest.raises(MissingError, match="has no tensorrt_llm"):
        capture_installed(double("nothing"))


def test_stub_package(double):
    with pytest.raises(MissingError, match="only a stub"):
        capture_installed(double("stub"))


def test_package_that_fails_on_import(double):
    with pytest.raises(ExternalToolError, match="libcuda"):
        capture_installed(double("broken"))


def test_version_that_is_not_the_installed(double, tmp_path, capsys):
    code = run(
        [
            "matrix",
            "capture",
            "--python",
            double("full"),
            "--version",
            "1.2.1",
            "--out",
            str(tmp_path),
        ]
    )
    assert code == 2
    assert "the code says 1.91.0" in capsys.readouterr().err


def test_no_such_python(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert run(["matrix", "capture", "--python", str(tmp_path / "no"), "--out", out]) == 4
    assert "cannot be started" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="shebang")
def test_a_python_that_says_nothing_and_one_that_hangs(tmp_path):
    silent, slow = tmp_path / "silent", tmp_path / "slow"
    silent.write_text("#!/bin/sh\nexit 0\n")
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    for path in (silent, slow):
        path.chmod(0o755)
    with pytest.raises(ExternalToolError, match="gave no answer"):
        capture_installed(str(silent))
    with pytest.raises(ExternalToolError, match="longer than"):
        capture_installed(str(slow), timeout_s=0.3)


def test_shipped_contracts_equal_themselves(capsys):
    for path in sorted(SHIPPED.glob("*.json")):
        assert run(["matrix", "verify", str(path), "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["differences"] == []


def test_the_option_that_is_wrong_is_named(tmp_path, capsys):
    tree = str(HERE / "trees" / "v2")
    argv = ["matrix", "capture", "--from-source", tree, "--out", str(tmp_path / "o")]
    assert run([*argv, "--all-models", str(tmp_path / "absent")]) == 2
    assert "`--all-models`: the folder of Triton families" in capsys.readouterr().err


def test_a_tree_that_gives_no_contract_writes_nothing(tmp_path, capsys):
    """A tensor without a name: an overlay with it could not be read again."""
    shutil.copytree(HERE / "trees" / "v3", tmp_path / "t")
    path = tmp_path / "t/triton_backend/all_models/llmapi/tensorrt_llm/config.pbtxt"
    text = path.read_text()
    path.write_text(re.sub(r'name: "(?!tensorrt_llm")\w+"', "", text, count=1))
    assert path.read_text() != text
    out = tmp_path / "o"
    assert run(["matrix", "capture", "--from-source", str(tmp_path / "t"), "--out", str(out)]) == 2
    assert "gives no contract: triton.llmapi" in capsys.readouterr().err
    assert not out.exists()


def test_a_name_that_is_not_utf_8(tmp_path, capfd):
    """The path of the file is in the JSON, which stays one document."""
    folder = tmp_path / os.fsdecode(b"a\xffb")
    argv = ["matrix", "capture", "--from-source", str(HERE / "trees" / "v3"), "--out", str(folder)]
    assert run([*argv, "--format", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["path"].startswith(str(folder))
