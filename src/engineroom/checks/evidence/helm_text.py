"""What a value of values.yaml becomes in the rendered text, and what a consumer reads from it.

Helm holds every YAML number as float64 and prints it in exponent form from 1e+06. TensorRT-LLM's backend
reads parameters with std::stoi, stoull and stof, which stop at the first character that they cannot use:
`1.073741824e+10` is 1 for them, without an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from engineroom.checks.codes import Code, declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.helm_uses import (
    Use,
    default_replaced,
    env_value,
    fraction,
    parsed,
    right_text,
    text_matters,
    uses,
    whole_number,
)
from engineroom.checks.evidence.kube_values import values_of
from engineroom.names import Severity, Topic
from engineroom.reading import go_numbers, helm_text
from engineroom.reading.helm_expressions import TemplateError
from engineroom.types import Figure, Finding

_HELM = "helm/helm issue #12195 (maintainers: quote numbers, or int64); helm/helm pkg/chart/v2/loader/load.go @ e9b85e4"
_SPRIG = "Masterminds/sprig v3 numeric.go and defaults.go; spf13/cast v1.7"


def _declared(id: str, severity: Severity, says: str, why: str, source: str = _HELM) -> Code:
    return declare(id, Topic.HELM_VALUES, severity, says=says, why=why, source=source)


FLOAT = _declared(
    "helm-number-becomes-float", Severity.ERROR, "a whole number is printed digit for digit",
    "stoi and stoull stop at the dot or the e: ten billion bytes become one, with no parse error",
)  # fmt: skip
DIGITS = _declared(
    "helm-number-loses-digits", Severity.ERROR, "a whole number above 2^53 is quoted",
    "a float64 holds 53 bits; the last digits change",
)  # fmt: skip
CUT = _declared(
    "helm-number-cut", Severity.ERROR, "a function on the way keeps the number",
    "`int` cuts a fraction off, takes 010 for octal, and answers 0 for text that it cannot read", _SPRIG,
)  # fmt: skip
DEFAULT = _declared(
    "helm-default-replaces-value", Severity.ERROR, "`default` replaces no value that was set",
    "0 and false count as empty, so what the user switched off is on again", _SPRIG,
)  # fmt: skip
VERB = _declared(
    "helm-format-verb", Severity.ERROR, "a printf verb fits the value's type",
    "every YAML number is a float64: %d prints %!d(float64=…)", "Go documentation, package fmt, format errors",
)  # fmt: skip
QUOTES = _declared(
    "helm-quotes-doubled", Severity.ERROR, "a value is quoted once",
    "the text ends at the second quote", "Masterminds/sprig v3 strings.go (quote)",
)  # fmt: skip
TEXT = _declared(
    "helm-text-changes", Severity.ERROR, "text that looks like a number is quoted",
    "26.10 is the number 26.1: a tag or version of that text does not exist",
    "kubernetes-sigs/yaml yaml.go @ aadfabb; helm/helm issue #13254",
)  # fmt: skip
WORD = _declared(
    "helm-word-becomes-bool", Severity.WARN, "words that YAML 1.1 takes for true or false are quoted",
    "`no`, `off` and `y` arrive as false and true", "kubernetes-sigs/yaml yaml.go @ aadfabb (YAML 1.1)",
)  # fmt: skip
OCTAL = _declared(
    "helm-octal-number", Severity.WARN, "a number with a leading zero is quoted, where it is text",
    "YAML 1.1 reads 0644 as octal; the text becomes 420", "kubernetes-sigs/yaml yaml.go @ aadfabb (YAML 1.1)",
)  # fmt: skip
ENV = _declared(
    "helm-env-not-a-string", Severity.ERROR, "the value of an environment variable is quoted",
    "the API server refuses a number or a boolean there",
    "Kubernetes API, EnvVar.value is a string; Helm documentation, Template tips: quote strings",
)  # fmt: skip
FAILS = _declared(
    "helm-template-fails", Severity.ERROR, "types fit: a YAML number is a float64 and no int",
    "Helm stops while it renders", "Go documentation, package text/template, functions",
)  # fmt: skip
NOT_EVALUATED = _declared(
    "helm-not-evaluated", Severity.INFO, "the template uses what can be evaluated without Helm",
    "`helm template` shows the text", "helm/helm pkg/engine/funcs.go @ e9b85e4",
)  # fmt: skip

_EXPONENT = re.compile(r"[+-]?[0-9](\.[0-9]+)?[eE][+-]?[0-9]+")
_WORDS = re.compile(r"(?i)y|n|yes|no|on|off")
_SWITCH = re.compile(
    r"(?i)^(enable|disable|use|is|has|with|allow|exclude|include|return|skip|trust|paged)|(enabled|disabled)$"
)
_MAX_FIGURES = 200


@about(Topic.HELM_VALUES)
def values_as_text(c: Context) -> Iterator[Answer]:
    values, template = values_of(c), c.evidence.helm_template
    if values is None or template is None:
        return
    try:
        rendering = helm_text.render(template.text, values)
    except TemplateError as error:
        yield NOT_EVALUATED.found(
            c, "helm_template.text", f"the template was not evaluated: {error}",
            "render it with `helm template`",
        )  # fmt: skip
        return
    shown: dict[str, tuple[Use, Finding | None, str | None]] = {}
    for use in uses(template.text, rendering, values):
        found, right = _judge(c, use)
        known = shown.get(use.name)
        if known is None or (known[1] is None and found is not None):
            shown[use.name] = (use, found, right)
    yield from _figures(shown)
    yield from (found for _, found, _ in shown.values() if found is not None)
    for source, reason in rendering.failed[:20]:
        yield FAILS.found(
            c, "helm_template.text", f"`{source[:120]}`: {reason}; every number of values.yaml is a float64",
            "convert it first: `int`, `int64` or `toString`",
        )  # fmt: skip
    if rendering.skipped:
        listed = "; ".join(f"`{item[:80]}`" for item in rendering.skipped[:5])
        yield NOT_EVALUATED.found(
            c, "helm_template.text", f"{len(rendering.skipped)} actions were not evaluated: {listed}",
            "render the chart with `helm template` to see their text",
        )  # fmt: skip


def _figures(shown: dict[str, tuple[Use, Finding | None, str | None]]) -> Iterator[Figure]:
    rendered, read, right_ones = {}, {}, {}
    for name, (use, _, right) in list(shown.items())[:_MAX_FIGURES]:
        rendered[name] = use.text
        number = whole_number(use)
        if number is not None or fraction(use) is not None:
            # A field of a manifest is read as YAML, where 1e+06 is a million.
            value = parsed(use.text, whole=number is not None and not use.plain_field)
            if value is not None:
                read[name] = value
        if right is not None:
            right_ones[name] = right
    for key, figure in (("rendered", rendered), ("parsed", read), ("rendered_right", right_ones)):
        if figure:
            yield Figure(key, figure)


def _judge(c: Context, use: Use) -> tuple[Finding | None, str | None]:
    """The worst thing about one use, and the text that should be there."""
    where = f"helm_values.{use.name}"
    number, right = whole_number(use), right_text(use)
    quote_fix = (
        f'quote the value in values.yaml ("{right}"), or print it with `| int64` in the template'
    )

    def found(code: Code, reason: str, fix: str) -> tuple[Finding, str | None]:
        return code.found(
            c, where, reason, fix, line=use.source.line if use.source else None
        ), right

    if "%!" in use.text:
        return found(
            VERB, f"renders as `{use.text[:80]}`: the verb does not fit the type", quote_fix
        )
    if use.before.endswith('"') and use.after.startswith('"') and use.raw.strip().startswith('"'):
        return found(
            QUOTES, f"renders as `\"{use.raw.strip()[:80]}\"`: the template has quotes around an action that quotes",
            "take the quotes of the template away, or `quote`",
        )  # fmt: skip
    if env_value(use):
        return found(
            ENV, f"the environment variable's value renders as {use.text[:60]}, which YAML reads as no string",
            "print it with `| quote` (numbers: `| int64 | quote`)",
        )  # fmt: skip
    if not use.formatting_only:
        if _EXPONENT.fullmatch(use.text) and Decimal(use.text) % 1 == 0 and not use.plain_field:
            right = str(int(Decimal(use.text)))
            return found(
                FLOAT,
                f"renders as {use.text}, which stoi reads as {parsed(use.text, whole=True)}",
                "end the pipeline with `| int64`",
            )
        return None, None
    replaced = default_replaced(use)
    if replaced:
        return found(
            DEFAULT, f"{use.name} is set to {right}, and `default` replaces it: the text is {use.text[:60]}",
            "test with `hasKey` (or `kindIs \"invalid\"`) instead of `default`",
        )  # fmt: skip
    if number is not None and isinstance(use.value, float):
        return _judge_number(use, number, found, quote_fix)
    if isinstance(use.value, float):
        return _judge_fraction(use, found)
    if isinstance(use.value, bool):
        return _judge_bool(use, found)
    if (
        isinstance(use.value, str)
        and use.text != use.value.strip()
        and {"int", "int64", "float64", "atoi"} & set(use.functions)
    ):
        have, want = parsed(use.text, whole=False), go_numbers.parse_float(use.value)
        if have is None or want is None or have != want:
            return found(
                CUT, f"the text `{use.value[:60]}` becomes {use.text[:60]} in `{' | '.join(use.functions)}`",
                "write a plain number, or take the conversion away",
            )  # fmt: skip
    return None, None


def _judge_number(
    use: Use, number: int, found: Any, quote_fix: str
) -> tuple[Finding | None, str | None]:
    source = use.source.text if use.source else ""
    if _EXPONENT.fullmatch(use.text):
        if use.plain_field:
            return None, None
        lost = Decimal(use.text) != number
        code = DIGITS if lost and abs(number) >= 2**53 else FLOAT
        result: tuple[Finding | None, str | None] = found(
            code, f"{source} is a float64 for Helm and renders as {use.text}; stoi and stoull read "
            f"{parsed(use.text, whole=True)} from that, without an error",
            quote_fix,
        )  # fmt: skip
        return result
    have = parsed(use.text, whole=True)
    if have is not None and have != number and re.fullmatch(r"[+-]?[0-9]+(\.0*)?", use.text):
        code = DIGITS if abs(number) >= 2**53 else CUT
        result = found(
            code,
            f"{source} renders as {use.text}: a float64 holds 53 bits, and int64 ends at 2^63",
            f'quote the value in values.yaml: "{number}"',
        )
        return result
    if re.fullmatch(r"[+-]?0[0-7]+", source) and use.inside and use.text != source:
        result = found(
            OCTAL,
            f"{source} is octal in YAML 1.1 and renders as {use.text}",
            f'quote it: "{source}"',
        )
        return result[0], source
    if text_matters(use) and use.text != source and re.fullmatch(r"[0-9.]+", source):
        result = found(
            TEXT, f"{source} renders as {use.text}", f'quote it in values.yaml: "{source}"'
        )
        return result[0], source
    return None, None


def _judge_fraction(use: Use, found: Any) -> tuple[Finding | None, str | None]:
    source = use.source.text if use.source else ""
    have = parsed(use.text, whole=False)
    rounding = re.fullmatch(r"-?[0-9]+\.[0-9]+", use.text) and "printf" in use.functions
    if have is not None and have != use.value and not rounding:
        result: tuple[Finding | None, str | None] = found(
            CUT, f"{source} renders as {use.text} in `{' | '.join(use.functions)}`: the fraction is cut off",
            "take the conversion away; a fraction below 1e+06 is printed as it is",
        )  # fmt: skip
        return result
    if text_matters(use) and use.text != source and re.fullmatch(r"[0-9]+(\.[0-9]+)+", source):
        result = found(
            TEXT,
            f"{source} is a number for YAML and renders as {use.text}",
            f'quote it in values.yaml: "{source}"',
        )
        return result[0], source
    return None, None


def _judge_bool(use: Use, found: Any) -> tuple[Finding | None, str | None]:
    source = use.source.text if use.source else ""
    last = str(use.path[-1])
    if not _WORDS.fullmatch(source) or _SWITCH.search(last) or use.text not in ("true", "false"):
        return None, None
    result = found(
        WORD,
        f"`{source}` is a boolean in YAML 1.1 and renders as {use.text}",
        f'quote the word ("{source}"), or write true or false',
    )
    return result[0], source


RULES = (values_as_text,)
