"""Instances of the llmapi model: how many, on which GPUs, and how the server is started for them."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.triton_layout import NO_SUCH_GPU, completed, sets_of, text_of
from engineroom.names import Severity, Topic
from engineroom.types import Figure

_LLMAPI = "NVIDIA/TensorRT-LLM triton_backend/all_models/llmapi/tensorrt_llm/1/model.py @ 044a90d2 (initialize)"
LLMAPI_SETS = declare(
    "llmapi-gpu-sets", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="several instances of the llmapi model have a set of gpu_device_ids each, of tensor parallel size",
    why="the model does not load without a set for its instance, and takes the set's GPUs for all it has",
    source=f"{_LLMAPI}; triton-inference-server/tensorrtllm_backend docs/llmapi.md @ 0b9d7d5",
)  # fmt: skip
LLMAPI_ONE = declare(
    "llmapi-gpu-ids-of-one", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="gpu_device_ids of the llmapi model go with more than one instance",
    why="with one instance the model does not read them, and takes the first GPUs that it sees",
    source=_LLMAPI,
)  # fmt: skip
LLMAPI_MPI = declare(
    "llmapi-instances-under-mpi", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="several instances of the llmapi model are started with --no-mpi",
    why="under mpirun the instances take part in one MPI world",
    source="triton-inference-server/tensorrtllm_backend docs/llmapi.md @ 0b9d7d5 (--no-mpi is required for "
    "multi-instance deployments)",
)  # fmt: skip


def _llmapi_world(c: Context) -> int | None:
    args = c.evidence.model_yaml
    if args is not None:
        sizes = [args.get(k, 1) for k in ("tensor_parallel_size", "pipeline_parallel_size")]
        if all(isinstance(s, int) and not isinstance(s, bool) and 0 < s < 1024 for s in sizes):
            return int(sizes[0]) * int(sizes[1])
    return c.tp * c.pp if c.evidence.spec is not None else None


@about(Topic.PARALLEL_LAYOUT)
def llmapi_instances(c: Context) -> Iterator[Answer]:
    """Instances of the llmapi model: it sets its visible GPUs itself, one set for each instance."""
    if c.evidence.triton_family != "llmapi":
        return
    gpus = c.evidence.node.gpu_count if c.evidence.node else None
    for model in repo.models(c):
        if model.role is None and model.backend == repo.PYTHON and not model.config.is_ensemble:
            yield from _llmapi(c, model, _llmapi_world(c), gpus)


def _llmapi(c: Context, model: repo.Model, world: int | None, gpus: int | None) -> Iterator[Answer]:
    count = min(model.config.instances or 1, 64)
    sets = sets_of(model)
    key, line = model.parameter_key("gpu_device_ids"), model.line("gpu_device_ids")
    if count == 1:
        if sets is not None and (len(sets) > 1 or sets[0][:1] != [0]):
            yield LLMAPI_ONE.found(
                c, key, f'gpu_device_ids "{text_of(sets)}" of {model.config.path}, which has 1 instance: they are '
                "not read", "set CUDA_VISIBLE_DEVICES for the server, or make it several instances", line=line,
            )  # fmt: skip
        return
    size = world or max((len(ids) for ids in sets or ()), default=None)
    right = sets or []
    if size is not None and not (
        sets is not None
        and len(sets) == count
        and all(len(ids) == size for ids in sets)
        and all(gpus is None or 0 <= i < gpus for ids in sets for i in ids)
    ):
        right = completed(sets or [], size, count, gpus)
    if right:
        yield Figure("gpu_device_ids", text_of(right))
    remedy = (
        f'write gpu_device_ids "{text_of(right)}"'
        if right
        else "write a set of GPU ids for each instance"
    )
    if sets is None or len(sets) != count:
        yield LLMAPI_SETS.found(
            c, key, f"{count} instances of {model.config.path} and {len(sets or ())} sets of gpu_device_ids",
            remedy, line=line,
        )  # fmt: skip
    for ids in (sets or [])[:16]:
        missing = [i for i in ids if gpus is not None and not 0 <= i < gpus]
        if world is not None and len(set(ids)) != world:
            yield LLMAPI_SETS.found(
                c, key, f"the set {text_of([ids])} of gpu_device_ids names {len(set(ids))} GPUs, and tensor "
                f"times pipeline parallel size is {world}", remedy, line=line,
            )  # fmt: skip
        if missing:
            yield NO_SUCH_GPU.found(
                c, key, f"gpu_device_ids names GPU {missing[0]}, and the node has {gpus} (0 to {(gpus or 1) - 1})",
                remedy, line=line,
            )  # fmt: skip
    launch = c.evidence.launch
    argv = (launch.argv if launch else None) or ()
    words = {word.rsplit("/", 1)[-1] for word in argv}
    under_mpi = (
        "launch_triton_server.py" in words or "mpirun" in words or "trtllm-llmapi-launch" in words
    )
    if under_mpi and "--no-mpi" not in argv:
        yield LLMAPI_MPI.found(
            c, "launch.argv", f"{count} instances of {model.config.path}, and the server starts under mpirun",
            "start it with --no-mpi",
        )  # fmt: skip


RULES = (llmapi_instances,)
