"""Weight and KV-cache formats against compute capability; two axes, two verdicts, and the stage.

A format can be made on a card that cannot serve it: calibration runs in the model's own precision.
"""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.catalog.load import in_range
from engineroom.catalog.support import SupportCell
from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Context, about
from engineroom.names import KvCacheFormat, LaneName, Severity, Stage, Support, Topic
from engineroom.types import Finding

_SUPPORT_PAGES = "NVIDIA/TensorRT-LLM docs/source/reference/support-matrix.md and docs/source/features/quantization.md"
WEIGHTS = declare(
    "weights-format-not-supported", Topic.QUANT_GPU_SUPPORT, Severity.ERROR,
    says="the weight format has kernels for this compute capability, lane and version",
    why="quantization itself runs, so hours are spent before the build or the first start fails",
    source=_SUPPORT_PAGES,
)  # fmt: skip
KV_CACHE = declare(
    "kv-cache-format-not-supported", Topic.QUANT_GPU_SUPPORT, Severity.ERROR,
    says="the KV-cache format has attention kernels for this compute capability, lane and version",
    why="KV precision is its own axis: weights that run say nothing about it",
    source=_SUPPORT_PAGES,
)  # fmt: skip
UNKNOWN_WEIGHTS = declare(
    "unknown-weights-support", Topic.QUANT_GPU_SUPPORT, Severity.WARN,
    says="a source says whether the weight format runs here",
    why="no page that was read has this cell; unknown is not yes",
    source=_SUPPORT_PAGES,
)  # fmt: skip
UNKNOWN_KV = declare(
    "unknown-kv-cache-support", Topic.QUANT_GPU_SUPPORT, Severity.WARN,
    says="a source says whether the KV-cache format runs here",
    why="no page that was read has this cell; unknown is not yes",
    source=_SUPPORT_PAGES,
)  # fmt: skip

QKV_BIAS = declare(
    "fp8-kv-for-qwen2", Topic.QUANT_GPU_SUPPORT, Severity.WARN,
    says="an FP8 KV cache is used with models whose keys have no large outliers",
    why="the bias of Qwen2 and Qwen2.5 on K makes outliers that FP8 cuts off: the formats are supported, and "
    "answers were reported broken",
    source="NVIDIA/TensorRT-LLM issues #4218 and #2699; verl-project/verl PR #4435 (accuracy near 0 for Qwen2.5)",
)  # fmt: skip
_OUTLIERS = ("Qwen2ForCausalLM",)

# What runs where the wanted format does not, best first; filtered by the support table.
_ALTERNATIVES = {
    "weights": ("fp8", "w4a16_awq", "nvfp4", "bf16"),
    "kv_cache": ("fp8", "int8", "auto"),
}
_NEEDS = {
    "fp8": "FP8 needs compute capability 8.9 (Ada), 9.0 (Hopper) or newer",
    "nvfp4": "NVFP4 needs Blackwell tensor cores (compute capability 10.0 or newer)",
    "mxfp4": "MXFP4 is listed from compute capability 10.0 on",
    "w4a8_awq": "W4A8 AWQ computes in FP8 and needs compute capability 8.9 or 9.0",
}
_MADE_ANYWHERE = (Stage.QUANTIZE, Stage.PACKAGE)


def supported(c: Context, axis: str, fmt: str) -> SupportCell | None:
    """The best answer over the lanes and versions that are not ruled out by what is known.

    Returns:
        ``YES`` when one of them says yes; ``UNKNOWN`` when none does and one is unknown; None when no
        lane is left or the GPU is not known.
    """
    if c.compute_capability is None:
        return None
    lanes = (c.lane,) if c.lane else (LaneName.ENGINE, LaneName.LLMAPI)
    versions = (c.trtllm,) if c.trtllm else c.catalog.contract_versions
    answers = [
        c.catalog.precision_cell(lane, version, axis, fmt, c.compute_capability)
        for lane in lanes
        for version in versions
        if not _lane_gone(c, lane, version)
    ]
    order = (
        Support.YES,
        Support.VERSION_BOUND,
        Support.UNKNOWN,
        Support.NOT_IMPLEMENTED,
        Support.NO,
    )
    return min(answers, key=lambda cell: order.index(cell.support), default=None)


def _lane_gone(c: Context, lane: LaneName, version: str) -> bool:
    return any(
        row.lane == lane and row.support is Support.NO and in_range(version, row.versions)
        for row in c.catalog.lanes.lanes
    )


def _judge(c: Context, axis: str, fmt: str) -> Iterator[Finding]:
    if c.compute_capability is None or c.stage in _MADE_ANYWHERE:
        return
    if c.lane is LaneName.VLLM:  # another runtime's versions: checks/vllm.py judges them
        return
    cell = supported(c, axis, fmt)
    if cell is None or cell.support is Support.YES:
        return
    source = "; ".join(cell.sources)
    key = f"spec.{axis}"
    card = c.product or (c.sku.id if c.sku else "this GPU")
    subject = (
        f"{fmt} {'weights' if axis == 'weights' else 'KV cache'} on {card} "
        f"(compute capability {c.compute_capability})"
        + (f", {c.lane} lane" if c.lane else "")
        + (f", TensorRT-LLM {c.trtllm}" if c.trtllm else "")
    )
    working = _working(c, axis)
    if cell.support is Support.UNKNOWN:
        code = UNKNOWN_WEIGHTS if axis == "weights" else UNKNOWN_KV
        yield code.found(
            c, key,
            f"{subject}: nothing found in a source that was read; unknown is not yes"
            + (f" ({cell.note})" if cell.note else ""),
            f"test it on one such GPU first, or choose {working}", source=source,
        )  # fmt: skip
        return
    reason = "; ".join(text for text in (_NEEDS.get(fmt), cell.note) if text)
    code = WEIGHTS if axis == "weights" else KV_CACHE
    yield code.found(
        c, key, f"{subject}: {cell.support}" + (f"; {reason}" if reason else ""),
        f"use {working}, or a SKU that supports {fmt}", source=source,
    )  # fmt: skip


def _working(c: Context, axis: str) -> str:
    good = [
        fmt
        for fmt in _ALTERNATIVES[axis]
        if fmt == "auto" or ((cell := supported(c, axis, fmt)) and cell.support is Support.YES)
    ]
    return f"precision.{axis}: {' or '.join(good) if good else 'bf16'}"


@about(Topic.QUANT_GPU_SUPPORT)
def weights_on_gpu(c: Context) -> Iterator[Finding]:
    if c.spec.weights is not None:
        yield from _judge(c, "weights", c.spec.weights)


@about(Topic.QUANT_GPU_SUPPORT)
def kv_cache_on_gpu(c: Context) -> Iterator[Finding]:
    if c.spec.kv_cache not in (None, KvCacheFormat.AUTO):
        yield from _judge(c, "kv_cache", str(c.spec.kv_cache))


@about(Topic.QUANT_GPU_SUPPORT)
def kv_cache_of_model(c: Context) -> Iterator[Finding]:
    if c.keys:  # a spec: checks/precision.py judges it by the model's type
        return
    hf = c.evidence.hf_config
    names = [n for n in (hf.architectures or () if hf else ()) if n in _OUTLIERS]
    if names and c.spec.kv_cache is KvCacheFormat.FP8:
        yield QKV_BIAS.found(
            c, "spec.kv_cache",
            f"an FP8 KV cache for {names[0]} (Qwen2, Qwen2.5), whose K projection has a bias with outliers",
            "use precision.kv_cache: auto (16 bit), or compare answers with it before serving",
        )  # fmt: skip


RULES = (weights_on_gpu, kv_cache_on_gpu, kv_cache_of_model)
