"""Objects named after model ids: what each kind accepts, and a safe name."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.reading.kube_names import rule_for, safe_name, version_of
from engineroom.types import Figure

NAME = declare(
    "kubernetes-name-not-allowed", Topic.K8S_NAMES, Severity.ERROR,
    says="an object's name is one that its kind accepts",
    why="kinds differ: a Deployment takes a dot and a Service does not, so half a release is created",
    source="Kubernetes documentation, Object Names and IDs; gpustack/gpustack issue #3109; KEP-5311",
)  # fmt: skip
TWICE = declare(
    "kubernetes-name-twice", Topic.K8S_NAMES, Severity.ERROR,
    says="different models get different names",
    why="the second object replaces the first, or is refused",
    source="Kubernetes documentation, Object Names and IDs (one object of a kind per name)",
)  # fmt: skip
_FALLBACK_KINDS = ("Service",)


@about(Topic.K8S_NAMES)
def names(c: Context) -> Iterator[Answer]:
    ids = c.evidence.model_ids
    if not ids:
        return
    kinds = c.evidence.k8s_objects or _FALLBACK_KINDS
    version = version_of(c.evidence.kubernetes_version)
    rules = {kind: rule for kind in kinds if (rule := rule_for(kind, version)) is not None}
    room = min((rule.length for rule in rules.values()), default=63)
    derived = [
        item if rules and len(item) <= min(room, 63) and all(r.accepts(item) for r in rules.values())
        else safe_name(item, min(room, 63))
        for item in ids
    ]  # fmt: skip
    yield Figure("names", derived)
    yield Figure("distinct_names", len(set(derived)))
    for at, item in enumerate(ids):
        broken = [(kind, rule) for kind, rule in rules.items() if not rule.accepts(item)]
        if not broken:
            continue
        kind, rule = broken[0]
        more = "".join(f", nor that of a {other}" for other, _ in broken[1:4])
        shown = item if len(item) <= 100 else item[:100] + "…"
        gate = _gate(kind, item, version)
        yield NAME.found(
            c, f"model_ids[{at}]",
            f"`{shown}` ({len(item)} characters) cannot be the name of a {kind}{more}: {rule.words}{gate}",
            f"name the objects {derived[at]}, and keep the id in an annotation and as the served model's name",
        )  # fmt: skip
    seen: dict[str, int] = {}
    for at, item in enumerate(ids):
        if item in seen and rules:
            yield TWICE.found(
                c, f"model_ids[{at}]", f"`{item[:100]}` is there twice (also model_ids[{seen[item]}]): two "
                "objects of one name",
                "name each deployment of the model differently, e.g. with its SKU as a suffix",
            )  # fmt: skip
        seen.setdefault(item, at)


def _gate(kind: str, item: str, version: tuple[int, int] | None) -> str:
    """A digit in front is the one thing that newer clusters accept."""
    if kind.lower() != "service" or not item[:1].isdigit():
        return ""
    known = "" if version is None else f", this one is {version[0]}.{version[1]}"
    return f" (a digit in front is accepted from Kubernetes 1.36{known})"


RULES = (names,)
