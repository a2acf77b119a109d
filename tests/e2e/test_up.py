"""The whole chain on the tiny model: summary, artefacts, engines that are only plans."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from engineroom.pipeline import build, deploy, open_job
from engineroom.pipeline.build import PLAN
from engineroom.runner import files, manifest
from tests.conftest import TINY, run_cli, spec_data, write_spec
from tests.doubles import trtllm_build

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("up")]
STAGES = ["check", "plan", "quantize", "build", "render", "serve", "generate", "deploy"]


HOSTILE = """a"b 'c' ${HOME} {{x}} $(id) é\nline"""


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """The chain with a model and a workspace whose paths try to break out of every format."""
    folder = tmp_path_factory.mktemp("up")
    model, out = folder / f"model {HOSTILE}", folder / f"out {HOSTILE}".replace("é", "e")
    shutil.copytree(TINY, model)
    profile = {"input_tokens": {"p50": 1, "p95": 2}, "output_tokens": {"p50": 1, "p95": 2}}
    path = write_spec(folder, spec_data(model, workload={HOSTILE: {**profile, "concurrency": 1}}))
    done = run_cli("up", "-f", str(path), "--runtime", "reference", "--out", str(out))
    assert done.returncode == 0, done.stderr
    return path, out, done


def test_summary(chain):
    _, out, done = chain
    summary = json.loads((out / "summary.json").read_text())
    assert summary["schema_version"] == 1
    assert list(summary["stages"]) == STAGES
    for name, stage in summary["stages"].items():
        assert stage["status"] == "ok"
        assert isinstance(stage["seconds"], float)
        lanes = {row["lane"] for row in stage["artefacts"]}
        assert lanes == {"llmapi", "engine"}, name
        for row in stage["artefacts"]:
            assert (out / row["path"]).exists()
            assert len(row["sha256"]) == 64
            assert row["stood_in"] in (None, "reference")
            if (out / row["path"]).is_file():
                assert files.sha256_file(out / row["path"]) == row["sha256"]
    stood = {
        name: {r["lane"] for r in stage["artefacts"] if r["stood_in"]}
        for name, stage in summary["stages"].items()
    }
    assert stood["quantize"] == set()
    assert stood["build"] == {"engine"}
    assert stood["serve"] == stood["generate"] == {"llmapi", "engine"}
    assert stood["deploy"] == {"engine"}
    assert "summary:" in done.stdout


def test_workspace_that_triton_cannot_open_is_refused(chain, tmp_path):
    path, _, _ = chain
    done = run_cli("serve", "-f", str(path), "--out", str(tmp_path / "é"))
    assert done.returncode == 2
    assert "is not ASCII" in done.stderr


def test_both_lanes_gave_the_same_answer(chain):
    _, out, _ = chain
    texts = {
        json.loads((out / f"results/generate-{lane}.json").read_text())["text"]
        for lane in ("llmapi", "engine")
    }
    assert len(texts) == 1
    assert texts.pop().startswith("The capital of")


def test_package_is_the_checkpoint_with_its_arguments(chain):
    _, out, _ = chain
    package = next(out.glob("artifacts/*/llmapi/1.2.1/l4/1x1/*"))
    facts = manifest.load(package, "llmapi-package")
    assert facts["stack"]["image"] == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    args = yaml.safe_load((package / "llm_args.yaml").read_text())
    assert args["kv_cache_config"]["dtype"] == "fp8"
    checkpoint = next(out.glob("checkpoints/fp8*"))
    assert files.tree_digests(package / "checkpoint") == files.tree_digests(checkpoint / "hf")


def test_plan_is_exact_and_no_engine(chain):
    path, out, _ = chain
    folder = next(out.glob("artifacts/*/engine/1.2.1/h100-sxm/1x1/*"))
    plan = json.loads((folder / PLAN).read_text())
    assert plan["kind"] == "build-plan"
    argv = plan["steps"][0]["argv"]
    assert argv[:3] == [
        "trtllm-build",
        "--checkpoint_dir",
        next(out.glob("checkpoints/fp8*")).relative_to(out).as_posix() + "/trtllm",
    ]
    assert plan["steps"][0]["outputs"] == ["config.json", "rank0.engine"]
    assert plan["stack"]["image"].endswith("26.07-trtllm-python-py3")
    assert plan["checkpoint"]["kv_cache"]["quant_algo"] == "FP8"
    # No other verb takes it for an engine.
    done = run_cli("render", "-f", str(path), "--out", str(out))
    assert done.returncode == 1
    assert "only planned" in done.stderr
    done = run_cli("build", "-f", str(path), "--out", str(out))
    assert done.returncode == 4
    assert PLAN in done.stderr
    done = run_cli("deploy", "-f", str(path), "--out", str(out), "--dry-run")
    assert done.returncode == 1
    assert "only planned" in done.stderr


def test_deploy_of_the_llmapi_lane_alone(chain):
    path, out, _ = chain
    release = deploy(open_job(path, out=out), "llmapi-l4-tp1pp1-26-07", dry_run=True)[0]
    objects = list(yaml.safe_load_all((release.path / "manifests.yaml").read_text()))
    kinds = sorted(o["kind"] for o in objects)
    assert kinds == ["ConfigMap", "Deployment", "PersistentVolumeClaim", "Service"]
    pod = next(o for o in objects if o["kind"] == "Deployment")["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] in (1, "1")
    data = next(o for o in objects if o["kind"] == "ConfigMap")["data"]
    configs = [text for text in data.values() if 'key: "runtime"' in text]
    assert len(configs) == 1
    # What a pod runs is TensorRT-LLM; the stand-in never leaves this machine.
    assert 'string_value: "tensorrt_llm"' in configs[0]
    models = [json.loads(text) for text in data.values() if text.startswith("{")]
    assert models[0]["model"].startswith("/var/lib/engineroom/artifacts/tiny/llmapi/1.2.1/l4/1x1/")
    assert "engineroom_reference" not in "".join(data)


def test_tool_on_path_is_run_and_its_engine_published(chain, tmp_path, monkeypatch):
    """A test double named trtllm-build: what is shown is our handling, not TensorRT-LLM."""
    path, out, _ = chain
    monkeypatch.setenv("PATH", trtllm_build.install(tmp_path)["PATH"])
    results = build(open_job(path, out=out))
    assert [r.kind for r in results] == ["llmapi-package", "engine"]
    assert (results[1].path / "rank0.engine").read_bytes().startswith(trtllm_build.MARK)
    again = build(open_job(path, out=out))
    assert all(r.reused for r in again)
    monkeypatch.undo()


def test_failing_tool_is_exit_3_and_leaves_no_engine(tmp_path, chain, monkeypatch):
    path, out, _ = chain
    copy = without_engine(out, tmp_path)
    env = trtllm_build.install(tmp_path, mode="fail")
    done = run_cli("build", "-f", str(path), "--out", str(copy), **env)
    assert done.returncode == 3
    assert "exit code 9" in done.stderr
    assert "no kernel image" in done.stderr
    assert list(copy.glob("artifacts/*/engine/1.2.1/h100-sxm/1x1/[!.]*")) == []


@pytest.mark.parametrize("body", ["", "not a program"])
def test_tools_that_do_not_work(tmp_path, chain, body):
    path, out, _ = chain
    copy = without_engine(out, tmp_path)
    script = tmp_path / "trtllm-build"
    script.write_text("#!/no/such/interpreter\n" if body else "#!/bin/sh\n")
    script.chmod(0o755)
    search = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run_cli("build", "-f", str(path), "--out", str(copy), PATH=search)
    assert done.returncode == 3
    assert ("cannot be started" if body else "left no config.json") in done.stderr


def without_engine(out: Path, folder: Path) -> Path:
    """A copy of the workspace in which the engine target is not built yet."""
    copy = folder / "out"
    files.link_tree(out, copy)
    for engine in copy.glob("artifacts/*/engine/1.2.1/h100-sxm/1x1/*"):
        engine.rename(folder / "was")
    return copy
