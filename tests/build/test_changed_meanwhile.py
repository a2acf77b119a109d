"""What a build reads stays what its key was made of, stays there, and is refused otherwise."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from engineroom.cli.main import run
from engineroom.errors import UsageError
from engineroom.pipeline import build, build_run, open_job, quantize
from engineroom.pipeline.artifacts import lock_of as gc_lock_of
from engineroom.pipeline.build_jobs import TargetErrors
from engineroom.pipeline.build_key import inputs_of
from engineroom.pipeline.build_run import BUILD_PLAN, Tools, build_one, kept
from engineroom.pipeline.quantize import find, lock_of
from engineroom.runner import files, locks, manifest
from engineroom.runner.executors import LocalExecutor
from tests.artifacts import common
from tests.build.common import ENGINE, data
from tests.conftest import spec_data, write_spec


@pytest.fixture
def job(tmp_path):
    """A spec with one llmapi target and its 16-bit checkpoint; nothing is built."""
    made = open_job(common.spec_of(tmp_path), out=tmp_path / "ws")
    common.checkpoint(made)
    return made


def published(job) -> list[str]:
    return [p.as_posix() for p in (job.out / "artifacts").glob("**/manifest.json")]


@dataclasses.dataclass(frozen=True)
class Acting:
    """The local executor, and something that happens while its command runs."""

    act: object
    name = "local"

    def missing(self, step):
        return LocalExecutor().missing(step)

    def run(self, run):
        LocalExecutor().run(run)
        self.act()


# ---- the checkpoint changes between key and use
@pytest.mark.parametrize("which", ["source", "copy", "extra", "lost"])
def test_a_package_of_another_checkpoint_than_its_keys_is_not_published(job, monkeypatch, which):
    real = files.link_tree

    def link_tree(source, target):
        if which == "source":
            (source / "config.json").write_text("{}")
        real(source, target)
        if which == "copy":
            (target / "config.json").unlink()
            (target / "config.json").write_text("{}")
        if which == "extra":
            (target / "more.json").write_text("{}")
        if which == "lost":
            (target / "tokenizer_config.json").unlink()

    monkeypatch.setattr(build_run.files, "link_tree", link_tree)
    with pytest.raises(UsageError, match="changed") as caught:
        build(job)
    name = {"extra": "more.json", "lost": "tokenizer_config.json"}.get(which, "config.json")
    assert caught.value.where.file.endswith("/hf" if which == "source" else f"/hf/{name}")
    assert "nothing was published" in caught.value.hint
    assert published(job) == []


@pytest.mark.slow
def test_an_engine_of_a_checkpoint_that_changed_while_it_was_compiled_is_refused(workspace):
    spec = data(targets=[t for t in data()["targets"] if t["lane"] == "engine"])
    job = workspace.job(spec)
    weights = next((find(job).path / "trtllm").glob("*.safetensors"))
    before = weights.read_bytes()
    changing = Acting(lambda: weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1])))
    with pytest.raises(UsageError, match="no longer what its key was made of") as caught:
        build(job, executor=changing)
    assert caught.value.where.file == weights.parent.as_posix()
    assert workspace.starts == 1
    assert published(job) == []
    weights.write_bytes(before)
    assert [a.kind for a in build(workspace.job(spec))] == ["engine"]


# ---- the checkpoint stays while it is read
@pytest.mark.slow
def test_a_running_build_holds_its_checkpoint(workspace):
    spec = data(targets=[t for t in data()["targets"] if t["lane"] == "engine"])
    job, said = workspace.job(spec), []
    checkpoint = find(job)
    lock = lock_of(job, checkpoint.path)
    assert lock == gc_lock_of(job.out, checkpoint.relative(job), checkpoint.manifest["key"])
    now = Tools(LocalExecutor()).stop
    now.set()

    def others():
        try:  # as `gc` does; `quantize` waits
            with locks.exclusive(lock, said.append, stop=now):
                said.append("let in")
        except locks.Stopped:
            said.append("kept out")
        with locks.shared(lock, said.append):
            said.append("read")

    build(job, executor=Acting(others))
    assert said[0].startswith(f"process {os.getpid()} on ")
    assert said[1:] == ["kept out", "read"]
    with locks.exclusive(lock, print, stop=now):
        pass


def test_a_checkpoint_that_went_before_it_was_held(job):
    checkpoint = find(job)
    inputs = inputs_of(job, job.targets[0], checkpoint)
    checkpoint.path.rename(job.out / "elsewhere")
    with pytest.raises(UsageError, match="no longer what its key was made of"):
        build_one(job, inputs, checkpoint, Tools(LocalExecutor()), job.reporter)
    assert published(job) == []


# ---- one target's inputs
def test_a_target_without_its_inputs_stops_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")

    def spec(*targets):
        found = spec_data(common.TINY, precision=common.FORMATS, targets=list(targets))
        del found["calibration"]
        return open_job(write_spec(tmp_path, found), out=tmp_path / "ws")

    bad = common.ENGINE_TARGET  # reads `trtllm/`, which this checkpoint does not have
    job = spec(bad, common.TARGET)
    common.checkpoint(job)
    with pytest.raises(UsageError) as caught:
        build(job)
    assert caught.value.message.startswith(f"{ENGINE}: the checkpoint has no trtllm")
    assert [Path(p).parts[-6] for p in published(job)] == ["llmapi"]
    with pytest.raises(TargetErrors, match="2 of 3 targets failed") as several:
        build(spec(bad, common.TARGET, {**bad, "sku": "l40s"}))
    assert several.value.exit_code == 2
    assert several.value.render().count("the checkpoint has no trtllm") == 2


# ---- of a newer engineroom
def rewritten(path: Path, *, sealed: bool = True) -> bytes:
    content = {**files.read_json(path / manifest.NAME), "schema_version": 3}
    content["engineroom_version"] = "9.1.0" if sealed else "9.1.1"
    if sealed:
        content["seal"] = manifest._seal(content)
    files.write_json(path / manifest.NAME, content)
    return (path / manifest.NAME).read_bytes()


def test_what_a_newer_engineroom_made_is_not_made_again(job):
    path = build(job)[0].path
    before = rewritten(path)
    with pytest.raises(manifest.NewerError, match=r"made by engineroom 9\.1\.0") as caught:
        build(open_job(Path(job.loaded.file), out=job.out))
    assert "use engineroom 9.1.0 or a newer one" in caught.value.hint
    assert (path / manifest.NAME).read_bytes() == before
    rewritten(path, sealed=False)  # damage that looks like one
    assert build(job)[0].reused is False
    before = rewritten(find(job).path)
    for verb in (find, quantize, build):
        with pytest.raises(manifest.NewerError, match=r"made by engineroom 9\.1\.0") as caught:
            verb(open_job(Path(job.loaded.file), out=job.out))
        assert "9.1.0 or a newer one" in caught.value.hint
    assert next(job.out.glob("checkpoints/*/manifest.json")).read_bytes() == before


@pytest.mark.parametrize("facts", [{}, {"checkpoint": "x"}, {"checkpoint": {}}])
def test_a_foreign_build_plan_is_no_plan_of_ours(job, facts):
    inputs = inputs_of(job, job.targets[0], find(job))
    with files.staged(inputs.path) as staging:
        manifest.write(
            staging, BUILD_PLAN, run_id="r", catalog_digest="c", key=inputs.key, facts=facts
        )
    assert kept(job, inputs, (BUILD_PLAN,)) is None


# ---- locks between users
def refusing(monkeypatch, *, also_reading: bool = False) -> None:
    """As the system answers another user: the tests may run as root, whom nothing is refused."""
    real = os.open

    def refuse(path, flags, *more, **named):
        writes = flags & (os.O_RDWR | os.O_WRONLY)
        if str(path).endswith(".lock") and (writes or also_reading):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)


def test_a_lock_of_another_user_is_taken_for_reading(tmp_path, monkeypatch):
    path = tmp_path / "locks/k.lock"
    before = os.umask(0o002)
    try:
        with locks.exclusive(path, print):
            assert path.stat().st_mode & 0o777 == 0o664  # a group may share a workspace
    finally:
        os.umask(before)
    text = path.read_bytes()
    refusing(monkeypatch)
    stop = Tools(LocalExecutor()).stop
    stop.set()
    with (
        locks.exclusive(path, print) as held,
        pytest.raises(locks.Stopped),
        locks.shared(path, lambda who: None, stop=stop),
    ):
        pytest.fail("got in")
    assert held is True
    assert path.read_bytes() == text
    refusing(monkeypatch, also_reading=True)
    with (
        pytest.raises(UsageError, match="Permission denied") as caught,
        locks.exclusive(path, print),
    ):
        pytest.fail("got in")
    assert caught.value.where.file == path.as_posix()
    assert path.parent.as_posix() in caught.value.hint


# ---- the working directory
@pytest.mark.parametrize(
    "words",
    [("build", "-f", "SPEC"), ("artifacts", "import", "lay", "--out", "ws"),
     ("artifacts", "export", "x", "--to", "lay", "--out", "ws")],
    ids=lambda w: w[1] if w[0] == "artifacts" else w[0],
)  # fmt: skip
def test_a_working_directory_that_is_gone_is_the_cause(tmp_path, monkeypatch, capsys, words):
    spec = common.spec_of(tmp_path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run([str(spec) if word == "SPEC" else word for word in words]) == 2
    error = capsys.readouterr().err
    assert "the working directory is not there any more" in error
    assert "fix: `cd` to a folder that exists" in error
