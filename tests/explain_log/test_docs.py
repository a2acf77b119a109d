"""The table of docs/explain-log.md is what the data says; ENGINEROOM_UPDATE_GOLDEN=1 writes it again."""

from __future__ import annotations

import os

from tests.conftest import ROOT
from tests.explain_log.common import rows

PAGE = ROOT / "docs/explain-log.md"
BEGIN, END = "<!-- table -->\n", "<!-- /table -->"


def _cell(text):
    return text.replace("|", "\\|").replace("{{", "{").replace("}}", "}")


def table():
    lines = ["| line | severity | known by | subject | source |", "| --- | --- | --- | --- | --- |"]
    for row in sorted(rows(), key=lambda row: row.id):
        cells = (
            f"`{row.id}`",
            str(row.severity),
            f"`{row.contains.strip()}`",
            _cell(row.subject),
            _cell("; ".join(row.source)),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def test_the_table_matches_the_data():
    text = PAGE.read_text("utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    wanted = before + BEGIN + table() + END + after
    if os.environ.get("ENGINEROOM_UPDATE_GOLDEN"):
        PAGE.write_text(wanted, "utf-8")
    assert PAGE.read_text("utf-8") == wanted
