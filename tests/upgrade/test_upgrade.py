"""`upgrade`: the new spec, the fate of each setting, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from engineroom.catalog import Catalog
from engineroom.errors import FindingsError, SpecError, UsageError
from engineroom.names import ExitCode, LaneName, Support
from engineroom.pipeline import Job, upgrade
from engineroom.pipeline.upgrade_text import markdown
from engineroom.spec import load_spec
from engineroom.types.migration import Fate
from engineroom.types.upgrade import Upgrade
from tests.conftest import TINY, calibration_file, run_cli, spec_data, write_spec

LLMAPI = {"sku": "l4", "stack": "26.02", "limits": {"max_batch_size": 8}}
ENGINE = {"sku": "h100-sxm", "lane": "engine", "stack": "26.02"}
VLLM = {"sku": "h100-sxm", "lane": "vllm", "stack": "26.06"}
MODEL = "mo'del $(x) é😀"
TEXT = """\
# the service of the team
schema_version: 1
name: tiny
model: {source: "./mo'del $(x) é😀"}  # trained in May
precision: {weights: fp8, kv_cache: fp8}
calibration: {dataset: calibration.jsonl, samples: 8, seq_len: 128}
targets:
  - {sku: l4, stack: 26.02}  # the small one
  - sku: h100-sxm
    stack:   "26.02"   # keep this remark
    limits: {max_batch_size: 8}
  - {sku: h200-sxm, stack: "26.07"}
serving: {kv_cache_free_gpu_mem_fraction: 0.90}
"""


@pytest.fixture
def job_of(tmp_path: Path, catalog: Catalog) -> Any:
    """A job on the text of a spec, with a catalog that has read its files."""

    def job(text: str | dict[str, Any]) -> Job:
        calibration_file(tmp_path)
        if not (tmp_path / MODEL).exists():
            (tmp_path / MODEL).symlink_to(TINY)
        path = tmp_path / "engineroom.yaml"
        path.write_text(text if isinstance(text, str) else yaml.safe_dump(text), encoding="utf-8")
        return Job(load_spec(path), catalog, tmp_path / "out")

    return job


def fates(result: Upgrade, fate: Fate) -> dict[str, tuple[Any, Any, Any]]:
    """Old name -> (old value, new name, new value), of one fate."""
    return {r.key: (r.old_value, r.new_key, r.new_value) for r in result.settings if r.fate is fate}


# ---- the spec
def test_spec_keeps_its_comments_and_finds_its_files(job_of: Any, tmp_path: Path):
    result = upgrade(
        "26.02", "26.07", job=job_of(TEXT.replace('- {sku: h200-sxm, stack: "26.07"}', ""))
    )
    folder = tmp_path / "out/upgrade/26.02-to-26.07"
    assert sorted(p.name for p in folder.iterdir()) == [
        "engineroom.yaml",
        "report.json",
        "report.md",
    ]
    text = (folder / "engineroom.yaml").read_text("utf-8")
    assert text.splitlines()[0] == "# the service of the team"
    assert '  - {sku: l4, stack: "26.07"}  # the small one' in text
    assert '    stack:   "26.07"   # keep this remark' in text
    assert f'model: {{source: "../../../{MODEL}"}}  # trained in May' in text
    assert "kv_cache_free_gpu_mem_fraction: 0.90" in text
    assert (tmp_path / "engineroom.yaml").read_text("utf-8").count("26.02") == 2  # untouched
    moved = load_spec(folder / "engineroom.yaml")
    assert [t.stack for t in moved.spec.targets] == ["26.07", "26.07"]
    assert run_check(folder / "engineroom.yaml") == 0
    assert result.passes


def run_check(path: Path) -> int:
    from engineroom.pipeline import check, open_job

    return sum(f.severity == "error" for f in check(open_job(path)))


def test_a_target_on_another_stack_stays(job_of: Any):
    result = upgrade("26.02", "26.06", job=job_of(TEXT), write=False)
    assert result.paths == {}
    assert result.untouched == ("llmapi-h200-sxm-tp1pp1-26-07",)
    assert [t.new_id for t in result.targets] == [
        "llmapi-l4-tp1pp1-26-06", "llmapi-h100-sxm-tp1pp1-26-06",
    ]  # fmt: skip
    assert '{sku: h200-sxm, stack: "26.07"}' in str(result.spec_text)


def test_shared_and_spread_values_are_written_anew(job_of: Any):
    text = TEXT.replace("stack: 26.02}", "stack: &s 26.02}").replace(
        'stack:   "26.02" ', "stack: *s"
    )
    text = text.replace('"26.07"', '"26.10"').replace('- {sku: h200-sxm, stack: "26.10"}', "")
    result = upgrade("26.02", "26.07", job=job_of(text), write=False)
    assert any("written anew" in note for note in result.notes)
    assert [t["stack"] for t in yaml.safe_load(str(result.spec_text))["targets"]] == ["26.07"] * 2
    block = TEXT.replace(
        'stack:   "26.02"   # keep', "stack:\n      trtllm: 1.1.0\n      image: a/b\n    # keep"
    )
    result = upgrade("1.1.0", "1.2.1", job=job_of(block), image="c/d:e", write=False)
    assert result.untouched[0] == "llmapi-l4-tp1pp1-26-02"
    assert yaml.safe_load(str(result.spec_text))["targets"][1]["stack"] == {
        "trtllm": "1.2.1", "image": "c/d:e",
    }  # fmt: skip


def test_two_targets_that_become_one_are_refused(job_of: Any):
    text = TEXT.replace("h200-sxm", "l4")
    with pytest.raises(SpecError) as caught:
        upgrade("26.02", "26.07", job=job_of(text), write=False)
    assert "repeats" in caught.value.message


# ---- settings
def test_26_02_to_26_07(job_of: Any):
    job = job_of(spec_data(TINY, targets=[LLMAPI, ENGINE]))
    result = upgrade("26.02", "26.07", job=job, write=False)
    assert result.counts().keys() == {"kept", "re-defaulted"}
    assert fates(result, Fate.REDEFAULTED) == {
        "moe_config.backend": ("CUTLASS", "moe_config.backend", "AUTO")
    }
    kept = fates(result, Fate.KEPT)
    assert kept["max_batch_size"] == (8, "max_batch_size", 8)
    assert kept["--max_batch_size"] == ("64", "--max_batch_size", "64")
    assert len(kept) > 40
    assert all(row.source and row.what for row in result.settings)
    built = {(r.target, r.what): r.verdict for r in result.rebuild}
    assert built["engine-h100-sxm-tp1pp1-26-02", "engine"] == "rebuild"
    assert built["llmapi-l4-tp1pp1-26-02", "package"] == "write again"
    assert built[None, "checkpoint"] == "keep"
    host = {h.name: (h.old, h.new) for h in result.host}
    assert host["toolkit_driver"] == ("580.95.05", "590.44.01")
    assert host["min_driver"] == ("580.65.06", "580.65.06")
    assert host["tensorrt"] == ("10.13.3.9", "10.14.1.48")
    assert [(c.lane, c.side, c.name, c.change) for c in result.clients] == [
        (LaneName.ENGINE, "inputs", "image_sizes_input", "added")
    ]
    assert any("26.02-trtllm-python-py3" in step for step in result.rollback)
    assert any('targets[0].stack, targets[1].stack back to "26.02"' in s for s in result.rollback)


def test_driver_that_is_below_the_new_toolkit(job_of: Any):
    job = job_of(spec_data(TINY, targets=[{**LLMAPI, "driver": "580.95.05"}]))
    result = upgrade("26.02", "26.07", job=job, write=False)
    row = next(r for r in result.settings if r.key == "targets[0].driver")
    assert row.fate is Fate.KEPT
    assert "below 590.44.01" in row.what
    assert {f["code"] for f in result.findings} == {"driver-minor-compat"}
    assert "targets[0].driver" in markdown(result, kept=False)


def test_moves_of_1_0(job_of: Any):
    """The names that release notes 1.0 moved: kv_cache_dtype, use_cuda_graph and its siblings."""
    target = {**LLMAPI, "stack": {"trtllm": "0.21.0", "image": "a/b"}}
    result = upgrade(
        "0.21.0", "1.0.0", job=job_of(spec_data(TINY, targets=[target])), image="c/d", write=False
    )
    moved = fates(result, Fate.MOVED)
    assert moved["kv_cache_dtype"] == ("fp8", "kv_cache_config.dtype", "fp8")
    assert {"use_cuda_graph", "cuda_graph_padding_enabled", "cuda_graph_max_batch_size"} <= set(
        moved
    )
    assert moved["cuda_graph_max_batch_size"][2] == {
        "cuda_graph_config.max_batch_size": 8,
        "cuda_graph_config.enable_padding": True,
    }
    assert result.targets[0].added == {}  # each new name is what an old one became
    assert {r.key for r in result.settings if "deprecated" in r.what} == {"backend"}
    assert Fate.IMPOSSIBLE not in {r.fate for r in result.settings}
    back = upgrade("1.0.0", "0.21.0", job=job_of(spec_data(TINY, targets=[
        {**LLMAPI, "stack": {"trtllm": "1.0.0", "image": "c/d"}}
    ])), image="a/b", write=False)  # fmt: skip
    assert fates(back, Fate.MOVED)["kv_cache_config.dtype"][1:] == ("kv_cache_dtype", "fp8")


def test_what_one_side_cannot_write_does_not_pass(job_of: Any):
    """LoraConfig of 1.4.0rc4 was read from a list without its target modules."""
    data = spec_data(
        TINY, targets=[{**LLMAPI, "stack": {"trtllm": "1.2.1", "image": "a/b"}}],
        serving={"features": {"lora": {"max_rank": 8}}},
    )  # fmt: skip
    result = upgrade("1.2.1", "1.4.0rc4", job=job_of(data), image="c/d", write=False)
    assert not result.passes
    assert "lora_config.lora_target_modules" in str(result.targets[0].unknown)
    assert {c.name for c in result.clients} >= {"lora_id", "lora_name", "image_url"}


def test_vllm_versions(job_of: Any):
    result = upgrade("26.06", "26.07", job=job_of(spec_data(TINY, targets=[VLLM])), write=False)
    assert [(r.old_version, r.new_version) for r in result.lanes] == [("0.22.1", "0.24.0")]
    kept = fates(result, Fate.KEPT)
    assert kept["gpu_memory_utilization"] == (0.9, "gpu_memory_utilization", 0.9)
    assert not fates(result, Fate.IMPOSSIBLE)
    assert {h.lane for h in result.host} == {LaneName.VLLM}
    assert result.changes == {}
    assert all(row.new_key == row.key for row in result.settings)


@pytest.mark.parametrize("lost", ["stream_interval", "max_num_seqs"])
def test_an_argument_that_a_vllm_version_lost(
    job_of: Any, catalog: Catalog, monkeypatch: Any, lost: str
):
    """One that the lane leaves out then is impossible; one that it cannot do without is unknown."""
    contract = catalog.vllm_contract("0.24.0")
    assert contract is not None
    less = {k: v for k, v in contract.data["engine_args"].items() if k != lost}
    changed = type(contract)(contract.version, {**contract.data, "engine_args": less}, "", None)
    monkeypatch.setitem(catalog._vllm_cache, "0.24.0", changed)
    data = spec_data(TINY, targets=[VLLM], serving={"stream_interval": 4})
    result = upgrade("26.06", "26.07", job=job_of(data), write=False)
    assert not result.passes
    if lost == "stream_interval":
        assert fates(result, Fate.IMPOSSIBLE) == {lost: (4, None, None)}
        row = next(r for r in result.settings if r.key == lost)
        assert row.todo == "stay on 26.06, or do without it"
    else:
        assert lost in str(result.targets[0].unknown)


# ---- refused
def test_the_engine_lane_ends(job_of: Any, tmp_path: Path):
    with pytest.raises(FindingsError) as caught:
        upgrade("26.02", "1.4.0rc4", job=job_of(spec_data(TINY, targets=[LLMAPI, ENGINE])))
    assert "the engine lane ends between 1.1.0 and 1.4.0rc4" in caught.value.message
    assert "engineroom migrate" in str(caught.value.hint)
    assert str(caught.value.where).endswith("`targets[1].lane`")
    assert not (tmp_path / "out").exists()
    assert upgrade("26.02", "1.4.0rc4", job=job_of(spec_data(TINY, targets=[LLMAPI])), write=False)


def test_a_version_that_nobody_knows_is_refused(job_of: Any):
    with pytest.raises(FindingsError) as caught:
        upgrade("26.02", "26.03", job=job_of(spec_data(TINY, targets=[LLMAPI])), write=False)
    assert "no contract of 1.2.0" in caught.value.message


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("26.06", "26.07", "no target of the spec is on 26.06; its stacks: 26.02"),
        ("26.02", "26.02", "both 26.02"),
        ("26.02", "26.77", "no Triton release `26.77`"),
        ("26.02", "new", "no Triton release `new`"),
        ("26.02", "docker-1.2.1", "no Triton release"),
    ],
)
def test_bad_arguments(job_of: Any, old: str, new: str, words: str):
    with pytest.raises(UsageError) as caught:
        upgrade(old, new, job=job_of(spec_data(TINY, targets=[LLMAPI])), write=False)
    assert words in caught.value.message
    assert caught.value.hint


def test_assumed_to_be_on_the_old_side(job_of: Any):
    job = job_of(spec_data(TINY, targets=[LLMAPI, {**VLLM, "stack": "26.06"}]))
    result = upgrade("1.0.0", "26.07", job=job, assume_from=True, write=False)
    assert [t.old_id for t in result.targets] == ["llmapi-l4-tp1pp1-26-02"]


def test_what_cannot_be_checked_does_not_pass(job_of: Any, tmp_path: Path):
    """The model is on another machine: settings are known without its sizes, `check` cannot run."""
    data = spec_data("./absent", targets=[LLMAPI], deploy={"image": "my/image"})
    result = upgrade("26.02", "26.07", job=job_of(data), write=False)
    assert (result.passes, result.checked) == (False, False)
    assert any(text.startswith("check could not run") for text in result.unknown)
    assert fates(result, Fate.KEPT)["max_batch_size"] == (8, "max_batch_size", 8)
    assert any("deploy.image stays my/image" in note for note in result.notes)


def test_image_of_a_release(job_of: Any):
    with pytest.raises(UsageError):
        upgrade("26.02", "26.07", job=job_of(spec_data(TINY, targets=[LLMAPI])), image="a/b")


# ---- without a spec
def test_what_any_spec_would_meet(tmp_path: Path):
    result = upgrade("1.2.1", "1.4.0rc4", out=tmp_path / "w $(x) 'y")
    ends = {row.lane: (row.before, row.after, row.ends) for row in result.lanes}
    assert ends == {
        LaneName.LLMAPI: (Support.YES, Support.YES, False),
        LaneName.ENGINE: (Support.YES, Support.NO, True),
    }
    assert result.notes[0].startswith("the engine lane ends")
    assert result.spec_text is None
    names = {(d["kind"], *d["old_names"]) for d in result.details}
    assert ("renamed", "enable_sleep") in names
    assert {r.what: r.verdict for r in result.rebuild} == {
        "package": "write again",
        "checkpoint": "keep",
    }
    data = json.loads(result.paths["report_json"].read_text("utf-8"))
    assert (data["kind"], data["from"], data["to"]) == (
        "upgrade-report",
        "trtllm-1.2.1",
        "trtllm-1.4.0rc4",
    )
    assert "| llm-args | enable_sleep | sleep_config |" in result.paths["report_md"].read_text(
        "utf-8"
    )


def test_nothing_in_common():
    with pytest.raises(UsageError) as caught:
        upgrade("1.2.1", "vllm-0.24.0", write=False)
    assert "no runtime in common" in caught.value.message


# ---- command line
def test_command_line(tmp_path: Path):
    spec = write_spec(tmp_path, spec_data(TINY, targets=[LLMAPI]))
    done = run_cli(
        "upgrade", "--from", "26.02", "--to", "26.07", "-f", str(spec), "--out", str(tmp_path / "o")
    )
    assert done.returncode == ExitCode.OK, done.stderr
    assert "moe_config.backend" in done.stdout
    assert "`max_batch_size`" not in done.stdout  # kept
    report = tmp_path / "o/upgrade/26.02-to-26.07/report.md"
    assert "`max_batch_size`" in report.read_text("utf-8")
    assert f"written: {report.as_posix()}" in done.stdout
