"""A `trtllm-build` command line against the contract of a version."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engineroom.catalog import Contract
from engineroom.checks.codes import Code, declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.reading.commands import words

_SOURCE = "NVIDIA/TensorRT-LLM tensorrt_llm/commands/build.py and plugin/plugin.py of the version"
UNKNOWN = declare(
    "build-flag-unknown", Topic.BUILD_FLAGS, Severity.ERROR,
    says="each flag of trtllm-build exists in the version",
    why="argparse refuses the whole command",
    source=_SOURCE,
)  # fmt: skip
VALUE = declare(
    "build-flag-value", Topic.BUILD_FLAGS, Severity.ERROR,
    says="each flag of trtllm-build has a value that it takes",
    why="argparse refuses the whole command",
    source=_SOURCE,
)  # fmt: skip
NO_COMMAND = declare(
    "trtllm-build-removed", Topic.BUILD_FLAGS, Severity.ERROR,
    says="the version has trtllm-build",
    why="the command was deleted upstream after the 1.2 line; only the LLM API is left",
    source="NVIDIA/TensorRT-LLM main, July 2026: tensorrt_llm/commands/build.py is gone",
)  # fmt: skip
Problem = tuple[str, Code, str, str]


@about(Topic.BUILD_FLAGS)
def command(c: Context) -> Iterator[Answer]:
    argv = c.evidence.build_argv
    if not argv or argv[0].rsplit("/", 1)[-1] != "trtllm-build" or c.contract is None:
        return
    for flag, code, reason, fix in command_problems(c.contract, argv):
        yield code.found(c, f"build_argv.{flag}", reason, fix)


def command_problems(contract: Contract, argv: Sequence[str]) -> Iterator[Problem]:
    """(flag, code, reason, fix) of each word that the version's parser does not take."""
    if not contract.has_engine_lane:
        yield (
            "trtllm-build", NO_COMMAND, f"TensorRT-LLM {contract.version} has no trtllm-build",
            "use lane: llmapi, or a stack of the 1.2 line or older",
        )  # fmt: skip
        return
    known = contract.build_flags
    names = {alias: name for name, fact in known.items() for alias in fact.get("aliases") or ()}
    names |= {name: name for name in known}
    for flag, values in words(argv):
        name = _resolve(flag, names)
        if isinstance(name, list):
            near = difflib.get_close_matches(flag, names, n=1, cutoff=0.7)
            reason = f"{flag[:80]} is no flag of trtllm-build {contract.version}"
            if name:
                reason = f"{flag} is short for several flags: {', '.join(name)}"
            yield flag, UNKNOWN, reason, f"did you mean {near[0]}?" if near else "leave it out"
            continue
        wrong = _value_problem(known[name], values)
        if wrong:
            yield flag, VALUE, f"{name}: {wrong}", _right(known[name])


def _resolve(flag: str, names: Mapping[str, str]) -> str | list[str]:
    """The flag's full name; argparse also takes an unambiguous beginning. Else what it may mean."""
    if flag in names:
        return names[flag]
    begins = sorted({full for alias, full in names.items() if alias.startswith(flag)})
    return begins[0] if len(begins) == 1 and len(flag) > 2 else begins


def _value_problem(fact: Mapping[str, Any], values: Sequence[str]) -> str | None:
    kind, choices = str(fact.get("type", "")), fact.get("choices")
    if kind == "store_true":
        return f"takes no value, got `{values[0][:60]}`" if values else None
    if not values:
        return "needs a value"
    if len(values) > 1 and not kind.startswith("list"):
        return f"takes one value, got {len(values)}"
    for value in values:
        if value.startswith("$"):
            continue  # a shell variable: not known here
        if kind == "int" and not value.lstrip("+-").isdecimal():
            return f"`{value[:60]}` is no whole number"
        if kind == "float" and not value.replace(".", "", 1).lstrip("+-").isdecimal():
            return f"`{value[:60]}` is no number"
        # Lists of modules are open: contracts name those that were confirmed, not all.
        if (
            choices
            and not kind.startswith("list")
            and value not in [str(choice) for choice in choices]
        ):
            return f"`{value[:60]}` is not one of {', '.join(map(str, choices))}"
    return None


def _right(fact: Mapping[str, Any]) -> str:
    if fact.get("choices"):
        return "use one of " + ", ".join(map(str, fact["choices"]))
    if fact.get("type") == "store_true":
        return "write the flag alone, or leave it out"
    return f"give a value of type {fact.get('type')}"


RULES = (command,)
