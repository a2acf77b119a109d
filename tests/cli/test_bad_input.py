"""Broken models, data, catalogs and paths: one clear error before any work, never exit 70."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from engineroom.cli.main import run
from tests.conftest import ROOT, TINY, spec_data, write_spec

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def verdict(capsys, *argv: str) -> tuple[int, str]:
    code = run(list(argv))
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.err


def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("model.safetensors", None, "cut off"),
        ("model.safetensors", LFS, "git lfs pull"),
        ("model.safetensors", b"\x02\0\0\0\0\0\0\0[]", "not a whole safetensors"),
        ("model.safetensors", b"\xff" * 16, "not a whole safetensors"),
        ("model.safetensors", b"", "not a whole safetensors"),
        ("config.json", LFS, "git lfs pull"),
        ("config.json", b"{", "unreadable"),
        ("config.json", b"[" * 100000, "unreadable"),
        ("config.json", b"[]", "not an object"),
    ],
)
def test_damaged_model_files(tmp_path, capsys, file, content, words):
    folder = model(tmp_path)
    if content is None:
        half(folder / file)
    else:
        (folder / file).write_bytes(content)
    path = write_spec(tmp_path, spec_data(folder))
    for verb in ("check", "plan", "quantize"):
        code, err = verdict(capsys, verb, "-f", str(path))
        assert code == 2, err
        assert f"{folder}/{file}" in err
        assert words in err


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_attention_heads", "num_hidden_layers", "head_dim"]
)
@pytest.mark.parametrize("value", [0, -4, True, "8", 1e999, 10**400, [1], 10**9])
def test_senseless_sizes(tmp_path, capsys, key, value):
    folder = model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    path = write_spec(tmp_path, spec_data(folder))
    code, err = verdict(capsys, "plan", "-f", str(path))
    assert code == 2, err
    assert key in err


@pytest.mark.parametrize("harm", ["no-weights", "no-tokenizer", "broken-tokenizer", "foreign-type"])
@pytest.mark.slow
def test_models_that_transformers_cannot_load(tmp_path, capsys, harm):
    folder = model(tmp_path)
    if harm == "no-weights":
        (folder / "model.safetensors").unlink()
    elif harm == "no-tokenizer":
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
    elif harm == "broken-tokenizer":
        (folder / "tokenizer.json").write_text("{")
    else:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "model_type": "foo"}))
    path = write_spec(tmp_path, spec_data(folder))
    code, err = verdict(capsys, "quantize", "-f", str(path))
    assert code == 2, err
    assert str(folder) in err or "model.source" in err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("d.jsonl", b"{", "d.jsonl:1"),
        ("d.jsonl", b'{"text": "a"}\n{"tekst": "b"}\n', "d.jsonl:2"),
        ("d.jsonl", b'{"text": "\\ud800"}\n', "not JSON text"),
        ("d.jsonl", b"[" * 100000, "d.jsonl:1"),
        ("d.jsonl", b"", "no text"),
        ("d.txt", b"\xff\xfe", "not UTF-8"),
        ("d.csv", None, "does not exist"),
        ("x/d.jsonl.gz", None, "does not exist"),
    ],
)
def test_broken_datasets(tmp_path, capsys, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    path = write_spec(tmp_path, spec_data(calibration={"dataset": name}))
    code, err = verdict(capsys, "check", "-f", str(path))
    assert code == 2, err
    assert words in err
    assert "fix:" in err


def test_dataset_folder_and_fifo(tmp_path, capsys):
    (tmp_path / "ds").mkdir()
    os.mkfifo(tmp_path / "ff")
    for name in ("ds", "ff"):
        path = write_spec(tmp_path, spec_data(calibration={"dataset": name}))
        code, err = verdict(capsys, "check", "-f", str(path))
        assert code == 2
        assert "not a regular file" in err
    code, err = verdict(capsys, "check", "-f", str(tmp_path / "ff"))
    assert code == 2
    assert "not a regular file" in err


def test_jsonl_with_line_separators_and_bom_is_fine(tmp_path, capsys):
    line = json.dumps({"text": "a\u2028b\x85c"}, ensure_ascii=False)
    (tmp_path / "d.jsonl").write_text("\ufeff" + line + "\n", encoding="utf-8")
    path = write_spec(tmp_path, spec_data(calibration={"dataset": "d.jsonl"}))
    assert verdict(capsys, "check", "-f", str(path))[0] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"deploy": {"replicas": 10**20}},
        {"deploy": {"storage": {"size": "9" * 30 + "Ti"}}},
        {"serving": {"stop_ids": [10**25]}},
        {"calibration": {"dataset": "calibration.jsonl", "seed": 10**25}},
        {"targets": [{"sku": "l4", "stack": "26.07", "limits": {"max_batch_size": 3 * 10**9}}]},
        {"model": {"source": "~nosuch/x"}},
        {"model": {"source": "a" * 400}},
        {"model": {"source": str(TINY), "tokenizer": "nope/x"}},
        {"calibration": {"dataset": "~nosuch/x.jsonl"}},
    ],
)
def test_values_no_tool_could_take(tmp_path, capsys, changes):
    path = write_spec(tmp_path, spec_data(**changes))
    code, err = verdict(capsys, "check", "-f", str(path))
    assert code == 2, err
    assert f"{path}:" in err


def test_one_bad_target_is_one_error(tmp_path, capsys):
    path = write_spec(tmp_path, spec_data(targets=[{"sku": "l4", "stack": "26.07", "lane": "x"}]))
    _, err = verdict(capsys, "check", "-f", str(path))
    assert err.count("error:") == 1


def test_deep_nesting(tmp_path, capsys):
    path = tmp_path / "deep.yaml"
    path.write_text("a: " + "[" * 5000)
    code, err = verdict(capsys, "check", "-f", str(path))
    assert code == 2, err


@pytest.mark.parametrize(
    ("relative", "old", "new"),
    [
        ("deploy/stacks/26.07.yaml", 'tensorrt_llm: "1.2.1"', 'tensorrt_llm: "../../x"'),
        ("deploy/stacks/26.07.yaml", '"580.65.06"', '"abc"'),
        ("deploy/support/precision.yaml", '">=0.21.0.dev0,<1.3"', '"abc"'),
        ("deploy/support/lanes.yaml", '">=0.21"', '"abc"'),
        ("build/skus/l4.yaml", "23034", "true"),
        ("build/skus/l4.yaml", "memory_bandwidth_gbs: 300", "memory_bandwidth_gbs: 1e999"),
    ],
)
def test_broken_overlays(tmp_path, capsys, relative, old, new):
    text = (ROOT / relative).read_text()
    assert old in text
    target = tmp_path / "overlay" / relative
    target.parent.mkdir(parents=True)
    target.write_text(text.replace(old, new, 1))
    path = write_spec(tmp_path, spec_data())
    code, err = verdict(capsys, "check", "-f", str(path), "--catalog", str(tmp_path / "overlay"))
    assert code == 2, err
    assert relative in err


def test_contract_with_a_foreign_name(tmp_path, capsys):
    folder = tmp_path / "overlay/deploy/contracts/trtllm"
    folder.mkdir(parents=True)
    (folder / "abc.json").write_text("{}")
    path = write_spec(
        tmp_path, spec_data(targets=[{"sku": "l4", "stack": {"trtllm": "1.2.2", "image": "x"}}])
    )
    code, err = verdict(capsys, "check", "-f", str(path), "--catalog", str(tmp_path / "overlay"))
    assert code == 2
    assert "abc.json" in err


def test_equal_versions_are_one_version(tmp_path, capsys):
    for text in ("v1.2.1", " 1.2.1 "):
        targets = [{"sku": "l4", "stack": {"trtllm": text, "image": "x"}}]
        path = write_spec(tmp_path, spec_data(targets=targets))
        assert verdict(capsys, "check", "-f", str(path), "--fail-on", "warn")[0] == 0


def test_workspace_that_cannot_be(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    path = write_spec(tmp_path, spec_data())
    for out in ("file", "file/below"):
        code, err = verdict(capsys, "up", "-f", str(path), "--out", str(tmp_path / out))
        assert code == 2, err
        assert "file" in err


def test_init_into_a_folder(tmp_path, capsys):
    argv = ("init", "--model", str(TINY), "--sku", "l4", "--force", "-f", str(tmp_path))
    assert verdict(capsys, *argv)[0] == 2


def test_init_escapes_odd_characters(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    name = "c\x7f\x85\u2028'\".jsonl"
    (tmp_path / name).write_text('{"text": "a"}\n')
    argv = ("init", "--model", str(TINY), "--sku", "l4", "--dataset", name, "-f", str(path))
    assert verdict(capsys, *argv)[0] == 0
    assert verdict(capsys, "check", "-f", str(path))[0] == 0
