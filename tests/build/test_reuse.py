"""A second `build` does nothing; a changed input rebuilds exactly what depends on it; damage is seen."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engineroom.errors import ExternalToolError, UsageError
from engineroom.lanes import LANES as LANE_LIST
from engineroom.lanes.base import Attachment
from engineroom.names import LaneName
from engineroom.pipeline import build, open_job
from engineroom.pipeline.build import find_artefact
from engineroom.pipeline.quantize import find
from engineroom.runner import files, manifest, verified
from tests.build.common import ENGINE, LLMAPI, changed, data, rows

pytestmark = pytest.mark.slow


def built(workspace, spec=None) -> dict[str, tuple[str, bool]]:
    """Build in this process: (path, reused) by lane."""
    job = workspace.job(spec)
    return {
        str(a.target.target.lane): (a.path.relative_to(workspace.out).as_posix(), a.reused)
        for a in build(job)
    }


def anew(found) -> set[str]:
    return {lane for lane, (_, reused) in found.items() if not reused}


def test_second_build_is_quick_and_does_nothing(workspace, monkeypatch, record_property):
    """As a user types it: under 2 s of this process's CPU time, and no step runs."""
    monkeypatch.setattr(verified, "SETTLED_NS", 0)  # as if the first build was some time ago
    first = build(workspace.job())
    assert workspace.starts == 1
    monkeypatch.undo()
    before = tree(workspace.out / "artifacts")
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "engineroom", *workspace.argv()],
        capture_output=True, text=True, env={**os.environ, **workspace.env}, check=False,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    seconds = after.ru_utime - spent.ru_utime + after.ru_stime - spent.ru_stime
    record_property("cpu_seconds", seconds)
    assert all(row["reused"] for row in rows(done.stdout).values())
    assert len(rows(done.stdout)) == 3
    assert workspace.starts == 1
    assert tree(workspace.out / "artifacts") == before
    assert [a.manifest["digest"] for a in first] == [
        row["digest"] for row in rows(done.stdout).values()
    ]
    assert seconds < 2, seconds


def tree(root: Path) -> dict[str, tuple[int, int]]:
    return {
        p.relative_to(root).as_posix(): (p.stat().st_ino, p.stat().st_mtime_ns)
        for p in root.rglob("*")
    }


def test_second_build_reads_no_large_file_again(workspace, monkeypatch):
    """Neither model, nor checkpoint, nor artefacts: their digests are known, links and all."""
    monkeypatch.setattr(verified, "SETTLED_NS", 0)
    job = workspace.job()
    build(job)
    assert job.verified.hashed > 0
    again = workspace.job()
    assert all(artefact.reused for artefact in build(again))
    assert again.verified.hashed == 0


def test_changes_rebuild_exactly_what_depends_on_them(workspace):
    """Through `build` itself, one after the other; the keys of every input are in test_key.py."""
    assert anew(built(workspace)) == {"llmapi", "engine", "vllm"}
    base = data()
    table = [
        ("deploy.replicas", 7, set()),
        ("serving.streaming", False, set()),
        ("targets.*.profile", "latency", set()),
        ("serving.kv_cache_free_gpu_mem_fraction", 0.5, {"llmapi"}),
        ("serving.vllm.block_size", 32, {"vllm"}),
        ("serving.features.context_logits", True, {"engine"}),
        ("targets.*.limits.max_batch_size", 4, {"llmapi", "engine", "vllm"}),
    ]
    starts = 1
    for path, value, lanes in table:
        found = built(workspace, changed(base, path, value))
        assert anew(found) == lanes, path
        starts += "engine" in lanes
        assert workspace.starts == starts, path
    # And back: what was there first is still there.
    assert anew(built(workspace, base)) == set()
    assert workspace.starts == starts


def test_a_changed_checkpoint_rebuilds_what_reads_the_changed_part(workspace):
    built(workspace)
    checkpoint = find(workspace.job())
    changed_file = checkpoint.path / "hf/generation_config.json"
    content = json.loads(changed_file.read_text())
    changed_file.unlink()  # the packages' own link to it stays as it is
    changed_file.write_text(json.dumps({**content, "temperature": 0.123}))
    again = {k: v for k, v in checkpoint.manifest.items() if k in ("weights", "kv_cache")}
    manifest.write(
        checkpoint.path, "checkpoint", run_id="r", catalog_digest="c",
        key=checkpoint.manifest["key"], facts=again,
    )  # fmt: skip
    assert anew(built(workspace)) == {"llmapi", "vllm"}
    assert workspace.starts == 1


def test_a_new_name_takes_over_what_is_built(workspace):
    first = built(workspace)
    found = built(workspace, changed(data(), "name", "other"))
    assert anew(found) == set()
    assert workspace.starts == 1
    for lane, (path, _) in found.items():
        assert path == first[lane][0].replace("artifacts/tiny/", "artifacts/other/")
        kind = "engine" if lane == "engine" else f"{lane}-package"
        manifest.load(workspace.out / path, kind)


# ---- damage
def flip_keeping_times(path: Path) -> None:
    """One bit, with the size and the mtime as they were."""
    before = path.stat()
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(raw)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def shorten(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)


def remove(path: Path) -> None:
    path.unlink()


def add(path: Path) -> None:
    (path.parent / "rank1.engine").write_bytes(b"half")


def half_a_manifest(path: Path) -> None:
    target = path.parent / "manifest.json"
    target.write_text(target.read_text()[:500])


def other_build(path: Path) -> None:
    """A whole artefact by its manifest, whose engine says that it is another one."""
    root = path.parent
    content = json.loads((root / "manifest.json").read_text())
    config = json.loads((root / "config.json").read_text())
    config["build_config"]["max_batch_size"] = 4
    (root / "config.json").write_text(json.dumps(config))
    facts = {k: v for k, v in content.items() if k in ("checkpoint", "steps", "target")}
    manifest.write(root, "engine", run_id="r", catalog_digest="c", key=content["key"], facts=facts)


HARM = [flip_keeping_times, shorten, remove, add, half_a_manifest, other_build]


@pytest.fixture(scope="module")
def engine_workspace(quantized, tmp_path_factory):
    from tests.build.common import Workspace

    made = Workspace(tmp_path_factory.mktemp("damage"), quantized("fp8"))
    spec = data()
    spec["targets"] = [t for t in spec["targets"] if t["lane"] == "engine"]
    made.write(spec)
    return made


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_engine_is_never_reused(engine_workspace, monkeypatch, harm):
    monkeypatch.setenv("PATH", engine_workspace.env["PATH"])
    monkeypatch.setattr(verified, "SETTLED_NS", 0)  # so that every digest is kept
    build(engine_workspace.job())
    job = engine_workspace.job()
    [whole] = build(job)
    assert whole.reused
    assert job.verified.hashed == 0
    starts = engine_workspace.starts
    harm(whole.path / "rank0.engine")
    job = engine_workspace.job()
    with pytest.raises(UsageError, match="not built, or its artefact is damaged"):
        find_artefact(job, job.targets[0], find(job))
    [again] = build(engine_workspace.job())
    assert not again.reused
    assert engine_workspace.starts == starts + 1
    assert again.manifest["files"] == whole.manifest["files"]
    assert manifest.load(again.path, "engine") == again.manifest


def test_a_damaged_checkpoint_is_not_built_from(workspace, monkeypatch):
    monkeypatch.setattr(verified, "SETTLED_NS", 0)
    build(workspace.job())
    checkpoint = find(workspace.job())
    flip_keeping_times(next((checkpoint.path / "hf").glob("*.safetensors")))
    with pytest.raises(UsageError, match="differs from its digest"):
        build(workspace.job())


def test_what_a_killed_build_left_is_nothing(workspace):
    job = workspace.job()
    first = build(job)
    engine = next(a.path for a in first if a.kind == "engine")
    left = engine.parent / f".{engine.name}.partial-999999999-00000000-00000000"
    engine.rename(left)
    [again] = build(workspace.job(), ENGINE)
    assert not again.reused
    assert [p.name for p in engine.parent.iterdir()] == [engine.name]


def test_an_engine_of_another_version_is_refused(quantized, tmp_path, monkeypatch):
    """The tool on PATH is not the stack's: its engine would not load, so it is no artefact."""
    from tests.build.common import Workspace

    workspace = Workspace(tmp_path, quantized("fp8"), version="1.1.0")
    monkeypatch.setenv("PATH", workspace.env["PATH"])
    with pytest.raises(ExternalToolError, match=r"version is '1\.1\.0', not 1\.2\.1"):
        build(workspace.job(), ENGINE)
    assert not list(workspace.out.glob("artifacts/*/engine/*/*/*/*/manifest.json"))


def test_a_plan_gives_way_to_an_engine(workspace, monkeypatch):
    before = os.environ["PATH"]
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))  # noqa: PTH120
    [plan] = build(workspace.job(), ENGINE, allow_plan=True)
    assert plan.is_engine_plan
    assert build(workspace.job(), ENGINE, allow_plan=True)[0].reused
    monkeypatch.setenv("PATH", before)
    [engine] = build(workspace.job(), ENGINE)
    assert (engine.kind, engine.path, engine.reused) == ("engine", plan.path, False)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))  # noqa: PTH120
    [kept] = build(workspace.job(), ENGINE)
    assert (kept.kind, kept.reused) == ("engine", True)


def test_manifest_says_how_it_was_made(workspace):
    job = workspace.job(changed(data(), "targets.*.profile", "latency"))
    engine = next(a for a in build(job) if a.kind == "engine").manifest
    assert engine["schema_version"] == 2
    assert engine["profile"] == "latency"
    assert engine["executor"] == "local"
    assert engine["image"] == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    assert engine["attachments"] == []
    assert engine["key"] == files.sha256_json(engine["inputs"])
    argv, reasons = engine["steps"][0]["argv"], engine["steps"][0]["reasons"]
    assert {word for word in argv if word.startswith("--")} <= set(reasons)
    package = next(a for a in build(job) if a.kind == "llmapi-package").manifest
    assert package["executor"] is None


# ---- attachments
@pytest.fixture
def adapter(workspace, monkeypatch):
    """The llmapi lane with an adapter: the lane's own part of it is tested with the lanes."""
    folder = workspace.folder / "an adapter's $(folder)"
    (folder / "nested").mkdir(parents=True)
    (folder / "adapter_config.json").write_text('{"r": 8}')
    (folder / "nested/weights.bin").write_bytes(b"w" * 1000)
    places = {"source": folder.name}

    def attachments(self, request):
        key = "serving.features.lora.adapters[0].source"
        return (Attachment("lora-adapter", "sql", places["source"], key, "adapters/sql"),)

    monkeypatch.setattr(type(LANE_LIST[LaneName.LLMAPI]), "attachments", attachments)
    return folder, places


def test_attachments_travel_with_the_artefact(workspace, adapter):
    folder, _ = adapter
    [package] = build(workspace.job(), LLMAPI)
    content = manifest.load(package.path, "llmapi-package")
    names = ("adapters/sql/adapter_config.json", "adapters/sql/nested/weights.bin")
    assert {name: content["files"][name] for name in names} == {
        names[0]: files.sha256_file(folder / "adapter_config.json"),
        names[1]: files.sha256_file(folder / "nested/weights.bin"),
    }
    assert content["attachments"] == [
        {
            "kind": "lora-adapter", "name": "sql", "source": folder.name, "path": "adapters/sql",
            "digest": files.digest_of(files.tree_digests(folder)),
        }
    ]  # fmt: skip
    # Bytes, not links: the user's folder may be edited, and the artefact must not follow.
    (folder / "nested/weights.bin").write_bytes(b"v" * 1000)
    assert manifest.load(package.path, "llmapi-package") == content
    [again] = build(workspace.job(), LLMAPI)
    assert not again.reused
    assert again.path != package.path


def test_an_attachment_that_is_not_here_names_its_key(workspace, adapter):
    _, places = adapter
    for source, words in (
        ("nobody/nothing", "not on this machine"),
        ("no such folder", "neither a folder nor a hub id"),
    ):
        places["source"] = source
        with pytest.raises(UsageError, match=words) as caught:
            build(workspace.job(), LLMAPI)
        assert caught.value.where.key == "serving.features.lora.adapters[0].source"
        assert caught.value.where.file.endswith("engineroom.yaml")
    assert not (workspace.out / "artifacts").exists()


def test_an_attachment_that_changes_while_it_is_copied(workspace, adapter, monkeypatch):
    copy = shutil.copyfile

    def changing(source, target):
        copy(source, target)
        Path(target).write_bytes(b"other")

    monkeypatch.setattr(shutil, "copyfile", changing)
    with pytest.raises(UsageError, match="changed while it was copied"):
        build(workspace.job(), LLMAPI)
    assert not list(workspace.out.glob("artifacts/*/llmapi/*/*/*/*/manifest.json"))


def test_dry_runs_write_nothing(workspace):
    before = tree(workspace.out)
    job = open_job(workspace.folder / "engineroom.yaml", out=workspace.out)
    assert len(build(job, dry_run=True)) == 3
    assert tree(workspace.out) == before
