"""Safetensors headers as tensor listings: names, dtypes, shapes, and the values of scalars."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from engineroom.errors import UsageError, Where

MAX_HEADER = 100_000_000
"""The format's own limit on its JSON header."""
_LFS = b"version https://git-lfs"


def listing(path: Path) -> list[dict[str, Any]]:
    """Tensors of one file in file order; none for an empty file or a Git LFS pointer, which the
    folder's listing shows.

    Scalars in F32 carry their value: KV and activation scales are judged by it.

    Raises:
        UsageError: a header that is damaged or longer than the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if not head or _LFS.startswith(head):
            return []
        try:
            (length,) = struct.unpack("<Q", head)
            if length > min(size, MAX_HEADER):
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
            end = max(
                (int(e["data_offsets"][1]) for n, e in header.items() if n != "__metadata__"),
                default=0,
            )
            if 8 + length + end > size:
                raise ValueError(f"cut off: {8 + length + end} bytes expected, {size} there")
            tensors = [
                {"name": name, "dtype": str(entry["dtype"]),
                 "shape": [int(n) for n in entry["shape"]], "at": int(entry["data_offsets"][0])}
                for name, entry in header.items()
                if name != "__metadata__"
            ]  # fmt: skip
            tensors.sort(key=lambda t: t["at"])
            for tensor in tensors:
                at = tensor.pop("at")
                if tensor["dtype"] == "F32" and not tensor["shape"]:
                    file.seek(8 + length + at)
                    (value,) = struct.unpack("<f", file.read(4))
                    if value == value and abs(value) != float("inf"):
                        tensor["value"] = value
            return tensors
        except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError,
                OverflowError, RecursionError) as error:  # fmt: skip
            raise UsageError(
                f"not a whole safetensors file: {error}",
                where=Where(path.as_posix()),
                hint="download it again",
            ) from None
