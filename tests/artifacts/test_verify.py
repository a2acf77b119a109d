"""`artifacts verify`: every byte, and each artefact against what is to use it."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engineroom.catalog import Catalog
from engineroom.pipeline import Job, open_job
from engineroom.pipeline.artifacts_verify import Verdict, verify
from engineroom.runner import manifest
from tests.artifacts.common import ENGINE_CONFIG, ENGINE_TARGET, engine, package, repository
from tests.artifacts.conftest import Run
from tests.conftest import TINY, spec_data, write_spec


def codes(verdict: Verdict, severity: str = "error") -> set[str]:
    return {f.code for f in verdict.findings if f.severity == severity}


def one(out: Path, catalog: Catalog, path: Path, job: Job | None = None) -> Verdict:
    return verify(out, catalog, paths=[path], job=job)[0]


def changed(path: Path) -> None:
    weights = path / "checkpoint/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.unlink()  # the file is linked from the checkpoint
    weights.write_bytes(data)


def missing(path: Path) -> None:
    (path / "llm_args.yaml").unlink()


def added(path: Path) -> None:
    (path / "notes.txt").write_text("mine")


def linked(path: Path) -> None:
    (path / "llm_args.yaml").rename(path.parent / "elsewhere")
    (path / "llm_args.yaml").symlink_to(path.parent / "elsewhere")


def edited(path: Path) -> None:
    content = json.loads((path / manifest.NAME).read_text())
    content["limits"]["max_batch_size"] = 99
    (path / manifest.NAME).write_text(json.dumps(content))


def truncated(path: Path) -> None:
    file = path / manifest.NAME
    file.write_bytes(file.read_bytes()[:-40])


def unsigned(path: Path) -> None:
    (path / manifest.NAME).unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (changed, "checkpoint/model.safetensors: the file differs"),
        (missing, "llm_args.yaml: a file of the artefact is missing"),
        (added, "notes.txt: a file that the manifest does not list"),
        (linked, "llm_args.yaml: not a regular file"),
        (edited, "its seal does not match"),
        (truncated, "manifest is unreadable"),
        (unsigned, "manifest.json is missing"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_any_damage_is_a_finding(
    made: Job, catalog: Catalog, damage: Callable[[Path], None], words: str
) -> None:
    path = package(made)
    damage(path)
    if damage is unsigned:  # named alone it is no artefact at all
        found = next(v for v in verify(made.out, catalog) if v.entry.path == path)
    else:
        found = one(made.out, catalog, path)
    assert [f.code for f in found.findings] == ["artefact-damaged"]
    assert words in found.findings[0].reason
    assert found.verdict == "error"


def test_damage_ends_with_exit_1(made: Job, artifacts: Run) -> None:
    missing(package(made))
    code, out, _ = artifacts("verify", "--out", made.out, "--format", "json")
    data = json.loads(out)
    assert (code, data["schema_version"]) == (1, 1)
    assert [f["code"] for f in data["findings"] if f["severity"] == "error"] == ["artefact-damaged"]
    wrong = [row["name"] for row in data["artefacts"] if row["verdict"] == "error"]
    assert wrong == [package(made).relative_to(made.out).as_posix()]


def test_a_whole_workspace_is_fine_with_and_without_its_spec(made: Job, artifacts: Run) -> None:
    for words in ((), ("--all",), ("-f", made.loaded.file)):
        code, out, _ = artifacts("verify", "--out", made.out, *words)
        assert code == 0, out
        assert "0 error, 0 warn" in out
    code, out, _ = artifacts("verify", package(made))  # a path alone is enough
    assert (code, out.splitlines()[0].split()[0]) == (0, "ok")
    assert artifacts("verify", "--all", package(made))[0] == 2
    assert artifacts("verify", made.out)[0] == 2


def test_manifests_of_the_version_before_are_read(tmp_path: Path, catalog: Catalog) -> None:
    path = engine(tmp_path / "ws", version=1)
    assert one(tmp_path / "ws", catalog, path).verdict == "ok"


def config(**changes: Any) -> dict[str, Any]:
    """The engine's config with values at dotted paths."""
    value = copy.deepcopy(ENGINE_CONFIG)
    for path, item in changes.items():
        *heads, last = path.split("__")
        part = value
        for head in heads:
            part = part[head]
        part[last] = item
    return value


MAPPING = "pretrained_config__mapping"
PLUGIN = "build_config__plugin_config__"


@pytest.mark.parametrize(
    ("changes", "ranks", "expected"),
    [
        ({}, 1, set()),
        ({"version": "1.0.0"}, 1, {"engine-of-other-release"}),
        ({"build_config__max_batch_size": 4}, 1, {"artefact-below-limits"}),
        ({"build_config__max_num_tokens": 2048}, 1, {"artefact-below-limits"}),
        ({"build_config__max_seq_len": 2048}, 1, {"artefact-below-limits"}),
        (
            {"pretrained_config__quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}},
            1,
            {"artefact-other-quantization"},
        ),
        ({MAPPING: {"world_size": 2, "tp_size": 2, "pp_size": 1}}, 2, {"artefact-other-layout"}),
        (
            {MAPPING: {"world_size": 2, "tp_size": 2, "pp_size": 1}},
            1,
            {"artefact-other-layout", "engine-rank-files"},
        ),
        ({}, 2, {"engine-rank-files"}),
    ],
    # Sorted: the order of a set differs between workers, and with it the test's name.
    ids=lambda v: str(sorted(v) if isinstance(v, set) else v)[:40],
)
def test_an_engine_against_its_own_manifest(
    tmp_path: Path, catalog: Catalog, changes: dict[str, Any], ranks: int, expected: set[str]
) -> None:
    path = engine(tmp_path / "ws", config(**changes), ranks=ranks)
    assert codes(one(tmp_path / "ws", catalog, path)) == expected


def test_limits_above_the_target_are_a_warning(tmp_path: Path, catalog: Catalog) -> None:
    path = engine(tmp_path / "ws", config(build_config__max_batch_size=64))
    assert codes(one(tmp_path / "ws", catalog, path), "warn") == {"artefact-above-limits"}


def test_an_engine_built_on_another_card(tmp_path: Path, catalog: Catalog) -> None:
    path = engine(tmp_path / "ws", sku={"id": "h100-sxm", "compute_capability": "8.9"})
    finding = one(tmp_path / "ws", catalog, path).findings[0]
    assert finding.code == "engine-of-other-compute-capability"
    assert "8.9" in finding.reason
    assert "9.0" in finding.reason


@pytest.mark.parametrize(
    ("changes", "parameters", "expected"),
    [
        ({}, {"enable_kv_cache_reuse": "true", "max_beam_width": "1"}, set()),
        (
            {f"{PLUGIN}use_paged_context_fmha": False},
            {"enable_kv_cache_reuse": "true"},
            {"kv-reuse-needs-paged-fmha"},
        ),
        (
            {f"{PLUGIN}use_paged_context_fmha": False},
            {"enable_chunked_context": "true"},
            {"chunked-context-needs-paged-fmha"},
        ),
        ({}, {"max_beam_width": "4"}, {"repository-beams-over-engine"}),
        ({"build_config__max_beam_width": 4}, {"max_beam_width": "4"}, set()),
        ({f"{PLUGIN}remove_input_padding": False}, {"gpt_model_type": "inflight_fused_batching"},
         {"packed-input"}),
    ],
    ids=lambda v: str(v)[:40],
)  # fmt: skip
def test_a_repository_against_the_engine_it_serves(
    tmp_path: Path, catalog: Catalog, changes: Any, parameters: Any, expected: set[str]
) -> None:
    out = tmp_path / "ws"
    path = engine(out, config(**changes))
    known = {
        "max_tokens_in_paged_kv_cache": "8192",
        "gpt_model_path": "/e",
        "decoupled_mode": "true",
    }
    repository(out, path, **{"gpt_model_type": "inflight_fused_batching", **known, **parameters})
    found = one(out, catalog, path)
    # Only what engine and repository say together; the repository alone is `lint`'s matter.
    assert {c for c in codes(found) if c in (_TOGETHER | expected)} == expected


_TOGETHER = {
    "kv-reuse-needs-paged-fmha", "chunked-context-needs-paged-fmha", "repository-beams-over-engine",
    "repository-of-other-artefact", "packed-input",
}  # fmt: skip


def test_a_repository_rendered_from_an_older_engine(tmp_path: Path, catalog: Catalog) -> None:
    out = tmp_path / "ws"
    repository(out, engine(out))
    path = engine(out, config(build_config__max_num_tokens=8193))  # another file, so another digest
    assert "repository-of-other-artefact" in codes(one(out, catalog, path))


def test_an_engine_against_the_spec(tmp_path: Path) -> None:
    """The spec wins over the manifest, and findings name its keys."""
    target = {**ENGINE_TARGET, "limits": {"max_batch_size": 16, "max_seq_len": 4096}}
    spec = spec_data(TINY, precision={"weights": "fp8", "kv_cache": "fp8"}, targets=[target])
    job = open_job(write_spec(tmp_path, spec), out=tmp_path / "ws")
    path = engine(job.out)
    verdict = one(job.out, job.catalog, path, job)
    assert verdict.targets == ("engine-h100-sxm-tp1pp1-26-07",)
    assert codes(verdict) == {"artefact-below-limits", "artefact-other-quantization"}
    limit = next(f for f in verdict.findings if f.code == "artefact-below-limits")
    assert limit.file == (path / "config.json").as_posix()
    assert limit.key == "build_config.max_batch_size"
    assert "8 here" in limit.reason
    assert "16" in limit.reason


def test_a_package_against_a_spec_that_changed(made: Job, tmp_path: Path) -> None:
    text = made.loaded.file.read_text()
    made.loaded.file.write_text(text.replace("max_batch_size: 8", "max_batch_size: 64"))
    job = open_job(made.loaded.file, out=made.out)
    verdict = one(made.out, job.catalog, package(made), job)
    assert codes(verdict) == {"artefact-below-limits"}
    assert "llm_args.max_batch_size" in verdict.findings[0].key


def test_a_repository_whose_arguments_were_edited(made: Job) -> None:
    path = next((made.out / "repositories").iterdir())
    model_yaml = path / "repository/tensorrt_llm/1/model.yaml"
    args = json.loads(model_yaml.read_text())
    args["max_batch_size"] = 4
    model_yaml.write_text(json.dumps(args))
    verdicts = {v.entry.kind: codes(v) for v in verify(made.out, made.catalog)}
    assert verdicts["repository"] == {"artefact-damaged"}
    assert verdicts["llmapi-package"] == {"repository-arguments-differ"}


def test_a_file_that_is_whole_and_nonsense_is_no_crash(tmp_path: Path, catalog: Catalog) -> None:
    path = engine(tmp_path / "ws", config(build_config="x"))
    found = one(tmp_path / "ws", catalog, path)
    assert codes(found) == {"artefact-damaged"}
    assert "config.json" in found.findings[0].reason


def test_sarif_and_fail_on(made: Job, artifacts: Run) -> None:
    engine(made.out, config(build_config__max_batch_size=64))
    words = ("verify", "--out", made.out, "--format", "sarif")
    code, out, _ = artifacts(*words)
    assert code == 0
    assert json.loads(out)["version"] == "2.1.0"
    assert artifacts(*words, "--fail-on", "warn")[0] == 1


def test_verify_reads_every_byte_again(made: Job) -> None:
    """Same size and times: the quick form may believe them, `verify` must not."""
    path = package(made) / "checkpoint/model.safetensors"
    made.verified.sha256(path)
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "artefact-damaged" in codes(one(made.out, made.catalog, package(made)))
