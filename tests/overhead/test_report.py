"""The comparison's arithmetic, on made-up figures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.overhead import procs, report, upstream
from tests.overhead.client import Answer


def row(series, cpu, *, kind="stream", concurrency=8, repeat=0, **more):
    figures = dict.fromkeys(("rps", "p50_ms", "p95_ms", "p99_ms", "ttft_p50_ms", "events"), 1.0)
    return {
        "series": series, "kind": kind, "concurrency": concurrency, "repeat": repeat,
        "server_cpu_ms": cpu, "cpu_ms_by_model": {"server": cpu}, "disturbed": False,
        **figures, **more,
    }  # fmt: skip


def rows():
    cpu = {"ours-bls": (6.0, 5.0, 7.0), "upstream-bls": (18.0, 16.0, 20.0), "echo": (2.0, 2.0, 4.0)}
    return [row(s, v, repeat=k) for s, found in cpu.items() for k, v in enumerate(found)]


def test_ratio_subtracts_the_echo_model_from_both_medians():
    assert report.ratio(rows(), "ours-bls", "upstream-bls", "stream", 8) == pytest.approx(4 / 16)


def test_range_takes_each_repeat_with_its_own_echo():
    low, high = report.ratio_range(rows(), "ours-bls", "upstream-bls", "stream", 8)
    assert (low, high) == (pytest.approx(3 / 16), pytest.approx(4 / 16))


def test_no_ratio_without_all_three():
    assert report.ratio(rows(), "ours-llmapi", "upstream-llmapi", "stream", 8) is None
    assert report.ratio(rows(), "ours-bls", "upstream-bls", "generate", 8) is None


def test_upstream_within_the_noise_of_echo_has_no_ratio():
    """2.1 against echo's 2.0 (1.9 to 2.3): a quotient by 0.1 would say nothing."""
    found = [row("ours-llmapi", 2.05), row("upstream-llmapi", 2.1)]
    found += [row("echo", value, repeat=k) for k, value in enumerate((1.9, 2.0, 2.3))]
    assert report.ratio(found, "ours-llmapi", "upstream-llmapi", "stream", 8) is None
    (entry,) = report.verdicts(found)
    assert (entry["ratio"], entry["within"]) == (None, None)
    assert "| - | within the spread of echo |" in report.markdown(found, {})


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.51, 3), (0.75, 3), (0.95, 4), (1, 4)])
def test_quantiles_are_values_that_were_seen(share, value):
    assert report.quantile([4, 1, 3, 2], share) == value


def test_row_of_counts_the_server_alone_and_marks_what_others_took():
    answers = [Answer(0.01, 0.02, 16), Answer(0.03, 0.04, 16)]
    made = report.row_of(answers, 2.0, {"server": 0.1, "bls": 0.3}, client_cpu=0.2, busy=0.7)
    assert (made["rps"], made["server_cpu_ms"], made["client_cpu_ms"]) == (1.0, 200.0, 100.0)
    assert made["cpu_ms_by_model"] == {"bls": 150.0, "server": 50.0}
    assert (made["p50_ms"], made["p99_ms"], made["ttft_p50_ms"]) == (20.0, 40.0, 10.0)
    assert (made["other_cpu"], made["disturbed"]) == (0.05, False)
    made = report.row_of(answers, 2.0, {"server": 0.1}, client_cpu=0.2, busy=0.7)
    assert (made["other_cpu"], made["disturbed"]) == (0.2, True)


def test_verdicts_judge_by_the_limit_and_only_like_with_like():
    found = [*rows(), row("upstream-ensemble", 8.0)]
    entries = report.verdicts(found)
    assert [(e["comparison"], e["judged"], e["within"]) for e in entries] == [
        ("engine lane, BLS", True, True),
        ("for information: our BLS against upstream's ensemble", False, False),
    ]


def test_markdown_and_table_state_medians_spread_and_disturbance():
    found = [*rows(), row("echo", 2.0, concurrency=1, disturbed=True)]
    text = report.markdown(found, {"engine": "a double"})
    assert "| engine | a double |" in text
    assert "10 runs, 1 of them disturbed" in text
    assert "| engine lane, BLS | stream | 8 | 0.25 | 0.19 to 0.25 |" in text
    assert "| ours-bls | stream | 8 | 6.00 (5.00 to 7.00) |" in text
    line = next(x for x in report.table(found).splitlines() if x.startswith("engine lane, BLS"))
    assert line.split()[-5:] == ["8", "6.00", "18.00", "2.00", "0.25"]


def test_cpu_of_this_process_is_seen():
    before = procs.usage({os.getpid(): "me"})
    while sum(os.times()[:2]) < before.own + 0.05:
        pass
    after = procs.usage({os.getpid(): "me"})
    assert 0.03 <= after.by_model["me"] - before.by_model["me"] <= 2
    assert after.busy > before.busy
    assert os.getpid() in procs.tree(os.getppid())


def test_values_reach_upstreams_script_escaped(tmp_path):
    """The script splits at commas and colons; one of its like, to see what arrives."""
    script = tmp_path / "tools/fill_template.py"
    script.parent.mkdir()
    script.write_text("import sys, pathlib; pathlib.Path(sys.argv[2]).write_text(sys.argv[3])")
    (tmp_path / "out").write_text("${a} ${b}")
    # `c` is no place of this template, and the script would refuse it.
    upstream.fill(tmp_path, tmp_path / "out", {"a": "x:1,y\\z", "b": "", "c": "1"})
    assert Path(tmp_path / "out").read_text() == r"a:x\:1\,y\\z,b:"
