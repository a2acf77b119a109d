"""`lint` and `check` on the command line: recognition, formats, explanations, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engineroom.cli.main import run
from tests.conftest import ROOT, TINY, spec_data, write_spec


def lint(capsys: Any, *argv: str | Path) -> tuple[int, str, str]:
    code = run(["lint", *map(str, argv)])
    out = capsys.readouterr()
    return code, out.out, out.err


def answer(capsys: Any, *argv: str | Path) -> dict[str, Any]:
    _, out, err = lint(capsys, *argv, "--format", "json")
    assert not err
    data: dict[str, Any] = json.loads(out)
    return data


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("engine/config.json", '{"version": "1.2.1", "build_config": {}}', "engine_config"),
        ("engine/config.json", '{"version": "1.2.1"}', "engine_config"),
        ("ckpt/config.json", '{"architecture": "LlamaForCausalLM", "mapping": {"tp_size": 1}}',
         "checkpoint_config"),
        ("model/config.json", '{"architectures": ["X"], "hidden_size": 64}', "hf_config"),
        ("m/hf_quant_config.json", '{"quantization": {"quant_algo": "FP8"}}', "quant_config"),
        ("m/adapter_config.json", '{"r": 8}', "adapter_config"),
        ("repo/tensorrt_llm/config.pbtxt", 'name: "tensorrt_llm"', "triton_configs[0]"),
        ("repo/tensorrt_llm/1/model.yaml", "max_batch_size: 8", "model_yaml"),
        ("options.yaml", "max_batch_size: 8", "model_yaml"),
        ("chart/values.yaml", "replicaCount: 1", "helm_values"),
        ("other.yaml", "replicaCount: 1", "helm_values"),
        ("node.yaml", "kind: Node\nmetadata: {labels: {nvidia.com/gpu.product: NVIDIA-L4}}", "node"),
        ("node.json", '{"labels": {"a": "b"}}', "node"),
        ("build.sh", "trtllm-build --max_batch_size 8", "build_argv"),
        ("m/model.safetensors.index.json", '{"weight_map": {}}', "weight_index"),
    ],
)  # fmt: skip
def test_recognition(tmp_path, capsys, name, text, part):
    path = write(tmp_path / "in" / name, text)
    files = answer(capsys, path if path.parent.name == "in" else tmp_path / "in")["files"]
    assert files[part] == path.as_posix()


def test_a_script_with_variables_and_continuations(tmp_path, capsys):
    script = write(
        tmp_path / "build.sh",
        "set -e\n# trtllm-build --old\ntrtllm-build --checkpoint_dir $CKPT \\\n"
        "  --max_batch_size many \\\n  --gemm_plugin auto && echo done\n",
    )
    found = answer(capsys, script, "--stack", "26.07")["findings"]
    assert [(f["code"], f["key"]) for f in found] == [("build-flag-value", "--max_batch_size")]


def test_two_engines_are_an_error_not_a_choice(tmp_path, capsys):
    for name in ("a", "b"):
        write(tmp_path / name / "config.json", '{"build_config": {}}')
    code, _, err = lint(capsys, tmp_path)
    assert code == 2
    assert "a second `engine_config`" in err


def test_a_model_folder_is_read_alone(tmp_path, capsys):
    """`original/` and `onnx/` of hub models hold another format's config."""
    write(tmp_path / "m/config.json", (TINY / "config.json").read_text())
    write(tmp_path / "m/original/config.json", '{"hidden_size": 1}')
    (tmp_path / "m/model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    files = answer(capsys, tmp_path / "m")["files"]
    assert files["hf_config"] == (tmp_path / "m/config.json").as_posix()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "nothing to lint"),
        (["no-such-thing"], "neither a file nor a folder"),
        (["--facts", "gone.yaml"], "no such file"),
        (["--command", "trtllm-build 'x"], "not a command line"),
        (["--command", "trtllm-build", "--topic", "kv-cash"], "no topic `kv-cash`"),
        (["--command", "trtllm-build", "--stack", "26.99x"], "is not a version"),
        (["--command", "trtllm-build", "--sku", "h1000"], "no GPU SKU `h1000`"),
        (["--explain", "kv-cache-no-rom"], "did you mean `kv-cache-no-room`"),
    ],
)
def test_bad_usage(tmp_path, capsys, argv, words):
    code, out, err = lint(capsys, *argv)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert words in err


def test_facts_are_closed_and_name_the_key(tmp_path, capsys):
    facts = write(tmp_path / "facts.yaml", "spec: {weight: fp8}\n")
    code, _, err = lint(capsys, "--facts", facts)
    assert code == 2
    assert f"{facts.as_posix()}: `spec.weight`" in err


def test_explain_a_code_and_a_constraint(capsys):
    code, out, _ = lint(capsys, "--explain", "tensor-parallel-heads")
    assert code == 0
    assert "#2198" in out
    code, out, _ = lint(capsys, "--explain", "kv-reuse-needs-paged-fmha", "--format", "json")
    assert json.loads(out)["source"]


def test_fail_on(tmp_path, capsys):
    unknown = write(
        tmp_path / "u.yaml", 'spec: {weights: fp8}\ngpu: {compute_capability: "13.0"}\n'
    )
    info = write(
        tmp_path / "i.yaml",
        "model_yaml: {backend: pytorch}\nstack: {tensorrt_llm_version: 1.4.0rc4}\n",
    )
    codes = {
        (name, level): lint(capsys, "--facts", path, "--fail-on", level)[0]
        for name, path in (("unknown", unknown), ("info", info))
        for level in ("error", "warn", "unknown")
    }
    assert codes == {
        ("unknown", "error"): 0, ("unknown", "warn"): 1, ("unknown", "unknown"): 1,
        ("info", "error"): 0, ("info", "warn"): 0, ("info", "unknown"): 0,
    }  # fmt: skip


def test_sarif(tmp_path, capsys, make_job):
    spec = write_spec(tmp_path, spec_data(TINY, precision={"weights": "nvfp4"}))
    code = run(["check", "-f", str(spec), "--format", "sarif"])
    assert code == 1
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0"
    (one,) = log["runs"]
    rules = one["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == sorted({r["ruleId"] for r in one["results"]})
    error = next(r for r in one["results"] if r["ruleId"] == "weights-format-not-supported")
    assert error["level"] == "error"
    assert rules[error["ruleIndex"]]["id"] == error["ruleId"]
    place = error["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].endswith("engineroom.yaml")
    line = spec.read_text().splitlines()[place["region"]["startLine"] - 1]
    assert "weights" in line
    for result in one["results"]:
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]


def test_every_template_of_a_chart_is_judged(tmp_path, capsys):
    write(tmp_path / "c/values.yaml", "tokens: 1000000\n")
    write(tmp_path / "c/templates/a.yaml", 'a: "{{ .Values.tokens | int64 }}"\n')
    write(tmp_path / "c/templates/b.yaml", 'string_value: "{{ .Values.tokens }}"\n')
    found = [f for f in answer(capsys, tmp_path / "c")["findings"] if f["severity"] == "error"]
    assert [f["code"] for f in found] == ["helm-number-becomes-float"]
    assert "1e+06" in found[0]["reason"]


def test_our_own_chart_and_repositories_are_sound(capsys):
    assert lint(capsys, ROOT / "helm/engineroom", "--fail-on", "warn")[0] == 0
    for lane in ("engine", "llmapi"):
        golden = ROOT / "tests/render/golden" / lane
        code, out, err = lint(capsys, golden, "--stack", "26.07")
        assert code == 0, out + err
