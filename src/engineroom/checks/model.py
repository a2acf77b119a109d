"""What is known about the model itself."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import TargetContext
from engineroom.names import Severity, WeightFormat
from engineroom.types import Finding


def shape_known(c: TargetContext) -> Iterator[Finding]:
    if c.model is None:
        yield c.finding(
            "unknown-model-shape",
            Severity.WARN,
            "model.source",
            f"no config.json of `{c.spec.model.source}` is on this machine: head counts, layer widths "
            "and memory are not checked",
            "download the model (or its config.json) and name the folder in model.source",
            "the spec",
        )


def remote_code(c: TargetContext) -> Iterator[Finding]:
    if c.spec.model.trust_remote_code:
        yield c.finding(
            "trust-remote-code",
            Severity.INFO,
            "model.trust_remote_code",
            "Python code that comes with the model will run in every process that loads it",
            "leave it off unless the model has no built-in architecture; pin model.revision",
            "transformers documentation",
        )


def calibration_named(c: TargetContext) -> Iterator[Finding]:
    p = c.spec.precision
    quantizes = p.weights not in (WeightFormat.BF16, WeightFormat.FP16) or p.kv_cache in (
        "fp8",
        "nvfp4",
    )
    if quantizes and c.spec.calibration is None:
        yield c.finding(
            "calibration-missing",
            Severity.ERROR,
            "calibration",
            f"weights {p.weights} with KV cache {p.kv_cache} needs calibration text: static scales "
            "come from it",
            "add `calibration: {dataset: FILE.jsonl, samples: 512, seq_len: 512}`",
            "NVIDIA/Model-Optimizer issue #500",
        )


RULES = (shape_known, remote_code, calibration_named)
