"""Feeds cases of public reports through `lint` and compares its answers with the right ones.

    python tests/cases/run_cases.py DIR [--stage STAGE]... [--kind KIND]... [--verbose]

A case is one JSON file with `kind`, `stage`, `input` and `expected`. Only kind, stage and input
decide what is done: each part of the input becomes a file of its own name or an entry of a facts
file, the kind is the topic asked for. Ids, titles and reasons are printed, never read.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engineroom import pipeline

RANK = {"ok": 0, "warn": 1, "error": 2}
# Parts that are files of another tool, and where such a file lies.
FILES = {
    "hf_config": "model/config.json",
    "generation_config": "model/generation_config.json",
    "tokenizer_config": "model/tokenizer_config.json",
    "quant_config": "model/hf_quant_config.json",
    "adapter_config": "adapter/adapter_config.json",
    "checkpoint_config": "trtllm_checkpoint/config.json",
    "engine_config": "engine/config.json",
    "model_yaml": "repository/tensorrt_llm/1/model.yaml",
    "helm_values": "chart/values.yaml",
    "helmignore": "chart/.helmignore",
}


def write_input(parts: dict[str, Any], folder: Path) -> tuple[list[Path], Path]:
    """Files in `folder`, and the facts file with everything that is no file."""
    files: dict[str, str] = {}
    for part in [p for p in parts if p in FILES]:
        value = parts.pop(part)
        files[FILES[part]] = value if isinstance(value, str) else json.dumps(value)
    for config in parts.pop("triton_configs", []):
        files[f"repository/{config['path']}"] = config["text"]
    if "helm_template" in parts:
        template = parts.pop("helm_template")
        files[f"chart/{template['path']}"] = template["text"]
    if "build_argv" in parts:
        files["build.sh"] = shlex.join(parts.pop("build_argv")) + "\n"
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    facts = folder.with_suffix(".facts.json")
    facts.write_text(json.dumps(parts), encoding="utf-8")
    return ([folder] if files else []), facts


def answer(kind: str, parts: dict[str, Any]) -> dict[str, Any]:
    """The verb's JSON output for one input."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "case"
        folder.mkdir()
        paths, facts = write_input(dict(parts), folder)
        return pipeline.lint(paths, facts=facts, topics=(kind,)).as_dict()


def merged(base: Any, patch: Any) -> Any:
    """JSON Merge Patch, RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def differences(want: Any, got: Any, path: str) -> Iterator[str]:
    """Where `got` is not what `want` asks for, by the comparison rules of the cases' README."""
    if isinstance(want, dict) and set(want) == {"set"}:
        if not isinstance(got, list) or sorted(map(repr, got)) != sorted(map(repr, want["set"])):
            yield f"{path}: want the set {want['set']}, got {got!r}"
    elif isinstance(want, dict) and set(want) == {"between"}:
        low, high = want["between"]
        if not _number(got) or not low <= got <= high:
            yield f"{path}: want {low}..{high}, got {got!r}"
    elif isinstance(want, dict) and set(want) == {"approx", "rel"}:
        if not _number(got) or abs(got - want["approx"]) > want["rel"] * abs(want["approx"]):
            yield f"{path}: want about {want['approx']}, got {got!r}"
    elif isinstance(want, dict) and set(want) == {"matches"}:
        if not isinstance(got, str) or not re.fullmatch(want["matches"], got):
            yield f"{path}: want a match of {want['matches']}, got {got!r}"
    elif isinstance(want, dict):
        if not isinstance(got, dict):
            yield f"{path}: want an object, got {got!r}"
            return
        exact = path.rsplit(".", 1)[-1] in ("tensor_shapes", "fill_values_right")
        for key in [*want, *(k for k in got if exact and k not in want)]:
            if key not in want or key not in got:
                yield f"{path}.{key}: " + ("unexpected" if key in got else "missing")
            else:
                yield from differences(want[key], got[key], f"{path}.{key}")
    elif isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            yield f"{path}: want {want!r}, got {got!r}"
            return
        for index, (a, b) in enumerate(zip(want, got)):
            yield from differences(a, b, f"{path}[{index}]")
    elif isinstance(want, bool) or isinstance(got, bool) or not _number(want):
        if type(want) is not type(got) or want != got:
            yield f"{path}: want {want!r}, got {got!r}"
    elif not _number(got) or want != got:
        yield f"{path}: want {want!r}, got {got!r}"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def judge(case: dict[str, Any]) -> list[str]:
    """What is wrong with the answer to one case; empty when it is right."""
    base = dict(case["input"])
    variants = base.pop("variants", None)
    inputs = [base] if variants is None else [merged(base, patch) for patch in variants]
    answers = [answer(case["kind"], parts) for parts in inputs]
    outputs = [{**a["figures"], "verdict": a["verdict"]} for a in answers]
    expected = case["expected"]
    worst = max((o["verdict"] for o in outputs), key=RANK.__getitem__)
    wrong = list(differences(expected["verdict"], worst, "verdict"))
    if "value" in expected:
        got: Any = outputs if variants is not None else outputs[0]
        wrong += differences(expected["value"], got, "value")
    text = "\n".join(
        f"{f['key']} {f['file'] or ''} {f['reason']} {f['fix']}"
        for a in answers
        for f in a["findings"]
    ).lower()
    for group in expected.get("must_mention", []):
        if not any(word.lower() in text for word in group):
            wrong.append(f"no finding mentions any of {group}")
    if wrong:
        wrong += [
            f"  found {f['severity']} {f['code']}: {f['reason']}"
            for a in answers
            for f in a["findings"]
        ]
    return wrong


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--stage", action="append", default=[])
    parser.add_argument("--kind", action="append", default=[])
    options = parser.parse_args(argv)
    known = set(pipeline.lint_topics())
    tally = {"PASS": 0, "FAIL": 0, "later": 0}
    for path in sorted(options.directory.glob("*.json")):
        if path.name == "SCHEMA.json":
            continue
        case = json.loads(path.read_text(encoding="utf-8"))
        if options.stage and case["stage"] not in options.stage:
            continue
        if options.kind and case["kind"] not in options.kind:
            continue
        if case["kind"] not in known:
            outcome, notes = "later", [f"nothing judges {case['kind']} yet"]
        else:
            try:
                notes = judge(case)
            except Exception as error:  # a case is one line of the report, whatever happens to it
                notes = [f"{type(error).__name__}: {error} {getattr(error, 'where', '')}"]
            outcome = "FAIL" if notes else "PASS"
        tally[outcome] += 1
        print(f"{outcome} {case['id']}: " + ("; ".join(notes) if notes else case["title"]))
    print(f"{tally['PASS']} passed, {tally['FAIL']} failed, {tally['later']} later")
    return 1 if tally["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
