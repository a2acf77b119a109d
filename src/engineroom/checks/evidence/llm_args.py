"""LLM arguments against the contract of a version: unknown, removed and mistyped keys."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from engineroom.catalog import Contract
from engineroom.checks.codes import Code, declare
from engineroom.checks.contract_values import misfit
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic

_SOURCE = "NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py of the version"
UNKNOWN = declare(
    "llm-argument-unknown", Topic.LLM_ARGS, Severity.ERROR,
    says="each LLM argument exists in the version",
    why="since 1.0 the argument models forbid unknown keys and the server does not start; before, the key "
    "was dropped without a word",
    source=_SOURCE,
)  # fmt: skip
TYPE = declare(
    "llm-argument-mistyped", Topic.LLM_ARGS, Severity.ERROR,
    says="each LLM argument has a value that its type takes",
    why="the server stops at start with a validation error",
    source=_SOURCE,
)  # fmt: skip
DEPRECATED = declare(
    "llm-argument-deprecated", Topic.LLM_ARGS, Severity.INFO,
    says="no deprecated LLM argument is used",
    why="it goes away in a later release",
    source=_SOURCE,
)  # fmt: skip
NO_CONTRACT = declare(
    "unknown-llm-arguments-version", Topic.LLM_ARGS, Severity.WARN,
    says="LLM arguments are judged against a known version",
    why="what a version without a contract accepts is unknown",
    source=_SOURCE,
)  # fmt: skip
# Keys of Triton's llmapi model.yaml that belong to the model file and not to the LLM
# (triton_backend/all_models/llmapi: `triton_config`).
TRITON_KEYS = ("triton_config",)


@about(Topic.LLM_ARGS)
def arguments(c: Context) -> Iterator[Answer]:
    args = c.evidence.model_yaml
    if args is None:
        return
    if c.contract is None:
        if c.trtllm is not None:
            yield NO_CONTRACT.found(
                c, "model_yaml",
                f"no contract of TensorRT-LLM {c.trtllm} is known, so its arguments are not checked",
                f"use a known version ({', '.join(c.catalog.contract_versions)}), or capture its contract "
                "with `matrix capture`",
            )  # fmt: skip
        return
    for path, code, reason, fix in argument_problems(
        c.contract, args, c.catalog.contract_versions, c
    ):
        yield code.found(
            c, f"model_yaml.{path}", reason, fix,
            severity=Severity.WARN
            if code is UNKNOWN and not c.contract.refuses_unknown_arguments else None,
        )  # fmt: skip


Problem = tuple[str, Code, str, str]


def argument_problems(
    contract: Contract,
    args: Mapping[str, Any],
    versions: tuple[str, ...] = (),
    c: Context | None = None,
) -> Iterator[Problem]:
    """(key path, code, reason, fix) of each argument that the version does not take as written."""
    fields = contract.llm_fields
    for name, value in args.items():
        if name in TRITON_KEYS:
            continue
        if name not in fields:
            yield name, UNKNOWN, *_unknown(contract, name, list(fields), versions, c)
            continue
        fact = fields[name]
        wrong = misfit(fact, value)
        if wrong:
            yield (
                name,
                TYPE,
                f"{name}: {wrong}",
                f"give a value of type {fact.get('type', 'its own')}",
            )
        elif fact.get("status") == "deprecated":
            yield name, DEPRECATED, f"{name} is deprecated in {contract.version}", "leave it out"
        if isinstance(value, dict):
            yield from _nested(contract, name, value)


def _nested(contract: Contract, name: str, value: Mapping[str, Any]) -> Iterator[Problem]:
    facts = contract.nested_facts(name)
    if not facts:
        return  # the contract does not list this object's keys
    heads = {key.split(".")[0] for key in facts}
    for key, inner in value.items():
        path = f"{name}.{key}"
        if key not in heads:
            near = difflib.get_close_matches(str(key), heads, n=1, cutoff=0.6)
            yield (
                path, UNKNOWN, f"{name} has no key {str(key)[:80]} in TensorRT-LLM {contract.version}",
                f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(heads))}",
            )  # fmt: skip
        elif key in facts:
            wrong = misfit(facts[key], inner)
            if wrong:
                yield (
                    path,
                    TYPE,
                    f"{path}: {wrong}",
                    f"give a value of type {facts[key].get('type')}",
                )


def _unknown(
    contract: Contract, name: str, fields: list[str], versions: tuple[str, ...], c: Context | None
) -> tuple[str, str]:
    """Reason and fix: renamed, known elsewhere, mistyped, or never heard of."""
    text = str(name)[:80]
    new = _renamed(contract, name, versions, c)
    if new:
        return (
            f"{text} is not an argument of TensorRT-LLM {contract.version}: it was renamed", f"write {new}"
        )  # fmt: skip
    elsewhere = [
        v for v in versions
        if c is not None and v != contract.version and (other := c.catalog.contract(v))
        and name in other.llm_fields
    ]  # fmt: skip
    effect = (
        "the server refuses it" if contract.refuses_unknown_arguments else "it is dropped silently"
    )
    if elsewhere:
        return (
            f"{text} is not an argument of TensorRT-LLM {contract.version} ({effect}); "
            f"{', '.join(elsewhere)} has it",
            "leave it out for this version, or serve with one that has it",
        )  # fmt: skip
    near = difflib.get_close_matches(text, fields, n=1, cutoff=0.7)
    return (
        f"{text} is not an argument of TensorRT-LLM {contract.version} ({effect})",
        f"did you mean {near[0]}?" if near else "leave it out",
    )


def _renamed(
    contract: Contract, name: str, versions: tuple[str, ...], c: Context | None
) -> str | None:
    """The new name by the contracts' own lists of renames, from the oldest version to this one."""
    current = name
    for version in versions:
        known = c.catalog.contract(version) if c is not None else None
        changes = known.data.get("changes_since_previous", {}) if known else {}
        for row in changes.get("renamed", []):
            if isinstance(row, Mapping) and row.get("old") == current:
                current = str(row.get("new", current)).split(" ")[0]
        if version == contract.version:
            break
    return current if current != name and current.split(".")[0] in contract.llm_fields else None


RULES = (arguments,)
