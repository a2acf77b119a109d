"""Cut a TensorRT-LLM checkpoint of one rank into those of TP x PP; copies bytes, computes nothing."""

from __future__ import annotations

import json
import mmap
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from engineroom.catalog.trtllm_checkpoint import TrtllmCheckpointFile
from engineroom.errors import UsageError, Where, artefact_error
from engineroom.planning.checkpoint_shards import Planner
from engineroom.planning.rank_parts import ITEM_BYTES, Layout, Part, Tensor, rank_config
from engineroom.runner import files, tensor_files

Progress = Callable[[int, int], None]
"""Told (done, total)."""
CONFIG = "config.json"
WHOLE = "rank0.safetensors"


def cut(
    source: Path,
    target: Path,
    contract: TrtllmCheckpointFile,
    layout: Layout,
    on_rank: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Write `config.json`, `rank<N>.safetensors` and the other files of `source` into `target`.

    Args:
        source: a checkpoint of one rank, as ModelOpt writes it.
        target: an empty, staged folder.
        on_rank: told (ranks written, ranks in all).

    Returns:
        The `config.json` that was written.

    Raises:
        UsageError: no such checkpoint, or one that cannot be cut so; nothing useful is written.
    """
    config = _config(source / CONFIG)
    weights = source / WHOLE
    tensors = read_tensors(weights)
    ranks = Planner(contract, config, tensors, weights.as_posix()).ranks(layout)
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name != CONFIG and path.suffix != ".safetensors":
            shutil.copy2(path, target / path.name)
    with (
        weights.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        for rank, parts in enumerate(ranks):
            with (target / f"rank{rank}.safetensors").open("wb") as out:
                _write(out, parts, data)
            on_rank(rank + 1, len(ranks))
    written = rank_config(config, layout, has_head="lm_head.weight" in tensors)
    files.write_json(target / CONFIG, written)
    return written


def _config(path: Path) -> dict[str, Any]:
    try:
        value = files.read_json(path)
    except (OSError, ValueError, RecursionError):
        raise artefact_error(path, "no config.json of a TensorRT-LLM checkpoint") from None
    if not isinstance(value, dict):
        raise artefact_error(path, "config.json must be an object")
    return value


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, in file order.

    Raises:
        UsageError: absent, damaged, or a type that the layout does not have.
    """
    if not path.is_file() or not (listed := tensor_files.listing(path)):
        raise UsageError(
            "no weights of a TensorRT-LLM checkpoint here",
            where=Where(path.as_posix()),
            hint="run `engineroom quantize`",
        )
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
    tensors, at = {}, 8 + length
    for entry in listed:  # in file order without holes: the format allows none
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        if dtype not in ITEM_BYTES:
            raise UsageError(
                f"`{entry['name']}` has the type {dtype}, which the layout does not have",
                where=Where(path.as_posix()),
            )
        tensor = Tensor(entry["name"], dtype, shape, at)
        tensors[tensor.name] = tensor
        at += Part(tensor.name, dtype, shape, ()).size
    if at != path.stat().st_size:
        raise UsageError(
            f"not a whole safetensors file: {at} bytes expected, {path.stat().st_size} there",
            where=Where(path.as_posix()),
        )
    return tensors


def _write(out: BinaryIO, parts: list[Part], data: memoryview) -> None:
    """A safetensors file: wide types first, so that every tensor is aligned to its elements."""
    ordered = sorted(parts, key=lambda part: (-ITEM_BYTES[part.dtype], part.name))
    header, at = {}, 0
    for part in ordered:
        offsets = [at, at + part.size]
        header[part.name] = {
            "dtype": part.dtype, "shape": list(part.shape), "data_offsets": offsets,
        }  # fmt: skip
        at += part.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    out.write(struct.pack("<Q", len(text)))
    out.write(text)
    for part in ordered:
        for run in part.runs:
            for index in range(run.count):
                start = run.start + index * run.step
                out.write(data[start : start + run.length])
        out.write(bytes(part.zeros))
