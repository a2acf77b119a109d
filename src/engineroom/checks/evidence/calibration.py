"""Calibration data: can it be read where the tool runs, and did every module see some?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.types import Figure

NOT_CACHED = declare(
    "calibration-data-not-cached", Topic.CALIBRATION_DATA, Severity.ERROR,
    says="an offline machine has the calibration data set in the processed form that `datasets` resolves",
    why="`datasets` offline looks in HF_HOME/datasets; a repository downloaded to HF_HOME/hub is not found",
    source="NVIDIA-NeMo/Megatron-Bridge issue #5337; huggingface/datasets documentation, Cache management",
)  # fmt: skip
NO_FILE = declare(
    "calibration-file-missing", Topic.CALIBRATION_DATA, Severity.ERROR,
    says="a calibration file that is named by path is on the machine that calibrates",
    why="the model is loaded first, so minutes pass before the missing file is noticed",
    source="NVIDIA/Model-Optimizer modelopt/torch/utils/dataset_utils.py: a path is read from the local disk",
)  # fmt: skip
UNSEEN = declare(
    "modules-without-calibration", Topic.MOE, Severity.WARN,
    says="every quantized module saw calibration tokens",
    why="ModelOpt gives experts that were never routed to the largest amax of the others and exports them",
    source="NVIDIA/Model-Optimizer PR #1354, issue #785; modelopt/torch/export/layer_utils.py "
    "(set_expert_quantizer_amax)",
)  # fmt: skip
NOTHING_SEEN = declare(
    "no-module-calibrated", Topic.MOE, Severity.ERROR,
    says="at least one module saw calibration tokens",
    why="without a single amax there is nothing to fill the others in with: activations are uncalibrated",
    source="NVIDIA/Model-Optimizer PR #1340, PR #1354",
)  # fmt: skip

_LOCAL = (".jsonl", ".json", ".txt", ".csv", ".parquet", ".gz", ".zst")
# `datasets` redirects names from before namespaces to the repositories that took them over.
_MOVED = {"cnn_dailymail": "abisee/cnn_dailymail", "wikitext": "Salesforce/wikitext",
          "c4": "allenai/c4", "pileval": "mit-han-lab/pile-val-backup"}  # fmt: skip


def _offline(c: Context) -> list[str]:
    env = c.evidence.env or {}
    return [
        name
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
        if env.get(name, "").strip().upper() in ("1", "ON", "YES", "TRUE")
    ]


def is_local(dataset: str) -> bool:
    return dataset.startswith(("/", "./", "../", "~")) or dataset.lower().endswith(_LOCAL)


def _inside(wanted: str, path: str) -> bool:
    a, b = PurePosixPath(wanted), PurePosixPath(path)
    return a == b or a in b.parents or (not a.is_absolute() and b.parts[-len(a.parts) :] == a.parts)


@about(Topic.CALIBRATION_DATA)
def data_readable(c: Context) -> Iterator[Answer]:
    calibration = c.evidence.calibration
    if calibration is None or not calibration.dataset:
        return
    dataset, files, cache = calibration.dataset, c.evidence.host_files, c.evidence.hf_cache
    here = files is not None and any(_inside(dataset, entry.path) for entry in files)
    if is_local(dataset):
        if files is not None and not here:
            yield NO_FILE.found(
                c, "calibration.dataset", f"`{dataset}` is not among the files of this machine",
                "copy it there, or correct the path (it is read where the tool runs)",
            )  # fmt: skip
        return
    offline = _offline(c)
    if not offline or cache is None or here:
        return
    names = {dataset, _MOVED.get(dataset, dataset)}
    wanted = sorted({f"datasets/{name.replace('/', '___')}" for name in names})
    heads = {"/".join(PurePosixPath(entry).parts[:2]).lower() for entry in cache}
    if any(w.lower() in heads for w in wanted):
        return
    other = [e for e in cache if PurePosixPath(e).parts[:1] == ("hub",)]
    held = f"the cache holds {', '.join(other[:3])}, which is" if other else "the cache holds"
    yield NOT_CACHED.found(
        c, "calibration.dataset",
        f"{' and '.join(offline)} set, and `{dataset}` would be read from HF_HOME/{wanted[-1]}; {held} "
        + ("the hub's download, not resolved offline" if other else "nothing of it"),
        f"run load_dataset once online with the same HF_HOME (it writes {wanted[-1]}), or name a local "
        ".jsonl file",
    )  # fmt: skip


@about(Topic.MOE)
def modules_calibrated(c: Context) -> Iterator[Answer]:
    calibration = c.evidence.calibration
    if calibration is None or not calibration.input_amax:
        return
    unseen = [item.module for item in calibration.input_amax if item.amax is None]
    seen = [item.amax for item in calibration.input_amax if item.amax is not None]
    yield Figure("uncalibrated_modules", unseen)
    if not unseen:
        return
    if not seen:
        yield NOTHING_SEEN.found(
            c, "calibration.input_amax", f"none of {len(unseen)} modules saw a token",
            "force eager experts for calibration (fused ones bypass the hooks), or use a ModelOpt that "
            "calibrates them, and quantize again",
        )  # fmt: skip
        return
    fallback = max(seen)
    yield Figure("fallback_amax", fallback)
    yield UNSEEN.found(
        c, "calibration.input_amax",
        f"{len(unseen)} of {len(calibration.input_amax)} modules saw no calibration tokens "
        f"({', '.join(unseen[:4])}{' …' if len(unseen) > 4 else ''}); ModelOpt gives them the largest "
        f"amax of the others, {fallback:g}: their accuracy is unmeasured",
        "calibrate with more and more varied text (calibration.samples), and compare answers that use "
        "these experts",
    )  # fmt: skip


RULES = (data_readable, modules_calibrated)
