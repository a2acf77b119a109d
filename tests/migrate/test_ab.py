"""`ab-plan.md` and its files: commands parse, thresholds stay the reader's, the comparison counts."""

from __future__ import annotations

import ast
import http.server
import json
import re
import shlex
import sys
import threading
from pathlib import Path

import pytest
from jinja2 import Environment
from typer.testing import CliRunner

from engineroom.cli.main import app
from engineroom.pipeline.migrate_ab import ab_files, ab_plan
from engineroom.pipeline.migrate_ab_data import ab_data
from engineroom.pipeline.migrate_prompts import PROMPTS
from engineroom.runner import parity
from tests.conftest import run_cli
from tests.migrate import old_layout as old

# Options of `aiperf profile` that the plan uses, as docs/cli_options.md of ai-dynamo/aiperf @ 023e12c4 has
# them (`payload_template`, `response_field`: docs/tutorials/template-endpoint.md @ 13992dbd).
AIPERF_OPTIONS = {
    "--model", "--url", "--endpoint", "--endpoint-type", "--extra-inputs", "--streaming", "--tokenizer",
    "--random-seed", "--synthetic-input-tokens-mean", "--output-tokens-mean", "--concurrency",
    "--request-count", "--output-artifact-dir",
}  # fmt: skip


def commands(text: str) -> list[list[str]]:
    """Words of every command in the fenced blocks of a page."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.strip()]


@pytest.mark.parametrize("name", old.NAMES)
def test_every_command_of_the_plan_parses(name, made, catalog):
    setup, spec = made(name).setup, made(name).spec
    text = ab_plan(setup, spec, catalog)
    found = commands(text)
    assert {words[0] for words in found} == {"engineroom", "helm", "python3", "aiperf"}
    assert found == [list(words) for words in _in_order(ab_data(setup, spec, catalog).commands)]
    for words in found:
        if words[0] == "aiperf":
            assert {w for w in words if w.startswith("--")} <= AIPERF_OPTIONS
        if words[0] == "python3":
            assert words[1] == "parity.py"
            with pytest.raises(SystemExit, match="0"):
                parity.main([*words[2:], "--help"])
    assert "FILL IN" in text
    used = set(re.findall(r"\$(\w+)", "\n".join(" ".join(words) for words in found)))
    explained = set(re.findall(r"`([A-Z_]+)`", text))
    assert used <= explained


def _in_order(known):
    order = ("check", "plan", "quantize", "build", "deploy", "install", "ask", "parity", "speed-old",
             "speed-new", "rollback")  # fmt: skip
    assert set(order) == set(known)
    return [known[title] for title in order]


def test_every_engineroom_command_takes_its_options(made, catalog):
    """Each verb of the plans is asked for its help, and the options are in it."""
    text = ab_plan(made(old.NAMES[0]).setup, made(old.NAMES[0]).spec, catalog)
    for words in commands(text):
        if words[0] == "engineroom":
            shown = CliRunner().invoke(app, [words[1], "--help"])
            assert shown.exit_code == 0, words
            for word in words:
                if word.startswith("-"):
                    assert word in shown.output, words


def test_the_first_commands_run_on_the_spec_beside_the_plan(made, catalog):
    """`check` and `plan`, as written, in the folder that migrate wrote."""
    done = made("llama31-fp8-0.21")
    plan = ab_data(done.setup, done.spec, catalog)
    for title, says in (("check", "0 error"), ("plan", plan.target)):
        shown = run_cli(*plan.commands[title][1:], cwd=done.out)
        assert shown.returncode == 0, shown.stderr
        assert says in shown.stdout


@pytest.mark.parametrize(
    ("name", "weights", "kv", "says"),
    [
        ("llama31-fp8-0.21", True, True, "expect most answers equal, not all"),
        ("llama31-awq-0.18", True, False, "The format of the KV cache changes"),
        ("llama3-leader-0.12", True, True, "expect most answers equal, not all"),
        ("llama-nvfp4-1.2", True, True, "expect most answers equal, not all"),
    ],
)
def test_expectations_follow_from_the_formats(name, weights, kv, says, made, catalog):
    setup, spec = made(name).setup, made(name).spec
    plan = ab_data(setup, spec, catalog)
    assert (plan.same_weights, plan.same_kv) == (weights, kv)
    assert says in ab_plan(setup, spec, catalog)


def test_files_of_the_plan(made, catalog):
    setup, spec = made("mistral-orchestrator-1.0").setup, made("mistral-orchestrator-1.0").spec
    files = ab_files(setup, spec, catalog)
    assert [json.loads(line)["text"] for line in files["prompts.jsonl"].splitlines()] == list(
        PROMPTS
    )
    compile(files["parity.py"], "parity.py", "exec")
    values = {"text": 'a "quoted"\nline', "max_tokens": 7}
    rendered = {
        name: json.loads(Environment().from_string(files[name]).render(values))
        for name in ("aiperf-old.json", "aiperf-new.json")
    }
    assert rendered == {
        "aiperf-old.json": {"text_input": values["text"], "max_tokens": 7, "stream": True},
        "aiperf-new.json": {
            "text_input": values["text"],
            "sampling_param_max_tokens": 7,
            "streaming": True,
        },
    }


class _Answers(http.server.BaseHTTPRequestHandler):
    """A stand-in for both servers: `old` echoes the prompt before its answer, `new` does not."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, model = body["text_input"], self.path.split("/")[3]
        answer = {"old": f"{prompt} yes", "new": " yes", "other": " yet", "broken": None}[model]
        self.send_response(200 if answer else 500)
        self.end_headers()
        self.wfile.write(
            json.dumps({"text_output": answer} if answer else {"error": "no"}).encode()
        )

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=made.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.mark.parametrize(
    ("new", "more", "code", "says"),
    [
        ("new", ["--old-echo"], 0, "2 of 2 answers are equal"),
        ("new", [], 1, "prompt 1: differs from character 0"),
        ("other", ["--old-echo"], 1, "prompt 0: differs from character 3"),
        ("other", ["--old-echo", "--min-equal", "0"], 0, "0 of 2 answers are equal"),
        ("broken", ["--old-echo"], 3, "HTTP 500"),
    ],
)
def test_parity_counts_equal_answers(new, more, code, says, server, tmp_path, capsys):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"text": "Is it?"}\n\n{"text": "Really?"}\n')
    words = ["--prompts", str(prompts), "--old", server, "--old-model", "old", "--new", server,
             "--new-model", new, "--report", str(tmp_path / "r.json"), *more]  # fmt: skip
    assert parity.main(words) == code
    shown = capsys.readouterr()
    assert says in shown.out + shown.err
    assert (tmp_path / "r.json").exists() == (code in (0, 1))


@pytest.mark.parametrize("text", ["", "no json", '{"prompt": "x"}', "[1]"])
def test_parity_refuses_prompts_that_are_none(text, tmp_path, capsys):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(text)
    words = [
        "--prompts",
        str(prompts),
        "--old",
        "http://x",
        "--old-model",
        "m",
        "--new",
        "http://x",
    ]
    assert parity.main(words) == 2
    assert "p.jsonl" in capsys.readouterr().err


def test_parity_is_one_file_of_the_standard_library():
    tree = ast.parse(Path(parity.__file__).read_text(encoding="utf-8"))
    names = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert names <= set(sys.stdlib_module_names)
