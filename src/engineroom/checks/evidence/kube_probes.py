"""Startup and liveness probes against the time a model needs to load.

The kubelet's arithmetic (kubernetes/kubernetes pkg/kubelet/prober/worker.go): no probe runs before
initialDelaySeconds after the container started, then one every periodSeconds; the container is killed
at the failureThreshold-th failure in a row. Liveness waits for a startup probe to pass, where there is
one. Zero means the default: period 10, failureThreshold 3, initialDelay 0 (pkg/apis/core/v1/defaults.go).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.kube_values import VLLM_STACK, chart_of, key, values_of
from engineroom.names import Severity, Topic
from engineroom.reading.helm_yaml import Values, whole
from engineroom.types import Figure

_SOURCE = (
    "kubernetes/kubernetes pkg/kubelet/prober/worker.go and pkg/apis/core/v1/defaults.go; "
    "vllm-project/production-stack PR #688; kserve/kserve issue #5062"
)
STARTUP = declare(
    "startup-budget-too-short", Topic.K8S_PROBES, Severity.ERROR,
    says="the startup probe allows the time that the model needs to load",
    why="the kubelet kills the container while it loads, over and over; the log shows a clean stop",
    source=_SOURCE,
)  # fmt: skip
LIVENESS = declare(
    "liveness-kills-loading-model", Topic.K8S_PROBES, Severity.ERROR,
    says="without a startup probe, liveness leaves the time that the model needs to load",
    why="Triton opens no port until every model is loaded, so liveness fails from its first probe on",
    source=_SOURCE + "; triton-inference-server/server src/main.cc; server issue #6469",
)  # fmt: skip
TIGHT = declare(
    "startup-budget-tight", Topic.K8S_PROBES, Severity.INFO,
    says="the startup probe leaves a tenth of the load time as margin",
    why="a colder cache or a slower volume is enough to lose the pod",
    source=_SOURCE,
)  # fmt: skip
BAD_PROBE = declare(
    "probe-value-not-allowed", Topic.K8S_PROBES, Severity.ERROR,
    says="probe values are whole numbers of at least one, and successThreshold is 1",
    why="the API server refuses the pod",
    source="kubernetes/kubernetes pkg/apis/core/validation/validation.go (validateProbe)",
)  # fmt: skip


@dataclass(frozen=True)
class Probe:
    """A probe as the kubelet runs it."""

    delay: int
    period: int
    threshold: int

    @property
    def killed_at(self) -> int:
        """Seconds from container start to the failure that kills it."""
        return self.delay + (self.threshold - 1) * self.period

    @property
    def budget(self) -> int:
        return self.delay + self.threshold * self.period

    def threshold_for(self, seconds: int) -> int:
        """The smallest failureThreshold whose last failure is not before `seconds`."""
        return max(1, math.ceil((seconds - self.delay) / self.period) + 1)


# vllm-stack's template writes these where a probe leaves them out (_helpers.tpl, chart.templateProbe).
_VLLM_DEFAULTS = {"initialDelaySeconds": 15, "periodSeconds": 10, "failureThreshold": 3}
_DEFAULTS = {"initialDelaySeconds": 0, "periodSeconds": 10, "failureThreshold": 3}


def _place(c: Context, values: Values, name: str) -> tuple[str | int, ...]:
    if chart_of(c) == VLLM_STACK and values.has("servingEngineSpec", name):
        return ("servingEngineSpec", name)
    return (name,)


def _probe(c: Context, values: Values, name: str) -> Probe | None:
    found = values.get(*_place(c, values, name))
    if not isinstance(found, dict) or not found or found.get("enabled") is False:
        return None
    defaults = _VLLM_DEFAULTS if chart_of(c) == VLLM_STACK else _DEFAULTS
    numbers = {k: whole(found.get(k)) or default for k, default in defaults.items()}
    # A number that is none is reported by `probe_values`; arithmetic needs something above zero.
    return Probe(
        max(0, numbers["initialDelaySeconds"]),
        max(1, numbers["periodSeconds"]),
        max(1, numbers["failureThreshold"]),
    )


@about(Topic.K8S_PROBES)
def load_time(c: Context) -> Iterator[Answer]:
    values = values_of(c)
    if values is None:
        return
    startup, liveness = _probe(c, values, "startupProbe"), _probe(c, values, "livenessProbe")
    probe, name = (startup, "startupProbe") if startup else (liveness, "livenessProbe")
    if probe is None:
        return
    if startup is not None:
        yield Figure("budget_seconds", startup.budget)
    seconds = c.evidence.load_seconds
    if seconds is None:
        return
    needed = probe.threshold_for(seconds)
    yield Figure("min_failure_threshold", needed)
    place = key(*_place(c, values, name))
    sum_ = f"{probe.delay} + {probe.period} x {probe.threshold} = {probe.budget} s"
    if probe.killed_at >= seconds:
        if startup is not None and startup.killed_at < 1.1 * seconds:
            yield TIGHT.found(
                c, place, f"the model needs {seconds} s, and the last allowed failure is at {probe.killed_at} s "
                f"({sum_})",
                f"failureThreshold: {probe.threshold_for(math.ceil(1.3 * seconds))} leaves a margin of 30 %",
            )  # fmt: skip
        return
    yield Figure("killed_at_seconds", probe.killed_at)
    better = probe.threshold_for(math.ceil(1.3 * seconds))
    if startup is not None:
        yield STARTUP.found(
            c, f"{place}.failureThreshold",
            f"the model needs {seconds} s to load, and the startup probe allows {sum_}; the container is killed "
            f"at its last failure, {probe.killed_at} s after it started",
            f"failureThreshold: {needed} at least (better {better}); leave liveness strict",
        )  # fmt: skip
    else:
        yield LIVENESS.found(
            c, place,
            f"there is no startupProbe, and the model needs {seconds} s to load: liveness allows {sum_} and "
            f"kills the container {probe.killed_at} s after it started",
            f"add a startupProbe with periodSeconds: 10 and failureThreshold: "
            f"{max(1, math.ceil(1.3 * seconds / 10))}; failureThreshold: {needed} on liveness would do, but "
            "leaves a hung server alone for as long",
        )  # fmt: skip


@about(Topic.K8S_PROBES)
def probe_values(c: Context) -> Iterator[Answer]:
    values = values_of(c)
    if values is None:
        return
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        place = _place(c, values, name)
        found: dict[str, Any] = values.mapping(*place)
        for field in ("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold",
                      "successThreshold"):  # fmt: skip
            value = found.get(field)
            if value is None:
                continue
            number = whole(value)
            once = field == "successThreshold" and name != "readinessProbe"
            if number is None or number < 0 or (once and number not in (0, 1)):
                shown = values.text(*place, field) or type(value).__name__
                yield BAD_PROBE.found(
                    c, key(*place, field), f"`{shown[:60]}` is not allowed"
                    + (f": {name} knows only successThreshold 1" if once else ": a whole number of seconds or counts"),
                    "write a whole number" if not once else "successThreshold: 1, or leave it out",
                    line=values.line(*place, field),
                )  # fmt: skip


RULES = (load_time, probe_values)
