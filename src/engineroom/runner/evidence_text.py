"""Files and command lines of other tools as text or data; sizes and depths are bounded."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from engineroom.errors import UsageError, Where
from engineroom.spec import yaml_lines

MAX_BYTES = 20_000_000


def read_text(path: Path) -> str:
    """A UTF-8 file of at most 20 MB.

    Raises:
        UsageError: larger, or not text.
    """
    place = Where(path.as_posix())
    if path.stat().st_size > MAX_BYTES:
        raise UsageError(
            f"larger than {MAX_BYTES} bytes", where=place, hint="is this the right file?"
        )
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"not UTF-8 (byte {error.start})", where=place, hint="save it as UTF-8"
        ) from None


def read_json(path: Path, text: str | None = None) -> Any:
    """A JSON file of another tool.

    Raises:
        UsageError: no JSON; a Git LFS pointer is named as such.
    """
    text = read_text(path) if text is None else text
    place = Where(path.as_posix())
    if text.startswith("version https://git-lfs"):
        raise UsageError("a Git LFS pointer, not the file", where=place, hint="run `git lfs pull`")
    try:
        return json.loads(text, parse_constant=lambda name: name)
    except RecursionError:
        raise UsageError("nested too deeply", where=place, hint="is this the right file?") from None
    except ValueError as error:
        line = getattr(error, "lineno", None)
        raise UsageError(
            f"not JSON: {getattr(error, 'msg', error)}", where=Where(path.as_posix(), line),
            hint="write it again with the tool that made it",
        ) from None  # fmt: skip


def read_yaml(path: Path, text: str | None = None) -> Any:
    """YAML by the 1.2 core schema.

    Raises:
        UsageError: file, line and what is wrong.
    """
    return yaml_lines.parse(read_text(path) if text is None else text, path.as_posix()).data


def read_facts(path: Path) -> Any:
    """A facts file, JSON or YAML."""
    return read_json(path) if path.suffix == ".json" else read_yaml(path)


def command_line(text: str) -> list[str]:
    """Words of one command line.

    Raises:
        UsageError: quotes that do not close.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"not a command line: {error}", where=Where(key="--command")) from None
