"""What a value of values.yaml becomes in the rendered text, and what a consumer reads from it.

Helm holds every YAML number as float64 and prints it in exponent form from 1e+06. TensorRT-LLM's backend
reads parameters with std::stoi, stoull and stof, which stop at the first character that they cannot use:
`1.073741824e+10` is 1 for them, without an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from engineroom.checks.codes import Code, declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.kube_values import values_of
from engineroom.names import Severity, Topic
from engineroom.reading import go_numbers, helm_text
from engineroom.reading.helm_functions import FORMATTING
from engineroom.reading.helm_template import TemplateError
from engineroom.reading.helm_text import Printed, Rendering
from engineroom.reading.helm_yaml import Path, Source, Values, ValuesError, dotted, resolve
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
_STOI = re.compile(r"\s*([+-]?[0-9]+)")
_STOF = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_WORDS = re.compile(r"(?i)y|n|yes|no|on|off")
_SWITCH = re.compile(
    r"(?i)^(enable|disable|use|is|has|with|allow|exclude|include|return|skip|trust|paged)|(enabled|disabled|mode)$"
)
_TEXT_KEY = re.compile(r"(?i)(tag|version|release|image|revision|branch)$")
_MAX_FIGURES = 200


@dataclass(frozen=True)
class _Use:
    """One value as an action printed it.

    Attributes:
        text: what arrives, without the quotes that are the file's syntax.
        inside: the action stands in quotes, a block of text, or beside other text.
        plain_field: it is a whole YAML value of a complete manifest, where form does not matter.
    """

    path: Path
    value: Any
    source: Source | None
    text: str
    raw: str
    functions: tuple[str, ...]
    line: int
    before: str
    after: str
    inside: bool
    plain_field: bool

    @property
    def name(self) -> str:
        return dotted(self.path)

    @property
    def formatting_only(self) -> bool:
        return all(name in FORMATTING for name in self.functions)


def _uses(template: str, rendering: Rendering, values: Values) -> list[_Use]:
    manifest = re.search(r"^kind:", template, re.M) and re.search(r"^apiVersion:", template, re.M)
    blocks = _block_lines(template)
    found = []
    for item in rendering.printed[:10_000]:
        if len(item.paths) == 1 and item.paths[0]:
            found.append(_use(template, item, values, bool(manifest), blocks))
    return found


def _use(template: str, item: Printed, values: Values, manifest: bool, blocks: set[int]) -> _Use:
    path = item.paths[0]
    start = template.rfind("\n", 0, item.at) + 1
    end = template.find("\n", item.end)
    before, after = (
        template[start : item.at],
        template[item.end : end if end >= 0 else len(template)],
    )
    line = template.count("\n", 0, item.at)
    quoted = (before.count('"') - before.count('\\"')) % 2 == 1 or before.count("'") % 2 == 1
    text = item.text.strip()
    if not quoted and len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    lead = re.sub(r"^\s*(-\s+)*([\w./-]+:\s*)?(-\s+)*", "", before)
    beside = bool(lead.strip() or after.strip()) and not after.lstrip().startswith("#")
    in_block = line in blocks
    return _Use(
        path, values.get(*path), values.sources.get(path), text, item.text, item.functions, line + 1,
        before, after, quoted or in_block or beside,
        manifest and not (quoted or in_block or beside) and text == item.text.strip(),
    )  # fmt: skip


def _block_lines(template: str) -> set[int]:
    """Lines (from 0) that lie in a YAML block scalar."""
    inside: set[int] = set()
    depth: int | None = None
    for number, line in enumerate(template.split("\n")):
        indent = len(line) - len(line.lstrip())
        if depth is not None:
            if not line.strip() or indent > depth or line.lstrip().startswith("{{"):
                inside.add(number)
                continue
            depth = None
        if re.search(r"[:-]\s+[|>][-+0-9]{0,2}\s*$", line):
            depth = indent
    return inside


def whole_number(use: _Use) -> int | None:
    """The whole number that was written, exactly; None when it is none."""
    if isinstance(use.value, bool) or use.value is None:
        return None
    if isinstance(use.value, str):
        return int(use.value) if re.fullmatch(r"-?[0-9]{1,40}", use.value) else None
    text = use.source.text.replace("_", "") if use.source else ""
    if re.fullmatch(r"[+-]?(0|[1-9][0-9]{0,39})", text):
        return int(text)
    exact = go_numbers.parse_int(text)
    if exact is not None:
        return exact
    return int(use.value) if isinstance(use.value, float) and use.value.is_integer() else None


def parsed(text: str, *, whole: bool) -> int | float | None:
    """What std::stoull (or stof) reads from the text; None: it throws."""
    match = (_STOI if whole else _STOF).match(text[:400])
    if match is None:
        return None
    if whole:
        return int(match[1])
    value = float(Decimal(match[1]))
    return value if abs(value) != float("inf") else None


def _fraction(use: _Use) -> float | None:
    if isinstance(use.value, float) and not isinstance(use.value, bool):
        return use.value
    return go_numbers.parse_float(use.value) if isinstance(use.value, str) else None


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
    shown: dict[str, tuple[_Use, Finding | None, str | None]] = {}
    for use in _uses(template.text, rendering, values):
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


def _figures(shown: dict[str, tuple[_Use, Finding | None, str | None]]) -> Iterator[Figure]:
    rendered, read, right_ones = {}, {}, {}
    for name, (use, _, right) in list(shown.items())[:_MAX_FIGURES]:
        rendered[name] = use.text
        number = whole_number(use)
        if number is not None or _fraction(use) is not None:
            value = parsed(use.text, whole=number is not None)
            if value is not None:
                read[name] = value
        if right is not None:
            right_ones[name] = right
    for key, figure in (("rendered", rendered), ("parsed", read), ("rendered_right", right_ones)):
        if figure:
            yield Figure(key, figure)


def _judge(c: Context, use: _Use) -> tuple[Finding | None, str | None]:
    """The worst thing about one use, and the text that should be there."""
    where = f"helm_values.{use.name}"
    number, right = whole_number(use), _right(use)
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
    if _env_value(use):
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
    replaced = _default_replaced(use)
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
    use: _Use, number: int, found: Any, quote_fix: str
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
    if _text_matters(use) and use.text != source and re.fullmatch(r"[0-9.]+", source):
        result = found(
            TEXT, f"{source} renders as {use.text}", f'quote it in values.yaml: "{source}"'
        )
        return result[0], source
    return None, None


def _judge_fraction(use: _Use, found: Any) -> tuple[Finding | None, str | None]:
    source = use.source.text if use.source else ""
    have = parsed(use.text, whole=False)
    rounding = re.fullmatch(r"-?[0-9]+\.[0-9]+", use.text) and "printf" in use.functions
    if have is not None and have != use.value and not rounding:
        result: tuple[Finding | None, str | None] = found(
            CUT, f"{source} renders as {use.text} in `{' | '.join(use.functions)}`: the fraction is cut off",
            "take the conversion away; a fraction below 1e+06 is printed as it is",
        )  # fmt: skip
        return result
    if _text_matters(use) and use.text != source and re.fullmatch(r"[0-9]+(\.[0-9]+)+", source):
        result = found(
            TEXT,
            f"{source} is a number for YAML and renders as {use.text}",
            f'quote it in values.yaml: "{source}"',
        )
        return result[0], source
    return None, None


def _judge_bool(use: _Use, found: Any) -> tuple[Finding | None, str | None]:
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


def _text_matters(use: _Use) -> bool:
    """The value is a name, no quantity: by its key, or because other text is glued to it."""
    glued = re.search(r"[:/@][\"']?$", use.before) is not None and not re.search(r"\s$", use.before)
    return _TEXT_KEY.search(str(use.path[-1])) is not None or (glued and "=" not in use.before[-2:])


def _env_value(use: _Use) -> bool:
    if (
        not re.fullmatch(r"\s*value:\s*", use.before)
        or use.after.strip()
        or use.raw.strip() != use.text
    ):
        return False
    try:
        return bool(use.text) and not isinstance(resolve(use.text), str)
    except ValuesError:
        return True


def _default_replaced(use: _Use) -> bool:
    if not {"default", "coalesce"} & set(use.functions):
        return False
    if use.value is False:
        return use.text != "false"
    return isinstance(use.value, float) and use.value == 0 and parsed(use.text, whole=False) != 0


def _right(use: _Use) -> str | None:
    """The text that the value should have."""
    if isinstance(use.value, bool):
        return "true" if use.value else "false"
    number = whole_number(use)
    if number is not None:
        return str(number)
    if isinstance(use.value, float):
        return use.source.text if use.source else go_numbers.shortest(use.value)
    return use.value if isinstance(use.value, str) else None


RULES = (values_as_text,)
