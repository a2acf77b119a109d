"""The reader of shell scripts: what running bash would give, as far as the text says it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engineroom.reading import shell
from engineroom.reading.shell import Assignment, Command


def commands(text: str) -> list[list[str]]:
    return [
        [v for word in item.words for v in word.values]
        for item in shell.read(text).items
        if isinstance(item, Command)
    ]


# Each runs in bash as well, with `show` printing its arguments: the reader must agree with it.
SAME_AS_BASH = [
    'A=1; B="$A 2"; show $B "$B" \'$B\'',
    "show --a=b \\\n  --c \\\n  d # e --f",
    'X=/m/l; show ${X}/e "${X}/f g" $X',
    "A=(--x 1 '2 3'); A+=(4); show \"${A[@]}\"",
    'E="--foo 1"; E="$E --bar=2"; show $E end',
    "export P=4 Q=2; show $((P * Q + 1)) $(( (P - Q) / 2 )) $((7 % 4))",
    'show ${U:-x} ${U:-"a b"} "${U-y z}"; V=; show "${V:-e}" "${V-e}"',
    ': "${W:=/srv}"; show $W/x',
    'f() { show "$@" "$1"; }\nf a "b c"\nf',
    "function g { show in $1; }; g 7",
    "show one 2>/dev/null 3>&1; show two 2> /dev/null; show a|cat; show z",
    "cat > /dev/null <<EOF\nshow no\nEOF\nshow yes",
    "cat > /dev/null <<-'END'\n\tshow no $A\n\tEND\nshow yes",
    "if true; then T=1; fi; show $T",
    "( cd / && show inner ); show outer",
    "case fp8 in fp8) show yes ;; esac; show after",
    'show "a\\"b" a\\ b $\'c\' "x${U-}y" ""',
    "S='it''s'; show $S",
    "A=1 B=2\nshow $A$B; unset A; show \"$A\"",
    "show 'multi\nline' end",
    "show a;show b&&show c||show d",
    "D=/x/y/; show ${D}z\r\nshow w\r",
]  # fmt: skip


@pytest.mark.parametrize("text", SAME_AS_BASH)
def test_reads_what_bash_runs(text: str, tmp_path: Path) -> None:
    show = "show() { printf '<%s>' \"$@\"; printf '\\n'; }\n"
    script = text.replace("\r", "")
    ran = subprocess.run(
        ["bash", "-c", show + script], cwd=tmp_path, env={"PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    expected = [line for line in ran.stdout.replace("\nline", "\\nline").split("\n") if line]
    read = [c[1:] for c in commands(text) if c[0] == "show"]
    shown = ["".join(f"<{word}>" for word in words) or "<>" for words in read]
    got = [line.replace("\nline", "\\nline") for line in shown]
    if "||" in text:  # which of two branches runs is not decided: both are read
        assert [line for line in got if line in expected] == expected
    else:
        assert got == expected


@pytest.mark.parametrize(
    ("text", "name", "unresolved"),
    [
        ("A=$(date)\nshow $A/x", "$(date)/x", ("$(date)",)),
        ("show `hostname`", "`hostname`", ("`hostname`",)),
        ("show $1", "${1}", ("1",)),
        ("show $UNSET/x", "${UNSET}/x", ("UNSET",)),
        ("read A\nshow $A", "${A}", ("A",)),
        ("for A in $(ls); do :; done\nshow $A", "${A}", ("A",)),
        ("if x; then A=1; else A=2; fi\nshow $A", "${A}", ("A",)),
        ("A=abc\nshow ${A%c}", "${A%c}", ("A%c",)),
        ("A=7\nshow $((A ** 9))", "$((A ** 9))", ("$((A ** 9))",)),
        ("show $((1/0))", "$((1/0))", ("$((1/0))",)),
    ],
)  # fmt: skip
def test_what_only_running_would_tell_is_named(
    text: str, name: str, unresolved: tuple[str, ...]
) -> None:
    last = [i for i in shell.read(text).items if isinstance(i, Command)][-1]
    assert last.words[1].values == (name,)
    assert last.words[1].unresolved == unresolved


def test_lines_branches_and_inner_scripts() -> None:
    items = shell.read("A=1\n\nif x; then\n  show a\nfi\nbash -c 'show b\nshow $A'\n").items
    shows = [
        (i.line, i.branch) for i in items if isinstance(i, Command) and i.words[0].written == "show"
    ]
    assert shows == [(4, True), (6, False), (7, False)]
    assert [i.value for i in items if isinstance(i, Assignment)] == ["1"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("show 'a", (1, "no closing '")),
        ('\nshow "a', (2, 'no closing "')),
        ("show ${a", (1, "no closing }")),
    ],
)
def test_what_does_not_end_is_told(text: str, problem: tuple[int, str]) -> None:
    assert problem in shell.read(text).problems


@pytest.mark.parametrize(
    "text",
    [
        "A=xxxxxxxx\n" + "A=$A$A\n" * 80 + "show $A",
        "".join(f"f{i}() {{ f{i + 1}; f{i + 1}; }}\n" for i in range(40)) + "f40() { show x; }\nf0\n",
        "f() { f; f; }\nf\n",
        "$(" * 5000,
        "a " * 30_000,
        "A=$((" + "(" * 150 + "1" + ")" * 150 + "))",
        "\\",
        "${",
        "<<" * 999,
    ],
    ids=range(9),
)  # fmt: skip
def test_hostile_text_ends_soon(text: str) -> None:
    assert len(shell.read(text).items) <= shell.MAX_ITEMS + 1


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab=$(){}[]'\"`\\ \n;|&<>#*-+/1:,!?~\t", max_size=120))
def test_any_text_is_read(text: str) -> None:
    for item in shell.read(text).items:
        assert item.line >= 1
