"""`hf_quant_config.json` against the tensors it describes: lists, shapes, scales.

Listings may be excerpts. A tensor counts as missing only when the listing shows that tensors of its
kind are listed: another module has it, or the module's own sibling scalars are there.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.kv_scales import missing_halves
from engineroom.names import Severity, Topic
from engineroom.reading.facts import Tensor
from engineroom.reading.files import Quantization
from engineroom.types import Figure

EXCLUDE = declare(
    "exclude-list-misses-modules", Topic.QUANT_METADATA, Severity.ERROR,
    says="each linear layer left in 16 bit is in exclude_modules",
    why="the loader looks for scales that are not there, or misreads the weight",
    source="NVIDIA/Model-Optimizer issue #33 (the list was hard-coded); CHANGELOG 0.45 (routers of experts)",
)  # fmt: skip
EXCLUDED_PACKED = declare(
    "excluded-module-is-quantized", Topic.QUANT_METADATA, Severity.ERROR,
    says="a module in exclude_modules is stored in 16 bit",
    why="the loader takes the packed bytes for plain weights",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/models/modeling_utils.py (is_module_excluded_from_quantization)",
)  # fmt: skip
SCALE_SHAPE = declare(
    "scale-shape-wrong", Topic.QUANT_METADATA, Severity.ERROR,
    says="block scales have one column per group of the unpacked width",
    why="dtypes and names are right, only the width is wrong, and some loaders do not check",
    source="NVIDIA/Model-Optimizer PR #2038",
)  # fmt: skip
MISSING = declare(
    "scales-missing", Topic.QUANT_METADATA, Severity.ERROR,
    says="each quantized module has the scales of its format",
    why="a forward that bypasses the calibration hooks, or no forward at all, leaves no activation scale: "
    "answers are nonsense, or the build stops",
    source="NVIDIA/Model-Optimizer PR #1340, issue #500 (activation_scaling_factor)",
)  # fmt: skip
GATE_UP = declare(
    "expert-scales-differ", Topic.MOE, Severity.ERROR,
    says="gate_proj and up_proj of one expert share weight_scale_2",
    why="both are one fused GEMM with one global scale; the loader asserts that they agree",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/_torch/modules/fused_moe.py (w1 and w3 weight_scale_2)",
)  # fmt: skip
SCALE_VALUE = declare(
    "scale-is-no-scale", Topic.MOE, Severity.ERROR,
    says="scales are above zero",
    why="a scale of zero comes from a module without calibration; everything it computes is zero or infinite",
    source="NVIDIA/Model-Optimizer PR #1354 (uncalibrated experts)",
)  # fmt: skip

# What the runtime's loader reads beside `weight`, by format. AWQ's pre_quant_scale may be fused into
# the norm before it, so that its absence says nothing.
REQUIRED = {
    "FP8": ("weight_scale", "input_scale"),
    "FP8_PER_CHANNEL_PER_TOKEN": ("weight_scale",),
    "NVFP4": ("weight_scale", "weight_scale_2", "input_scale"),
    "NVFP4_AWQ": ("weight_scale", "weight_scale_2", "input_scale"),
    "W4A16_NVFP4": ("weight_scale", "weight_scale_2"),
    "W4A16_AWQ": ("weight_scale",),
    "W4A8_AWQ": ("weight_scale", "input_scale"),
}
_GROUPS = {"NVFP4": 16, "NVFP4_AWQ": 16, "W4A16_NVFP4": 16, "W4A16_AWQ": 128, "W4A8_AWQ": 128}
_SCALARS = ("weight_scale_2", "input_scale")
_SUFFIXES = ("weight_scale_2", "weight_scale", "input_scale", "pre_quant_scale", "weight")
_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj",
            "gate_up_proj", "w1", "w2", "w3", "fc1", "fc2", "lm_head", "dense", "linear",
            "in_proj", "out_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")  # fmt: skip


@dataclass
class Module:
    """The tensors of one linear layer that the listing has."""

    name: str
    tensors: dict[str, Tensor]

    @property
    def plain(self) -> bool:
        """Stored in 16 or 32 bit without scales: not quantized, whatever the config says."""
        weight = self.tensors.get("weight")
        return (
            weight is not None
            and (weight.dtype or "").upper() in ("BF16", "F16", "F32")
            and not set(self.tensors) & {"weight_scale", "weight_scale_2", "input_scale"}
        )

    @property
    def quantized(self) -> bool:
        """Packed or FP8 weights, or a scale beside them."""
        weight = self.tensors.get("weight")
        dtype = (weight.dtype or "").upper() if weight else ""
        return dtype in ("U8", "I8", "I32", "F8_E4M3") or "weight_scale" in self.tensors

    @property
    def linear(self) -> bool:
        last = self.name.rsplit(".", 1)[-1]
        return last in _LINEARS or last.endswith("_proj") or self.router

    @property
    def router(self) -> bool:
        """The layer that chooses experts: ModelOpt keeps it in 16 bit and lists it as excluded."""
        return self.name.rsplit(".", 1)[-1] in ("gate", "router", "shared_expert_gate")


def modules_of(tensors: tuple[Tensor, ...]) -> list[Module]:
    """Linear layers in file order."""
    found: dict[str, Module] = {}
    for tensor in tensors:
        for suffix in _SUFFIXES:
            if tensor.name.endswith(f".{suffix}"):
                name = tensor.name[: -len(suffix) - 1]
                found.setdefault(name, Module(name, {})).tensors[suffix] = tensor
                break
    return list(found.values())


def excluded(name: str, patterns: tuple[str, ...]) -> bool:
    """A pattern matches the whole module name or any suffix of its path, as the runtime matches."""
    parts = name.split(".")
    tails = [".".join(parts[i:]) for i in range(len(parts))]
    return any(fnmatch.fnmatchcase(tail, p[:500]) for p in patterns for tail in tails)


def _quantization(c: Context) -> Quantization | None:
    config = c.evidence.quant_config
    return config.quantization if config else None


@about(Topic.QUANT_METADATA)
def exclude_list(c: Context) -> Iterator[Answer]:
    quantization = _quantization(c)
    if quantization is None or not quantization.quant_algo or not c.evidence.tensors:
        return
    if quantization.quant_algo not in REQUIRED or quantization.exclude_modules is None:
        return
    modules = modules_of(c.evidence.tensors)
    if not any(m.quantized for m in modules):
        return  # nothing is quantized at all: dtype_counts speaks
    patterns = quantization.exclude_modules
    left = [m.name for m in modules if m.linear and m.plain and not excluded(m.name, patterns)]
    yield Figure("modules_to_exclude", left)
    if left:
        yield EXCLUDE.found(
            c, "quant_config.quantization.exclude_modules",
            f"exclude_modules does not list {len(left)} linear layers stored without scales: "
            + ", ".join(left[:4]) + (" …" if len(left) > 4 else ""),
            "add them to exclude_modules, or export again with a ModelOpt that writes the list",
        )  # fmt: skip
    packed = [m.name for m in modules if m.quantized and excluded(m.name, patterns)]
    if packed:
        yield EXCLUDED_PACKED.found(
            c, "quant_config.quantization.exclude_modules",
            f"exclude_modules lists {', '.join(packed[:4])}, whose weights are quantized",
            "take them off exclude_modules, or export again",
        )  # fmt: skip


def right_scale_shape(weight: Tensor, scale: Tensor, group: int) -> tuple[int, int] | None:
    """The shape `weight_scale` must have: rows of the weight, one column per group of its inputs.

    4-bit weights (U8) hold two values a byte, along the inputs (NVFP4, and AWQ in some exporters) or
    along the outputs (ModelOpt's AWQ): the scale's own rows tell which.
    """
    if weight.shape is None or scale.shape is None or len(weight.shape) != 2:
        return None
    rows, width = weight.shape
    if (weight.dtype or "").upper() != "U8":
        return None
    if len(scale.shape) == 2 and scale.shape[0] == 2 * rows:
        return 2 * rows, -(-width // group)
    return rows, -(-2 * width // group)


@about(Topic.QUANT_METADATA, Topic.MOE)
def scale_shapes(c: Context) -> Iterator[Answer]:
    quantization = _quantization(c)
    if quantization is None or not c.evidence.tensors:
        return
    algo = quantization.quant_algo
    group = _GROUPS.get(algo or "")
    if group is None:
        if algo in REQUIRED:
            yield Figure("tensor_shapes", {})  # one scale a tensor or a row: no block has a width
        return
    group = quantization.group_size or group
    wrong: dict[str, list[int]] = {}
    notes = []
    for module in modules_of(c.evidence.tensors):
        weight, scale = module.tensors.get("weight"), module.tensors.get("weight_scale")
        if weight is None or scale is None:
            continue
        right = right_scale_shape(weight, scale, group)
        if right is not None and tuple(scale.shape or ()) != right:
            wrong[scale.name] = list(right)
            notes.append(
                f"{scale.name} is {list(scale.shape or ())}, and {list(weight.shape or ())} packed bytes "
                f"in groups of {group} need {list(right)}"
            )
    yield Figure("tensor_shapes", wrong)
    if wrong:
        yield SCALE_SHAPE.found(
            c, "tensors", "; ".join(notes[:4]) + (f" (and {len(notes) - 4} more)" if notes[4:] else ""),
            "export these layers again with a ModelOpt that has the fix; do not serve this checkpoint",
        )  # fmt: skip


def missing_scales(modules: list[Module], algo: str) -> list[str]:
    """Names of scales that the format needs and the listing shows to be absent."""
    required = REQUIRED.get(algo, ())
    listed = {suffix for m in modules for suffix in m.tensors}
    missing = []
    for module in modules:
        if not module.quantized or not (module.linear or "weight_scale" in module.tensors):
            continue
        own_scalars = set(module.tensors) & set(_SCALARS)
        # FP8's weight_scale is such a scalar itself.
        own_scalars |= {"weight_scale"} & set(module.tensors) if algo == "FP8" else set()
        for suffix in required:
            shown = suffix in listed or (suffix in _SCALARS and own_scalars)
            if suffix not in module.tensors and shown:
                missing.append(f"{module.name}.{suffix}")
    return missing


@about(Topic.QUANT_METADATA, Topic.MOE)
def scales_present(c: Context) -> Iterator[Answer]:
    quantization = _quantization(c)
    if quantization is None or not c.evidence.tensors or quantization.quant_algo not in REQUIRED:
        return
    patterns = quantization.exclude_modules or ()
    modules = [m for m in modules_of(c.evidence.tensors) if not excluded(m.name, patterns)]
    missing = missing_scales(modules, quantization.quant_algo)
    yield Figure("missing_tensors", missing + missing_halves(c))
    if missing:
        experts = any(".experts." in name for name in missing)
        yield MISSING.found(
            c, "tensors",
            f"{quantization.quant_algo} needs {', '.join(missing[:4])}{' …' if len(missing) > 4 else ''}, "
            "which these modules do not have",
            ("force eager experts for calibration (or use a ModelOpt with the fix) and quantize again"
             if experts else "quantize and export again"),
        )  # fmt: skip


@about(Topic.MOE)
def expert_scales(c: Context) -> Iterator[Answer]:
    """Scalars that the fused expert kernel takes once for two layers."""
    quantization = _quantization(c)
    if quantization is None or not c.evidence.tensors:
        return
    modules = {m.name: m for m in modules_of(c.evidence.tensors)}
    right = {
        t.name: t.value for m in modules.values() for suffix, t in m.tensors.items()
        if suffix in _SCALARS and t.value is not None and t.value > 0
    }  # fmt: skip
    differ = []
    for name, gate in modules.items():
        for one, other in ((".gate_proj", ".up_proj"), (".w1", ".w3")):
            partner = modules.get(name.removesuffix(one) + other) if name.endswith(one) else None
            if (
                partner is None
                or "expert" not in name
                or _GROUPS.get(quantization.quant_algo or "") != 16
            ):
                continue
            pair = [m.tensors.get("weight_scale_2") for m in (gate, partner)]
            values = [t.value for t in pair if t is not None and t.value is not None]
            if len(values) == 2 and values[0] != values[1]:
                top = max(values)
                right |= {t.name: top for t in pair if t is not None}
                differ.append(f"{name}: {values[0]:g} and {values[1]:g}")
    if differ:
        yield GATE_UP.found(
            c, "tensors", "weight_scale_2 of gate and up differ in " + "; ".join(differ[:4]),
            "export again with a ModelOpt that gives both the larger one and requantizes the weight",
        )  # fmt: skip
    zero = [
        t for m in modules.values() for suffix, t in m.tensors.items()
        if suffix in ("input_scale", "weight_scale_2") and t.value is not None and t.value <= 0
    ]  # fmt: skip
    for tensor in zero:
        suffix = tensor.name.rsplit(".", 1)[-1]
        peers = [
            t.value for m in modules.values() for s, t in m.tensors.items()
            if s == suffix and t.value and t.value > 0
            and m.name.rsplit(".", 1)[-1] == tensor.name.split(".")[-2]
        ]  # fmt: skip
        if peers and suffix == "input_scale":
            right[tensor.name] = max(peers)
    if zero:
        yield SCALE_VALUE.found(
            c, "tensors", f"{', '.join(t.name for t in zero[:4])}: {zero[0].value:g} is no scale",
            "calibrate with more text; ModelOpt's own remedy is the largest scale of the other experts",
        )  # fmt: skip
    if right:
        yield Figure("tensor_values", right)


RULES = (exclude_list, scale_shapes, scales_present, expert_scales)
