"""Evidence through the rules, and the real Helm in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from engineroom.catalog import Catalog
from engineroom.checks.evidence import Context, judge
from engineroom.names import Severity, Topic
from engineroom.reading import Evidence
from engineroom.types import Finding

CATALOG = Catalog()

# One chart per (values, template); the Helm SDK must stay out of the test process.
HELM_CHILD = """
import json, pathlib, sys, tempfile
import helm_python as helm
answers = []
for values, template, files in json.load(sys.stdin):
    with tempfile.TemporaryDirectory() as root:
        chart = pathlib.Path(root) / "c"
        (chart / "templates").mkdir(parents=True)
        (chart / "Chart.yaml").write_text("apiVersion: v2\\nname: c\\nversion: 0.1.0\\n")
        (chart / "values.yaml").write_text(values)
        (chart / "templates/t.yaml").write_text(template)
        for name, text in files.items():
            path = chart / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        try:
            loaded = helm.Chart.load(str(chart))
            answers.append(loaded.render({}, name="x")["c/templates/t.yaml"])
            loaded.close()
        except helm.HelmError:
            answers.append(None)
json.dump(answers, sys.stdout)
"""


def helm_renders(charts: list[tuple[str, str, dict[str, str]]]) -> list[str | None]:
    """What Helm makes of each chart's template; None where it refuses."""
    child = subprocess.run(
        [sys.executable, "-c", HELM_CHILD], input=json.dumps(charts), capture_output=True,
        text=True, timeout=120, check=True,
    )  # fmt: skip
    answers: list[str | None] = json.loads(child.stdout)
    return answers


def answer(topic: Topic, **parts: Any) -> tuple[list[Finding], dict[str, Any]]:
    return judge(Context(Evidence.model_validate(parts), CATALOG), (topic,))


def verdict(findings: list[Finding]) -> str:
    worst = min((f.severity.rank for f in findings), default=Severity.INFO.rank)
    return ("error", "warn", "ok")[worst]


def codes(findings: list[Finding], *, alarms_only: bool = True) -> set[str]:
    return {f.code for f in findings if not alarms_only or f.severity is not Severity.INFO}
