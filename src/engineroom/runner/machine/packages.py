"""Installed Python packages and tools on PATH: what the host brings besides its GPUs."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from engineroom.checks.machine import InstalledPackage
from engineroom.runner.machine.facts import Roots, clean

PACKAGES = (
    "engineroom", "torch", "transformers", "nvidia-modelopt", "tensorrt-llm", "tensorrt",
    "nvidia-pytriton", "tritonclient", "nvidia-ml-py", "numpy", "safetensors", "huggingface-hub",
    "accelerate",
)  # fmt: skip
"""By normalised name (PEP 503)."""
TOOLS = (
    "docker", "podman", "nerdctl", "nvidia-ctk", "nvidia-container-runtime", "nvidia-container-cli",
    "nvidia-smi", "tritonserver", "trtllm-build", "trtllm-serve", "mpirun", "helm", "kubectl",
)  # fmt: skip
_MODULES = {"tensorrt-llm": "tensorrt_llm"}
_MOST_REQUIREMENTS = 300


def installed(paths: Sequence[str] | None = None) -> tuple[InstalledPackage, ...]:
    """The packages of :data:`PACKAGES` that are there; metadata is read, nothing is imported.

    Args:
        paths: folders to look in instead of `sys.path`.
    """
    found: dict[str, InstalledPackage] = {}
    for dist in metadata.distributions(path=list(sys.path if paths is None else paths)):
        try:
            raw = dist.metadata["Name"]
            name = re.sub(r"[-_.]+", "-", str(raw or "")).lower()
            # The first on the path is the one that Python imports.
            if name in PACKAGES and name not in found:
                found[name] = _package(name, dist)
        except Exception:  # a damaged dist-info says nothing about the others
            continue
    return tuple(found[name] for name in PACKAGES if name in found)


def _package(name: str, dist: metadata.Distribution) -> InstalledPackage:
    module = _MODULES.get(name)
    files = dist.files if module else None
    # The stub on PyPI is a few files of packaging; the real wheel has the module.
    whole = None if files is None else any(str(f) == f"{module}/__init__.py" for f in files)
    requires = tuple(clean(text, 500) for text in (dist.requires or [])[:_MOST_REQUIREMENTS])
    return InstalledPackage(name, clean(dist.version), requires, whole)


def facts(packages: Sequence[InstalledPackage], roots: Roots) -> dict[str, Any]:
    """`packages` (name to version) and `tools` (name to path or None) for the report."""
    return {
        "packages": {package.name: package.version for package in packages},
        "tools": {tool: roots.which(tool) for tool in TOOLS},
    }
