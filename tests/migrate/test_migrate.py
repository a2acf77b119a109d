"""The verb itself: errors, files, exit codes, and that nothing of the old setup is run or leaked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engineroom.catalog import Catalog
from engineroom.catalog.engine_config import EngineConfigFile
from engineroom.catalog.migration import load_migration
from engineroom.catalog.triton_parameters import load_triton_parameters
from engineroom.cli.main import run
from engineroom.errors import UsageError
from engineroom.pipeline import migrate as migrate_function
from engineroom.pipeline.migrate import migrate
from engineroom.types.migration import Fate
from tests.conftest import ROOT, TINY
from tests.migrate.setups import BLS, engine_pbtxt, write_engine, write_repo

LLMAPI = 'name: "tensorrt_llm"\nbackend: "python"\nmax_batch_size: 0\ninput { name: "text_input" data_type: TYPE_STRING dims: [ -1 ] }\n'


def _broken(folder: Path) -> dict[str, Path]:
    write_repo(folder / "old", {"tensorrt_llm": engine_pbtxt() + 'parameters { key: "a\n'})
    return {"repo": folder / "old"}


def _wrong_value(folder: Path) -> dict[str, Path]:
    write_repo(
        folder / "old",
        {"tensorrt_llm": engine_pbtxt().replace("max_batch_size: 8", 'max_batch_size: "8"')},
    )
    return {"repo": folder / "old"}


def _llmapi(folder: Path) -> dict[str, Path]:
    return {"repo": write_repo(folder / "old", {"tensorrt_llm": LLMAPI})}


def _deeper(folder: Path) -> dict[str, Path]:
    write_repo(folder / "old" / "inside")
    return {"repo": folder / "old"}


def _one_model(folder: Path) -> dict[str, Path]:
    return {"repo": write_repo(folder / "old") / "tensorrt_llm"}


def _empty_config(folder: Path) -> dict[str, Path]:
    return {"repo": write_repo(folder / "old", {"tensorrt_llm": "# nothing\n"})}


def _file(folder: Path) -> dict[str, Path]:
    (folder / "old").write_text("x")
    return {"repo": folder / "old"}


def _binary(folder: Path) -> dict[str, Path]:
    repo = write_repo(folder / "old")
    (repo / "tensorrt_llm/config.pbtxt").write_bytes(b"\xff\xfe\x00")
    return {"repo": repo}


def _with(name: str, content: str | None, option: str) -> Callable[[Path], dict[str, Path]]:
    def make(folder: Path) -> dict[str, Path]:
        path = folder / "given"
        if content is not None and name:
            path.mkdir()
            (path / name).write_text(content)
        elif content is not None:
            path.write_text(content)
        return {"repo": write_repo(folder / "old"), option: path}

    return make


# (files, what the message says, what the hint says)
ERRORS: list[tuple[Callable[[Path], dict[str, Path]], str, str]] = [
    (lambda folder: {"repo": folder / "gone"}, "no such folder", "model repository"),
    (_file, "not a folder", "model repository"),
    (lambda folder: {"repo": folder}, "no folder in it has a config.pbtxt", "tensorrt_llm/config.pbtxt"),
    (_deeper, "no folder in it has a config.pbtxt", "deeper: name"),
    (_one_model, "no folder in it has a config.pbtxt", "name the folder above"),
    (_llmapi, "none of its models loads a TensorRT-LLM engine: tensorrt_llm (python)", "needs no migration"),
    (_broken, "a string that does not end on its line", "engineroom lint"),
    (_wrong_value, 'wants a whole number there', "engineroom lint"),
    (_empty_config, "the file is empty", "take the folder out"),
    (_binary, "not UTF-8", "UTF-8"),
    (_with("config.json", "{", "engine"), "not JSON", ""),
    (_with("config.json", "[]", "engine"), "not a JSON object", ""),
    (_with("config.json", "{}", "engine"), "neither the config.json of an engine", "trtllm-build"),
    (_with("other.json", "{}", "engine"), "no config.json in it", "trtllm-build"),
    (_with("config.json", '{"architectures": ["A"]}', "engine"), "Hugging Face", "--checkpoint"),
    (_with("config.json", '{"architecture": "A", "mapping": {}}', "engine"), "a checkpoint's config.json",
     "--checkpoint"),
    (_with("", None, "engine"), "no such file or folder", "trtllm-build"),
    (_with("", None, "build_script"), "does not exist", ""),
    (_with("x", "", "build_script"), "not a regular file", ""),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message", "hint"), ERRORS, ids=range(len(ERRORS)))
def test_bad_input_gets_one_clear_error_and_writes_nothing(
    make: Callable[[Path], dict[str, Path]],
    message: str,
    hint: str,
    tmp_path: Path,
    catalog: Catalog,
) -> None:
    given = make(tmp_path)
    with pytest.raises(UsageError) as caught:
        migrate(given.pop("repo"), **given, out=tmp_path / "new", catalog=catalog)  # type: ignore[arg-type]
    assert message in str(caught.value.message)
    assert hint in (caught.value.hint or "")
    assert caught.value.where is not None or "none of its models" in message
    assert not (tmp_path / "new").exists()


def test_the_line_of_a_fault_is_named(tmp_path: Path, catalog: Catalog) -> None:
    write_repo(tmp_path, {"tensorrt_llm": 'name: "tensorrt_llm"\nmax_batch_size: x\n'})
    with pytest.raises(UsageError) as caught:
        migrate(tmp_path, out=tmp_path / "new", catalog=catalog)
    assert str(caught.value.where) == "tensorrt_llm/config.pbtxt:2: `max_batch_size`"


@pytest.mark.parametrize(
    ("option", "value"),
    [("sku", "h1000"), ("stack", "99.99.banana"), ("stack", "27.99.x"), ("name", "No Name")],
)
def test_unknown_options(option: str, value: str, tmp_path: Path, catalog: Catalog) -> None:
    with pytest.raises(UsageError) as caught:
        migrate(
            write_repo(tmp_path / "old"), out=tmp_path / "new", catalog=catalog, **{option: value}
        )
    assert caught.value.where is not None
    assert f"--{option}" in str(caught.value.where)


def test_a_foreign_folder_is_not_replaced_and_an_own_one_is(
    tmp_path: Path, catalog: Catalog
) -> None:
    repo, out = write_repo(tmp_path / "old"), tmp_path / "new"
    out.mkdir()
    (out / "precious").write_text("x")
    with pytest.raises(UsageError, match="not replaced"):
        migrate(repo, out=out, catalog=catalog)
    assert (out / "precious").read_text() == "x"
    (out / "precious").unlink()
    migrate(repo, out=out, catalog=catalog)
    first = {p.name: p.read_bytes() for p in out.iterdir()}
    migrate(repo, out=out, catalog=catalog)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == first
    with pytest.raises(UsageError, match="not replaced"):
        migrate(repo, out=repo, catalog=catalog)


def test_a_fault_in_the_middle_leaves_the_old_files(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, out = write_repo(tmp_path / "old"), tmp_path / "new"
    migrate(repo, out=out, catalog=catalog, name="first")

    def fail(*_: object) -> str:
        raise OSError("disk full")

    monkeypatch.setattr("engineroom.pipeline.migrate_clients.client_map", fail)
    monkeypatch.setitem(migrate.__globals__, "client_map", fail)
    with pytest.raises(OSError, match="disk full"):
        migrate(repo, out=out, catalog=catalog, name="second")
    assert "name: first" in (out / "engineroom.yaml").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "old"]


SECRET = "hf_" + "abcdefghijklmnopqrstuvwxyz01"
EVIL = f"""export HF_TOKEN={SECRET}
huggingface-cli login --token {SECRET}
docker run -e API_KEY=sk-12345678 image bash -c 'touch pwned1'
A=$(touch pwned2); `touch pwned3`
trtllm-build --output_dir /e --checkpoint_dir "$(touch pwned4)" --max_batch_size 4
eval "touch pwned5" ; ${{X:=$(touch pwned6)}}
"""


def test_nothing_is_run_and_no_secret_is_written(tmp_path: Path, catalog: Catalog) -> None:
    repo = write_repo(tmp_path / 'it\'s an "old" $(touch pwned7)\nsetup')
    (repo / "tensorrt_llm" / "1").mkdir()
    (repo / "tensorrt_llm" / "1" / "model.py").write_text("raise SystemExit('pwned8')")
    script = tmp_path / "build it.sh"
    script.write_text(EVIL)
    out = tmp_path / "new $(touch pwned9)"
    done = migrate(repo, build_script=script, out=out, catalog=catalog, sku="l4", model=str(TINY))
    assert done.passes
    assert not list(tmp_path.rglob("*pwned[0-6]*"))
    for path in out.iterdir():
        text = path.read_text()
        assert SECRET not in text, path
        assert "sk-12345678" not in text, path
    told = {s.key: s for s in done.settings}
    assert told["variable HF_TOKEN"].old_value == "(not shown)"
    assert told["variable A"].fate is Fate.LEFTOVER
    assert "$(touch pwned4)" in told["trtllm-build[0].--checkpoint_dir"].what
    assert told["trtllm-build[0].--max_batch_size"].new_value == 4
    model_file = next(s for s in done.settings if s.file == "tensorrt_llm/1/model.py")
    assert (model_file.key, model_file.fate) == ("(file)", Fate.REDEFAULTED)


def test_a_script_that_does_not_end_is_said(tmp_path: Path, catalog: Catalog) -> None:
    script = tmp_path / "b.sh"
    script.write_text("trtllm-build --output_dir 'e\n")
    done = migrate(
        write_repo(tmp_path / "old"), build_script=script, out=tmp_path / "new", catalog=catalog
    )
    assert any("b.sh:1: no closing '" in note for note in done.notes)


def test_markup_in_values_stays_a_value(tmp_path: Path, catalog: Catalog) -> None:
    repo = write_repo(
        tmp_path / "old", {"tensorrt_llm": engine_pbtxt({"a|b`c": "x | <b>`y`</b>"}), "bls": BLS}
    )
    done = migrate(repo, out=tmp_path / "new", catalog=catalog)
    rows = [
        x
        for x in done.paths["report_md"].read_text().splitlines()
        if "a\\|b'c" in x and x.startswith("| ")
    ]
    assert len(rows) == 1
    assert rows[0].replace("\\|", "").count("|") == 8


# ---- the tables know every name that the contracts know
def test_tables_know_every_parameter(catalog: Catalog) -> None:
    fates = load_migration(catalog)
    for group in load_triton_parameters(catalog).groups:
        for row in group.parameters if group.family == "inflight_batcher_llm" else ():
            assert fates.parameter(row.key) is not None, row.key
    for version in ("0.21.0", "1.0.0", "1.1.0", "1.2.1"):
        contract = catalog.contract(version)
        assert contract is not None
        family = contract.family("inflight_batcher_llm")
        for model in ("preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls"):
            for key in family[model]["parameters"]:
                name = key["key"] if isinstance(key, dict) and "key" in key else key
                assert (
                    fates.parameter(name if isinstance(name, str) else name["name"]) is not None
                ), key


def test_tables_know_every_build_option(catalog: Catalog) -> None:
    fates = load_migration(catalog)
    for version in ("0.21.0", "1.0.0", "1.1.0", "1.2.1"):
        contract = catalog.contract(version)
        assert contract is not None
        for flag, facts in contract.data["trtllm_build"]["flags"].items():
            for name in (flag, *facts.get("aliases", ())):
                assert fates.flag("trtllm-build", name) is not None, (version, name)


QUANTIZE = [
    "auto_quantize_bits",
    "autoq_format",
    "awq_block_size",
    "batch_size",
    "calib_dataset",
    "calib_max_seq_length",
    "calib_pp_size",
    "calib_size",
    "calib_tp_size",
    "cp_size",
    "decoder_type",
    "device",
    "dtype",
    "kv_cache_dtype",
    "max_draft_len",
    "medusa_hidden_act",
    "medusa_model_dir",
    "model_dir",
    "nemo_ckpt_path",
    "num_medusa_heads",
    "num_medusa_layers",
    "output_dir",
    "pp_size",
    "qformat",
    "quant_medusa_head",
    "seed",
    "tokenizer_max_seq_length",
    "tp_size",
]
"""Options of examples/quantization/quantize.py, TensorRT-LLM 0.17.0.dev2024121700."""


def test_tables_know_every_option_of_the_quantizer(catalog: Catalog) -> None:
    fates = load_migration(catalog)
    for name in QUANTIZE:
        row = fates.flag("quantize.py", f"--{name}")
        assert row is not None
        assert row.keys != ("--*",), name


def test_tables_know_every_field_of_an_engine(catalog: Catalog) -> None:
    data = json.loads((ROOT / "deploy/contracts/engine_config.json").read_text())
    known = EngineConfigFile.model_validate(data).engine_config_json
    fates = load_migration(catalog)
    paths = [f"build_config.{name}" for name in known.build_config.fields]
    paths += [f"build_config.plugin_config.{name}" for name in known.plugin_config.fields]
    paths += [f"pretrained_config.mapping.{name}" for name in known.pretrained_config.mapping]
    paths += [
        f"pretrained_config.quantization.{name}" for name in known.pretrained_config.quantization
    ]
    for path in paths:
        row = fates.engine(path)
        assert row is not None
        assert row.keys != ("*",), path


# ---- the command line
def test_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    repo = write_repo(tmp_path / "old")
    engine = write_engine(tmp_path / "engine")
    options = ["--engine", str(engine), "--sku", "l4", "--model", str(TINY), "--name", "my-service"]
    assert run(["migrate", str(repo), *options]) == 0
    out = tmp_path / "engineroom-out/migrate-old"
    assert "name: my-service" in (out / "engineroom.yaml").read_text()
    assert "wrote engineroom-out/migrate-old/report.md" in capsys.readouterr().out
    assert run(["migrate", str(repo), "--out", "x"]) == 1
    assert capsys.readouterr().out.count("TO FILL IN") == 2
    assert (tmp_path / "x/report.md").exists()
    assert run(["migrate", str(tmp_path / "gone")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert "Traceback" not in told


def test_the_function_is_public() -> None:
    assert migrate_function is migrate
