"""Names of Kubernetes objects: what each kind accepts, and a safe name for a model id.

Sources: kubernetes/apimachinery pkg/util/validation (RFC 1123 label and subdomain, RFC 1035 label, label
values); kubernetes/kubernetes pkg/apis/{core,apps,batch}/validation; KEP-5311 (relaxed Service names:
off by default in 1.34, on from 1.36); Helm's release names (helm/helm pkg/chart/common/util, 53).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_1123 = re.compile(_LABEL)
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_MAX_SAFE = 63


@dataclass(frozen=True)
class Rule:
    """What a name may be.

    Attributes:
        words: the rule in words, for messages.
    """

    form: re.Pattern[str]
    length: int
    words: str

    def accepts(self, name: str) -> bool:
        return len(name) <= self.length and self.form.fullmatch(name) is not None


def _rule(form: re.Pattern[str], length: int) -> Rule:
    words = {
        _LABEL_1035: "an RFC 1035 label: a-z, 0-9 and -, beginning with a letter",
        _LABEL_1123: "an RFC 1123 label: a-z, 0-9 and -",
        _SUBDOMAIN: "an RFC 1123 subdomain: a-z, 0-9, - and .",
        _LABEL_VALUE: "letters, digits, -, _ and ., beginning and ending with a letter or digit",
    }[form]
    return Rule(form, length, f"{words}, at most {length} characters")


_RELAXED_SERVICES = (1, 36)
_RULES = {
    "service": _rule(_LABEL_1035, 63),
    # It gives its name to a headless Service and to StatefulSets.
    "leaderworkerset": _rule(_LABEL_1035, 52),
    "container": _rule(_LABEL_1123, 63),
    "initcontainer": _rule(_LABEL_1123, 63),
    "volume": _rule(_LABEL_1123, 63),
    "namespace": _rule(_LABEL_1123, 63),
    # Pods carry the label controller-revision-hash: name, a dash and up to ten characters.
    "statefulset": _rule(_LABEL_1123, 52),
    "job": _rule(_LABEL_1123, 63),
    "cronjob": _rule(_LABEL_1123, 52),
    "label": _rule(_LABEL_VALUE, 63),
    "labelvalue": _rule(_LABEL_VALUE, 63),
    "port": Rule(re.compile(r"(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*"), 15, "a-z, 0-9 and -, a letter among them, at most 15 characters"),
    "release": _rule(_SUBDOMAIN, 53),
    "helmrelease": _rule(_SUBDOMAIN, 53),
}  # fmt: skip
_ANYTHING = ("annotation", "env", "envvar", "arg")
_DEFAULT = _rule(_SUBDOMAIN, 253)


def rule_for(kind: str, version: tuple[int, int] | None = None) -> Rule | None:
    """The rule of a kind of object (`Service`, `container`, `label`); None: any text will do.

    Args:
        version: (major, minor) of the cluster; unknown counts as old.
    """
    name = re.sub(r"[^a-z]", "", kind.lower())
    if name in _ANYTHING:
        return None
    if name == "service" and version is not None and version >= _RELAXED_SERVICES:
        return _RULES["container"]
    return _RULES.get(name, _DEFAULT)


def version_of(text: str | None) -> tuple[int, int] | None:
    """``v1.36.2+k3s1`` as (1, 36)."""
    match = re.match(r"v?([0-9]{1,3})\.([0-9]{1,3})", text or "")
    return (int(match[1]), int(match[2])) if match else None


def safe_name(identifier: str, length: int = _MAX_SAFE) -> str:
    """A name that every kind of object accepts; different ids get different names.

    An id that is such a name already stays. Any other is written in small letters and dashes, and gets
    eight digits of its SHA-256: `Org/Model.A` and `org/model-a` must not meet.
    """
    if _LABEL_1035.fullmatch(identifier) and len(identifier) <= length:
        return identifier
    digest = hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    base = re.sub(r"[^a-z0-9]+", "-", identifier[:2_000].lower()).strip("-")
    if not base[:1].isalpha():
        base = f"m-{base}".rstrip("-")
    return f"{base[: length - len(digest) - 1].rstrip('-')}-{digest}"
