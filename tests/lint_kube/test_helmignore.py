"""`.helmignore` and `.Files.Glob` against Helm itself."""

from __future__ import annotations

import pytest

from engineroom.reading import globs, helmignore
from tests.lint_kube.common import helm_renders

FILES = [
    "README.md", "files/a.json", "files/b.txt", "files/deep/c.json", "files/deep/er/d.json", "docs/e.md",
    "tokenizer.json", ".hidden", "files/.secret", "x-1.tgz",
]  # fmt: skip
RULES = [
    "", "*.json", "files", "files/", "/files", "files/*", "files/*.json", "/*.json", "deep/", "files/deep",
    "# files\n*.md", "*.md\n*.txt", "!*.json", "a.json", "?.json", "[a-c].json", "[^a].json", ".*", "  files/  ",
    "files/?.json", "files/**", "[a", "tokenizer.json/", "\\*.json", "docs/*\n!docs/e.md", "x-[0-9].tgz",
]  # fmt: skip
GLOBS = ["*.json", "**.json", "files/*", "files/**", "files/*.json", "files/{a,b}.*", "files/?.json",
         "files/[ab].json", "files/[!a].json", "**/*.json", "files/*/*.json", "nothing*"]  # fmt: skip
LIST_ALL = '{{ range $p, $_ := .Files.Glob "**" }}{{ $p }}\n{{ end }}'


def test_ignored_files_are_those_that_helm_leaves_out() -> None:
    contents = dict.fromkeys(FILES, "x")
    charts = [("", LIST_ALL, {**contents, ".helmignore": rule + "\n"}) for rule in RULES]
    for rule, theirs in zip(RULES, helm_renders(charts), strict=True):
        rules = helmignore.parse(rule + "\n")
        if theirs is None:
            # `!*.json` leaves out Chart.yaml too, and then there is no chart.
            assert (
                rules.refused or rules.ignores("Chart.yaml") or rules.ignores("templates/t.yaml")
            ), rule
            continue
        assert rules.refused is None, rule
        ours = {path for path in FILES if not rules.ignores(path)}
        assert ours == set(theirs.split()) - {".helmignore"}, rule


def test_globs_hold_what_helm_says() -> None:
    charts = [("", LIST_ALL.replace("**", glob), dict.fromkeys(FILES, "x")) for glob in GLOBS]
    for glob, theirs in zip(GLOBS, helm_renders(charts), strict=True):
        assert theirs is not None
        assert {p for p in FILES if globs.files_match(glob, p)} == set(theirs.split()), glob


def test_many_stars_are_quick() -> None:
    assert not globs.path_match("*a" * 400 + "b", "a" * 3000)


@pytest.mark.parametrize(("text", "line"), [("a\n**\n", 2), ("[\n", 1)])
def test_the_refused_line_is_named(text: str, line: int) -> None:
    refused = helmignore.parse(text).refused
    assert refused is not None
    assert refused[0] == line
