"""`upgrade` a second time, an `--out` that is no folder, and a spec that had to be written anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engineroom.cli.main import run

COMMAND = ["upgrade", "--from", "26.02", "--to", "26.07"]
SHARED = """# why we do this
schema_version: 1
name: anew
model: {source: org/model}
precision: {weights: bf16}
targets:
  - {sku: l4, stack: &s "26.02"}  # the small one
  - {sku: h100-sxm, stack: *s}
"""


def test_what_the_user_changed_is_not_lost(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    command = [*COMMAND, "--out", str(tmp_path / "o")]
    folder = tmp_path / "o/upgrade/26.02-to-26.07"
    code = run(command)
    assert run(command) == code
    before = (folder / "report.md").read_text()
    (folder / "report.md").write_text("mine")
    (folder / "notes").mkdir()
    (folder / "notes/a b.txt").write_text("remember")
    capfd.readouterr()
    assert run(command) == 2
    told = capfd.readouterr().err
    for text in ("report.md was changed", "notes/a b.txt is not of it", "--force", str(tmp_path / "o")):  # fmt: skip
        assert text in told
    assert (folder / "report.md").read_text() == "mine"
    assert run([*command, "--force"]) == code
    assert (folder / "report.md").read_text() == before
    assert (folder / "notes/a b.txt").read_text() == "remember"
    report = json.loads((folder / "report.json").read_text())
    assert set(report["written"]) == {"report.json", "report.md"}


@pytest.mark.parametrize("link", [False, True])
def test_out_that_is_no_folder_is_named(
    link: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    out = tmp_path / "my file"
    out.symlink_to("nowhere") if link else out.write_text("x")
    assert run([*COMMAND, "--out", str(out)]) == 2
    told = capfd.readouterr().err
    assert f"{out}: `--out`" in told
    assert ("is a link to nowhere" if link else "is a file") in told
    assert "fix: name a folder" in told
    assert [p.name for p in tmp_path.iterdir()] == ["my file"]


def test_lost_comments_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    spec = tmp_path / "engineroom.yaml"
    spec.write_text(SHARED)
    run([*COMMAND, "-f", str(spec), "--out", str(tmp_path / "o")])
    told = capfd.readouterr()
    folder = tmp_path / "o/upgrade/26.02-to-26.07"
    assert "# the small" not in (folder / "engineroom.yaml").read_text()
    for text in (told.out, told.err, (folder / "report.md").read_text()):
        assert "written anew" in text
        assert "comments" in text
    assert json.loads((folder / "report.json").read_text())["comments_lost"] is True
    spec.write_text(SHARED.replace("&s ", "").replace("*s", '"26.02"'))
    assert run([*COMMAND, "-f", str(spec), "--out", str(tmp_path / "o2")]) in (0, 1)
    told = capfd.readouterr()
    assert "written anew" not in told.out + told.err
    assert "# why we do this" in (tmp_path / "o2/upgrade/26.02-to-26.07/engineroom.yaml").read_text()  # fmt: skip
