"""Access tokens in Helm values: in plain text, or by reference to a Secret. No value is ever printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.kube_values import VLLM_STACK, chart_of, model_specs, values_of
from engineroom.names import Severity, Topic
from engineroom.reading.helm_yaml import Path, Values, dotted, walk
from engineroom.types import Figure

PLAIN = declare(
    "secret-in-plain-text", Topic.K8S_SECRETS, Severity.ERROR,
    says="a token is given by reference to a Secret",
    why="written into values it ends up in the manifest, in Helm's release record and in Git",
    source="vllm-project/production-stack issue #14; Kubernetes documentation, Secrets, Using Secrets as "
    "environment variables",
)  # fmt: skip
IN_VALUES = declare(
    "secret-from-values", Topic.K8S_SECRETS, Severity.WARN,
    says="a chart that writes a Secret is given the name of one that exists",
    why="the pod refers to a Secret, but the token still is in the values, the release record and Git",
    source="vllm-project/production-stack helm/templates/secrets.yaml @ a6c01db (hf_token as string or as "
    "secretName and secretKey)",
)  # fmt: skip
# Prefixes by which the issuers' own scanners find tokens.
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{16,}|nvapi-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}"
    r"|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{18,}|AKIA[A-Z0-9]{16}|xox[bapr]-[A-Za-z0-9-]{20,}"
    r"|sk-[A-Za-z0-9_-]{32,})"
)
_URL_PASSWORD = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@$]{1,100}:[^\s/:@${}<>]{3,200}@")
_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|API_?KEY|APIKEY|PASSWORD|PASSWD|SECRET|SECRET_(ACCESS_)?KEY|ACCESS_KEY|PRIVATE_KEY"
    r"|CREDENTIALS?)$"
)
# Special tokens of vocabularies, ids that are public, and names or places of a secret.
_NO_SECRET = re.compile(
    r"(^|_)(BOS|EOS|PAD|UNK|SEP|CLS|MASK|STOP|END|START|NEXT|MAX|SPECIAL|IMAGE|LAST|FIRST|PER|EXISTING"
    r"|PULL|SERVICE_ACCOUNT)_?(TOKEN|SECRET|CREDENTIALS?)$|^(SECRET|TOKEN)_?(NAME|KEY|REF)?$"
)
_REFERENCE = re.compile(
    r"\$\(.{1,200}\)|\$\{.{1,200}\}|\{\{.{1,500}\}\}|/[\w./-]{1,300}|(vault|ref\+|secret)[:/].{1,500}"
)
_REFERENCES = {"valueFrom", "secretKeyRef", "existingSecret", "secretRef", "envFrom"}
_MIN_LENGTH = 4


def _upper(name: str) -> str:
    """`hfToken`, `hf-token` and `ngcAPIKey` as HF_TOKEN and NGC_API_KEY."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name[:200])
    return re.sub(r"[^A-Za-z0-9]+", "_", spaced).upper()


def is_secret_name(name: str) -> bool:
    """Whether a key or variable of this name holds a secret."""
    upper = _upper(name)
    # In values, `tokenSecret` and `hfTokenSecretKey` name a Secret and a key in it.
    if name != name.upper() and upper.endswith(("SECRET", "SECRET_KEY")):
        return False
    return _SECRET_NAME.search(upper) is not None and not _NO_SECRET.search(upper)


def _holds_secret(value: Any) -> bool:
    """A literal that could be a secret: not empty, no reference, no path, no switch or count."""
    if not isinstance(value, str) or len(value.strip()) < _MIN_LENGTH:
        return False
    return not _REFERENCE.fullmatch(value.strip()) and value.strip().lower() not in (
        "true",
        "false",
        "none",
        "null",
    )


def _subject(values: Values, path: Path) -> str:
    """The name under which a scalar is written: its key, or the `name` beside a `value`."""
    last = path[-1]
    if last == "value":
        name = values.get(*path[:-1], "name")
        if isinstance(name, str):
            return name
    return next((str(step) for step in reversed(path) if isinstance(step, str)), "")


def _own_secret(c: Context, path: Path) -> bool:
    """vllm-stack writes these strings into a Secret of its own and refers to that."""
    if chart_of(c) != VLLM_STACK:
        return False
    named = [step for step in path if isinstance(step, str) and step != "servingEngineSpec"]
    return named in (
        ["modelSpec", "hf_token"],
        ["vllmApiKey"],
        ["loraAdapters", "adapterSource", "credentials"],
    )


def _plain(c: Context, values: Values) -> Iterator[tuple[Path, str]]:
    """Path and name of every secret that is written out."""
    for path, value in walk(values):
        if not isinstance(value, str) or not path:
            continue
        if len(path) > 3 and path[-2:] == ("configMapKeyRef", "name"):
            # A ConfigMap is no place for it: its data is plain text in a manifest.
            name = values.get(*path[:-3], "name")
            if isinstance(name, str) and is_secret_name(name):
                yield path[:-1], name
            continue
        if any(step in _REFERENCES for step in path):
            continue
        if (
            _TOKEN.search(value)
            or _URL_PASSWORD.search(value)
            or (is_secret_name(_subject(values, path)) and _holds_secret(value))
        ):
            yield path, _subject(values, path)


@about(Topic.K8S_SECRETS)
def tokens(c: Context) -> Iterator[Answer]:
    values = values_of(c)
    if values is None:
        return
    plain = [(path, name) for path, name in _plain(c, values)]
    in_manifest = [item for item in plain if not _own_secret(c, item[0])]
    yield Figure("secret_in_plain_text", bool(in_manifest))
    if chart_of(c) == VLLM_STACK:
        yield Figure("renders_secret", any(_own_secret(c, path) for path, _ in plain))
        yield from _half_references(c, values)
    else:
        # Conventional keys: `env` goes into the pod as it is written, and no Secret is made of it.
        yield Figure("renders_secret", False)
    for path, name in plain[:50]:
        place, line = "helm_values." + dotted(path), values.line(*path)
        shown = name[:100]
        if _own_secret(c, path):
            yield IN_VALUES.found(
                c, place, f"{shown} is a string: the chart puts it into a Secret of its own and refers to that, but "
                "the token itself is in the values, in Helm's release record and wherever they are kept",
                f"create a Secret and name it: {shown}: {{secretName: …, secretKey: …}}", line=line,
            )  # fmt: skip
        else:
            yield PLAIN.found(
                c, place, f"the value of {shown} is written out: it ends up in the manifest, in Helm's release "
                "record and in Git",
                "create a Secret and refer to it: valueFrom.secretKeyRef (or the chart's existing-secret key); "
                "then revoke this token",
                line=line,
            )  # fmt: skip


def _half_references(c: Context, values: Values) -> Iterator[Answer]:
    """A reference that lacks its name or key is no reference."""
    for model in model_specs(values):
        token = model.data.get("hf_token")
        if not isinstance(token, dict) or not any(token.values()):
            continue
        lacking = [k for k in ("secretName", "secretKey") if not token.get(k)]
        if lacking:
            yield PLAIN.found(
                c, f"{model.key}.hf_token", f"hf_token has no {' and no '.join(lacking)}: the pod cannot refer to "
                "a Secret",
                "give both: hf_token: {secretName: …, secretKey: …}",
            )  # fmt: skip


RULES = (tokens,)
