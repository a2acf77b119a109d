"""Tensor and pipeline parallel sizes against the model, the converted checkpoint and the launch."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.reading.commands import flags
from engineroom.reading.files import HfConfig
from engineroom.types import Figure

HEADS = declare(
    "tensor-parallel-heads", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="tensor_parallel divides the attention heads, and the KV heads divide or are copied evenly",
    why="conversion or the first load stops; upstream calls it not a bug",
    source="NVIDIA/TensorRT-LLM issues #2198, #2200; converters assert tp % kv_heads == 0 when duplicating",
)  # fmt: skip
WIDTH = declare(
    "tensor-parallel-width", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="tensor_parallel divides the MLP width",
    why="each sharded weight dimension must split evenly",
    source="NVIDIA/TensorRT-LLM converters: each sharded weight dimension must divide by tp_size",
)  # fmt: skip
LAYERS = declare(
    "pipeline-parallel-layers", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="each pipeline stage has a layer",
    why="a stage without layers has nothing to compute",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/mapping.py (pp_layers)",
)  # fmt: skip
VOCAB = declare(
    "vocab-not-padded", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="releases before 0.6 need a vocabulary that tensor_parallel divides",
    why="they split the head without padding it",
    source="NVIDIA/TensorRT-LLM issue #98 (fault in 0.5); pad_vocab_size in tensorrt_llm/_utils.py",
)  # fmt: skip
WISH = declare(
    "checkpoint-other-layout", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="a converted checkpoint has the layout that is asked for",
    why="the engine takes its mapping from the checkpoint; a wish elsewhere changes nothing",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/commands/build.py (mapping from the checkpoint's config)",
)  # fmt: skip
WORLD = declare(
    "mapping-world-size", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="world_size is tp_size x pp_size",
    why="the mapping refuses to be built",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/mapping.py (world_size must equal tp_size * pp_size * cp_size)",
)  # fmt: skip
RANKS = declare(
    "mpi-ranks-differ", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="the processes started are those that the layout needs",
    why="in leader mode the MPI world must be tp x pp; in orchestrator mode one process is enough",
    source="NVIDIA/TensorRT-LLM issues #2021, #2058 (assertion: MPI world size = tp x pp)",
)  # fmt: skip
GPUS = declare(
    "fewer-gpus-than-ranks", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="there is a GPU for each rank that is started",
    why="two ranks on one GPU run it out of memory, or NCCL refuses the duplicate device",
    source="NVIDIA/TensorRT-LLM issue #2058; NCCL documentation (duplicate GPU detected)",
)  # fmt: skip
REMOVED_FLAG = declare(
    "layout-flag-not-in-build", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="trtllm-build gets no layout flags",
    why="parallel sizes are set when the checkpoint is converted; the build command refuses them",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/commands/build.py (argparse of trtllm-build)",
)  # fmt: skip


_ONE_NODE = 8
"""GPUs of a common host: the sizes that a remedy offers go up to it."""


def heads_fit(hf: HfConfig, tp: int) -> bool:
    """Query heads divide; KV heads divide or are replicated evenly."""
    heads, kv = hf.num_attention_heads, hf.kv_heads
    if heads and heads % tp:
        return False
    return not kv or kv % tp == 0 or tp % kv == 0


def _width(hf: HfConfig) -> int | None:
    return None if hf.has_experts else hf.intermediate_size


def allowed(hf: HfConfig, most: int) -> list[int]:
    """Sizes up to `most` that split heads and MLP width evenly."""
    width = _width(hf)
    return [n for n in range(1, min(most, 1024) + 1)
            if heads_fit(hf, n) and not (width and width % n)]  # fmt: skip


@about(Topic.PARALLEL_LAYOUT)
def model_divides(c: Context) -> Iterator[Answer]:
    hf = c.evidence.hf_config
    if hf is None:
        return
    tp, heads, kv, width = c.tp, hf.num_attention_heads, hf.kv_heads, _width(hf)
    if heads:
        yield Figure("allowed_tensor_parallel", allowed(hf, tp))
    if kv and heads_fit(hf, tp):
        yield Figure("kv_heads_per_rank", max(1, kv // tp))
        yield Figure("kv_head_replication", max(1, tp // kv))
    sizes = ", ".join(map(str, allowed(hf, max(tp, _ONE_NODE))))
    fitting = (
        f"use tensor_parallel {sizes} (more replicas, or pipeline_parallel, use the other GPUs)"
    )
    if not heads_fit(hf, tp):
        problems = []
        if heads and heads % tp:
            problems.append(f"{heads} attention heads do not divide by {tp}")
        if kv and kv % tp and tp % kv:
            problems.append(f"{kv} KV heads neither divide by {tp} nor can be replicated evenly")
        yield HEADS.found(
            c, "spec.tensor_parallel", f"tensor_parallel {tp}: " + " and ".join(problems), fitting
        )
    if width and width % tp:
        yield WIDTH.found(
            c, "spec.tensor_parallel",
            f"intermediate_size {width} does not divide by tensor_parallel {tp}", fitting,
        )  # fmt: skip
    layers = hf.num_hidden_layers
    if layers and c.pp > layers:
        yield LAYERS.found(
            c, "spec.pipeline_parallel",
            f"pipeline_parallel {c.pp} is more than the model's {layers} layers", f"use at most {layers}",
        )  # fmt: skip


@about(Topic.PARALLEL_LAYOUT)
def vocabulary(c: Context) -> Iterator[Answer]:
    hf = c.evidence.hf_config
    if hf is None or not hf.vocab_size:
        return
    padded = -(-hf.vocab_size // c.tp) * c.tp
    yield Figure("padded_vocab_size", padded)
    # Releases of 2023 (before the unified converter of 0.6) split the head as it is.
    if padded != hf.vocab_size and c.trtllm and Version(c.trtllm) < Version("0.6"):
        yield VOCAB.found(
            c, "hf_config.vocab_size",
            f"vocab_size {hf.vocab_size} does not divide by tensor_parallel {c.tp}, and TensorRT-LLM "
            f"{c.trtllm} does not pad it",
            f"pad the embedding and head to {padded} rows, or use a newer release",
        )  # fmt: skip


@about(Topic.PARALLEL_LAYOUT)
def converted_layout(c: Context) -> Iterator[Answer]:
    config, argv = c.evidence.checkpoint_config, c.evidence.build_argv
    mapping = config.mapping if config else None
    if mapping is not None:
        tp, pp = mapping.tp_size or 1, mapping.pp_size or 1
        world = tp * pp
        yield Figure("world_size", world)
        if mapping.world_size is not None and mapping.world_size != world:
            yield WORLD.found(
                c, "checkpoint_config.mapping.world_size",
                f"world_size {mapping.world_size} is not tp_size {tp} x pp_size {pp} = {world}",
                "convert the checkpoint again",
            )  # fmt: skip
        asked = c.evidence.spec
        stated = {"tensor_parallel", "pipeline_parallel"} & (
            asked.model_fields_set if asked else set()
        )
        if stated and (c.tp, c.pp) != (tp, pp):
            yield WISH.found(
                c, "spec.tensor_parallel",
                f"TP {c.tp} x PP {c.pp} is asked for, and the checkpoint was converted for TP {tp} x "
                f"PP {pp}: the engine would have the latter",
                f"convert the checkpoint again with --tp_size {c.tp} --pp_size {c.pp}",
            )  # fmt: skip
        yield from _launched(c, world)
    elif argv is not None and c.evidence.spec is not None:
        yield Figure("world_size", c.tp * c.pp)
    if argv is not None and argv and argv[0].rsplit("/", 1)[-1] == "trtllm-build":
        given = flags(argv)
        extra = [n for n in ("--tp_size", "--pp_size", "--world_size") if n in given]
        # Up to 0.11 they were taken and had no effect on a converted checkpoint (issues #1340, #2058).
        taken = c.trtllm is not None and Version(c.trtllm) < Version("0.12")
        same = mapping is not None and all(
            given[n] == str(value) for n, value in (
                ("--tp_size", mapping.tp_size or 1), ("--pp_size", mapping.pp_size or 1),
                ("--world_size", (mapping.tp_size or 1) * (mapping.pp_size or 1)),
            ) if n in given
        )  # fmt: skip
        if extra and not (taken and same):
            yield REMOVED_FLAG.found(
                c, "build_argv",
                f"{', '.join(extra)}: trtllm-build "
                + ("does not apply layout flags" if taken else "takes no layout flags"),
                "give --tp_size and --pp_size to the converter (or to quantize.py); the build reads them "
                "from the checkpoint's config.json",
            )  # fmt: skip


def _launched(c: Context, world: int) -> Iterator[Answer]:
    launch, pod = c.evidence.launch, c.evidence.pod
    if launch is None:
        return
    orchestrated = launch.mode == "orchestrator"
    if orchestrated and launch.spawn_processes is False:
        needed = world + 1
    else:
        needed = 1 if orchestrated else world
    yield Figure("mpi_ranks", needed)
    if launch.mpi_ranks is not None and launch.mpi_ranks != needed:
        yield RANKS.found(
            c, "launch.mpi_ranks",
            f"{launch.mpi_ranks} MPI ranks for a layout of {world} (tp x pp): "
            f"{launch.mode or 'leader'} mode needs {needed}",
            f"start {needed} ranks (mpirun -n {needed}), or convert the checkpoint for another layout",
        )  # fmt: skip
    if pod is not None and pod.gpu_count is not None and pod.gpu_count < world and not launch.nodes:
        yield GPUS.found(
            c, "pod.gpu_count", f"{pod.gpu_count} GPUs for {world} ranks (tp x pp)",
            f"give the pod {world} GPUs, or convert the checkpoint for {pod.gpu_count}",
        )  # fmt: skip


RULES = (model_divides, vocabulary, converted_layout)
