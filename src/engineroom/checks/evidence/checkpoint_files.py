"""Files of a checkpoint folder that are not what their names say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Context, about
from engineroom.names import Severity, Topic
from engineroom.reading.facts import FileEntry
from engineroom.types import Finding

LFS = declare(
    "git-lfs-pointers", Topic.ARTEFACT_INTEGRITY, Severity.ERROR,
    says="no file of the checkpoint is a Git LFS pointer",
    why="a clone without git-lfs holds text files of about 130 bytes; the loader speaks of headers or keys",
    source="NVIDIA/TensorRT-LLM issue #2052; Git LFS specification, docs/spec.md",
)  # fmt: skip
NOT_WEIGHTS = declare(
    "weights-file-is-no-weights", Topic.ARTEFACT_INTEGRITY, Severity.ERROR,
    says="each weight file holds the format that its name says",
    why="an error page or a damaged download saved under the right name is found only by the loader",
    source="huggingface/safetensors README, Format; Git LFS specification, docs/spec.md",
)  # fmt: skip
MISSING_SHARD = declare(
    "weight-shards-missing", Topic.ARTEFACT_INTEGRITY, Severity.ERROR,
    says="all shards of the numbered series are there",
    why="the loader stops at the first tensor that lives in a missing file",
    source="huggingface/transformers docs/source/en/models.md, Sharded checkpoints",
)  # fmt: skip

DAMAGED = declare(
    "checkpoint-file-damaged", Topic.ARTEFACT_INTEGRITY, Severity.ERROR,
    says="config, index and tokenizer files are whole, and no download is left unfinished",
    why="an empty file, a web page or a part of a file stops the loader with a message about its syntax",
    source="huggingface/transformers documentation, Loading models (files of a model folder); "
    "huggingface/huggingface_hub file_download.py (.incomplete)",
)  # fmt: skip
INDEX = declare(
    "weight-index-differs", Topic.ARTEFACT_INTEGRITY, Severity.ERROR,
    says="the index and the weight files name the same files and tensors",
    why="the loader goes by the index: a file or tensor that is elsewhere is not found",
    source="huggingface/transformers docs/source/en/models.md, Sharded checkpoints",
)  # fmt: skip

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)\Z")
# Every LFS pointer has three lines with a sha256: 120 to 140 bytes with today's sizes.
_POINTER_SIZES = range(110, 161)


_TEXTS = (".json", ".model", ".tiktoken", ".jinja")
_PARTIAL = (".incomplete", ".part", ".crdownload", ".aria2")
_LARGE, _SMALL = 100 * 1024**2, 1024**2


def _is_weights(entry: FileEntry) -> bool:
    return entry.path.lower().endswith(_WEIGHTS)


def _is_pointer(entry: FileEntry) -> bool:
    if entry.head is not None:
        return entry.head.startswith("version https://git-lfs")
    return _is_weights(entry) and entry.size_bytes in _POINTER_SIZES


@about(Topic.ARTEFACT_INTEGRITY)
def lfs_pointers(c: Context) -> Iterator[Finding]:
    files = c.evidence.checkpoint_files or ()
    pointers = [entry.path for entry in files if _is_pointer(entry)]
    if pointers:
        yield LFS.found(
            c, "checkpoint_files",
            f"{len(pointers)} of {len(files)} files are Git LFS pointers, not the files themselves: "
            + ", ".join(pointers[:4]) + (" …" if len(pointers) > 4 else ""),
            "run `git lfs install` and `git lfs pull` in the folder, or download with the hub client",
        )  # fmt: skip


def _fault(entry: FileEntry) -> str | None:
    """What is wrong with a weight file, by its size and first bytes."""
    if entry.size_bytes == 0:
        return "is empty"
    head = entry.head
    if head is None or not _is_weights(entry):
        return None
    text = head.lstrip().lower()
    if text.startswith(("<!doctype", "<html", "<?xml")):
        return "is a web page (HTML), probably an error or login page"
    if text.startswith(
        ("access to ", "invalid username", "repository not found", "entry not found")
    ):
        return "is a message of the hub, not a file"
    if entry.path.lower().endswith(".safetensors"):
        if head.startswith("PK"):
            return "is a PyTorch pickle archive, not safetensors"
        if text.startswith('{"error"'):
            return "is an error message, not safetensors"
    return None


@about(Topic.ARTEFACT_INTEGRITY)
def weights_are_weights(c: Context) -> Iterator[Finding]:
    for entry in c.evidence.checkpoint_files or ():
        if not _is_weights(entry) or _is_pointer(entry):
            continue
        fault = _fault(entry)
        if fault:
            size = "" if entry.size_bytes is None else f" ({entry.size_bytes} bytes)"
            yield NOT_WEIGHTS.found(
                c, "checkpoint_files", f"{entry.path}{size} {fault}",
                "download the file again and compare its size or sha256 with the repository",
            )  # fmt: skip


@about(Topic.ARTEFACT_INTEGRITY)
def files_whole(c: Context) -> Iterator[Finding]:
    """Files beside the weights, unfinished downloads, and shards cut short."""
    files = c.evidence.checkpoint_files or ()
    here = {entry.path for entry in files}
    faults = []
    for entry in files:
        lowered = entry.path.lower()
        ending = next((e for e in _PARTIAL if lowered.endswith(e)), None)
        head = (entry.head or "").lstrip().lower()
        if ending and (ending == ".aria2" or entry.path[: -len(ending)] not in here):
            faults.append(f"{entry.path} is an unfinished download")
        elif lowered.endswith(_TEXTS) and entry.size_bytes == 0:
            faults.append(f"{entry.path} is empty (0 bytes)")
        elif lowered.endswith(_TEXTS) and head.startswith(("<!doctype html", "<html")):
            faults.append(f"{entry.path} is a web page (HTML), probably an error or login page")
    # All shards of a series but the last are filled up to about the same size.
    series = [(entry, m) for entry in files if (m := _SHARD.match(PurePosixPath(entry.path).name))]
    if any((entry.size_bytes or 0) > _LARGE for entry, _ in series):
        faults += [
            f"{entry.path} has {entry.size_bytes} bytes and is cut short"
            for entry, m in series
            if entry.size_bytes and entry.size_bytes < _SMALL and m[2] != m[3] and not _is_pointer(entry)
            and not _fault(entry)
        ]  # fmt: skip
    if faults:
        yield DAMAGED.found(
            c, "checkpoint_files", "; ".join(faults[:4]) + (" …" if len(faults) > 4 else ""),
            "download these files again and compare their size with the repository",
        )  # fmt: skip


@about(Topic.ARTEFACT_INTEGRITY)
def shards_complete(c: Context) -> Iterator[Finding]:
    series: dict[tuple[str, str, str], set[int]] = {}
    for entry in c.evidence.checkpoint_files or ():
        match = _SHARD.match(PurePosixPath(entry.path).name)
        if match:
            series.setdefault((match[1], match[3], match[4]), set()).add(int(match[2]))
    for (stem, total, suffix), have in series.items():
        # Shards count from 1 in the Hugging Face layout, from 0 in a few exporters.
        first = 0 if 0 in have else 1
        wanted = range(first, first + min(int(total), 99_999))
        missing = [n for n in wanted if n not in have]
        if missing:
            names = ", ".join(f"{stem}-{n:05}-of-{total}{suffix}" for n in missing[:4])
            yield MISSING_SHARD.found(
                c, "checkpoint_files",
                f"{len(missing)} of {int(total)} shards are not there: {names}"
                + (" …" if len(missing) > 4 else ""),
                "download the missing files; the index (*.safetensors.index.json) lists them all",
            )  # fmt: skip


@about(Topic.ARTEFACT_INTEGRITY)
def index_agrees(c: Context) -> Iterator[Finding]:
    index = c.evidence.weight_index
    if index is None or not index.weight_map:
        return
    files = c.evidence.checkpoint_files
    if files is not None:
        here = {PurePosixPath(entry.path).name for entry in files}
        gone = sorted(set(index.weight_map.values()) - here)
        if gone:
            yield INDEX.found(
                c, "weight_index.weight_map",
                f"{len(gone)} files of the index are not there: {', '.join(gone[:4])}",
                "download them, or write the index again with the tool that saved the weights",
            )  # fmt: skip
            return
    if files is not None and c.evidence.tensors:
        listed = {tensor.name for tensor in c.evidence.tensors}
        lost = sorted(set(index.weight_map) - listed)
        if lost:
            yield INDEX.found(
                c, "weight_index.weight_map",
                f"{len(lost)} tensors of the index are in no file: {', '.join(lost[:4])}",
                "write the index again with the tool that saved the weights",
            )  # fmt: skip


RULES = (lfs_pointers, weights_are_weights, files_whole, shards_complete, index_agrees)
