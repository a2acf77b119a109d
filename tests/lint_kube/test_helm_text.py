"""Our evaluator against Helm itself, over values and pipelines."""

from __future__ import annotations

import itertools

import pytest

from engineroom.reading import go_numbers, helm_text, helm_yaml
from engineroom.reading.go_yaml import ValuesError
from engineroom.reading.helm_expressions import TemplateError
from tests.lint_kube.common import helm_renders

VALUES = [
    "0",
    "1",
    "-3",
    "999999",
    "1000000",
    "-1000000",
    "10737418240",
    "9007199254740993",
    "18446744073709551615",
    "123456789012345678901234567890",
    "0.9",
    "0.90",
    "1e3",
    "1.5e7",
    "1234567.5",
    "0.00001",
    "0.0001",
    "1e21",
    "26.10",
    "1_000_000",
    "0644",
    "0x10",
    "0o17",
    "0b101",
    "08",
    "yes",
    "no",
    "on",
    "Off",
    "y",
    "true",
    "False",
    "~",
    '"10737418240"',
    '"1e6"',
    '"010"',
    '"10.5"',
    '"10.0"',
    "'0x1F'",
    '"1_000"',
    "abc",
    '""',
    "'quo\"te'",
    "2024-01-01",
    "20:30",
    "+5",
    "'+5'",
    "-0",
    "1.0",
    "'true'",
    "a-b_c.d/e",
    "'-x'",
    "'<a>&b'",
    "1.",
    "1e400",
    "+1.5",
    "12e03",
    "'9223372036854775808'",
    "9223372036854775807",
    "'_1'",
    "'1__0'",
]
PIPELINES = [
    "", "| quote", "| squote", "| int", "| int64", "| float64", "| toString", "| toJson", "| toYaml",
    "| default 7", '| default "x"', "| int64 | quote", "| toString | int64", "| atoi", "| upper", "| trim",
    "| add 1", "| mul 2", "| sub 10", "| div 100000000", "| mod 7", "| max 5", "| floor", "| ceil | int64",
    '| printf "%d"', '| printf "%s"', '| printf "%v"', '| printf "%.0f"', '| printf "%.2f"', '| printf "%q"',
    '| int64 | printf "%d"', '| int | printf "%s"', "| eq 1", "| eq 1.0", '| eq "abc"', "| gt 5", "| lt 5.5",
    "| not", "| ternary 1 2", "| empty", "| kindOf", "| b64enc", '| toString | replace "0" "9"',
    "| toString | trunc 3", "| and true", "| or false 3", '| coalesce 0 ""', "| print", "| indent 2",
    "| toString | nindent 2", '| contains "a"', '| toString | trimSuffix "0"',
]  # fmt: skip
TREE = """
lora: {bytes: 10737418240, on: yes}
list: [1, 1000000, x]
items: [{name: a, size: 2000000}, {name: b, size: 3}]
map: {b: 1, a: 1000000}
zero: 0
off: false
base: &base {q: 5, r: 6}
derived: {<<: *base, r: 7}
count: 3
"""
TEMPLATES = [
    "{{ with .Values.lora }}{{ .bytes }} {{ .bytes | int64 }}{{ end }}",
    "{{- range .Values.list }}\n- {{ . }}\n{{- end }}",
    "{{ range $i, $e := .Values.items }}{{ $i }}={{ $e.name }}:{{ .size }};{{ end }}",
    "{{ range $k, $v := .Values.map }}{{ $k }}={{ $v }} {{ end }}",
    "{{ $x := .Values.lora.bytes | int64 }}\n{{- $x -}}\n  {{ if .Values.zero }}z{{ else if .Values.false }}f{{ else }}e{{ end }}",
    "{{ default 1000000 .Values.missing }} {{ default 1e6 .Values.missing }} {{ .Values.zero | default 5 }}",
    "{{/* a */ -}} b {{- /* c */}}{{ with .Values.missing }}x{{ else }}y{{ end }}",
    "a {{- 5 }} b {{ -5 }} {{\"x}}y\"}} {{`r\"aw`}}",
    "{{ $a := 1 }}{{ if true }}{{ $a = 2 }}{{ end }}{{ $a }}",
    "{{ .Values.derived.q }}{{ .Values.derived.r }}",
    "{{ .Values.missing }}|{{ .Values.missing | quote }}|{{ .Values.missing | toString }}",
    "{{ with $ }}{{ .Values.count }}{{ end }}{{ $.Values.count }}",
    "{{ if and .Values.count (eq .Values.lora.true true) }}yes{{ end }}",
    "{{ if eq .Values.count 3 }}three{{ end }}",
    "{{ if eq (int .Values.count) 3 }}three{{ end }}{{ if gt .Values.count 2.5 }}big{{ end }}",
    "{{ hasKey .Values.lora \"bytes\" }}{{ hasKey .Values.lora \"x\" }}",
    "{{ range .Values.none }}a{{ else }}none{{ end }}{{ range .Values.items }}{{ $.Values.count }}{{ .name }}{{ end }}",
    "{{ printf \"%d-%s\" (int64 .Values.count) \"a\" }} {{ printf \"%v%%\" .Values.count }}",
]  # fmt: skip


def ours(values: str, template: str) -> str | None:
    """Our text; None where we say that Helm fails. Skips are told by the caller."""
    try:
        rendering = helm_text.render(template, helm_yaml.load(values))
    except ValuesError:
        return None
    if rendering.failed:
        return None
    if not rendering.complete:
        raise NotImplementedError
    return rendering.text


def _compared(charts: list[tuple[str, str, dict[str, str]]]) -> tuple[int, list[str]]:
    skipped, wrong = 0, []
    for (values, template, _), theirs in zip(charts, helm_renders(charts), strict=True):
        try:
            mine = ours(values, template)
        except NotImplementedError:
            skipped += 1
            continue
        if mine != theirs:
            wrong.append(f"{values!r} {template!r}: Helm {theirs!r}, we {mine!r}")
    return skipped, wrong


def test_every_value_through_every_pipeline_is_helms_text() -> None:
    charts = [
        (f"v: {value}\n", "[{{ .Values.v " + pipeline + " }}]", {})
        for value, pipeline in itertools.product(VALUES, PIPELINES)
    ]
    skipped, wrong = _compared(charts)
    assert wrong == []
    assert len(charts) > 2500
    assert skipped < 0.05 * len(charts)


def test_blocks_variables_and_trims_are_helms_text() -> None:
    skipped, wrong = _compared([(TREE, template, {}) for template in TEMPLATES])
    assert wrong == []
    assert skipped == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(999999.0, "999999"), (1e6, "1e+06"), (-1e6, "-1e+06"), (0.0001, "0.0001"), (0.00001, "1e-05"),
     (123456.7, "123456.7"), (1234567.8, "1.2345678e+06"), (0.0, "0"), (-0.0, "-0"), (5e-324, "5e-324")],
)  # fmt: skip
def test_exponents_begin_at_a_million_and_below_a_ten_thousandth(value: float, text: str) -> None:
    assert go_numbers.shortest(value) == text


def test_what_is_not_known_is_named_and_not_guessed() -> None:
    rendering = helm_text.render(
        '{{ include "x" .Values.a }}{{ .Values.b }}', helm_yaml.load("a: 1\nb: 2\n")
    )
    assert rendering.skipped == ['include "x" .Values.a']
    assert not rendering.complete
    assert [item.text for item in rendering.printed] == ["2"]


@pytest.mark.parametrize(
    "text", ["{{ if }}", "{{ end }}", "{{", "{{/* x", "{{ else }}", "{{ range .x }}"]
)
def test_what_is_no_template_is_refused(text: str) -> None:
    with pytest.raises(TemplateError):
        helm_text.render(text, helm_yaml.load(""))


@pytest.mark.parametrize(
    "text", ["a: [1", "- 1\n", "a: .inf\n", "a: *b\n", "a: &x [*x]\n", "[" * 5000, "? [a]\n: 1\n"]
)
def test_values_that_helm_cannot_read_are_refused(text: str) -> None:
    with pytest.raises(ValuesError):
        helm_yaml.load(text)


def test_keys_and_documents_are_read_as_helm_reads_them() -> None:
    values = helm_yaml.load("on: 1\n2: two\na: {b: 1}\n---\na: {c: 2}\n")
    assert values.data == {"true": 1.0, "2": "two", "a": {"b": 1.0, "c": 2.0}}
    assert [key.text for key in values.bool_keys] == ["on"]
