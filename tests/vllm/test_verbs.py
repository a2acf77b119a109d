"""What the verbs say about vllm targets: findings, refusals, releases, and lint of a repository."""

from __future__ import annotations

import json

import pytest
import yaml

from engineroom.errors import FindingsError, SpecError
from engineroom.names import LaneName, Severity
from engineroom.pipeline import build, check, deploy, lint, open_job, plan
from engineroom.pipeline.init import init_spec
from engineroom.pipeline.matrix import diff_releases
from engineroom.pipeline.matrix_spec import diff_spec
from tests.conftest import SMOLLM2_CONFIG, spec_data, write_spec
from tests.vllm.conftest import NAME

TARGET = {"sku": "h100-sxm", "lane": "vllm", "stack": "26.07"}


def job_of(make_job, *targets, **changes):
    return make_job(spec_data(SMOLLM2_CONFIG, targets=list(targets), **changes))


def errors(job):
    return [f.code for f in check(job) if f.severity is Severity.ERROR]


@pytest.mark.parametrize("stack", ["25.08", "25.12", "26.01", "26.04", "26.07"])
@pytest.mark.parametrize("sku", ["a100-sxm-80gb", "l4", "h200-sxm", "b200-sxm"])
def test_init_writes_a_spec_that_passes_check(catalog, tmp_path, sku, stack):
    (tmp_path / "calibration.jsonl").write_text('{"text": "a"}\n')
    text = init_spec(
        catalog, model=str(SMOLLM2_CONFIG), sku=sku, lane=LaneName.VLLM, stack=stack,
        spec_dir=tmp_path,
    )  # fmt: skip
    path = tmp_path / "engineroom.yaml"
    path.write_text(text)
    job = open_job(path, out=tmp_path / "out")
    assert errors(job) == []
    weights = job.loaded.spec.precision.weights
    assert weights == ("fp8" if sku in ("l4", "h200-sxm") else "bf16")
    assert plan(job)[0].capacity.kv_tokens > 0


def test_an_unknown_version_warns_and_then_refuses(make_job):
    job = job_of(make_job, {**TARGET, "stack": "26.02"})
    found = {f.code: f for f in check(job)}
    assert "vLLM 0.15.1" in found["unknown-vllm-version"].reason
    assert "unknown-trtllm-version" not in found
    with pytest.raises(FindingsError, match=r"no contract of vLLM 0\.15\.1"):
        build(job, dry_run=True)


def test_a_checkpoint_that_vllm_does_not_load_is_refused_before_it_is_made(make_job):
    precision = {"weights": "w4a16_awq", "group_size": 64}
    llmapi = {"sku": "h100-sxm", "lane": "llmapi", "stack": "26.07"}
    job = job_of(make_job, TARGET, llmapi, precision=precision)
    found = [f for f in check(job) if f.severity is Severity.ERROR]
    assert {(f.code, f.target) for f in found} == {
        ("vllm-format-not-loaded", "vllm-h100-sxm-tp1pp1-26-07")
    }
    assert "W4A16_AWQ" in found[0].reason


def test_settings_of_the_other_lanes_are_judged_apart(make_job):
    """One spec, three lanes: each share of memory is judged for the lanes that read it."""
    both = {"kv_cache_free_gpu_mem_fraction": 0.9, "gpu_memory_utilization": 0.96}
    llmapi = {"sku": "h100-sxm", "lane": "llmapi", "stack": "26.07"}
    codes = {
        (f.code, f.target)
        for f in check(job_of(make_job, TARGET, llmapi, serving=both))
        if "memory" in f.code or "fraction" in f.code
    }
    assert codes == {
        ("vllm-memory-share-too-high", "vllm-h100-sxm-tp1pp1-26-07"),
        ("gpu-memory-utilization-unused", "llmapi-h100-sxm-tp1pp1-26-07"),
    }


def test_high_share_says_what_is_left_and_where_graphs_go(make_job):
    serving = {"gpu_memory_utilization": 0.95}
    for stack, graphs in (("26.04", True), ("26.06", False)):
        found = check(job_of(make_job, {**TARGET, "stack": stack}, serving=serving))
        reason = next(f.reason for f in found if f.code == "vllm-memory-share-too-high")
        assert ("CUDA graphs" in reason) is graphs
        assert "of 81559" in reason


def test_block_waste_is_half_a_block(make_job):
    lengths = {"p50": 100, "p95": 100}
    chat = {"input_tokens": lengths, "output_tokens": lengths, "concurrency": 1}

    def found(**vllm):
        job = job_of(make_job, TARGET, workload={"chat": chat}, serving={"vllm": vllm})
        return [f for f in check(job) if f.code == "vllm-block-size-waste"]

    assert found() == []
    (finding,) = found(block_size=64)
    assert "lose 32 tokens a sequence on average, 16% of the 200 tokens" in finding.reason
    assert finding.severity is Severity.WARN


def test_every_finding_of_a_vllm_target_is_about_vllm(make_job):
    """No fact about TensorRT-LLM's versions is held against a vLLM version number."""
    for stack in ("25.08", "26.07"):
        for finding in check(job_of(make_job, {**TARGET, "stack": stack})):
            assert "TensorRT-LLM" not in finding.reason + finding.fix, finding.code


def test_a_release_diff_says_nothing_about_another_runtime(make_job, catalog):
    job = job_of(make_job, TARGET)
    result = diff_spec(job, diff_releases(catalog, "25.12", "26.07"))
    assert result.affected == ()
    assert any("runs on vLLM" in text for text in result.unknown)


def test_release_runs_the_vllm_container(built):
    release = deploy(built, NAME)[0]
    values = yaml.safe_load((release.path / "values.yaml").read_text())
    assert values["image"]["reference"] == "nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3"
    assert (values["model"]["lane"], values["model"]["frontModel"]) == ("vllm", "vllm_model")
    paths = {file["path"]: file["content"] for file in values["repository"]["files"]}
    assert set(paths) == {"vllm_model/config.pbtxt", "vllm_model/1/model.json"}
    model = json.loads(paths["vllm_model/1/model.json"])["model"]
    assert model.startswith("/var/lib/engineroom/artifacts/tiny/vllm/0.24.0/l4/1x1/")
    manifest = json.loads((release.path / "manifest.json").read_text())
    assert manifest["stood_in"] is None  # a checkpoint is all that vLLM needs
    assert manifest["artefact"]["kind"] == "vllm-package"


def test_steps_of_a_dry_run_are_data(make_job):
    listing = build(job_of(make_job, TARGET), dry_run=True)[0]
    assert listing["steps"][0]["name"] == "package-vllm"
    assert listing["documents"]["engine_args.yaml"]["quantization"] == "modelopt"
    assert listing["steps"][0]["image"].endswith("26.07-vllm-python-py3")


def _repository(folder, *shares, kind="KIND_MODEL"):
    for i, share in enumerate(shares):
        model = folder / f"m{i}"
        (model / "1").mkdir(parents=True)
        (model / "1/model.json").write_text(
            json.dumps({"model": "x", "gpu_memory_utilization": share})
        )
        (model / "config.pbtxt").write_text(
            f'backend: "vllm"\ninstance_group [ {{ count: 1 kind: {kind} }} ]\n'
        )
    return folder


@pytest.mark.parametrize(
    ("shares", "kind", "codes"),
    [
        ((0.5, 0.4), "KIND_MODEL", set()),
        ((0.9, 0.4), "KIND_MODEL", {"vllm-memory-shares-add-up"}),
        ((0.9, 0.4), "KIND_GPU", set()),
        ((0.97,), "KIND_MODEL", {"vllm-memory-share-too-high"}),
    ],
)
def test_lint_of_a_repository_with_vllm_models(tmp_path, shares, kind, codes):
    result = lint([_repository(tmp_path / "repository", *shares, kind=kind)])
    assert {f.code for f in result.findings if f.code.startswith("vllm-")} == codes


def test_a_typing_error_in_the_lanes_own_section_is_found(tmp_path):
    data = spec_data(SMOLLM2_CONFIG, targets=[TARGET], serving={"vllm": {"block_sise": 16}})
    with pytest.raises(SpecError, match="unknown key `block_sise`"):
        open_job(write_spec(tmp_path, data), out=tmp_path / "out")
