"""The flow of shell scripts: functions, branches, loops, scripts inside scripts, and hostile text."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from engineroom.migration import old_script
from engineroom.reading import shell
from engineroom.reading.shell import Command
from engineroom.types.migration import BuildCall, Leaf

TOOLS = ("trtllm-build", "convert_checkpoint.py", "fill_template.py", "mpirun", "tritonserver")


def calls(text: str) -> list[BuildCall]:
    return list(old_script.read_script("b.sh", text, TOOLS)[0])


def read(text: str) -> tuple[list[BuildCall], list[Leaf], dict[str, str], list[str]]:
    found, leaves, known, problems = old_script.read_script("b.sh", text, TOOLS)
    return list(found), list(leaves), known, [what for _, what in problems]


def options(call: BuildCall) -> dict[str, str]:
    return {flag.name: flag.value for flag in call.flags}


def shown(text: str) -> list[list[str]]:
    """Arguments of each `show` that may run."""
    return [
        [v for word in item.words for v in word.values][1:]
        for item in shell.read(text).items
        if isinstance(item, Command) and not item.uncalled and item.words[0].written == "show"
    ]


# Each runs in bash as well, where every branch that is not certain is the one that changes nothing.
SAME_AS_BASH = [
    "f() { local T=2; T=3; show $T; }; T=1; f; show $T",
    "f() { T=2; declare U=5; show $U; }; T=1; U=1; f; show $T $U",
    "f() { typeset T; show \"[$T]\"; T=4; }; T=1; f; show $T",
    "g() { show $T; }; f() { local T=2; g; }; T=1; f; g",
    'f() { shift; show "$1" "$@"; shift 2; show "$@"; }; f a b c d; show end',
    'set -- a "b c" d; show "$2"; shift; show "$@"',
    "f() { set -- x y; show $1; }; set -- a; f; show $1",
    "T=1; (T=2; show $T); show $T",
    "T=1; T=2 show $T; show $T",
    "f() { show $T; }; T=1; T=2 f; show $T",
    "T=1; echo a | while read X; do T=2; done; show $T",
    "T=1; { T=2; }; show $T",
    "T=1 && U=2; show $T $U; false && U=3; show $U; true || U=4; show $U",
    "if false; then show no; T=1; else T=2; fi; show $T",
    "if false; then show no; fi; while false; do show no; done; false && show no; show yes",
    "case $- in x) T=1 ;; *) T=1 ;; esac; show $T",
    "for m in a 'b c' $(:); do :; done; for m in a 'b c' d; do show \"$m\" x/$m; done; show $m",
    "A=(1 2); for m in \"${A[@]}\" 3; do for n in x y; do show $m$n; done; done",
    "T=; L='a b'; for m in $L; do T=$T$m; done; show $T",
    "S=(3 4); show $((S * 2)) $S ${S[1]} \"${S[@]}\"",
    "A=-7; show $((A / 2)) $((A % 3)) $((7 / -2)) $((7 % -3)) $((-7 / -2))",
    "show a; exit 0; show no",
    "f() { show in; return; show no; }; f; show out",
    "f() { show in; exit; }; f; show no",
    "if true; then show a; exit; fi; show no",
    "(show a; exit; show no); show b",
    "C='show --a 1'; $C; $C --b 2; \"$C\" x 2>/dev/null; D=(show 'a b' c); \"${D[@]}\" d",
    'eval "show a; T=2"; show $T; X=\'$T\'; eval show $X',
    "bash -c \"$(declare -f show); show x\" <<'E'\nshow no\nE\nshow y",
    "run() { \"$@\"; }; run show a 'b c'",
    "f() ( T=2; show $T ); T=1; f; show $T",
    "[[ a < b && ( x == x ) ]]; show $?x | cat >/dev/null; show z",
]  # fmt: skip
PARTLY = ("$(declare", "$?x")


@pytest.mark.parametrize("text", SAME_AS_BASH)
def test_reads_what_bash_runs(text: str, tmp_path: Path) -> None:
    show = "show() { printf '<%s>' \"$@\"; printf '\\n'; }\n"
    ran = subprocess.run(
        ["bash", "-c", show + text], cwd=tmp_path, env={"PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    got = [
        "".join(f"<{v}>" for word in i.words for v in word.values[i.words.index(word) == 0 :])
        for i in shell.read(text).items
        if isinstance(i, Command) and not i.uncalled and i.words[0].values[:1] == ("show",)
    ]
    if any(word in text for word in PARTLY):
        assert got[-1] == ran.stdout.splitlines()[-1]
    else:
        assert got == ran.stdout.splitlines()


@pytest.mark.parametrize(
    "text",
    [
        "if x; then T=2; fi",
        "if x; then T=2; else T=3; fi",
        "case $1 in a) T=2 ;; esac",
        "while x; do T=2; done",
        "for i in $(ls); do T=2; done",
        "x && T=2",
        "x || T=2",
        "x && T=2 && U=3",
        "let T=2",
        "let T++",
        "((T=2))",
        "(( T += 2 ))",
        "echo $((T=2))",
        "printf -v T %s 2",
        "T[0]=2",
        "declare -A T; T[a]=2",
        "read -r T",
        "source env.sh",
        ". ./env.sh",
        "for i in a b; do T=$i; break; done",
        "if x; then f() { T=2; }; fi; [ -n x ] && f",
    ],
)
def test_a_value_that_is_not_certain_stays_as_written(text: str) -> None:
    assert shown(f"T=1\n{text}\nshow $T") == [["${T}"]]
    assert read(f"T=1\n{text}\ntrtllm-build --tp_size $T")[0][0].flags[0].unresolved == ("T",)


def test_branches_that_agree_or_end_the_script_leave_the_value() -> None:
    assert shown("if x; then T=2; else T=2; fi; show $T") == [["2"]]
    assert shown("T=1; if x; then T=2; exit 1; fi; show $T") == [["1"]]
    assert shown("T=1; x || { T=2; exit 1; }; show $T") == [["1"]]
    assert shown("if x; then T=2; show $T; fi") == [["2"]]  # inside the branch it is known


def test_a_sourced_file_is_told_and_may_set_any_name() -> None:
    problems = read("source env.sh\ntrtllm-build --tp_size ${TP:-2}")[3]
    assert problems == ["source env.sh: that file is not read; variables may come from it"]
    assert shown("source env.sh\nshow ${TP:-2}; TP=3; show $TP") == [["${TP:-2}"], ["3"]]
    assert not read("source /opt/venv/bin/activate\nT=1")[3]


def test_functions_that_nobody_calls_do_not_win() -> None:
    text = "old() { trtllm-build --tp_size 8; }\nnew() { trtllm-build --tp_size 2; }\nnew\n"
    found, leaves, _, _ = read(text)
    assert [options(c) for c in found] == [{"--tp_size": "2"}]
    left = [leaf for leaf in leaves if leaf.key.startswith("command[")]
    assert [leaf.value for leaf in left] == [
        "(in function old, which nothing calls) trtllm-build --tp_size 8"
    ]


def test_an_uncalled_function_is_taken_where_there_is_no_other_call() -> None:
    found, _, _, problems = read("b() { trtllm-build --tp_size 8; }\nm() { b; }\n")
    assert [options(c) for c in found] == [{"--tp_size": "8"}]
    assert problems == [
        "trtllm-build stands only in function m, which nothing calls: taken as if it ran"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "trtllm-build --a 1\nexit 0\ntrtllm-build --a 2",
        "if false; then trtllm-build --a 2; fi\ntrtllm-build --a 1",
        "echo trtllm-build --a 2\nprintf '%s' trtllm-build\ntrtllm-build --a 1",
        "command -v trtllm-build\nwhich trtllm-build; trtllm-build --a 1",
        "pip install trtllm-build\ntrtllm-build --a 1",
    ],
)
def test_what_never_runs_is_no_call(text: str) -> None:
    assert [options(c) for c in calls(text)] == [{"--a": "1"}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('cmd="trtllm-build --a 1"; $cmd', {"--a": "1"}),
        ('cmd="trtllm-build --a 1"; $cmd --tp_size 2', {"--a": "1", "--tp_size": "2"}),
        ('CMD=(trtllm-build --a "x y"); "${CMD[@]}"', {"--a": "x y"}),
        ('CMD=(trtllm-build --a $X); "${CMD[@]}" --b 2', {"--a": "${X}", "--b": "2"}),
        ('cmd="trtllm-build --a $X --b 2"; $cmd', {"--a": "${X}", "--b": "2"}),
        ('cmd="trtllm-build --a $(date +%s) --b 2"; $cmd', {"--a": "$(date +%s)", "--b": "2"}),
        ('cmd="python3 /x/convert_checkpoint.py"; $cmd --b 2', {"--b": "2"}),
        ('eval "trtllm-build --a 1"', {"--a": "1"}),
        ('A="--a 1"; cmd="trtllm-build $A"; eval "$cmd --b 2"', {"--a": "1", "--b": "2"}),
        ("bash <<X\ntrtllm-build --a 1\nX", {"--a": "1"}),
        ("T=1\ndocker run --rm img bash <<X\ntrtllm-build --a $T\nX", {"--a": "1"}),
        ("ssh h bash -s <<'X'\ntrtllm-build \\\n --a 1\nX", {"--a": "1"}),
        ("cat <<X | bash\ntrtllm-build --a 1\nX", {"--a": "1"}),
        ("bash <<< 'trtllm-build --a 1'", {"--a": "1"}),
        ("docker exec c bash -lc 'trtllm-build --a 1'", {"--a": "1"}),
    ],
)
def test_commands_that_are_text(text: str, expected: dict[str, str]) -> None:
    found = calls(text)
    assert [options(c) for c in found] == [expected]
    unknown = {n: f.unresolved for f in found[0].flags if (n := f.name) and f.unresolved}
    assert set(unknown) == {name for name, value in expected.items() if value.startswith("$")}


def test_a_script_that_is_written_to_a_file_is_told() -> None:
    found, _, _, problems = read("cat > run.sh <<X\ntrtllm-build --a 1\nX\nbash run.sh")
    assert not found
    assert problems == [
        "a text that is written to a file names trtllm-build: not read; "
        "give that file as --build-script, if it builds the engine"
    ]


def filled(text: str) -> dict[str, dict[str, str]]:
    return old_script.substitutions(calls(text))


def test_loops_and_folders_reach_the_templates() -> None:
    loop = "for m in a b c; do fill_template.py -i repo/$m/config.pbtxt max_batch:4; done"
    assert {k: v["max_batch"] for k, v in filled(loop).items()} == dict.fromkeys("abc", "4")
    there = "cd repo/tensorrt_llm; fill_template.py -i config.pbtxt n:4\ncd ../x && fill_template.py -i config.pbtxt n:5"
    assert {k: v["n"] for k, v in filled(there).items()} == {"tensorrt_llm": "4", "x": "5"}
    apart = (
        "(cd repo/a; fill_template.py -i config.pbtxt n:4)\nfill_template.py -i b/config.pbtxt n:5"
    )
    assert {k: v["n"] for k, v in filled(apart).items()} == {"a": "4", "b": "5"}
    head = 'cd "$(dirname "$0")"; cd repo/a; fill_template.py -i config.pbtxt n:4'
    assert filled(head)["a"]["n"] == "4"
    many = "for m in " + " ".join(f"m{i}" for i in range(500)) + "; do show $m; done"
    assert shown(many) == [["${m}"]]


def test_relative_paths_start_where_cd_went() -> None:
    text = "cd a\nconvert_checkpoint.py --output_dir ./ckpt --model_dir org/name\ncd ..\ntrtllm-build --checkpoint_dir a/ckpt"
    first, second = calls(text)
    assert options(first) == {"--output_dir": "a/ckpt", "--model_dir": "org/name"}
    assert options(second) == {"--checkpoint_dir": "a/ckpt"}


def test_assignments_that_do_not_hold_are_not_known() -> None:
    text = "A=1\nif x; then B=2; fi\n(C=3)\nD=4 ./x.sh\nfalse && E=5\nF=6"
    assert read(text)[2] == {"A": "1", "F": "6"}


M = 1_000_000
HOSTILE = {
    "word": "a" * M,
    "token": "token" * (M // 5),
    "blanks": "token " + " " * M,
    "doubling": "A=x\n" + "A=$A$A\n" * 60 + "trtllm-build $A\n" * 1000,
    "splitting": "A='" + "x " * 32_000 + "'\n" + "show $A\n" * 100_000,
    "copies": "A=" + "x" * 65_000 + "\n" + "B=$A\n" * 100_000,
    "defaults": "echo ${A:-" * 3000 + "}" * 3000,
    "open": "${A:-" * (M // 5),
    "sums": "$((" * (M // 3),
    "brackets": "(" * M,
    "ifs": "if " * (M // 3),
    "arrays": "A=(1) " * (M // 6),
    "functions": "".join(f"f{i}() {{ A{i}=1; f{i + 1}; }}\n" for i in range(20_000)) + "f0\n",
    "loops": "for i in a b c d e f g h; do " * 30 + "x $i;" + "done;" * 30,
    "subshells": "".join(f"V{i}=1\n" for i in range(9000)) + "(A=1)\n" * 20_000,
    "operators": ";" * M,
    "documents": "<<X " * (M // 4),
    "evals": "eval 'eval \"eval x\"'\n" * (M // 25),
}


USUAL = ("word", "token", "copies", "defaults", "ifs", "loops")


@pytest.mark.parametrize(
    "name", [n if n in USUAL else pytest.param(n, marks=pytest.mark.full) for n in HOSTILE]
)
def test_any_megabyte_is_read_soon(name: str) -> None:
    """About a second each at most; the limit here leaves room for a busy machine."""
    begin = time.process_time()
    found, _, _, _ = old_script.read_script("b.sh", HOSTILE[name], TOOLS)
    old_script.substitutions(found)
    assert time.process_time() - begin < 4


def test_functions_deep_in_each_other_are_read_to_a_limit() -> None:
    """Each level takes frames of the interpreter; too many would end in a RecursionError."""
    deep = "".join(
        f"f{i}() {{ " + "if x; then " * 36 + f"f{i + 1}; " + "fi; " * 36 + "}\n" for i in range(12)
    )
    assert any("levels: not read on" in what for what in read(deep + "f0\ntrtllm-build")[3])


def test_a_function_that_two_branches_define_may_be_either() -> None:
    text = "if x; then f() { show a; }; else f() { show b; }; fi\nf"
    assert shown(text) == [["a"], ["b"]]


def test_what_is_cut_is_told() -> None:
    assert any("not read on" in what for what in read(HOSTILE["ifs"])[3])
    call = calls("A=x\n" + "A=$A$A\n" * 60 + "trtllm-build --a $A")[0]
    assert call.flags[0].unresolved == ("A",)
    deep = calls("trtllm-build --a " + "${A:-" * 3000 + "}" * 3000)[0]
    assert deep.flags[0].unresolved


def test_secrets_stay_hidden_in_long_text() -> None:
    secret = "hf_" + "a1" * 20
    texts: Sequence[str] = (
        "x" * 1990 + " " + secret, f"curl --api-key {secret[:12]} x", f"MY_TOKEN={secret[:9]}", "x " + f"{secret} " * 2000,
    )  # fmt: skip
    for text in texts:
        told = " ".join(str(leaf.value) for leaf in read(text)[1])
        assert secret[:9] not in told
