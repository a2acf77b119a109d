"""Jobs for conformance tests, on a copy of the session's checkpoint."""

from __future__ import annotations

import os
import shutil

import yaml

from engineroom.pipeline import build, open_job

FEATURES = {
    "guided_decoding": "xgrammar", "context_logits": True, "generation_logits": True,
    "perf_metrics": True,
}  # fmt: skip
LIMITS = {"max_batch_size": 16, "max_seq_len": 512}
SKUS = {"llmapi": "l4", "engine": "h100-sxm", "vllm": "l4"}
LANES_OF = {"bls": "engine", "ensemble": "engine", "llmapi": "llmapi", "vllm": "vllm"}


def job_on_the_checkpoint(base, name, serving, *, limits=LIMITS, lanes=SKUS, **changes):
    """A job on a copy of the session's checkpoint, built; its files are apart from all others'."""
    data = yaml.safe_load((base.loaded.folder / "engineroom.yaml").read_text())
    data["targets"] = [
        {"sku": SKUS[lane], "lane": lane, "stack": "26.07", **changes, "limits": limits}
        for lane in lanes
    ]
    data["serving"] = serving
    # Workers share the checkpoint's folder, and two of them may want the same job.
    name += os.environ.get("PYTEST_XDIST_WORKER", "")
    path = base.loaded.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data))
    out = base.out.with_name(f"out-{name}")
    shutil.copytree(base.out / "checkpoints", out / "checkpoints", dirs_exist_ok=True)
    job = open_job(path, out=out)
    build(job, allow_plan=True)
    return job
