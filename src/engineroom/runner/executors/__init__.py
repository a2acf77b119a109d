"""Where a step runs: one protocol, an implementation a module, one list."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from engineroom.errors import UsageError, Where
from engineroom.runner.executors.base import Executor, StepFailed, StepRun, StepStopped
from engineroom.runner.executors.docker import DockerExecutor
from engineroom.runner.executors.kubernetes import KubernetesExecutor
from engineroom.runner.executors.local import LocalExecutor
from engineroom.runner.executors.phases import Progress

__all__ = [
    "EXECUTORS",
    "DockerExecutor",
    "Executor",
    "KubernetesExecutor",
    "LocalExecutor",
    "Progress",
    "StepFailed",
    "StepRun",
    "StepStopped",
    "make",
]

_CLASSES: dict[str, type[Any]] = {
    cls.name: cls for cls in (LocalExecutor, DockerExecutor, KubernetesExecutor)
}
EXECUTORS: tuple[str, ...] = tuple(_CLASSES)
"""Names that `make` and `--executor` know."""


def make(name: str, **options: str | int | float) -> Executor:
    """An executor by name.

    Args:
        options: fields of its class; text is taken as a field's own type (``retries="2"``), so that
            a command line can pass ``KEY=VALUE`` on.

    Raises:
        UsageError: no such executor, an option that it does not have, or a value that does not fit.
    """
    where = Where(key="--executor")
    if name not in _CLASSES:
        raise UsageError(
            f"no executor `{name}`", where=where, hint=f"use one of {', '.join(EXECUTORS)}"
        )
    cls = _CLASSES[name]
    known = {field.name: field for field in fields(cls)}
    values: dict[str, Any] = {}
    for key, value in options.items():
        if key not in known:
            raise UsageError(
                f"the executor `{name}` has no option `{key}`",
                where=where,
                hint=f"it has {', '.join(known)}",
            )
        try:
            values[key] = _typed(value, str(known[key].type))
        except ValueError:
            raise UsageError(
                f"`{value}` does not fit the option `{key}` of the executor `{name}`: it is a "
                f"{known[key].type}",
                where=where,
            ) from None
    executor: Executor = cls(**values)
    return executor


def _typed(value: str | int | float, annotation: str) -> str | int | float:
    """`value` as the type that a field's annotation names; text stays text."""
    if not isinstance(value, str):
        return value
    kind = annotation.split(" | ")[0]
    return int(value) if kind == "int" else float(value) if kind == "float" else value
