"""Helm values for the rules: parsed once, with the keys of the charts that we know.

A rule sees the conventional keys. `chart` names a public chart with keys of its own; a chart that is
not known here is not guessed at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Context, about
from engineroom.names import Severity, Topic
from engineroom.reading import helm_yaml
from engineroom.reading.go_yaml import ValuesError
from engineroom.reading.helm_yaml import Values
from engineroom.types import Finding

VLLM_STACK = "vllm-stack"
_VLLM_NAMES = ("vllm-stack", "production-stack", "vllm-production-stack", "vllm/vllm-stack")
_HELM_TOPICS = (
    Topic.GPU_SHARING, Topic.HELM_VALUES, Topic.K8S_PROBES, Topic.K8S_SECRETS, Topic.K8S_SHM,
    Topic.K8S_STORAGE,
)  # fmt: skip
UNREADABLE = declare(
    "helm-values-unreadable", Topic.HELM_VALUES, Severity.ERROR,
    says="values.yaml is YAML that Helm reads",
    why="Helm stops before it renders anything",
    source="helm/helm pkg/chart/v2/loader/load.go @ e9b85e4; kubernetes-sigs/yaml yaml.go @ aadfabb",
)  # fmt: skip
BOOL_KEY = declare(
    "helm-key-becomes-bool", Topic.HELM_VALUES, Severity.WARN,
    says="a key that YAML 1.1 takes for true or false is quoted",
    why="`n`, `y` and `on` become `false` and `true`: .Values.n is empty, without an error",
    source="kubernetes-sigs/yaml yaml.go @ aadfabb (YAML 1.1; keys become text through JSON)",
)  # fmt: skip
UNKNOWN_CHART = declare(
    "helm-chart-unknown", Topic.HELM_VALUES, Severity.INFO,
    says="the keys of the chart are known here",
    why="charts name the same thing differently, and a guess would judge the wrong key",
    source="vllm-project/production-stack helm/values.yaml @ a6c01db (an example of own keys)",
)  # fmt: skip


def values_of(c: Context) -> Values | None:
    """The values, or None when there are none or they cannot be read."""
    text = c.evidence.helm_values
    if text is None:
        return None
    try:
        return helm_yaml.load(text)
    except ValuesError:
        return None


def chart_of(c: Context) -> str | None:
    """`vllm-stack`, the chart's name as given when it is not known, or None: conventional keys."""
    name = c.evidence.chart
    return VLLM_STACK if name is not None and name.strip().lower() in _VLLM_NAMES else name


def conventional(c: Context) -> Values | None:
    """The values when the conventional keys apply to them."""
    return values_of(c) if chart_of(c) is None else None


@dataclass(frozen=True)
class ModelSpec:
    """One entry of vllm-stack's `modelSpec`, and its path in the values."""

    path: tuple[str | int, ...]
    data: dict[str, Any]

    @property
    def key(self) -> str:
        return "helm_values." + helm_yaml.dotted(self.path)


def model_specs(values: Values) -> list[ModelSpec]:
    """vllm-stack's models; the list is written below `servingEngineSpec`, in excerpts also bare."""
    for path in (("servingEngineSpec", "modelSpec"), ("modelSpec",)):
        found = values.get(*path)
        if isinstance(found, list):
            return [
                ModelSpec((*path, at), item)
                for at, item in enumerate(found[:1_000])
                if isinstance(item, dict) and item.get("enabled") is not False
            ]
    return []


def key(*path: str | int) -> str:
    return "helm_values." + helm_yaml.dotted(path)


@about(*_HELM_TOPICS)
def readable(c: Context) -> Iterator[Finding]:
    text = c.evidence.helm_values
    if text is None:
        return
    try:
        helm_yaml.load(text)
    except ValuesError as error:
        yield UNREADABLE.found(
            c, "helm_values", f"Helm cannot read the values: {error.reason}",
            "mend the YAML; `helm lint` shows the same place", line=error.line,
        )  # fmt: skip


@about(Topic.HELM_VALUES)
def bool_keys(c: Context) -> Iterator[Finding]:
    values = values_of(c)
    for item in values.bool_keys[:20] if values is not None else ():
        became = "true" if item.text.lower() in ("y", "yes", "on") else "false"
        yield BOOL_KEY.found(
            c, "helm_values", f"the key `{item.text}` is a boolean in YAML 1.1: Helm knows it as `{became}`, and "
            f".Values.{item.text} is empty",
            f'quote it ("{item.text}":), or choose another name', line=item.line,
        )  # fmt: skip


@about(Topic.K8S_SECRETS, Topic.K8S_SHM)
def known_chart(c: Context) -> Iterator[Finding]:
    name = chart_of(c)
    if name not in (None, VLLM_STACK):
        yield UNKNOWN_CHART.found(
            c, "chart", f"the keys of the chart `{name}` are not known here; only what holds for every "
            "chart was judged",
            "leave `chart` out if it has the conventional keys",
        )  # fmt: skip


RULES = (readable, bool_keys, known_chart)
