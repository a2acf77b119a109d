"""Renders and checks the Helm chart, run as a child process.

The only module that imports the Helm SDK: 244 MB of Go behind ctypes, with threads and signal handlers
of its own. Request on stdin, JSON events on stdout; see `engineroom.runner.process`. No cluster and no
network is contacted.

Two kinds of failure: what the values can mend is the user's (`usage`: the schema or a rule of
`templates/validate.yaml` refused them); objects that break the Kubernetes schema or `problems` are ours
(`internal`), because no values should lead there.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from engineroom.errors import (
    EngineroomError,
    InternalError,
    MissingError,
    UsageError,
    missing_extra,
)
from engineroom.runner.kube_rules import LABEL, Object, problems

_OUT = sys.stdout


@dataclass(frozen=True)
class Rendered:
    """One object: what it is, and the text that Helm made of it."""

    source: str
    text: str
    body: Object

    @property
    def kind(self) -> str:
        return str(self.body.get("kind", "?"))

    @property
    def name(self) -> str:
        return str((self.body.get("metadata") or {}).get("name", "?"))

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def emit(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), file=_OUT, flush=True)


def main() -> int:
    # The Go side and its log share descriptor 1; events keep it, everything else goes to the log.
    global _OUT
    _OUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    classes: dict[type[EngineroomError], str] = {MissingError: "missing", UsageError: "usage"}
    try:
        emit("result", **render(request))
    except EngineroomError as error:
        word = classes.get(type(error), "internal")
        emit("error", **{"class": word, "message": error.message, "hint": error.hint})
    return 0


def render(request: Mapping[str, Any]) -> dict[str, Any]:
    """The chart's objects as sorted text, after every check asked for.

    Raises:
        UsageError: the release's name, the values or a Kubernetes version were refused.
        MissingError: the `deploy` extra is not installed.
        InternalError: the chart does not render, or renders something that breaks a rule.
    """
    files = _helm_render(request)
    notes = "".join(text for path, text in files.items() if path.endswith("/NOTES.txt")).strip()
    objects = sorted(parse(files), key=lambda item: (item.kind, item.name, item.source))
    found = list(problems([item.body for item in objects], request["values"]))
    validated: list[str] = []
    unknown: list[str] = []
    if request["validate"]:
        validated, unknown = _kube_versions(request["kube_versions"])
        for version in validated:
            found += _schema_problems(objects, version)
    if found:
        raise InternalError(
            "the chart rendered objects that it should not: " + "; ".join(found),
            hint="this is a bug in engineroom; please report it with the values",
        )
    return {
        "objects": [{"kind": item.kind, "name": item.name} for item in objects],
        "manifests": "".join(
            f"---\n# Source: {item.source}\n{item.text.strip()}\n" for item in objects
        ),
        "notes": notes + "\n" if notes else "",
        "kube_versions_validated": validated,
        "kube_versions_unknown": unknown,
    }


def _helm_render(request: Mapping[str, Any]) -> dict[str, str]:
    """Template path to text, as `helm template` would make it."""
    namespace = str(request["namespace"])
    if not LABEL.fullmatch(namespace) or len(namespace) > 63:
        raise UsageError(
            f"`{namespace}` cannot be a namespace: a-z, 0-9 and -, at most 63 characters"
        )
    try:
        import helm_python as helm
    except ImportError:
        raise missing_extra("deploy", "helm-python-sdk") from None
    try:
        helm.validate_release_name(request["name"])
        chart = helm.Chart.load(request["chart"])
        if chart.schema is None:
            raise InternalError(f"the chart {request['chart']} has no values.schema.json")
        rendered = chart.render(dict(request["values"]), name=request["name"], namespace=namespace)
    except helm.HelmLibraryError as error:
        # The wheel is there, its library does not load: another platform, or a broken install.
        raise MissingError(f"the Helm SDK does not load: {_line(error)}") from None
    except (helm.HelmValuesError, helm.HelmInvalidArgError, helm.HelmChartLoadError) as error:
        raise UsageError(f"helm: {_line(error)}") from None
    except helm.HelmRenderError as error:
        # Helm words a template's own `fail` so; anything else is a mistake in a template.
        if "execution error at (" in str(error):
            raise UsageError(f"helm: {_line(error)}") from None
        raise InternalError(f"helm: {_line(error)}") from None
    except helm.HelmError as error:
        raise InternalError(f"helm: {_line(error)}") from None
    return {str(path): str(text) for path, text in rendered.items()}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def parse(files: Mapping[str, str]) -> Iterator[Rendered]:
    """The objects in Helm's output; templates that render nothing, and the notes, are left out.

    Raises:
        InternalError: not YAML, not an object, or two objects in one template.
    """
    for source, text in files.items():
        if source.endswith("/NOTES.txt"):
            continue
        try:
            documents = [item for item in yaml.safe_load_all(text) if item is not None]
        except yaml.YAMLError as error:
            raise InternalError(f"{source} does not render YAML: {_line(error)}") from None
        if len(documents) > 1:
            raise InternalError(f"{source} renders {len(documents)} objects: one each, please")
        for body in documents:
            if not isinstance(body, dict) or not isinstance(body.get("metadata"), dict):
                raise InternalError(f"{source} renders something that is not an object")
            yield Rendered(source, text, body)


def _kube_versions(wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """(versions there is a schema for, the others), as asked.

    Raises:
        UsageError: a version that is none, or no version at all that can be checked.
    """
    try:
        from kubernetes_validate import utils
    except ImportError:
        raise missing_extra("deploy", "kubernetes-validate") from None
    for version in wanted:
        if not re.fullmatch(r"v?[0-9]+[.][0-9]+([.][0-9]+)?", version):
            raise UsageError(f"`{version}` is not a Kubernetes version", hint="write it as 1.31.0")
    # Not the library's own look-up: it takes the nearest older schema without a word.
    shipped = [utils.major_minor(version) for version in utils.all_versions()]
    known = [v for v in wanted if utils.major_minor(v.removeprefix("v")) in shipped]
    if not known:
        raise UsageError(
            f"there is no schema to check Kubernetes {', '.join(wanted) or '(none given)'} with",
            hint=f"the installed kubernetes-validate knows {shipped[0]} to {shipped[-1]}",
        )
    return known, [version for version in wanted if version not in known]


def _schema_problems(objects: Sequence[Rendered], version: str) -> Iterator[str]:
    """What Kubernetes' own schema of a version says, unknown fields included."""
    from kubernetes_validate import utils

    for item in objects:
        try:
            utils.validate(item.body, version, strict=True)
        except utils.ValidationError as error:
            path = ".".join(str(part) for part in error.path)
            yield f"{item}: Kubernetes {version}: {path}: {_line(Exception(error.message))}"
        except utils.SchemaNotFoundError as error:
            yield f"{item}: {error.message}"


if __name__ == "__main__":
    sys.exit(main())
