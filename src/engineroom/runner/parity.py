"""Compares the greedy answers of two Triton servers: an old front and the migrated one.

Standard library only, and no import of engineroom: `migrate` writes a copy of this file beside the A/B
plan, to be run where both servers can be reached. Exit codes: 0 enough answers are equal, 1 too few, 2
wrong arguments or files, 3 a server did not answer.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def ask(url: str, model: str, body: Mapping[str, Any], timeout: float) -> str:
    """`text_output` of one whole answer.

    Raises:
        OSError: no connection, or an error of the server, with its message.
    """
    data = json.dumps({"id": uuid.uuid4().hex, **body}).encode()
    request = urllib.request.Request(f"{url.rstrip('/')}/v2/models/{model}/generate", data)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            text = json.load(answer)["text_output"]
    except urllib.error.HTTPError as error:
        raise OSError(f"HTTP {error.code}: {error.read(500).decode('utf-8', 'replace')}") from None
    except (http.client.HTTPException, ValueError, KeyError) as error:
        raise OSError(f"no answer of the generate endpoint: {error!r}") from None
    return str(text[0] if isinstance(text, list) else text)


def compare(old: str, new: str) -> int | None:
    """Place of the first character that differs; None when the answers are equal."""
    if old == new:
        return None
    pairs = zip(old, new)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))


def run(options: argparse.Namespace, prompts: Sequence[str]) -> dict[str, Any]:
    """Ask both servers each prompt; the summary."""
    rows: list[dict[str, Any]] = []
    for number, prompt in enumerate(prompts):
        old_body = {"text_input": prompt, "max_tokens": options.max_tokens}
        new_body = {"text_input": prompt, "sampling_param_max_tokens": options.max_tokens}
        old = ask(options.old, options.old_model, old_body, options.timeout)
        new = ask(options.new, options.new_model, new_body, options.timeout)
        if options.old_echo and old.startswith(prompt):
            old = old[len(prompt) :]
        if options.strip:  # upstream's ensemble loses a blank at the beginning of some answers
            old, new = old.strip(), new.strip()
        place = compare(old, new)
        rows.append({"prompt": number, "equal": place is None, "first_difference": place,
                     "old": old, "new": new})  # fmt: skip
    equal = sum(bool(row["equal"]) for row in rows)
    return {
        "prompts": len(rows),
        "equal": equal,
        "equal_share": round(equal / len(rows), 4) if rows else 0.0,
        "rows": rows,
    }


def read_prompts(path: Path) -> list[str]:
    """`text` of each line.

    Raises:
        ValueError: a line that is no JSON object with text; names it.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(str(json.loads(line)["text"]))
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}:{number}: no JSON object with `text`") from None
    if not found:
        raise ValueError(f"{path}: no prompts")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Greedy answers of an old and a new server.")
    parser.add_argument("--prompts", type=Path, default=Path("prompts.jsonl"))
    parser.add_argument("--old", required=True, metavar="URL")
    parser.add_argument("--old-model", required=True)
    parser.add_argument("--old-echo", action="store_true", help="old answers begin with the prompt")
    parser.add_argument("--new", required=True, metavar="URL")
    parser.add_argument("--new-model", default="tensorrt_llm")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one answer")
    parser.add_argument("--strip", action="store_true", help="ignore blanks at both ends")
    parser.add_argument(
        "--min-equal", type=float, default=1.0, help="share of equal answers, 0 to 1"
    )
    parser.add_argument("--report", type=Path, help="write every pair of answers as JSON")
    options = parser.parse_args(argv)
    try:
        prompts = read_prompts(options.prompts)
        result = run(options, prompts)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, FileNotFoundError) else 3
    if options.report:
        text = json.dumps(result, ensure_ascii=False, indent=2) + "\n"
        options.report.write_text(text, encoding="utf-8")
    print(f"{result['equal']} of {result['prompts']} answers are equal")
    for row in result["rows"]:
        if not row["equal"]:
            print(f"  prompt {row['prompt']}: differs from character {row['first_difference']}")
    return 0 if result["equal_share"] >= options.min_equal else 1


if __name__ == "__main__":
    sys.exit(main())
