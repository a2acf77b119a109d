"""`artifacts list` and `gc`: what is used, what goes, and what must never go."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from engineroom.pipeline import Job
from engineroom.pipeline.artifacts import OWN_FILES, entries, lock_of
from engineroom.pipeline.artifacts_gc import collect, plan
from engineroom.pipeline.artifacts_usage import usage
from engineroom.runner import files, locks, manifest
from tests.artifacts.common import aged, engine, made_again, package, repository
from tests.artifacts.conftest import Run
from tests.conftest import ROOT

OLD = "2026-01-02T03:04:05+00:00"


def names(job: Job) -> set[str]:
    return {entry.name for entry in entries(job.out)}


def test_list_says_what_there_is_and_what_uses_it(made: Job, artifacts: Run) -> None:
    code, out, _ = artifacts("list", "-f", made.loaded.file, "--out", made.out, "--format", "json")
    data = json.loads(out)
    rows = {row["kind"]: row for row in data["artefacts"]}
    assert (code, data["schema_version"]) == (0, 1)
    assert set(rows) == {"checkpoint", "llmapi-package", "repository"}
    row = rows["llmapi-package"]
    assert row["used_by"] == [
        "target llmapi-l4-tp1pp1-26-07",
        "repositories/llmapi-l4-tp1pp1-26-07",
    ]
    assert rows["checkpoint"]["used_by"] == ["target llmapi-l4-tp1pp1-26-07", row["name"]]
    assert (row["sku"], row["runtime_version"], row["weights"]) == ("l4", "1.2.1", "bf16")
    assert row["size_bytes"] == sum(
        p.stat().st_size for p in package(made).rglob("*") if p.is_file()
    )
    assert 0 <= row["age_seconds"] < 3600
    assert data["total_bytes"] == sum(row["size_bytes"] for row in data["artefacts"])


def test_list_needs_no_spec_and_shows_broken_ones(made: Job, artifacts: Run) -> None:
    (package(made) / manifest.NAME).write_text("{ not json")
    code, out, _ = artifacts("list", "--out", made.out)
    assert code == 0
    assert "unreadable: its manifest is unreadable" in out
    code, _, err = artifacts("list")
    assert code == 2
    assert "--out DIR" in err
    assert artifacts("list", "--out", made.out / "nowhere")[0] == 2


def test_gc_plans_first_and_removes_only_what_nothing_uses(made: Job, artifacts: Run) -> None:
    stale = made_again(package(made), "b" * 64)
    before = names(made)
    words = ("gc", "-f", made.loaded.file, "--out", made.out, "--format", "json")
    code, out, _ = artifacts(*words)
    data = json.loads(out)
    assert (code, data["dry_run"], names(made)) == (0, True, before)
    gone = stale.relative_to(made.out).as_posix()
    assert [row["name"] for row in data["items"]] == [gone]
    code, out, _ = artifacts(*words, "--yes")
    data = json.loads(out)
    assert [row["outcome"] for row in data["items"]] == ["removed"]
    assert names(made) == before - {gone}
    assert artifacts("verify", "--out", made.out)[0] == 0
    assert json.loads(artifacts(*words, "--yes")[1])["items"] == []
    assert not list(made.out.rglob(".*.old-*"))


def test_files_that_others_link_to_are_not_counted_as_freed(made: Job) -> None:
    stale = made_again(package(made), "b" * 64)
    planned = plan(made.out, [made])
    own = (stale / manifest.NAME).stat().st_size
    assert planned.freed_bytes == own  # all else is linked from the package that stays
    assert planned.total_bytes > 100 * own
    made_again(package(made), "c" * 64)
    assert len(plan(made.out, [made]).items) == 2


def test_a_repository_keeps_what_it_serves_and_that_its_checkpoint(made: Job) -> None:
    path = engine(made.out)
    assert path.relative_to(made.out).as_posix() in {
        item.name for item in plan(made.out, [made]).items
    }
    repository(made.out, path)
    assert plan(made.out, [made]).items == ()


def test_a_checkpoint_goes_with_the_last_artefact_made_from_it(made: Job) -> None:
    source = next((made.out / "checkpoints").iterdir())
    old = source.parent / f"{made.checkpoint_prefix}{'0' * 12}"
    with files.staged(old) as staging:
        (staging / "x").write_text("x")
        manifest.write(
            staging, "checkpoint", run_id="r", catalog_digest="c", key="0" * 64, facts={}
        )
    fact = {"path": f"checkpoints/{old.name}", "digest": "d"}
    stale = made_again(package(made), "b" * 64, checkpoint=fact)
    assert {item.path for item in plan(made.out, [made]).items} == {old, stale}
    # Kept as the newest of its place, it keeps what it was made from.
    planned = plan(made.out, [made], keep=1)
    assert {item.path for item in planned.items} == set()


def test_keep_and_older_than(made: Job) -> None:
    for letter, when in (("c", "2026-02-02T00:00:00+00:00"), ("d", OLD)):
        aged(made_again(package(made), letter * 64), when)
    made_again(package(made), "b" * 64)
    for keep, days, gone in (
        (0, None, "bcd"), (1, None, "cd"), (2, None, "d"), (5, None, ""), (0, 30, "cd"), (1, 30, "cd"),
    ):  # fmt: skip
        planned = plan(made.out, [made], keep=keep, older_than_days=days)
        assert "".join(sorted(item.path.name[0] for item in planned.items)) == gone, (keep, days)


def test_what_killed_runs_left_goes_and_what_live_ones_work_on_stays(made: Job) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    here = package(made).parent
    dead = here / f".feed.partial-{child.pid}"
    live = here / f".feed.partial-{os.getpid()}"
    foreign = here / ".feed.old-1-00000000-11111111"
    ancient = made.out / "checkpoints/.feed.partial-1-00000000-22222222"
    scratch = made.out / f".transfer.ab.partial-{child.pid}"
    other = here / ".notes"
    for path in (dead, live, foreign, ancient, scratch, other):
        path.mkdir()
        (path / "half").write_text("half")
    for path in (ancient / "half", ancient):
        os.utime(path, (time.time() - 8 * 86400,) * 2)
    planned = plan(made.out, [made])
    assert {item.path for item in planned.items} == {dead, ancient, scratch}
    assert set(collect(made.out, planned).values()) == {"removed"}
    assert [path.exists() for path in (dead, live, foreign, ancient, scratch, other)] == [
        False, True, True, False, False, True,
    ]  # fmt: skip


def test_an_artefact_under_a_builders_lock_stays(made: Job) -> None:
    stale = made_again(package(made), "b" * 64)
    planned = plan(made.out, [made])
    assert made.own_files == made.out / OWN_FILES
    lock = made.own_files / "locks" / f"{'b' * 32}.lock"  # the one that `build` takes
    assert lock == lock_of(made.out, planned.items[0].name, "b" * 64)
    with locks.exclusive(lock, lambda who: None):
        outcome = collect(made.out, planned)
    assert "is at work on it" in outcome[planned.items[0].name]
    assert stale.is_dir()
    assert planned.freed_by(outcome) == 0
    assert set(collect(made.out, planned).values()) == {"removed"}


def test_made_anew_between_plan_and_removal_stays(made: Job) -> None:
    stale = made_again(package(made), "b" * 64)
    planned = plan(made.out, [made])
    aged(stale, OLD)
    assert list(collect(made.out, planned).values()) == ["kept: it was made anew meanwhile"]
    assert stale.is_dir()


def test_links_out_of_the_workspace_are_left_alone(made: Job, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    stale = made_again(package(made), "b" * 64)
    stale.rename(outside)
    stale.symlink_to(outside)
    (made.out / "checkpoints/linked").symlink_to(outside)
    planned = plan(made.out, [made])
    collect(made.out, planned)
    assert planned.items == ()
    assert (outside / manifest.NAME).is_file()


def test_a_linked_folder_of_artefacts_is_not_emptied(made: Job, tmp_path: Path) -> None:
    made_again(package(made), "b" * 64)
    (made.out / "artifacts").rename(tmp_path / "elsewhere")
    (made.out / "artifacts").symlink_to(tmp_path / "elsewhere")
    planned = plan(made.out, [made])
    assert planned.items == ()
    assert any("outside the workspace" in note for note in planned.notes)


def test_without_its_own_checkpoint_everything_of_a_spec_counts_as_used(made: Job) -> None:
    made_again(package(made), "b" * 64)
    source = next((made.out / "checkpoints").iterdir())
    (source / manifest.NAME).unlink()
    found = entries(made.out)
    used = usage(found, [made])
    assert "count as used" in used.notes[0]
    assert all(used.of(entry) for entry in found if entry.name.startswith("artifacts/"))
    assert plan(made.out, [made]).items == ()


def test_what_was_made_for_a_target_that_build_refuses_now_stays(
    made: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_again(package(made), "b" * 64)
    monkeypatch.setattr("engineroom.pipeline.artifacts_usage.current_artefact", lambda *a: None)
    planned = plan(made.out, [made])
    assert planned.items == ()
    assert "cannot be told" in planned.notes[0]


def test_the_examples_of_the_documentation_name_what_there_is(artifacts: Run) -> None:
    text = (ROOT / "docs/artifacts.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\$ engineroom artifacts (\w+) (.*?)(?:#.*)?$", text, re.MULTILINE)
    assert {verb for verb, _ in lines} == {"list", "verify", "gc", "export", "import"}
    for verb, words in lines:
        known = artifacts(verb, "--help")[1]
        assert all(word in known for word in words.split() if word.startswith("-")), (verb, words)


def test_gc_wants_a_spec_and_one_mind(made: Job, artifacts: Run) -> None:
    os.chdir(made.out)
    assert artifacts("gc", "--out", made.out)[0] == 2  # no engineroom.yaml here
    code, _, err = artifacts("gc", "-f", made.loaded.file, "--out", made.out, "--yes", "--dry-run")
    assert (code, "--yes and --dry-run" in err) == (2, True)


@pytest.mark.parametrize("problem", ["damaged", "missing", "newer", "silent", "unlisted"])
def test_a_repository_that_cannot_be_read_may_be_made_from_anything(
    made: Job, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    source = repository(made.out, engine(made.out))
    file, words = source / manifest.NAME, "its manifest is unreadable"
    content = files.read_json(file)
    if problem == "damaged":
        file.write_text("{")
    elif problem == "missing":
        file.unlink()
        words = "manifest.json is missing"
    elif problem == "newer":
        files.write_json(file, {**content, "schema_version": 3, "engineroom_version": "9.1.0"})
        words = "made by engineroom 9.1.0, which is newer"
    elif problem == "silent":
        files.write_json(file, {**content, "artefact": {}})
        words = "does not say what it was made from"
    else:
        unlistable(monkeypatch, made.out / "repositories")
        words = "cannot be listed: Permission denied"
    made_again(package(made), "b" * 64)
    planned = plan(made.out, [made])
    assert planned.items == ()
    [note] = planned.notes
    assert words in note
    assert note.startswith("repositories")
    assert "all artefacts and checkpoints count as used" in note


def unlistable(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As the system answers another user: the tests may run as root, whom nothing is refused."""
    real = os.scandir

    def scandir(path: str | Path = ".") -> object:
        if isinstance(path, (str, Path)) and Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)


def test_a_folder_that_may_not_be_read_is_shown_and_is_an_error(
    made: Job, artifacts: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = package(made).relative_to(made.out).as_posix()
    for folder in (name, "artifacts/tiny/llmapi"):
        with monkeypatch.context() as patch:
            unlistable(patch, made.out / folder)
            _, out, _ = artifacts("list", "--out", made.out, "--format", "json")
            row = next(r for r in json.loads(out)["artefacts"] if r["name"] == folder)
            assert row["problem"] == "it cannot be listed: Permission denied"
            code, out, _ = artifacts("verify", "--out", made.out, "--format", "json")
            verdicts = {r["name"]: r["verdict"] for r in json.loads(out)["artefacts"]}
            assert (code, verdicts[folder]) == (1, "error")
            assert plan(made.out, [made]).items == ()


def test_what_old_jobs_left_goes_and_what_new_ones_work_on_stays(made: Job) -> None:
    jobs = made.out / ".engineroom-jobs"
    old, new = jobs / "engineroom-build-00", jobs / "engineroom-build-11"
    probe, staged = jobs / "engineroom-build-00.probe", jobs / ".engineroom-build-00.partial-x1"
    for folder in (old, new, staged):
        folder.mkdir(parents=True)
        (folder / "rank0.engine").write_bytes(b"x" * 100)
    probe.write_text("probe")
    for path in (*old.iterdir(), old, *staged.iterdir(), staged, probe, new):
        os.utime(path, (time.time() - 8 * 86400,) * 2)
    planned = plan(made.out, [made])  # `new` has a young file in it
    assert {item.path for item in planned.items} == {old, staged, probe}
    assert planned.freed_bytes == 205
    (old / "config.json").write_text("{}")
    outcome = collect(made.out, planned)
    assert outcome.pop(old.relative_to(made.out).as_posix()).startswith("kept: ")
    assert set(outcome.values()) == {"removed"}
    assert sorted(path.name for path in jobs.iterdir()) == [old.name, new.name]
