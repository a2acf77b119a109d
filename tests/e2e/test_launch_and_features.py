"""What build, render and deploy write for features and for the start of a server, on the tiny model."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
import yaml

from engineroom.pipeline import build, deploy, open_job, render
from engineroom.render.tree import parse_model_config
from engineroom.runner import files, manifest
from tests.conftest import run_cli, spec_data, write_spec

pytestmark = pytest.mark.slow
GUIDED = {"features": {"guided_decoding": "xgrammar", "generation_logits": True}}
ENGINE = "engine-h100-sxm-tp1pp1-26-07"
LLMAPI = "llmapi-l4-tp1pp1-26-07"


@pytest.fixture(scope="module")
def job(quantized, tmp_path_factory):
    """A job with guided decoding on a workspace of its own, whose checkpoint is made already."""
    folder = tmp_path_factory.mktemp("features")
    made = quantized("fp8")
    files.link_tree(made.out / "checkpoints", folder / "out/checkpoints")
    write_spec(folder, spec_data(serving=GUIDED))
    return open_job(folder / "engineroom.yaml", out=folder / "out")


CONFIG = {
    "version": "1.2.1",
    "pretrained_config": {
        "mapping": {"tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    },
    "build_config": {
        "max_batch_size": 8, "max_num_tokens": 8192, "max_seq_len": 1024, "max_beam_width": 1,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(job, tmp_path_factory):
    """The engine of a test double named trtllm-build, which writes down how it was called."""
    folder = tmp_path_factory.mktemp("tool")
    tool = folder / "trtllm-build"
    tool.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@" > "$PWD/argv"\nwhile [ $# -gt 0 ]; do\n'
        '  [ "$1" = --output_dir ] && o="$2"\n  shift\ndone\n'
        f'echo \'{json.dumps(CONFIG)}\' > "$o/config.json"; echo e > "$o/rank0.engine"\n'
    )
    tool.chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}{os.pathsep}{before}"
    try:
        return build(job, ENGINE)[0]
    finally:
        os.environ["PATH"] = before


def test_the_tool_gets_the_flags_of_the_features(job, engine):
    argv = (job.out / "argv").read_text().split("\n")
    assert argv[argv.index("--gather_generation_logits") + 1] == "--logits_dtype"
    assert argv[argv.index("--logits_dtype") + 1] == "float32"


def test_engine_and_tokenizer_file_are_one_artefact(job, engine):
    assert engine.kind == "engine"
    content = manifest.load(engine.path, "engine")
    assert {"xgrammar_tokenizer_info.json", "rank0.engine"} <= set(content["files"])
    info = json.loads((engine.path / "xgrammar_tokenizer_info.json").read_text())
    assert set(info) == {"encoded_vocab", "tokenizer_str", "stop_token_ids"}
    assert build(job, ENGINE)[0].reused


def test_config_points_at_files_that_are_there(job, engine):
    repository = render(job, ENGINE)[0]
    path = repository.path / "tensorrt_llm/config.pbtxt"
    message = parse_model_config(path.read_text(), "config.pbtxt")
    written = {key: value.string_value for key, value in message.parameters.items()}
    assert Path(written["xgrammar_tokenizer_info_path"]).is_file()
    assert Path(written["gpt_model_path"]).is_dir()


def test_launch_line_is_data_beside_the_repository(job, engine):
    repository = render(job, ENGINE)[0]
    launch = json.loads((repository.path.parent / "launch.json").read_text())
    assert launch["schema_version"] == 1
    argv = launch["non_root"]["argv"]
    assert argv[0] == "tritonserver"
    assert argv[1] == f"--model-repository={repository.path.as_posix()}"
    assert launch["root"]["argv"] == argv
    assert manifest.load(repository.path.parent, "repository")["files"].keys() >= {"launch.json"}


def test_the_reference_runtime_has_no_launch_line_of_its_own(job, engine):
    from engineroom.names import RuntimeName

    repository = render(job, ENGINE, runtime=RuntimeName.REFERENCE)[0]
    assert not (repository.path.parent / "launch.json").exists()


def test_render_says_how_to_start(job):
    build(job, LLMAPI)
    spec = job.loaded.folder / "engineroom.yaml"
    args = ("render", "-f", str(spec), "--out", str(job.out), "--target", LLMAPI)
    done = run_cli(*args, "--artefact-root", "/pod root")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stderr.splitlines() if "with: " in line).split("with: ")[1]
    assert shlex.split(line)[:2] == [
        "tritonserver", f"--model-repository=/pod root/repositories/{LLMAPI}/repository",
    ]  # fmt: skip
    done = run_cli(*args, "--format", "json")
    assert json.loads(done.stdout)["repositories"][0]["launch"]["argv"][0] == "tritonserver"


def test_the_pod_starts_what_the_plan_says(job):
    pytest.importorskip("helm_python")
    build(job, LLMAPI)
    release = deploy(job, LLMAPI, dry_run=True)[0]
    values = yaml.safe_load((release.path / "values.yaml").read_text())
    assert values["launch"] == {
        "wrapper": [], "env": [],
        "processes": [[
            "tritonserver", "--model-repository=/repository", "--http-port=8000",
            "--grpc-port=8001", "--metrics-port=8002",
        ]],
    }  # fmt: skip
    objects = list(yaml.safe_load_all((release.path / "manifests.yaml").read_text()))
    pod = next(o for o in objects if o["kind"] == "Deployment")["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == [
        *values["launch"]["processes"][0], "--exit-timeout-secs=60",
    ]  # fmt: skip
