"""Models of Triton's vLLM backend in a repository: what their `model.json` says, and to how many."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.catalog import VllmContract
from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Context, about
from engineroom.checks.vllm import HIGH_SHARE, SHARE
from engineroom.names import Severity, Topic
from engineroom.reading.files import VllmModel
from engineroom.types import Finding

DEFAULT_SHARE = 0.9
"""Lowest default that a contract lists (0.92 in 0.21)."""
_EXTRA = 1e-6

TWO_ON_ONE = declare(
    "vllm-memory-shares-add-up", Topic.VLLM, Severity.ERROR,
    says="the memory shares of the vLLM engines on one GPU stay below 1 together",
    why="each takes its share of the total, whatever the others hold, and does not start when less is free",
    source="vllm-project/vllm vllm/v1/worker/utils.py (request_memory); issues #10643, #14376",
)  # fmt: skip
ARGUMENT = declare(
    "vllm-argument-unknown", Topic.VLLM, Severity.ERROR,
    says="every key of model.json is an engine argument of the container's vLLM",
    why="the backend passes them on as keyword arguments, and an unknown one is a TypeError at load",
    source="triton-inference-server/vllm_backend src/model.py (AsyncEngineArgs(**vllm_engine_config))",
)  # fmt: skip


def _share(model: VllmModel) -> float:
    value = model.args.get("gpu_memory_utilization", DEFAULT_SHARE)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number else DEFAULT_SHARE


def _contract(c: Context) -> VllmContract | None:
    release = c.evidence.stack.triton_release if c.evidence.stack else None
    stack = c.catalog.known_stack(release) if release else None
    return c.catalog.vllm_contract(stack.vllm.version) if stack and stack.vllm else None


@about(Topic.VLLM)
def shares(c: Context) -> Iterator[Finding]:
    models = c.evidence.vllm_models or ()
    for i, model in enumerate(models):
        if _share(model) >= HIGH_SHARE:
            yield SHARE.found(
                c, f"vllm_models[{i}].args.gpu_memory_utilization",
                f"{_share(model):g} of the GPU's memory in {model.path}", "use 0.90 to 0.92",
            )  # fmt: skip
    together = [model for model in models if not model.own_gpu]
    total = sum(_share(model) * model.instances for model in together)
    if sum(model.instances for model in together) > 1 and total > 1 + _EXTRA:
        listed = ", ".join(f"{m.path} {m.instances} x {_share(m):g}" for m in together)
        yield TWO_ON_ONE.found(
            c, f"vllm_models[{len(models) - 1}].args.gpu_memory_utilization",
            f"engines that see the same GPUs claim {total:.2f} of their memory: {listed}",
            "give each a share so that the sum stays below 0.9, or each a GPU of its own (KIND_GPU)",
        )  # fmt: skip


@about(Topic.VLLM)
def arguments(c: Context) -> Iterator[Finding]:
    contract = _contract(c)
    if contract is None:
        return
    for i, model in enumerate(c.evidence.vllm_models or ()):
        for name in model.args:
            if name not in contract.engine_args:
                yield ARGUMENT.found(
                    c, f"vllm_models[{i}].args.{name}",
                    f"vLLM {contract.version} has no engine argument `{name[:80]}`",
                    "remove it, or write the name that this version has",
                )  # fmt: skip


RULES = (shares, arguments)
