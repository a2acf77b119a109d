"""Command lines, and what a YAML or JSON file without a telling name is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

_HELM_KEYS = {
    "replicaCount", "autoscaling", "strategy", "pvc", "resources", "nodeSelector", "env", "shm",
    "startupProbe", "livenessProbe", "readinessProbe", "image", "service", "tolerations",
}  # fmt: skip


def build_command(text: str) -> list[str]:
    """The words of the first `trtllm-build` call in a shell script; empty when there is none.

    Line continuations are joined and comments dropped; variables stay as written.
    """
    joined = text.replace("\\\r\n", " ").replace("\\\n", " ")
    for line in joined.splitlines():
        if "trtllm-build" not in line or line.lstrip().startswith("#"):
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        for at, word in enumerate(words):
            if word.rsplit("/", 1)[-1] == "trtllm-build":
                return _until_operator(words[at:])
    return []


def _until_operator(words: list[str]) -> list[str]:
    for at, word in enumerate(words):
        if word in ("&&", "||", ";", "|", "&", ">", "2>&1"):
            return words[:at]
    return words


def yaml_kind(data: Any) -> str | None:
    """`node`, `helm_values` or `model_yaml`; None when the keys say nothing."""
    if not isinstance(data, dict):
        return None
    if data.get("kind") == "Node" or set(data) <= {"labels", "allocatable"}:
        return "node"
    if set(data) & _HELM_KEYS:
        return "helm_values"
    return "model_yaml"


def json_kind(data: Any) -> str | None:
    """The part that a JSON object is, by its keys."""
    if not isinstance(data, dict):
        return None
    if data.get("kind") == "Node" or (data and set(data) <= {"labels", "allocatable"}):
        return "node"
    for key, part in (
        ("pretrained_config", "engine_config"), ("build_config", "engine_config"),
        ("quantization", "quant_config"), ("mapping", "checkpoint_config"),
        ("architectures", "hf_config"), ("hidden_size", "hf_config"),
    ):  # fmt: skip
        if key in data:
            return part
    return None


def node_facts(data: dict[str, Any]) -> dict[str, Any]:
    """Labels and allocatable resources of a Kubernetes Node object, or of just these two."""
    meta, status = data.get("metadata"), data.get("status")
    labels = meta.get("labels") if isinstance(meta, dict) else data.get("labels")
    allocatable = status.get("allocatable") if isinstance(status, dict) else data.get("allocatable")
    return {
        "labels": _texts(labels),
        "allocatable": _texts(allocatable),
    }


def _texts(data: Any) -> dict[str, str] | None:
    return {str(k): str(v) for k, v in data.items()} if isinstance(data, dict) else None


def flags(argv: Sequence[str]) -> dict[str, str]:
    """Long options of a command line with their values; ``--a=b`` and ``--a b`` are one form.

    An option without a value reads as an empty text; a repeated one keeps its last value, as argparse does.
    """
    found: dict[str, str] = {}
    for at, word in enumerate(argv):
        if not word.startswith("--") or len(word) == 2:
            continue
        name, equals, value = word.partition("=")
        if not equals and at + 1 < len(argv) and not argv[at + 1].startswith("--"):
            value = argv[at + 1]
        found[name] = value
    return found


def words(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Long options in order, each with the values that follow it up to the next option."""
    found: list[tuple[str, list[str]]] = []
    for word in argv[1:]:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            found.append((name, [value] if equals else []))
        elif found:
            found[-1][1].append(word)
    return found
