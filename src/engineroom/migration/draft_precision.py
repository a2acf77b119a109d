"""Precision of the new spec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engineroom.catalog import Catalog
from engineroom.migration.decisions import Draft, number
from engineroom.migration.draft_dtype import sixteen_bits
from engineroom.migration.draft_model import Chain
from engineroom.names import LaneName, Support
from engineroom.types import GpuSku
from engineroom.types.migration import BuildCall, EngineFacts, Fate, Leaf


@dataclass(frozen=True)
class Format:
    """An old weight format.

    Attributes:
        weights: the spec's formats, the first that the SKU supports is taken; empty: 16 bit.
        exact: the first one is the same format.
    """

    name: str
    weights: tuple[str, ...] = ()
    exact: bool = True


_FOUR, _EIGHT = ("w4a16_awq", "fp8"), ("fp8",)
_BY_NAME = {
    "fp8": Format("FP8", ("fp8",)), "fp8_pc_pt": Format("FP8 per channel and token", _EIGHT, False),
    "int4_awq": Format("W4A16 AWQ", ("w4a16_awq",)), "w4a16_awq": Format("W4A16 AWQ", ("w4a16_awq",)),
    "nvfp4": Format("NVFP4", ("nvfp4",)), "w4a8_awq": Format("W4A8 AWQ", _FOUR, False),
    "int8_sq": Format("INT8 SmoothQuant", _EIGHT, False),
    "int8_wo": Format("INT8 weights only", _EIGHT, False),
    "w8a16": Format("INT8 weights only", _EIGHT, False),
    "int8": Format("INT8 weights only", _EIGHT, False),
    "int4_wo": Format("INT4 weights only", _FOUR, False), "w4a16": Format("INT4 weights only", _FOUR, False),
    "int4": Format("INT4 weights only", _FOUR, False),
    "int4_gptq": Format("W4A16 GPTQ", _FOUR, False), "w4a16_gptq": Format("W4A16 GPTQ", _FOUR, False),
    "w8a16_gptq": Format("W8A16 GPTQ", _EIGHT, False),
    "fp8_per_channel_per_token": Format("FP8 per channel and token", _EIGHT, False),
    "mixed_precision": Format("a mixture of formats", _EIGHT, False),
    "full_prec": Format("16 bit"), "none": Format("16 bit"), "no_quant": Format("16 bit"),
}  # fmt: skip
_WEIGHT_FLAGS = (
    "--qformat", "--use_fp8", "--enable_fp8", "--use_fp8_rowwise", "--use_meta_fp8_rowwise_recipe",
    "--smoothquant", "--use_smooth_quant", "--use_weight_only", "--weight_only_precision", "--use_qserve",
    "--autoq_format", "--auto_quantize_bits", "--use-weight-only-with-precision",
)  # fmt: skip
_KV_FLAGS = ("--kv_cache_dtype", "--kv_cache_qformat", "--fp8_kv_cache", "--int8_kv_cache")


def _of_algo(name: Any) -> Format | None:
    if not isinstance(name, str):
        return None
    key = name.lower()
    if key.startswith("w8a8_sq"):
        return _BY_NAME["int8_sq"]
    if key.startswith("w4a8_qserve"):
        return Format("W4A8 QServe", _FOUR, False)
    return _BY_NAME.get(key, Format(name, _EIGHT, False))


def _of_call(call: BuildCall | None) -> Format | None:
    """By the options of quantize.py and convert_checkpoint.py; None where a variable decides."""
    if call is None:
        return None
    for name, algo in (
        ("--autoq_format", "mixed_precision"), ("--use_fp8_rowwise", "fp8_pc_pt"),
        ("--use_meta_fp8_rowwise_recipe", "fp8_pc_pt"), ("--use_fp8", "fp8"), ("--enable_fp8", "fp8"),
        ("--smoothquant", "int8_sq"), ("--use_smooth_quant", "int8_sq"), ("--use_qserve", "w4a8_qserve"),
    ):  # fmt: skip
        if call.flag(name) is not None:
            return _of_algo(algo)
    flag = call.flag("--qformat")
    if flag is None and call.flag("--use_weight_only") is not None:
        flag = call.flag("--weight_only_precision")
        return _of_algo(flag.value) if flag and not flag.unresolved else _BY_NAME["int8_wo"]
    if flag is None:
        return _BY_NAME["full_prec"]
    return None if flag.unresolved else _of_algo(flag.value)


def _stating(draft: Draft) -> EngineFacts | None:
    """The engine or checkpoint that says how its weights are quantized: the engine's word comes first."""
    for facts in (draft.setup.engine, draft.setup.checkpoint):
        model: Any = facts.data.get("pretrained_config", facts.data) if facts else None
        quantization = model.get("quantization") if isinstance(model, dict) else None
        if isinstance(quantization, dict) and "quant_algo" in quantization:
            return facts
    return next((e for e in (draft.setup.engine, draft.setup.checkpoint) if e is not None), None)


def precision(
    draft: Draft, calls: Chain, catalog: Catalog, sku: GpuSku | None, version: str
) -> None:
    """`precision`."""
    facts = [e for e in (draft.setup.engine, draft.setup.checkpoint) if e is not None]
    stating = _stating(draft)
    script = _of_call(calls.convert)
    old = (_of_algo(stating.quant_algo) if stating else script) or _BY_NAME["full_prec"]

    def supported(axis: str, fmt: str) -> bool:
        if sku is None:
            return True
        found, _ = catalog.precision_support(
            LaneName.LLMAPI, version, axis, fmt, sku.compute_capability
        )
        return found is Support.YES

    sixteen = sixteen_bits(draft, facts, calls.convert)
    chosen = next((w for w in old.weights if supported("weights", w)), sixteen)
    exact = chosen == (old.weights[0] if old.weights else sixteen) and old.exact
    draft.spec["precision"] = {"weights": chosen}
    if not facts and (calls.convert is None or _of_call(calls.convert) is None):
        draft.notes.append(
            f"precision.weights is {chosen}: no file says in which format the weights were; give --engine, --checkpoint "
            "or --build-script, or set it"
        )
    algos = draft.engine("pretrained_config.quantization.quant_algo", "quantization.quant_algo")
    sixteen_bit = _BY_NAME["full_prec"]
    told = [
        (leaf, _of_algo(leaf.value or None) if isinstance(leaf.value, str) else None)
        for leaf in algos
    ]
    told = [(leaf, says or sixteen_bit) for leaf, says in told]
    told += [(leaf, script) for leaf in draft.flags(calls.convert, *_WEIGHT_FLAGS)]
    _tell_weights(draft, told, old, chosen, exact)
    draft.decide(
        [*draft.engine("pretrained_config.dtype", "dtype"), *draft.flags(calls.convert, "--dtype")],
        Fate.MOVED, "precision.weights", chosen,
        "the precision of the weights" if chosen == sixteen
        else "what is not quantized stays as the Hugging Face checkpoint has it",
    )  # fmt: skip
    _group(draft, calls, catalog, chosen)
    _kv_cache(draft, calls, facts, sku, supported)


def _tell_weights(
    draft: Draft, told: Sequence[tuple[Leaf, Format | None]], old: Format, chosen: str, exact: bool
) -> None:
    """Each leaf by the format that it says itself; None where only running the script would tell."""
    for leaf, says in told:
        if says is None:
            draft.decide(
                [leaf], Fate.REDEFAULTED, "precision.weights", chosen,
                f"the format of the weights; {chosen} is taken", "set precision.weights, if it was another",
            )  # fmt: skip
        elif says.name != old.name:
            draft.decide(
                [leaf], Fate.REDEFAULTED, "precision.weights", chosen,
                f"this says {says.name}, and the old engine or checkpoint has {old.name}, which holds",
                "see which of them is served: a newer script may be of the next engine",
                ("engine_json",),
            )  # fmt: skip
        elif not old.weights:
            draft.decide([leaf], Fate.MOVED, "precision.weights", chosen, "not quantized")
        elif exact:
            draft.decide(
                [leaf], Fate.MOVED, "precision.weights", chosen,
                "the same format; `quantize` makes it anew from the Hugging Face checkpoint",
            )  # fmt: skip
        else:
            draft.decide(
                [leaf], Fate.IMPOSSIBLE, "precision.weights", chosen,
                f"{old.name} is not made for the llmapi lane on this SKU; {chosen} is the nearest format that is",
                "compare answers by the A/B plan" + (
                    "; 16-bit weights take more memory: see `engineroom plan`" if chosen in ("bf16", "fp16") else ""
                ), ("quantize", "spec"),
            )  # fmt: skip


def _group(draft: Draft, calls: Chain, catalog: Catalog, chosen: str) -> None:
    leaves = [
        *draft.engine("pretrained_config.quantization.group_size", "quantization.group_size"),
        *draft.flags(calls.convert, "--awq_block_size", "--group_size"),
    ]
    recipe = catalog.weight_recipes[chosen]
    size = next((n for leaf in leaves if (n := number(str(leaf.value))) is not None), None)
    if recipe.group_size is None:
        draft.decide(
            leaves, Fate.REDEFAULTED, None, None, f"the recipe of {chosen} has no group size to choose",
            source=("spec",),
        )  # fmt: skip
    elif size in recipe.group_size.allowed:
        draft.spec["precision"]["group_size"] = size
        draft.carry(leaves, "precision.group_size", size, "AWQ groups")
    else:
        draft.decide(
            leaves, Fate.REDEFAULTED, "precision.group_size", recipe.group_size.default,
            f"group sizes of {chosen} are {', '.join(map(str, recipe.group_size.allowed))}", source=("spec",),
        )  # fmt: skip


def _kv_cache(
    draft: Draft,
    calls: Chain,
    facts: Sequence[EngineFacts],
    sku: GpuSku | None,
    supported: Callable[[str, str], bool],
) -> None:
    stating = _stating(draft)
    flags = draft.flags(calls.convert, *_KV_FLAGS)
    by_flag = {leaf.key: _kv_of(leaf) for leaf in flags}
    script = next((kind for kind in by_flag.values() if kind), "")
    told = (stating.kv_cache_quant_algo or "").lower() if stating else script
    if not stating and any(kind is None for kind in by_flag.values()):
        draft.notes.append(
            "precision.kv_cache: only running the script would tell what its option says; "
            f"{script or 'auto'} is taken"
        )
    wanted = "fp8" if any(name in told for name in ("fp8", "int8", "nvfp4")) else "auto"
    # Below compute capability 8.9 an FP8 KV cache is stored, never computed with.
    native = sku is None or sku.cc_tuple >= (8, 9)
    chosen = wanted if wanted == "auto" or (supported("kv_cache", "fp8") and native) else "auto"
    draft.spec["precision"]["kv_cache"] = chosen
    algos = draft.engine(
        "pretrained_config.quantization.kv_cache_quant_algo", "quantization.kv_cache_quant_algo"
    )
    rows: list[tuple[Leaf, str | None]] = [(x, str(x.value or "").lower()) for x in algos]
    for leaf, says in [*rows, *((leaf, by_flag[leaf.key]) for leaf in flags)]:
        if says is None:
            draft.decide(
                [leaf], Fate.REDEFAULTED, "precision.kv_cache", chosen,
                f"the format of the KV cache; {chosen} is taken", "set precision.kv_cache, if it was another",
            )  # fmt: skip
        elif _kind(says) != _kind(told):
            draft.decide(
                [leaf], Fate.REDEFAULTED, "precision.kv_cache", chosen,
                f"this says {says or '16 bit'}, and the old engine or checkpoint has {told or '16 bit'}, which holds",
                "see which of them is served: a newer script may be of the next engine", ("engine_json",),
            )  # fmt: skip
        elif _kind(told) == chosen:
            draft.decide([leaf], Fate.MOVED, "precision.kv_cache", chosen, "an axis of its own")
        else:
            draft.decide(
                [leaf], Fate.IMPOSSIBLE, "precision.kv_cache", chosen,
                f"a KV cache of `{says}` is not made for the llmapi lane on this SKU; {chosen} is taken",
                "compare answers by the A/B plan; a 16-bit KV cache holds half as many tokens"
                if chosen == "auto" else "compare answers by the A/B plan",
            )  # fmt: skip


def _kind(says: str) -> str:
    """The formats apart: auto (16 bit), fp8, int8 …"""
    return next((name for name in ("nvfp4", "fp8", "int8") if name in says), says or "auto")


_SIXTEEN = ("", "none", "auto", "float16", "bfloat16", "fp16", "bf16", "half")


def _kv_of(leaf: Leaf) -> str | None:
    """What an option says: empty for 16 bit, None where only running the script would tell."""
    text = str(leaf.value).strip().lower() if leaf.value is not None else ""
    if "${" in text or "$(" in text or "`" in text:
        return None
    name = leaf.key.partition("#")[0].rsplit("--", 1)[-1]
    if name in ("fp8_kv_cache", "int8_kv_cache"):
        return name.partition("_")[0]
    return "" if text in _SIXTEEN else text
