"""The store of digests: what is known is not read again, and nothing else is believed."""

from __future__ import annotations

import json
import time

import pytest

from engineroom.runner import files, verified


def test_time_of_a_fresh_file_is_not_trusted(tmp_path):
    """A write in the same tick of the clock as the hashing would not show."""
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    store = verified.Verified(tmp_path / "store.json")
    assert store.sha256(path) == store.sha256(path)
    assert store.hashed == 2
    store.save()
    assert not (tmp_path / "store.json").exists()


def test_a_settled_file_is_hashed_once(tmp_path, monkeypatch):
    path, file = tmp_path / "weights", tmp_path / "store.json"
    path.write_bytes(b"one")
    later = time.time_ns() + 3_000_000_000
    monkeypatch.setattr(verified.time, "time_ns", lambda: later)
    store = verified.Verified(file)
    digest = store.sha256(path)
    store.save()
    again = verified.Verified(file)
    assert again.sha256(path) == digest == files.sha256_file(path)
    assert again.hashed == 0
    # A rename of the file is a change of ctime on most file systems; other bytes are always one.
    path.write_bytes(b"two")
    assert again.sha256(path) == files.sha256_file(path) != digest


@pytest.mark.parametrize(
    "harm",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"digests": {', '"digests": {"x": "y",'),
        lambda text: text.replace('"schema_version": 1', '"schema_version": 2'),
        lambda text: "[" * 100_000,
        lambda text: "\x00" * 100,
        lambda text: json.dumps({"schema_version": 1, "digests": [], "seal": files.digest_of({})}),
    ],
)
def test_a_store_that_is_not_whole_is_ignored(tmp_path, monkeypatch, harm):
    monkeypatch.setattr(verified, "SETTLED_NS", 0)
    path, file = tmp_path / "weights", tmp_path / "store.json"
    path.write_bytes(b"one")
    store = verified.Verified(file)
    store.sha256(path)
    store.save()
    file.write_text(harm(file.read_text()))
    again = verified.Verified(file)
    assert again.sha256(path) == files.sha256_file(path)
    assert again.hashed == 1
    again.save()
    assert verified.Verified(file)._known


def test_links_keep_what_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(verified, "SETTLED_NS", 0)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/w").write_bytes(b"one")
    store = verified.Verified(None)
    store.tree_digests(tmp_path / "a")
    with store.linking(tmp_path / "a"):
        files.link_tree(tmp_path / "a", tmp_path / "b")
    store.hashed = 0
    assert store.tree_digests(tmp_path / "b") == store.tree_digests(tmp_path / "a")
    assert store.hashed == 0
    # Links that go away: the tree is replaced by one of the same files.
    outer, inner = store.linking(tmp_path / "a"), store.linking(tmp_path / "a")
    with outer, files.staged(tmp_path / "a") as staging, inner:
        files.link_tree(tmp_path / "a", staging)
    assert store.tree_digests(tmp_path / "a") == files.tree_digests(tmp_path / "b")
    assert store.hashed == 0
    # A file that changed in that moment is no longer known.
    with store.linking(tmp_path / "a"):
        (tmp_path / "a/w").write_bytes(b"other")
    assert store.tree_digests(tmp_path / "a") == files.tree_digests(tmp_path / "a")


def test_a_large_fresh_tree_is_left_to_settle(tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(verified.time, "sleep", waits.append)
    monkeypatch.setattr(verified, "LARGE", 10)
    (tmp_path / "w").write_bytes(b"0" * 9)
    store = verified.Verified(None)
    store.settle(tmp_path)
    assert waits == []
    (tmp_path / "v").write_bytes(b"0")
    store.settle(tmp_path)
    assert len(waits) == 1
    assert 0 < waits[0] <= 2
