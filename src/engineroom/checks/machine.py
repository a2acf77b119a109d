"""Rules about a host's software: package pins, TensorRT-LLM, container toolkit, Python.

What a pod can judge of its own machine is in `runner/machine/judge.py`, which must not import us.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from engineroom.names import Severity
from engineroom.types import Finding

_RUNTIMES = ("docker", "podman", "nerdctl")
_TOOLKIT = ("nvidia-ctk", "nvidia-container-runtime", "nvidia-container-cli")
_EXTRAS = ("", "hf", "torch")
"""Extras whose pins count: ModelOpt puts those for exporting Hugging Face models under `hf`."""


@dataclass(frozen=True)
class InstalledPackage:
    """One installed distribution.

    Attributes:
        name: normalised (PEP 503).
        requires: its `Requires-Dist` lines.
        has_module: whether its files hold the module, or None when that was not looked at.
    """

    name: str
    version: str
    requires: tuple[str, ...] = ()
    has_module: bool | None = None


def _finding(
    code: str, severity: Severity, key: str, reason: str, fix: str, source: str
) -> Finding:
    return Finding(f"doctor-{code}", severity, f"machine.{key}", reason, fix, source)


def pins(packages: Sequence[InstalledPackage]) -> Iterator[Finding]:
    """Installed versions against what installed packages themselves ask for.

    ModelOpt 0.47 asks for transformers >= 4.57 and < 5.15, nvidia-pytriton for numpy < 2: their own
    metadata says so, and it is right for whatever version is installed.
    """
    have = {package.name: package for package in packages}
    for package in packages:
        for line in package.requires:
            try:
                need = Requirement(line)
                other = have.get(need.name.lower().replace("_", "-"))
                if other is None or not _applies(need):
                    continue
                version = Version(other.version)
            except (InvalidRequirement, InvalidVersion):
                continue
            if not need.specifier.contains(version, prereleases=True):
                yield _finding(
                    "package-pin", Severity.WARN, f"packages.{other.name}",
                    f"{other.name} {other.version} is installed; {package.name} {package.version} asks for "
                    f"{need.specifier}",
                    f"pip install '{other.name}{need.specifier}'",
                    f"metadata of {package.name} {package.version}, Requires-Dist",
                )  # fmt: skip


def _applies(need: Requirement) -> bool:
    if need.marker is None:
        return True
    return any(need.marker.evaluate({"extra": extra}) for extra in _EXTRAS)


def tensorrt_llm(packages: Sequence[InstalledPackage], wanted: str | None) -> Iterator[Finding]:
    """The stub from PyPI, or another version than the stack's."""
    package = next((p for p in packages if p.name == "tensorrt-llm"), None)
    if package is None:
        return
    if package.has_module is False:
        yield _finding(
            "tensorrt-llm-stub", Severity.WARN, "packages.tensorrt-llm",
            f"tensorrt-llm {package.version} is installed without its module: what PyPI has is a stub",
            "install the wheel from NVIDIA's own index, or use the Triton container of the stack",
            "PyPI project tensorrt-llm: source distributions only; NVIDIA's TensorRT-LLM installation guide",
        )  # fmt: skip
    elif wanted is not None and not _same(package.version, wanted):
        yield _finding(
            "tensorrt-llm-differs", Severity.WARN, "packages.tensorrt-llm",
            f"tensorrt-llm {package.version} is installed here, the stack has {wanted}: engines and "
            "arguments belong to one version",
            f"use the stack's container, or install tensorrt-llm=={wanted}",
            "NVIDIA/TensorRT-LLM: an engine's config.json carries the version that loads it",
        )  # fmt: skip


def _same(left: str, right: str) -> bool:
    try:
        return Version(left).public == Version(right).public
    except InvalidVersion:
        return left == right


def container_toolkit(machine: Mapping[str, Any], *, needs_gpu: bool) -> Iterator[Finding]:
    """A container runtime without NVIDIA's toolkit starts containers that see no GPU."""
    tools = machine["tools"]
    runtimes = [name for name in _RUNTIMES if tools.get(name)]
    if machine["container"] or not runtimes or any(tools.get(name) for name in _TOOLKIT):
        return
    yield _finding(
        "no-container-toolkit",
        Severity.WARN if needs_gpu and machine["gpus"] else Severity.INFO,
        "tools.nvidia-ctk",
        f"{', '.join(runtimes)} is on PATH and NVIDIA's container toolkit is not: containers get no GPU",
        "install nvidia-container-toolkit and run `nvidia-ctk runtime configure`",
        "NVIDIA Container Toolkit, Installation Guide",
    )  # fmt: skip


def python_version(machine: Mapping[str, Any], requires: str | None) -> Iterator[Finding]:
    """This Python against the range that the installed engineroom states (`Requires-Python`)."""
    try:
        wanted = SpecifierSet(requires or "")
        fits = wanted.contains(Version(machine["python"]), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return
    if not fits:
        yield _finding(
            "python", Severity.WARN, "python",
            f"Python {machine['python']} is outside {wanted}: nvidia-pytriton brings stubs for 3.8 to 3.13",
            "use a Python in that range", "nvidia-pytriton 0.7.0, python_backend_stubs",
        )  # fmt: skip
