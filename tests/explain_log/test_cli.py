"""The verb: output, exit codes, standard input."""

from __future__ import annotations

import io
import json
import os
import threading
from types import SimpleNamespace

import pytest
import typer

from engineroom.cli import explain_log
from engineroom.errors import CatalogError, UsageError
from tests.explain_log.test_catalog import overlay

PORT = "failed to start HTTP service: Unavailable - Socket '0.0.0.0:8000' already in use"
ENSEMBLE = "ensemble 'e' depends on 'm' which has no loaded version"
LOAD = "failed to load 'm' version 1: Internal: odd"


@pytest.fixture
def run(capsys):
    app = typer.Typer(add_completion=False)
    app.command("explain-log")(explain_log.command)

    def call(*argv):
        code = app([str(arg) for arg in argv], standalone_mode=False)
        return code, capsys.readouterr().out

    return call


@pytest.fixture
def log(tmp_path):
    def write(*lines):
        path = tmp_path / "x.log"
        path.write_text("\n".join(lines))
        return path

    return write


def test_table(run, log):
    code, out = run(log("fine", PORT, PORT, "ERROR odd", "ERROR odd"))
    assert code == 1
    assert "ERROR port-in-use  line 2 (2 times)\n" in out
    assert "      subject: the address 0.0.0.0:8000 of the HTTP endpoint\n" in out
    for label in ("what", "cause", "next step", "source"):
        assert f"\n      {label}: " in out
    assert "UNKNOWN  line 4 (2 times)\n      ERROR odd\n" in out
    assert out.endswith("5 lines: 1 error, 0 warn, 0 info, 1 unknown\n")


def test_consequences_are_marked(run, log):
    _, out = run(log(LOAD, ENSEMBLE))
    assert "ERROR ensemble-step-missing  line 2  (consequence of model-load-failed, line 1)" in out


def test_json(run, log):
    code, out = run(log(LOAD, ENSEMBLE, "ERROR odd"), "--format", "json")
    data = json.loads(out)
    assert code == 1
    assert (data["schema_version"], data["lines"], data["omitted"]) == (1, 3, 0)
    assert [(r["line"], r["id"], r["count"]) for r in data["recognised"]] == [
        (1, "model-load-failed", 1),
        (2, "ensemble-step-missing", 1),
    ]
    assert data["recognised"][1]["consequence_of"] == {"id": "model-load-failed", "line": 1}
    assert data["recognised"][0]["values"]["version"] == 1
    assert {"subject", "cause", "next_step", "source", "severity"} <= set(data["recognised"][0])
    assert data["unknown_errors"] == [{"line": 3, "text": "ERROR odd", "count": 1}]


@pytest.mark.parametrize(
    ("line", "options", "code"),
    [
        ("all is well", (), 0),
        ("Allocated 1.50 GiB for max tokens in paged KV cache (64).", ("--fail-on", "warn"), 0),
        ("Readiness probe failed: HTTP probe failed with statuscode: 503", (), 0),
        (
            "Readiness probe failed: HTTP probe failed with statuscode: 503",
            ("--fail-on", "warn"),
            1,
        ),
        ("Failed to initialize NVML: Unknown Error", (), 0),
        ("Failed to initialize NVML: Unknown Error", ("--fail-on", "unknown"), 1),
        (PORT, (), 1),
        ("ERROR odd", (), 1),
    ],
)
def test_exit_codes(run, log, line, options, code):
    assert run(log(line), *options)[0] == code


def test_standard_input(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(PORT.encode())))
    code, out = run("-")
    assert code == 1
    assert "port-in-use" in out
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError):
        run("-")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_process_substitution(run, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(PORT))
    writer.start()
    code, out = run(pipe)
    writer.join()
    assert code == 1
    assert "port-in-use" in out


def test_missing_file(run, tmp_path):
    with pytest.raises(UsageError) as caught:
        run(tmp_path / "no.log")
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError):
        run()


def test_explain_prints_a_row(run):
    code, out = run("--explain", "mpi-no-slots")
    assert code == 0
    assert "id: mpi-no-slots\n" in out
    assert "NVIDIA/TensorRT-LLM issue #5854" in out
    data = json.loads(run("--explain", "mpi-no-slots", "--format", "json")[1])
    assert data["severity"] == "error"
    assert data["pattern"].startswith("There are not enough slots")


def test_explain_an_unknown_row(run):
    with pytest.raises(UsageError) as caught:
        run("--explain", "mpi-no-slot")
    assert "`mpi-no-slots`" in caught.value.hint


def test_overlay(run, log, tmp_path):
    root = overlay(tmp_path / "catalog", {})
    code, out = run(log("frobnicator cpu0 is missing"), "--catalog", root)
    assert code == 1
    assert "subject: the frobnicator cpu0" in out
    with pytest.raises(CatalogError):
        run(log("x"), "--catalog", overlay(tmp_path / "bad", {"pattern": "frobnicator .*"}))


def test_the_verb_starts_without_the_catalog():
    """`--help` of the whole program imports every verb's file: it must stay cheap."""
    import subprocess
    import sys

    code = (
        "import sys, engineroom.cli.explain_log; "
        "print([m for m in ('pydantic', 'yaml', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_explain_reads_no_log(run, log):
    with pytest.raises(UsageError, match="reads no log"):
        run(log("x"), "--explain", "port-in-use")
