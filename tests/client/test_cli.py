"""`engineroom generate` where no server is needed: usage errors, exit codes, no tracebacks."""

from __future__ import annotations

import pytest

from engineroom.names import ExitCode
from tests.conftest import run_cli


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ((), ExitCode.USAGE, "nothing to ask"),
        (("hi", "--system", "be brief"), ExitCode.USAGE, "needs a chat template"),
        (("--message", "hello"), ExitCode.USAGE, "write ROLE=TEXT"),
        (("hi", "--set", "x"), ExitCode.USAGE, "write NAME=VALUE"),
        (("hi", "--regex", "a", "--grammar", "g"), ExitCode.USAGE, "follows one of"),
        (("--prompt-file", "absent.txt"), ExitCode.USAGE, "absent.txt"),
        (("hi", "--protocol", "tcp"), ExitCode.USAGE, "--protocol"),
        (("hi", "--protocol", "grpc", "--url", "nowhere"), ExitCode.USAGE, "write host:port"),
        (("hi", "--protocol", "grpc", "--url", "127.0.0.1:9"), ExitCode.EXTERNAL, "no answer from"),
        (("hi", "--url", "http://127.0.0.1:9"), ExitCode.EXTERNAL, "engineroom serve"),
        (("hi", "--max-tokens", "0"), ExitCode.USAGE, "--max-tokens"),
        (("hi", "--n", "0"), ExitCode.USAGE, "--n"),
    ],
)
def test_one_clear_error(argv, code, words):
    done = run_cli("generate", *argv)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
