"""What is known about the model itself."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.names import Severity, Topic, WeightFormat
from engineroom.types import Finding

SHAPE = declare(
    "unknown-model-shape", Topic.SPEC, Severity.WARN,
    says="the model's config.json is on this machine",
    why="head counts, layer widths and memory cannot be checked without it",
    source="huggingface/transformers documentation, Configuration (config.json)",
)  # fmt: skip
REMOTE_CODE = declare(
    "trust-remote-code", Topic.SPEC, Severity.INFO,
    says="code that comes with a model runs only when asked for",
    why="it runs in every process that loads the model",
    source="huggingface/transformers documentation, Custom models (trust_remote_code)",
)  # fmt: skip
CALIBRATION = declare(
    "calibration-missing", Topic.SPEC, Severity.ERROR,
    says="a format with static scales comes with calibration text",
    why="the scales are measured on it; without it they are guesses",
    source="NVIDIA/Model-Optimizer issue #500",
)  # fmt: skip


def shape_known(c: TargetContext) -> Iterator[Finding]:
    if c.model is None:
        yield SHAPE.found(
            c, "model.source",
            f"no config.json of `{c.spec.model.source}` is on this machine: head counts, layer widths "
            "and memory are not checked",
            "download the model (or its config.json) and name the folder in model.source",
        )  # fmt: skip


def remote_code(c: TargetContext) -> Iterator[Finding]:
    if c.spec.model.trust_remote_code:
        yield REMOTE_CODE.found(
            c, "model.trust_remote_code",
            "Python code that comes with the model will run in every process that loads it",
            "leave it off unless the model has no built-in architecture; pin model.revision",
        )  # fmt: skip


def calibration_named(c: TargetContext) -> Iterator[Finding]:
    p = c.spec.precision
    quantizes = p.weights not in (WeightFormat.BF16, WeightFormat.FP16) or p.kv_cache in (
        "fp8",
        "nvfp4",
    )
    if quantizes and c.spec.calibration is None:
        yield CALIBRATION.found(
            c, "calibration",
            f"weights {p.weights} with KV cache {p.kv_cache} needs calibration text: static scales "
            "come from it",
            "add `calibration: {dataset: FILE.jsonl, samples: 512, seq_len: 512}`",
        )  # fmt: skip


RULES = (shape_known, remote_code, calibration_named)
