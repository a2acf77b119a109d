"""Whether this machine has the GPU that a step is for: an engine runs on the kind it was built on."""

from __future__ import annotations

import subprocess

from engineroom.errors import MissingError
from engineroom.runner.executors.base import StepRun
from engineroom.runner.executors.kube_job import products

_SECONDS = 30


def names() -> list[str]:
    """Product names of this machine's GPUs as NVML gives them; empty: none, or not known."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace",
            timeout=_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return (
        [line.strip() for line in done.stdout.splitlines() if line.strip()]
        if done.returncode == 0
        else []
    )


def require_sku(run: StepRun) -> None:
    """Refuse to build on a machine all of whose GPUs are of another SKU.

    Where the GPUs are not known the step itself finds out whether it can run; the log says so.

    Raises:
        MissingError: none of the GPUs is of the step's SKU.
    """
    if not run.step.gpus:
        return
    found = names()
    if not found:
        run.on_line("engineroom: nvidia-smi names no GPU here: the product is not checked")
        return
    wanted = products(run.sku)
    if any("-".join(name.split()) in wanted for name in found):
        return
    raise MissingError(
        f"{run.step.name} needs a {run.sku.id} ({run.sku.node_label}), and this machine has "
        + ", ".join(dict.fromkeys(found)),
        hint="build on a machine of that SKU, or with --executor kubernetes",
    )
