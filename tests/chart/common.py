"""Rendering the chart through the child process, for the chart's tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from engineroom.runner.process import run_module

CHART = Path(__file__).parents[2] / "helm/engineroom"
GOLDEN = Path(__file__).parent / "golden"
SCENARIOS = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").iterdir())
KUBE_VERSIONS = ["1.29.0", "1.31.0", "1.35.0", "1.37.0"]
Values = dict[str, Any]
Result = dict[str, Any]


def scenario(name: str) -> Values:
    text = (CHART / f"ci/{name}-values.yaml").read_text(encoding="utf-8")
    values: Values = yaml.safe_load(text)
    return values


def changed(changes: Values, base: str = "llmapi") -> Values:
    """A scenario with some dotted keys set."""
    values = scenario(base)
    for key, value in changes.items():
        *parents, last = key.split(".")
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return values


def call(
    values: Values,
    *,
    name: str = "demo",
    namespace: str = "llm",
    chart: Path = CHART,
    kube_versions: list[str] | None = None,
    validate: bool = True,
    log: Path | None = None,
    env: dict[str, str] | None = None,
) -> Result:
    request = {
        "chart": str(chart),
        "values": values,
        "name": name,
        "namespace": namespace,
        "kube_versions": KUBE_VERSIONS if kube_versions is None else kube_versions,
        "validate": validate,
    }
    return run_module("engineroom.runner.helm_child", request, log=log, env=env)


def by_kind(result: Result) -> dict[str, Any]:
    return {body["kind"]: body for body in yaml.safe_load_all(result["manifests"])}


def pod_of(objects: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = objects["Deployment"]["spec"]["template"]["spec"]
    return pod


def in_python(code: str, *argv: str, text: str = "") -> str:
    """Run Helm SDK code outside this process: its Go runtime stays out of pytest."""
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], input=text, capture_output=True, text=True, check=True
    )
    return done.stdout
