"""The command line: start-up imports, exit codes, messages without tracebacks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from engineroom.names import ExitCode
from tests.conftest import SMOLLM2_CONFIG, TINY, run_cli, spec_data, write_spec

VERBS = (
    "init", "schema", "check", "lint", "doctor", "plan", "quantize", "build", "render", "serve",
    "generate", "deploy", "up", "explain-log",
)  # fmt: skip
HEAVY = (
    "pydantic",
    "jinja2",
    "yaml",
    "tritonclient",
    "torch",
    "rich",
    "numpy",
    "packaging",
    "transformers",
)


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from engineroom.cli.main import run; code = run(['--help']);"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    for verb in VERBS:
        assert f"  {verb} " in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb):
    done = run_cli(verb, "--help")
    assert done.returncode == 0
    assert "Usage: engineroom" in done.stdout
    printing = verb not in ("init", "schema")
    assert ("--format" in done.stdout) is printing
    effects = verb in ("init", "quantize", "build", "render", "serve", "deploy", "up")
    assert ("--dry-run" in done.stdout) is effects


def clean(done: subprocess.CompletedProcess, code: ExitCode) -> str:
    assert done.returncode == code, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr + done.stdout
    return done.stderr


def test_usage_errors():
    assert "No such command" in clean(run_cli("chekc"), ExitCode.USAGE)
    assert "--format" in clean(run_cli("check", "--format", "xml"), ExitCode.USAGE)
    clean(run_cli("init"), ExitCode.USAGE)


def test_missing_spec(tmp_path):
    err = clean(run_cli("check", "-f", str(tmp_path / "no.yaml")), ExitCode.USAGE)
    assert f"{tmp_path}/no.yaml: the spec file does not exist" in err
    assert "engineroom init" in err
    clean(run_cli("check", "-f", str(tmp_path)), ExitCode.USAGE)


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ({"model": {"source": "./absent"}}, "model.source", "neither a model folder nor a hub id"),
        ({"calibration": {"dataset": "absent.jsonl"}}, "calibration.dataset", "does not exist"),
        ({"targets": [{"sku": "h100-smx", "stack": "26.07"}]}, "targets[0].sku", "no GPU SKU"),
        ({"targets": [{"sku": "l4", "stack": "27.01"}]}, "targets[0].stack", "no Triton release"),
        (
            {"targets": [{"sku": "l4", "stack": {"trtllm": "x!"}}]},
            "targets[0].stack",
            "not a version",
        ),
        ({"precision": {"weights": 5}}, "precision.weights", "5"),
        ({"nmae": "x"}, "nmae", "did you mean `name`"),
    ],
)
def test_spec_errors_have_file_line_and_key(tmp_path, change, key, words):
    path = write_spec(tmp_path, spec_data(**change))
    err = clean(run_cli("check", "-f", str(path)), ExitCode.USAGE)
    top = key.split(".")[0].split("[")[0]
    line = next(
        i for i, text in enumerate(path.read_text().splitlines(), 1) if text.startswith(top)
    )
    place = err.split(": `")[0].rsplit(":", 1)
    assert place[0] == f"error: {path}"
    assert int(place[1]) >= line
    assert f"`{key}`" in err
    assert words in err


def test_json_errors(tmp_path):
    path = write_spec(tmp_path, spec_data(nmae="x"))
    err = clean(run_cli("--log-format", "json", "check", "-f", str(path)), ExitCode.USAGE)
    entry = json.loads(err.splitlines()[0])
    assert (entry["file"], entry["key"], entry["exit_code"]) == (str(path), "nmae", 2)
    assert len(entry["run_id"]) == 16


def test_check_exit_codes_and_json(tmp_path):
    good = write_spec(tmp_path, spec_data(SMOLLM2_CONFIG))
    assert run_cli("check", "-f", str(good)).returncode == 0
    data = spec_data(
        SMOLLM2_CONFIG, targets=[{"sku": "l4", "stack": "26.07", "tensor_parallel": 2}]
    )
    bad = write_spec(tmp_path, data)
    done = run_cli("check", "-f", str(bad), "--format", "json")
    clean(done, ExitCode.FINDINGS)
    found = json.loads(done.stdout)["findings"]
    assert found[0]["code"] == "tensor-parallel-heads"
    table = run_cli("check", "-f", str(bad)).stdout
    assert "ERROR tensor-parallel-heads" in table
    assert f"{bad}:" in table
    warns = write_spec(tmp_path, spec_data("some-org/model"))
    assert run_cli("check", "-f", str(warns)).returncode == 0
    assert run_cli("check", "-f", str(warns), "--fail-on", "warn").returncode == 1


def test_side_effects_refuse_what_check_refuses(tmp_path):
    data = spec_data(TINY, targets=[{"sku": "a100-sxm-80gb", "stack": "26.07"}])
    path = write_spec(tmp_path, data)
    for verb in ("quantize", "build", "render", "serve", "up"):
        err = clean(run_cli(verb, "-f", str(path)), ExitCode.FINDINGS)
        assert "weights-format-not-supported" in err
    assert "weights-format-not-supported" in clean(
        run_cli("deploy", "-f", str(path), "--dry-run"), ExitCode.FINDINGS
    )
    # `up` says in its summary where it stopped; nobody wrote anything else.
    written = [p for p in (tmp_path / "engineroom-out").rglob("*") if p.is_file()]
    assert [p.name for p in written] == ["summary.json"]
    assert json.loads(written[0].read_text())["stages"]["check"]["status"] == "failed"


def test_unknown_version_is_refused_by_build_and_render(tmp_path):
    data = spec_data(TINY, targets=[{"sku": "l4", "stack": {"trtllm": "1.2.2", "image": "x"}}])
    path = write_spec(tmp_path, data)
    assert run_cli("check", "-f", str(path)).returncode == 0
    for verb in ("build", "render"):
        err = clean(run_cli(verb, "-f", str(path), "--dry-run"), ExitCode.FINDINGS)
        assert "no contract of TensorRT-LLM 1.2.2" in err


def test_later_verbs_name_the_earlier_one(tmp_path):
    path = write_spec(tmp_path, spec_data())
    assert "engineroom quantize" in clean(run_cli("build", "-f", str(path)), ExitCode.USAGE)
    assert "engineroom quantize" in clean(run_cli("render", "-f", str(path)), ExitCode.USAGE)


def test_serving_tensorrt_llm_needs_a_gpu_container(tmp_path):
    path = write_spec(tmp_path, spec_data())
    err = clean(run_cli("serve", "-f", str(path), "--runtime", "tensorrt_llm"), ExitCode.MISSING)
    assert "--runtime reference" in err


def test_generate_without_a_server():
    err = clean(run_cli("generate", "hi", "--url", "http://127.0.0.1:9"), ExitCode.EXTERNAL)
    assert "engineroom serve" in err


def test_dry_runs_write_nothing(tmp_path):
    path = write_spec(tmp_path, spec_data())
    before = sorted(p.name for p in tmp_path.iterdir())
    done = run_cli("build", "-f", str(path), "--dry-run", "--format", "json", cwd=tmp_path)
    steps = json.loads(done.stdout)["artefacts"]
    assert steps[0]["documents"]["llm_args.yaml"]["kv_cache_config"]["dtype"] == "fp8"
    assert steps[1]["steps"][0]["argv"][0] == "trtllm-build"
    for verb in ("quantize", "up"):
        assert run_cli(verb, "-f", str(path), "--dry-run", cwd=tmp_path).returncode == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("sku", "lane", "weights", "kv"),
    [
        ("l4", "llmapi", "fp8", "fp8"),
        ("h100-sxm", "engine", "fp8", "fp8"),
        ("a100-sxm-80gb", "llmapi", "w4a16_awq", "auto"),
        ("b200-sxm", "llmapi", "fp8", "fp8"),
    ],
)
def test_init_writes_a_spec_that_passes_check(tmp_path, sku, lane, weights, kv):
    write_spec(tmp_path, spec_data())
    path = tmp_path / "new.yaml"
    argv = ("init", "--model", str(SMOLLM2_CONFIG), "--sku", sku, "--lane", lane, "-f", str(path))
    assert run_cli(*argv).returncode == 0
    done = run_cli("check", "-f", str(path))
    assert done.returncode == 0, done.stdout
    text = path.read_text()
    assert f"weights: {weights} " in text
    assert f"kv_cache: {kv} " in text
    assert ("group_size: 64" in text) is (weights == "w4a16_awq")  # 128 does not fit SmolLM2
    assert "exists already" in clean(run_cli(*argv), ExitCode.USAGE)


def test_init_in_an_empty_folder_passes_check(tmp_path):
    for name, local in (("a", False), ("b", True)):
        folder = tmp_path / name
        folder.mkdir()
        if local:
            (folder / "calibration.jsonl").write_text('{"text": "a b c"}\n')
        argv = ("init", "--model", str(SMOLLM2_CONFIG), "--sku", "h100-sxm")
        assert run_cli(*argv, cwd=folder).returncode == 0
        done = run_cli("check", cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        text = (folder / "engineroom.yaml").read_text()
        assert ('dataset: "calibration.jsonl"' in text) is local
    hub = tmp_path / "c"
    hub.mkdir()
    assert run_cli("init", "--model", "some-org/some-model", "--sku", "l4", cwd=hub).returncode == 0
    assert run_cli("check", cwd=hub).returncode == 0


def test_plan_json(tmp_path):
    path = write_spec(tmp_path, spec_data())
    plans = json.loads(run_cli("plan", "-f", str(path), "--format", "json").stdout)["plans"]
    assert [p["capacity"]["memory_mib"] for p in plans] == [23034, 81559]


def test_schema_verb():
    assert json.loads(run_cli("schema").stdout)["$id"] == "engineroom-spec-v1.json"
