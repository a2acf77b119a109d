"""Atomic writes and manifests that notice any change."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from engineroom.errors import UsageError
from engineroom.runner import files, manifest, verified
from engineroom.runner.verified import Verified
from engineroom.types import RenderedFile


def artefact(root: Path) -> None:
    with files.staged(root) as staging:
        (staging / "a").mkdir()
        (staging / "a/x.txt").write_text("x")
        (staging / "y.txt").write_text("y")
        manifest.write(
            staging, "checkpoint", run_id="r", catalog_digest="c", key="k", facts={"n": 1}
        )


def test_round_trip_and_reuse(tmp_path):
    artefact(tmp_path / "a")
    content = manifest.load(tmp_path / "a", "checkpoint")
    assert set(content["files"]) == {"a/x.txt", "y.txt"}
    assert content["n"] == 1
    assert manifest.reuse(tmp_path / "a", "checkpoint", "k") == content
    assert manifest.reuse(tmp_path / "a", "checkpoint", "other") is None
    assert manifest.reuse(tmp_path / "a", "engine", "k") is None
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def break_bytes(root):
    (root / "y.txt").write_text("Y")


def break_missing(root):
    (root / "a/x.txt").unlink()


def break_extra(root):
    (root / "z.txt").write_text("z")


def break_manifest(root):
    (root / "manifest.json").write_text("{")


def break_listing(root):
    path = root / "manifest.json"
    digest = files.sha256_file(root / "y.txt")
    path.write_text(path.read_text().replace(digest, "0" * 64))


def break_version(root):
    path = root / "manifest.json"
    path.write_text(path.read_text().replace('"schema_version": 2', '"schema_version": 9'))


def break_gone(root):
    (root / "manifest.json").unlink()


def break_facts(root):
    path = root / "manifest.json"
    path.write_text(path.read_text().replace('"n": 1', '"n": 2'))


def break_key(root):
    path = root / "manifest.json"
    path.write_text(path.read_text().replace('"key": "k"', '"key": "x"'))


def break_nan(root):
    path = root / "manifest.json"
    path.write_text(path.read_text().replace('"n": 1', '"n": NaN'))


def break_deep(root):
    (root / "manifest.json").write_text("[" * 100000)


def break_link(root):
    (root / "dangling").symlink_to("nowhere")


def break_fifo(root):
    os.mkfifo(root / "fifo")


@pytest.mark.parametrize(
    "harm",
    [
        break_facts,
        break_key,
        break_nan,
        break_deep,
        break_link,
        break_fifo,
        break_bytes,
        break_missing,
        break_extra,
        break_manifest,
        break_listing,
        break_version,
        break_gone,
    ],
)
def test_any_damage_is_refused(tmp_path, harm):
    artefact(tmp_path / "a")
    harm(tmp_path / "a")
    with pytest.raises(UsageError) as caught:
        manifest.load(tmp_path / "a", "checkpoint")
    assert str(tmp_path / "a") in caught.value.where.file


def test_a_failed_stage_leaves_the_old_one(tmp_path):
    artefact(tmp_path / "a")
    before = manifest.load(tmp_path / "a", "checkpoint")

    def fail():
        with files.staged(tmp_path / "a") as staging:
            (staging / "half").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert manifest.load(tmp_path / "a", "checkpoint") == before
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_leftovers_of_dead_runs_are_swept_and_live_ones_kept(tmp_path):
    dead, live = tmp_path / ".a.partial-999999999", tmp_path / f".a.partial-{os.getppid()}"
    dead.mkdir()
    live.mkdir()
    artefact(tmp_path / "a")
    assert not dead.exists()
    assert live.exists()


def test_published_files_are_readable_by_others(tmp_path):
    with files.staged(tmp_path / "a") as staging:
        (staging / "w").write_text("x")
        (staging / "w").chmod(0o600)
    assert (tmp_path / "a/w").stat().st_mode & 0o777 == 0o644


def test_write_text_is_lf_and_whole(tmp_path):
    files.write_text(tmp_path / "d/x", "a\nb\n")
    assert (tmp_path / "d/x").read_bytes() == b"a\nb\n"
    assert [p.name for p in (tmp_path / "d").iterdir()] == ["x"]


def test_rendered_paths_cannot_leave_their_root(tmp_path):
    with pytest.raises(ValueError, match="leaves"):
        files.write_tree(tmp_path / "r", [RenderedFile("../x", "y")])


def test_link_tree_copies_every_file(tmp_path):
    artefact(tmp_path / "a")
    files.link_tree(tmp_path / "a", tmp_path / "b")
    assert files.tree_digests(tmp_path / "a") == files.tree_digests(tmp_path / "b")


@pytest.mark.parametrize("put", [lambda p: p.symlink_to("y.txt"), os.mkfifo])
def test_links_and_pipes_are_neither_published_nor_loaded(tmp_path, put):
    def publish():
        with files.staged(tmp_path / "b") as staging:
            (staging / "y.txt").write_text("y")
            put(staging / "odd")
            manifest.write(staging, "checkpoint", run_id="r", catalog_digest="c", key="k", facts={})

    with pytest.raises(UsageError, match="not a regular file") as caught:
        publish()
    assert caught.value.where.file.endswith("/odd")
    assert list(tmp_path.iterdir()) == []
    # One that an older engineroom listed, with a seal that fits.
    artefact(tmp_path / "a")
    put(tmp_path / "a/odd")
    content = files.read_json(tmp_path / "a/manifest.json")
    content["files"]["odd"] = "not a regular file"
    content["digest"] = files.digest_of(content["files"])
    content["seal"] = manifest._seal(content)
    files.write_json(tmp_path / "a/manifest.json", content)
    for load in (manifest.load, lambda *a: manifest.load_quick(*a, Verified(None))):
        with pytest.raises(UsageError, match="not a regular file"):
            load(tmp_path / "a", "checkpoint")
    assert manifest.reuse(tmp_path / "a", "checkpoint", "k") is None


def test_modes_of_what_links_lead_to_are_left_alone(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o600)
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "link").symlink_to(outside)
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "pipe", 0o600)
    (root / "sub/own").write_text("x")
    (root / "sub/own").chmod(0o600)
    files.make_readable(root)
    modes = {p.name: p.stat().st_mode & 0o777 for p in (outside, root / "pipe", root / "sub/own")}
    assert modes == {"outside": 0o600, "pipe": 0o600, "own": 0o644}


@pytest.fixture
def seconds():
    """Two of them, after which a test that hangs is ended."""

    def hangs(number, frame):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(2)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_a_pipe_in_the_place_of_a_json_file_does_not_hang(tmp_path, seconds):
    artefact(tmp_path / "a")
    (tmp_path / "a/manifest.json").unlink()
    os.mkfifo(tmp_path / "a/manifest.json")
    with pytest.raises(OSError, match="not a regular file") as caught:
        files.read_json(tmp_path / "a/manifest.json")
    assert caught.value.filename.endswith("manifest.json")
    with pytest.raises(UsageError, match="unreadable"):
        manifest.load(tmp_path / "a", "checkpoint")
    os.mkfifo(tmp_path / "store.json")
    store = Verified(tmp_path / "store.json")  # a store that cannot be read is none
    assert store.sha256(tmp_path / "a/y.txt") == files.sha256_file(tmp_path / "a/y.txt")
    assert store.hashed == 1
    (tmp_path / "real.json").write_text('{"a": "\u00fc"}', encoding="utf-8")
    (tmp_path / "link.json").symlink_to("real.json")
    assert files.read_json(tmp_path / "link.json") == {"a": "\u00fc"}
    with pytest.raises(IsADirectoryError):
        files.read_json(tmp_path)


def test_the_same_inode_of_another_device_is_another_file(tmp_path):
    one, other = (list(tmp_path.stat()) for _ in range(2))
    other[2] += 1  # st_dev
    assert verified._text(os.stat_result(one)) != verified._text(os.stat_result(other))
