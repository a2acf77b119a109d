"""Our own chart under our own rules: no alarm, in any scenario."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engineroom import pipeline
from tests.lint_kube.common import codes

CHART = Path(__file__).parents[2] / "helm/engineroom"
SCENARIOS = sorted((CHART / "ci").iterdir())
TEMPLATES = sorted((CHART / "templates").glob("*.yaml"))


def test_chart_folder_has_no_error() -> None:
    report = pipeline.lint([CHART])
    assert report.verdict != "error", report.findings
    assert report.files["helm_values"].endswith("values.yaml")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_values_have_no_error(path: Path) -> None:
    report = pipeline.lint([path])
    assert report.verdict != "error", report.findings


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
@pytest.mark.parametrize("values", [CHART / "values.yaml", *SCENARIOS], ids=lambda path: path.stem)
def test_templates_change_no_value(values: Path, template: Path, tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "values.yaml").write_text(values.read_text())
    (chart / "templates" / template.name).write_text(template.read_text())
    report = pipeline.lint([chart], topics=["helm-values"])
    assert codes(report.findings) == set()


def test_a_large_file_of_a_chart_is_found_in_its_folder(tmp_path: Path) -> None:
    chart = Path(shutil.copytree(CHART, tmp_path / "engineroom"))
    assert pipeline.lint([chart], topics=["helm-size"]).findings == []
    (chart / "model.engine").write_bytes(b"x" * 5_242_881)
    report = pipeline.lint([chart], topics=["helm-size"])
    assert codes(report.findings) == {"chart-file-over-limit"}
    assert report.figures == {"limit_bytes": 5_242_880, "culprit": "model.engine"}


def test_a_node_object_is_judged_against_the_sku_asked_for(tmp_path: Path) -> None:
    node = tmp_path / "node.yaml"
    node.write_text(
        "kind: Node\nmetadata:\n  labels:\n    nvidia.com/gpu.product: NVIDIA-L40S\n"
        "    nvidia.com/gpu.memory: '46068'\nstatus:\n  allocatable: {nvidia.com/gpu: '8'}\n"
    )
    assert codes(pipeline.lint([node], sku="l40s").findings) == set()
    other = pipeline.lint([node], sku="h100-sxm")
    assert codes(other.findings) == {"node-has-another-gpu"}
    assert other.findings[0].file == node.as_posix()
