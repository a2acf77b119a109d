"""Which checkpoints and KV formats vLLM loads, and on which GPUs; rules over a target."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.catalog import VllmContract
from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.names import KvCacheFormat, LaneName, Severity, Support, Topic
from engineroom.types import Finding

KV_AUTO = declare(
    "vllm-kv-dtype-by-checkpoint", Topic.VLLM, Severity.INFO,
    says="the KV cache's format is named where lanes are compared",
    why="auto takes FP8 when the checkpoint has KV scales, and 16 bit when it has none",
    source="vllm-project/vllm vllm/utils/torch_utils.py (resolve_kv_cache_dtype_string) of 0.17.1 and later",
)  # fmt: skip
FORMAT = declare(
    "vllm-format-not-loaded", Topic.VLLM, Severity.ERROR,
    says="vLLM's ModelOpt loader knows the checkpoint's quant_algo",
    why="it refuses others at load: AWQ of ModelOpt is not the AWQ that vLLM reads",
    source="vllm-project/vllm vllm/model_executor/layers/quantization/modelopt.py (QUANT_ALGOS)",
)  # fmt: skip
CAPABILITY = declare(
    "vllm-format-on-gpu", Topic.VLLM, Severity.ERROR,
    says="the GPU runs the format in vLLM",
    why="the quantization method has a minimum compute capability and refuses older GPUs",
    source="vllm-project/vllm vllm/model_executor/layers/quantization/modelopt.py (get_min_capability)",
)  # fmt: skip
UNKNOWN_FORMAT = declare(
    "unknown-vllm-format-support", Topic.VLLM, Severity.WARN,
    says="a source says that the GPU runs the format in vLLM",
    why="unknown is not yes: it may refuse, or fall back to a slow path",
    source="vllm-project/vllm docs/features/quantization",
)  # fmt: skip
WEIGHT_ONLY = declare(
    "vllm-nvfp4-weight-only", Topic.VLLM, Severity.WARN,
    says="NVFP4 is compared where vLLM computes in it",
    why="below compute capability 10.0 the Marlin kernel takes the weights to 16 bit: it saves memory and "
    "computes as W4A16, which is no W4A4",
    source="vllm-project/vllm vllm/model_executor/layers/quantization/utils/marlin_utils_fp4.py",
)  # fmt: skip
UNREAD = declare(
    "vllm-lane-does-not-read", Topic.VLLM, Severity.WARN,
    says="a setting that the spec makes has an effect on the vllm lane",
    why="it is left out of model.json, so the lanes of a comparison differ in it",
    source="vllm-project/vllm vllm/engine/arg_utils.py (AsyncEngineArgs)",
)  # fmt: skip


def contract_of(c: TargetContext) -> VllmContract | None:
    return c.contract if isinstance(c.contract, VllmContract) else None


def kv_dtype(c: TargetContext) -> Iterator[Finding]:
    p, contract = c.spec.precision, contract_of(c)
    if p.kv_cache is KvCacheFormat.AUTO:
        yield KV_AUTO.found(
            c, "precision.kv_cache",
            "auto is 16 bit here, because the recipe writes no KV scales: the model's own type is written, "
            "where this version has a name for it",
            "name bf16 or fp8, so that the KV axis of a comparison stands still",
        )  # fmt: skip
    names = {KvCacheFormat.BF16: "bfloat16", KvCacheFormat.FP16: "float16"}
    name = names.get(p.kv_cache)
    if contract is not None and name is not None and name not in contract.kv_cache_dtypes:
        yield UNREAD.found(
            c, "precision.kv_cache",
            f"vLLM {contract.version} knows no kv_cache_dtype {name}: auto is written, which is the model's "
            "own 16-bit type where the checkpoint has no KV scales",
            "keep it, or use a stack whose vLLM lists the name",
            severity=Severity.INFO,
        )  # fmt: skip


def loads_format(c: TargetContext) -> Iterator[Finding]:
    contract = contract_of(c)
    recipe = c.catalog.weight_recipes.get(c.spec.precision.recipe or str(c.spec.precision.weights))
    if contract is None or recipe is None or recipe.quant_algo is None:
        return
    if recipe.quant_algo not in contract.quant_algos:
        yield FORMAT.found(
            c, "precision.weights",
            f"vLLM {contract.version} loads ModelOpt checkpoints of {', '.join(contract.quant_algos)}; "
            f"`{recipe.id}` makes {recipe.quant_algo}",
            "compare lanes in fp8 (or nvfp4), or serve this checkpoint on the llmapi lane",
        )  # fmt: skip


def runs_on_gpu(c: TargetContext) -> Iterator[Finding]:
    contract, p = contract_of(c), c.spec.precision
    if contract is None:
        return
    wanted = [("weights", str(p.weights), "precision.weights")]
    if p.kv_cache is not KvCacheFormat.AUTO:
        wanted.append(("kv_cache", str(p.kv_cache), "precision.kv_cache"))
    for axis, fmt, key in wanted:
        cell = c.catalog.precision_cell(
            LaneName.VLLM, contract.version, axis, fmt, c.sku.compute_capability
        )
        subject = (
            f"{fmt} {'weights' if axis == 'weights' else 'KV cache'} on {c.sku.id} (compute capability "
            f"{c.sku.compute_capability}), vLLM {contract.version}"
        )
        source = "; ".join(cell.sources)
        if cell.support is Support.YES:
            if fmt == "nvfp4" and axis == "weights" and c.sku.cc_tuple < (10, 0):
                yield WEIGHT_ONLY.found(
                    c, key, f"{subject}: weights only; activations stay in 16 bit",
                    "compare it with another W4A16, or use a Blackwell SKU",
                )  # fmt: skip
        elif cell.support is Support.UNKNOWN:
            yield UNKNOWN_FORMAT.found(
                c, key, f"{subject}: nothing found in a source that was read",
                "try it on one such GPU first", source=source,
            )  # fmt: skip
        elif fmt != "w4a16_awq":  # the loader refuses it whatever the GPU: loads_format
            yield CAPABILITY.found(
                c, key, f"{subject}: {cell.support}" + (f"; {cell.note}" if cell.note else ""),
                "use a format that this GPU runs, or another SKU", source=source,
            )  # fmt: skip


RULES = (kv_dtype, loads_format, runs_on_gpu)
