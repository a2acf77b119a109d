"""The machine check that a pod runs: one file, standard library only, nothing of engineroom.

:func:`build` joins this module with the ones it imports and embeds a target's needs, so that one
ConfigMap key or one `docker run -v` carries all of it and file and needs cannot be mixed up:

    engineroom doctor --write-preflight preflight.py --file engineroom.yaml --target ID
    python3 preflight.py                # in the image, with the GPUs of the pod

Exit codes: 0 fine, 1 findings at or above --fail-on, 2 usage, 4 --require-gpu and there is none, 130
interrupted.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engineroom.checks.require_cuda import evaluate
from engineroom.runner.machine.facts import clean, collect
from engineroom.runner.machine.judge import fails, judge, needs_from, verdict_of

EMBEDDED = "{}"
"""The needs of the target as JSON; :func:`build` fills it in."""

MARK = "Machine check written by `engineroom doctor --write-preflight`"
PARTS = (
    "checks/require_cuda.py",
    "runner/machine/facts.py",
    "runner/machine/judge.py",
    "runner/preflight.py",
)
"""In order of use, below the package."""


def main(argv: list[str]) -> int:
    """Judge this machine; JSON on stdout, a line per error and warning on stderr."""
    parser = argparse.ArgumentParser(prog="preflight", description="Judge this machine.")
    parser.add_argument("--requirements", metavar="FILE", help="JSON, instead of what is embedded")
    parser.add_argument("--fail-on", choices=("error", "warn", "unknown"), default="error")
    parser.add_argument("--require-gpu", action="store_true", help="exit 4 without a GPU")
    parser.add_argument("--workspace", default=".", help="folder whose free space counts")
    options = parser.parse_args(argv)
    try:
        text = EMBEDDED
        if options.requirements:
            with Path(options.requirements).open(encoding="utf-8") as file:
                text = file.read(1 << 20)
        needs = needs_from(json.loads(text))
    except (OSError, ValueError, RecursionError) as error:
        print(f"error: requirements: {clean(error, 1000)}", file=sys.stderr)
        return 2
    machine = collect(workspace=options.workspace)
    found = judge(machine, needs, require=evaluate)
    report = {
        "schema_version": 1,
        "machine": machine,
        "findings": found,
        "verdict": verdict_of(found),
    }
    _say(sys.stdout, json.dumps(report, indent=2))
    lines = [
        f"{item['severity'].upper()} {item['code']}: {item['reason']}; fix: {item['fix']}"
        for item in found
        if item["severity"] != "info"
    ]
    if lines:
        _say(sys.stderr, "\n".join(lines).encode("ascii", "replace").decode())
    if options.require_gpu and not machine["gpus"]:
        return 4
    return 1 if fails(found, options.fail_on) else 0


def _say(stream: Any, text: str) -> None:
    """Print; a reader that went away or a full disk does not change the exit code."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# ---- building; the built file keeps what is above and drops what is below


def build(needs: Mapping[str, Any]) -> str:
    """The text of the one file, with `needs` inside.

    Raises:
        ValueError: the needs are not what the file accepts, or a part is no longer self-contained
            (our fault; a test holds the line).
    """
    embedded = json.dumps(needs_from(dict(needs)), sort_keys=True, allow_nan=False)
    pieces = [
        "#!/usr/bin/env python3",
        f'"""{MARK}; do not edit.\n\nStandard library only. Apache-2.0.\n"""',
        "from __future__ import annotations",
    ]
    seen: set[str] = set()
    for part in PARTS:
        pieces += _statements(Path(__file__).parents[1] / part, seen, embedded)
    return "\n\n".join(pieces) + "\n"


def is_built(path: Path) -> bool:
    """Whether a file is one that :func:`build` made, and may be replaced."""
    with path.open("rb") as file:
        return MARK.encode() in file.read(400)


def _statements(path: Path, seen: set[str], embedded: str) -> list[str]:
    """Source of a module's statements, without its docstring, engineroom imports and builder.

    Comments between statements are lost, those inside stay.
    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    kept = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Expr) or _of_engineroom(node):
            continue
        names = {n.id for n in getattr(node, "targets", []) if isinstance(n, ast.Name)}
        names |= {node.name} if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else set()
        if names & {"build", "is_built", "_statements", "_of_engineroom", "PARTS", "MARK"}:
            continue
        if names & seen:
            raise ValueError(f"{path.name} repeats the name {sorted(names & seen)[0]}")
        seen |= names
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        source = "\n".join(lines[first - 1 : node.end_lineno])
        kept.append(f"EMBEDDED = {embedded!r}" if "EMBEDDED" in names else source)
    return kept


def _of_engineroom(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and (
        node.module == "__future__" or str(node.module).startswith("engineroom")
    )


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
