"""A TEST DOUBLE of the `docker` client: it writes its arguments down and runs the step's command here.

`run` finds the bind mounts among its arguments (read as Go's CSV reader does), puts the container's
paths back to the folders of this machine, and runs the command with its exit code. Standard library
only. Environment:

    FAKE_DOCKER_RECORD   folder: a file `calls.jsonl` with {"argv", "env"} a line
    FAKE_DOCKER_CODE     exit code of `run` without running anything, e.g. 125
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path


def install(folder: Path, record: Path, **settings: str | int) -> None:
    """Put the double into `folder` as `docker`."""
    folder.mkdir(parents=True, exist_ok=True)
    record.mkdir(parents=True, exist_ok=True)
    values = {"RECORD": record, **{k.upper(): v for k, v in settings.items()}}
    lines = [f"export FAKE_DOCKER_{k}={shlex.quote(str(v))}" for k, v in values.items()]
    call = f'exec {shlex.quote(sys.executable)} -I -S {shlex.quote(__file__)} "$@"'
    script = folder / "docker"
    script.write_text("\n".join(["#!/bin/sh", *lines, call, ""]), encoding="utf-8")
    script.chmod(0o755)


def calls(record: Path) -> list[dict]:
    path = record / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    argv = sys.argv[1:]
    record = Path(os.environ["FAKE_DOCKER_RECORD"])
    with (record / "calls.jsonl").open("a") as file:
        file.write(json.dumps({"argv": argv, "env": dict(os.environ)}) + "\n")
    if argv[0] == "kill":
        pid = record / f"{argv[1]}.pid"
        if pid.exists():
            os.killpg(int(pid.read_text()), signal.SIGKILL)
        return 0
    if argv[:2] == ["image", "inspect"]:
        print("nvcr.io/nvidia/tritonserver@sha256:" + "a" * 64)
        return 0
    if argv[0] != "run":
        return 1
    if code := os.environ.get("FAKE_DOCKER_CODE"):
        print("docker: Error response from daemon: could not select device driver", file=sys.stderr)
        return int(code)
    return run(argv[1:], record)


VALUED = {
    "--name", "--label", "--gpus", "--shm-size", "--ulimit", "--network", "--user", "--env",
    "--mount", "--workdir",
}  # fmt: skip


def run(argv: list[str], record: Path) -> int:
    options: dict[str, list[str]] = {}
    at = 0
    while argv[at].startswith("--"):
        if argv[at] in VALUED:
            options.setdefault(argv[at], []).append(argv[at + 1])
            at += 2
        else:
            at += 1
    command = argv[at + 1 :]
    folders = {}
    for text in options["--mount"]:
        fields = dict(
            field.partition("=")[::2] for field in next(csv.reader(text.splitlines(keepends=True)))
        )
        folders[fields["target"]] = fields["source"]
    command = [folders.get(word, word) for word in command]
    # In a group of its own, as a container lives on when its client is killed.
    child = subprocess.Popen(command, cwd=folders[options["--workdir"][0]], start_new_session=True)
    (record / f"{options['--name'][0]}.pid").write_text(str(child.pid))
    signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
