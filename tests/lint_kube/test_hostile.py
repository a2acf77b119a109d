"""Texts of other people: no traceback, no hang."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from engineroom.checks.evidence import Context, judge
from engineroom.names import Topic
from engineroom.reading import Evidence, helm_text, helm_yaml
from tests.lint_kube.common import CATALOG, answer

VALUES = [
    "", "\x00", "a: &a {b: 1}\nc: *a\n", "a: [1, 2", "env: 5\n", "env: [5, {name: 7, value: {}}]\n",
    "resources: x\nnodeSelector: [1]\naffinity: {nodeAffinity: 3}\n", "pvc: [1]\nautoscaling: yes\n",
    "startupProbe: 5\nlivenessProbe: {periodSeconds: x, failureThreshold: -1}\n",
    "shm: {sizeLimit: {a: 1}, medium: 7}\nmodelSpec: {a: 1}\n", "modelSpec: [1, {vllmConfig: 7, hf_token: 8}]\n",
    "replicaCount: 99999999999999999999999999\n", "startupProbe: {failureThreshold: 1e300, periodSeconds: .5}\n",
    "resources: {limits: {nvidia.com/gpu: -5, nvidia.com/mig-: 1, nvidia.com/mig-9g.9gb: x}}\n",
]  # fmt: skip
TEMPLATES = [
    "", "{{", "}}", "{{ }}", "{{ .Values.a.b.c }}", "{{ ((((.Values.a)))) }}", "{{ .Values.a | }}", "{{ | quote }}",
    "{{ quote quote }}", "{{ printf }}", '{{ printf "%d%d%s" .Values.a }}', "{{ div 1 0 }}", "{{ .Values.a | div 0 }}",
    "{{ range .Values.env }}{{ .name }}{{ end }}", "{{ $x }}{{ $y := $x }}{{ $y.z }}", "{{ index .Values 1 }}",
    "{{ .Files.Get }}{{ .Files.Glob 5 }}", "{{ indent 999999999 (toString .Values.a) }}",
    "{{ mul 9223372036854775807 9223372036854775807 .Values.a }}", "{{ add .Values.startupProbe.failureThreshold 1 }}",
    "{{ else if }}{{ end }}", "{{ with .Values.a }}{{ . }}{{ else with .Values.b }}{{ . }}{{ end }}", "{{ trunc -1 \"abc\" }}",
]  # fmt: skip


def _judged(**parts: Any) -> None:
    judge(Context(Evidence.model_validate(parts), CATALOG))


@pytest.mark.parametrize("values", VALUES)
def test_no_text_ends_in_a_traceback(values: str) -> None:
    for template in TEMPLATES:
        for chart in (None, "vllm-stack"):
            _judged(
                chart=chart, helm_values=values, helm_template={"path": "t.yaml", "text": template},
                helmignore=template, load_seconds=10,
                node={"labels": {"nvidia.com/gpu.replicas": values[:50], "nvidia.com/gpu.product": template[:50]},
                      "allocatable": {"nvidia.com/gpu": values[:50]}, "driver_version": template[:50] or "x"},
                stack={"cuda_version": "x.y", "toolkit_driver_version": "z"}, env={"NVIDIA_REQUIRE_CUDA": template},
                model_ids=(values, template), k8s_objects=("Service", values), kubernetes_version="v",
            )  # fmt: skip


def test_random_text_ends_in_no_traceback() -> None:
    chance = random.Random(7)
    pieces = ["{{", "}}", "{{-", "-}}", " ", ".Values", ".a", "|", "quote", "(", ")", '"', "`", "$x", ":=", "if",
              "end", "range", "else", "\n", ": ", "- ", "1e6", "%", "&a", "*a", "[", "]", "{", "}", "/*", "*/", "!"]  # fmt: skip
    for _ in range(400):
        text = "".join(chance.choice(pieces) for _ in range(chance.randrange(30)))
        _judged(
            helm_values=text, helm_template={"path": "t.yaml", "text": text}, helmignore=text,
            chart_files=({"path": text or "x", "size_bytes": 7},),
        )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["a: 1\n" * 200_000, "a" * 1_000_000, "[" * 1_000_000, "- " * 400_000, "a: &x {}\n" + "b: *x\n" * 100_000,
     '"' + "\\" * 900_000, "? " * 300_000, "{a: " * 200_000],
)  # fmt: skip
def test_large_values_are_quick(text: str) -> None:
    start = time.perf_counter()
    answer(Topic.K8S_SECRETS, helm_values=text)
    assert time.perf_counter() - start < 3


def test_an_alias_bomb_is_bounded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    start = time.perf_counter()
    answer(Topic.K8S_SECRETS, helm_values="\n".join(lines) + "\n")
    assert time.perf_counter() - start < 3


@pytest.mark.parametrize(
    "text",
    ["{{" * 300_000, "{{ .Values.a }}" * 60_000, "{{ if .Values.a }}" * 50, "{{ " + "(" * 400_000 + " }}", "{{/*" * 200_000,
     "{{ " + ".Values.a | quote" * 50_000 + " }}", "{{ .Files.Get " * 50_000, "x" * 1_000_000,
     "{{ range .Values.l }}" * 8 + "x" + "{{ end }}" * 8],
)  # fmt: skip
def test_large_templates_are_quick(text: str) -> None:
    values = "a: 1000000\nl: [" + "1," * 100 + "]\n"
    start = time.perf_counter()
    answer(Topic.HELM_VALUES, helm_values=values, helm_template={"path": "t.yaml", "text": text})
    answer(
        Topic.HELM_SIZE, helm_template={"path": "t.yaml", "text": text},
        chart_files=({"path": "a", "size_bytes": 1},),
    )  # fmt: skip
    assert time.perf_counter() - start < 3


def test_nested_loops_stop() -> None:
    values = helm_yaml.load("l: [" + "1," * 200 + "]\n")
    template = "{{ range .Values.l }}" + "{{ range $.Values.l }}" * 5 + "x" + "{{ end }}" * 6
    rendering = helm_text.render(template, values)
    assert not rendering.complete
