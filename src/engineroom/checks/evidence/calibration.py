"""Calibration data: can it be read where the tool runs, and did every module see some?"""

from __future__ import annotations

import re
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
EMPTY_FILE = declare(
    "calibration-file-empty", Topic.CALIBRATION_DATA, Severity.ERROR,
    says="a calibration file has lines",
    why="a file of no bytes gives no samples: nothing is calibrated, or the run stops after the model is loaded",
    source="NVIDIA/Model-Optimizer modelopt/torch/utils/dataset_utils.py (get_jsonl_text_samples)",
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

_LAST_RESORT = 0.5
"""Input amax when no expert of a layer has one (set_expert_quantizer_amax, fallback_value)."""
_LOCAL = (".jsonl", ".json", ".txt", ".csv", ".parquet", ".gz", ".zst")
# Short names: those of ModelOpt's registry, and old ones that the hub redirects.
_MOVED = {
    "c4": "allenai/c4", "cnn_dailymail": "abisee/cnn_dailymail", "wikitext": "Salesforce/wikitext",
    "magpie": "Magpie-Align/Magpie-Pro-MT-300K-v0.1", "pile": "monology/pile-uncopyrighted",
    "pileval": "mit-han-lab/pile-val-backup", "open_code_reasoning": "nvidia/OpenCodeReasoning",
    "open_math_reasoning": "nvidia/OpenMathReasoning",
    "llama-nemotron-post-training-dataset": "nvidia/Llama-Nemotron-Post-Training-Dataset",
    "nemotron-post-training-dataset-v1": "nvidia/Nemotron-Post-Training-Dataset-v1",
    "nemotron-post-training-dataset-v2": "nvidia/Nemotron-Post-Training-Dataset-v2",
}  # fmt: skip
_MIXES = {"cnn_nemotron_v2_mix": ("cnn_dailymail", "nemotron-post-training-dataset-v2")}


def _plain(folder: str) -> str:
    """`datasets` writes names in snake case: case, hyphens and single underscores do not count."""
    return "___".join(re.sub("[-_]", "", part) for part in folder.lower().split("___"))


def _offline(c: Context) -> list[str]:
    env = c.evidence.env or {}
    names = ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"]
    if not env.get("HF_HUB_OFFLINE"):
        names.append("TRANSFORMERS_OFFLINE")  # huggingface_hub reads it in its place
    return [n for n in names if env.get(n, "").strip().upper() in ("1", "ON", "YES", "TRUE")]


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
        if files is not None and dataset.lower().endswith(_LOCAL):
            sizes = [e.size_bytes for e in files if PurePosixPath(e.path) == PurePosixPath(dataset)]
            if sizes == [0]:
                yield EMPTY_FILE.found(
                    c, "calibration.dataset", f"`{dataset}` is empty (0 bytes)",
                    "write the samples again: one JSON object with a `text` field a line",
                )  # fmt: skip
        return
    offline = _offline(c)
    if not offline or cache is None or here:
        return
    heads = {_plain("/".join(PurePosixPath(entry).parts[:2])) for entry in cache}
    wanted: list[str] = []
    for member in _MIXES.get(dataset, (dataset,)):
        folders = sorted(
            {f"datasets/{n.replace('/', '___')}" for n in (member, _MOVED.get(member, member))}
        )
        if not any(_plain(folder) in heads for folder in folders):
            wanted.append(next((f for f in folders if "___" in f), folders[-1]))
    if not wanted:
        return
    other = [e for e in cache if PurePosixPath(e).parts[:1] == ("hub",)]
    held = f"the cache holds {', '.join(other[:3])}, which is" if other else "the cache holds"
    yield NOT_CACHED.found(
        c, "calibration.dataset",
        f"{' and '.join(offline)} set, and `{dataset}` would be read from HF_HOME/{' and '.join(wanted)}; {held} "
        + ("the hub's download, not resolved offline" if other else "nothing of it"),
        f"run load_dataset once online with the same HF_HOME (it writes {' and '.join(wanted)}), or name a local "
        ".jsonl file",
    )  # fmt: skip


def _any_expert(module: str) -> str:
    """The linear layer that a module is one expert's copy of; empty for names without an expert's number.

    The export fills each kind of linear layer of one MoE block by itself (hf_export_handlers.py).
    """
    layer, numbers = re.subn(r"(^|\.)experts\.[0-9]{1,6}(?=\.|$)", r"\1experts.*", module)
    return layer if numbers else ""


@about(Topic.MOE)
def modules_calibrated(c: Context) -> Iterator[Answer]:
    calibration = c.evidence.calibration
    if calibration is None or not calibration.input_amax:
        return
    # ModelOpt takes an amax of zero for a missing one: a module that saw tokens has a larger one.
    seen = {i.module: i.amax for i in calibration.input_amax if i.amax is not None and i.amax > 0}
    unseen = [item.module for item in calibration.input_amax if item.module not in seen]
    yield Figure("uncalibrated_modules", unseen)
    if not unseen:
        return
    if not seen:
        yield Figure("fallback_amax", _LAST_RESORT)
        yield NOTHING_SEEN.found(
            c, "calibration.input_amax", f"none of {len(unseen)} modules saw a token",
            "force eager experts for calibration (fused ones bypass the hooks), or use a ModelOpt that "
            "calibrates them, and quantize again",
        )  # fmt: skip
        return
    largest: dict[str, float] = {}
    for name, amax in seen.items():
        largest[_any_expert(name)] = max(amax, largest.get(_any_expert(name), 0.0))
    given = [largest.get(_any_expert(module), _LAST_RESORT) for module in unseen]
    yield Figure("fallback_amax", max(given))
    amounts = " or ".join(f"{value:g}" for value in sorted(set(given))[:4])
    yield UNSEEN.found(
        c, "calibration.input_amax",
        f"{len(unseen)} of {len(calibration.input_amax)} modules saw no calibration tokens "
        f"({', '.join(unseen[:4])}{' …' if len(unseen) > 4 else ''}); ModelOpt gives them the largest "
        f"amax of the same layer's others, {amounts}: their accuracy is unmeasured",
        "calibrate with more and more varied text (calibration.samples), and compare answers that use "
        "these experts",
    )  # fmt: skip


RULES = (data_readable, modules_calibrated)
