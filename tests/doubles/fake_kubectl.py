"""A TEST DOUBLE of `kubectl` and of the little of a cluster that a Job needs. No Kubernetes is here.

It knows `create -f -`, `get job`, `get pods`, `logs --follow` and `delete job`. A created Job gets a
controller process, which runs the pod's args on this machine (with ``$$`` turned to ``$``, as a kubelet
does, and the claim's folder in the place of the mount) and applies `backoffLimit`, `podFailurePolicy`
and `activeDeadlineSeconds`. Standard library only. Environment:

    FAKE_KUBECTL_STATE     folder of the "cluster"
    FAKE_KUBECTL_CLAIM     folder that every claim stands for
    FAKE_KUBECTL_PREEMPT   pods that are taken away while they compile, before one may end
    FAKE_KUBECTL_PENDING   any text: no node fits
    FAKE_KUBECTL_FORBID    any text: `create` is refused
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LONGEST = 60
"""Seconds after which a controller gives up, so that no test leaves one behind."""


def install(folder: Path, state: Path, claim: Path, **settings: str | int) -> None:
    """Put the double into `folder` as `kubectl`."""
    folder.mkdir(parents=True, exist_ok=True)
    state.mkdir(parents=True, exist_ok=True)
    values = {"state": state, "claim": claim, **settings}
    lines = [f"export FAKE_KUBECTL_{k.upper()}={shlex.quote(str(v))}" for k, v in values.items()]
    call = f'exec {shlex.quote(sys.executable)} -I -S {shlex.quote(__file__)} "$@"'
    script = folder / "kubectl"
    script.write_text("\n".join(["#!/bin/sh", *lines, call, ""]), encoding="utf-8")
    script.chmod(0o755)


def state() -> Path:
    return Path(os.environ["FAKE_KUBECTL_STATE"])


def read(path: Path) -> Any:
    for _ in range(50):  # the controller writes by rename; a reader may come between
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError):
            time.sleep(0.01)
    return None


def write(path: Path, value: Any) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(value))
    part.replace(path)


def main() -> int:
    words = sys.argv[1:]
    with (state() / "calls.jsonl").open("a") as file:
        file.write(json.dumps(words) + "\n")
    while words[0] in ("--context", "--namespace"):
        words = words[2:]
    if words[0] == "create":
        return create(json.load(sys.stdin))
    if words[:2] == ["get", "job"]:
        job = read(state() / f"{words[2]}.job") if (state() / f"{words[2]}.job").exists() else None
        if job is None:
            print(
                f'Error from server (NotFound): jobs.batch "{words[2]}" not found', file=sys.stderr
            )
            return 1
        print(json.dumps(job))
        return 0
    if words[:2] == ["get", "pods"]:
        name = words[3].partition("=")[2]  # engineroom/job=NAME
        print(json.dumps({"items": [read(p) for p in sorted(state().glob(f"{name}-*.pod"))]}))
        return 0
    if words[0] == "logs":
        return logs(words[2])
    if words[:2] == ["delete", "job"]:
        return delete(words[2])
    print(f"unknown command: {words}", file=sys.stderr)
    return 1


def create(job: dict[str, Any]) -> int:
    name = job["metadata"]["name"]
    path = state() / f"{name}.job"
    if os.environ.get("FAKE_KUBECTL_FORBID"):
        print('Error from server (Forbidden): jobs.batch is forbidden: User "x"', file=sys.stderr)
        return 1
    if path.exists():
        print(
            f'Error from server (AlreadyExists): jobs.batch "{name}" already exists',
            file=sys.stderr,
        )
        return 1
    write(path, {**job, "status": {}})
    with (state() / f"{name}.controller").open("w") as file:
        controller = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, "controller", name],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    write(state() / f"{name}.pid", controller.pid)
    print(f"job.batch/{name}")
    return 0


def logs(pod: str) -> int:
    path, at = state() / f"{pod}.log", 0
    while True:
        over = read(state() / f"{pod}.pod")["status"]["phase"] != "Running"
        if path.exists():
            data = path.read_bytes()[at:]
            at += len(data)
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
        if over:
            return 0
        time.sleep(0.05)


def delete(name: str) -> int:
    """End the pods as a kubelet does (TERM, then KILL after a while), then forget the Job."""
    groups = [
        read(p) for p in [state() / f"{name}.pid", *state().glob(f"{name}-*.group")] if p.exists()
    ]
    for number, wait in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 0.0)):
        for group in groups:
            with contextlib.suppress(ProcessLookupError, TypeError):
                os.killpg(group, number)
        end = time.monotonic() + wait
        while time.monotonic() < end and any(map(lives, groups)):
            time.sleep(0.02)
    for path in [*state().glob(f"{name}-*"), *state().glob(f"{name}.*")]:
        path.unlink(missing_ok=True)
    return 0


def lives(group: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{group}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


def controller(name: str) -> int:
    job = read(state() / f"{name}.job")
    spec = job["spec"]
    deadline = time.monotonic() + min(spec.get("activeDeadlineSeconds", LONGEST), LONGEST)
    counted = 0
    for number in range(100):
        pod = f"{name}-{number}"
        code = run_pod(pod, spec["template"]["spec"], number, deadline)
        if code == 0:
            return end(name, job, "Complete", "")
        if code is None:
            return end(name, job, "Failed", "DeadlineExceeded")
        action = judge(spec["podFailurePolicy"]["rules"], read(state() / f"{pod}.pod"))
        if action == "FailJob":
            return end(name, job, "Failed", "PodFailurePolicy")
        counted += action != "Ignore"
        if counted > spec["backoffLimit"]:
            return end(name, job, "Failed", "BackoffLimitExceeded")
    return 1


def end(name: str, job: dict[str, Any], kind: str, reason: str) -> int:
    condition = {"type": kind, "status": "True", "reason": reason, "message": reason}
    write(state() / f"{name}.job", {**job, "status": {"conditions": [condition]}})
    return 0


def judge(rules: list[dict[str, Any]], pod: dict[str, Any]) -> str:
    """The action of the first rule that matches a failed pod."""
    conditions = {c["type"] for c in pod["status"].get("conditions", []) if c["status"] == "True"}
    code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
    for rule in rules:
        if any(c["type"] in conditions for c in rule.get("onPodConditions", [])):
            return str(rule["action"])
        if (on := rule.get("onExitCodes")) and (code in on["values"]) == (on["operator"] == "In"):
            return str(rule["action"])
    return "Count"


def run_pod(pod: str, spec: dict[str, Any], number: int, deadline: float) -> int | None:
    """Exit code, or None when the deadline came first."""
    facts: dict[str, Any] = {
        "metadata": {"name": pod, "creationTimestamp": f"2026-01-01T00:00:{number:02}Z"}
    }
    path = state() / f"{pod}.pod"
    if os.environ.get("FAKE_KUBECTL_PENDING"):
        message = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
        condition = {"type": "PodScheduled", "status": "False", "message": message}
        write(path, {**facts, "status": {"phase": "Pending", "conditions": [condition]}})
        time.sleep(max(0.0, deadline - time.monotonic()))
        return None
    container = spec["containers"][0]
    mount = next(m for m in container["volumeMounts"] if m["name"] == "workspace")
    claim = Path(os.environ["FAKE_KUBECTL_CLAIM"]) / mount.get("subPath", "")
    argv = [word.replace("$$", "$") for word in container["args"]]
    request = json.loads(argv[-1])
    assert request["workspace"] == mount["mountPath"]
    argv[-1] = json.dumps({**request, "workspace": str(claim)})
    argv[0] = sys.executable
    write(path, {**facts, "status": {"phase": "Running"}})
    with (state() / f"{pod}.log").open("wb") as log:
        child = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    write(state() / f"{pod}.group", child.pid)
    taken = False
    while child.poll() is None:
        if time.monotonic() >= deadline:
            child.send_signal(signal.SIGTERM)
            child.wait()
            write(path, {**facts, "status": {"phase": "Failed", "containerStatuses": []}})
            return None
        text = (state() / f"{pod}.log").read_bytes()
        if (
            not taken
            and number < int(os.environ.get("FAKE_KUBECTL_PREEMPT", "0"))
            and b"Build Tens" in text
        ):
            taken = True
            child.send_signal(signal.SIGTERM)
        time.sleep(0.03)
    code = child.returncode if child.returncode >= 0 else 128 - child.returncode
    reason = "OOMKilled" if code == 137 else "Error" if code else "Completed"
    status: dict[str, Any] = {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [
            {
                "name": container["name"],
                "state": {"terminated": {"exitCode": code, "reason": reason}},
            }
        ],
    }
    if taken:
        gone = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        status["conditions"] = [gone]
    write(path, {**facts, "status": status})
    return code


if __name__ == "__main__":
    sys.exit(controller(sys.argv[2]) if sys.argv[1] == "controller" else main())
