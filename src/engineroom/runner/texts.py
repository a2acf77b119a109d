"""Documents for calibration and evaluation, from local files or a hub dataset."""

from __future__ import annotations

import importlib.util
import json
import random
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from engineroom.errors import UsageError, Where, missing_extra
from engineroom.runner.model_source import user_path

_FILE_ENDINGS = {".jsonl", ".json", ".txt", ".md", ".csv", ".gz", ".zst", ".parquet", ".text"}
MAX_HUB_DOCUMENTS = 20_000


def read_documents(dataset: str, spec_dir: Path) -> tuple[list[str], Path | None]:
    """(documents, local file or None).

    JSONL: one object a line with `text`, or `messages` (their contents joined). Any other file is
    text; a blank line ends a document.

    Raises:
        UsageError: no such file, or no text in it. MissingError: a hub name without `datasets`.
    """
    where = Where(key="calibration.dataset")
    if is_hub_name(dataset, spec_dir):
        return _from_hub(dataset, where), None
    path = user_path(dataset, spec_dir, where)
    if not path.is_file():
        raise UsageError(
            f"`{dataset}` " + ("is not a regular file" if path.exists() else "does not exist"),
            where=where,
            hint="name a JSONL or text file; relative paths are relative to the spec file",
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(
            f"`{dataset}` is not UTF-8 text", where=where, hint="save it as UTF-8, uncompressed"
        ) from None
    if path.suffix in (".jsonl", ".json"):
        documents = [
            _json_text(line, path, i) for i, line in enumerate(text.split("\n"), 1) if line.strip()
        ]
    else:
        documents = [part.strip() for part in text.split("\n\n")]
    documents = [item for item in documents if item]
    if not documents:
        raise UsageError(f"`{dataset}` has no text", where=where, hint='JSONL lines: {"text": "…"}')
    return documents, path


def _json_text(line: str, path: Path, number: int) -> str:
    place = Where(path.as_posix(), number)
    try:
        entry = json.loads(line)
        json.dumps(entry, ensure_ascii=False).encode()  # lone surrogates are no text
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"not JSON text: {error}", where=place, hint='write one object a line: {"text": "…"}'
        ) from None
    if isinstance(entry, dict) and isinstance(entry.get("text"), str):
        return str(entry["text"])
    if isinstance(entry, dict) and isinstance(entry.get("messages"), list):
        return "\n".join(
            str(m.get("content", "")) for m in entry["messages"] if isinstance(m, dict)
        )
    raise UsageError("no `text` and no `messages` in this line", where=place, hint='{"text": "…"}')


def is_hub_name(dataset: str, spec_dir: Path) -> bool:
    """Whether this can only be a hub dataset: no such path here, and no file's ending."""
    if not re.fullmatch(r"[A-Za-z0-9][\w-]*(/[A-Za-z0-9][\w.-]*)?", dataset):
        return False
    path = user_path(dataset, spec_dir, Where(key="calibration.dataset"))
    return not path.exists() and Path(dataset).suffix not in _FILE_ENDINGS


def _from_hub(name: str, where: Where) -> list[str]:
    if importlib.util.find_spec("datasets") is None:
        error = missing_extra("quantize", "datasets")
        error.hint = f"pip install datasets, or name a local JSONL file (`{name}` is no file here)"
        raise error
    from datasets import load_dataset

    try:
        rows = islice(load_dataset(name, split="train", streaming=True), MAX_HUB_DOCUMENTS)
        texts = [str(row["text"]) for row in rows if isinstance(row.get("text"), str)]
    except Exception as error:
        raise UsageError(
            f"cannot read the hub dataset `{name}`: {type(error).__name__}: {error}",
            where=where,
            hint="check the name and the network, or name a local JSONL file",
        ) from None
    if not texts:
        raise UsageError(f"`{name}` has no `text` column", where=where)
    return texts


def split(documents: Sequence[str], seed: int, held_out: int) -> tuple[list[str], list[str], bool]:
    """(calibration, evaluation, overlap): a seeded shuffle, its last `held_out` for evaluation.

    With too few documents to hold any out, both are the same and `overlap` says so.
    """
    order = list(documents)
    random.Random(seed).shuffle(order)
    if len(order) <= held_out:
        return order, order, True
    return order[:-held_out], order[-held_out:], False
