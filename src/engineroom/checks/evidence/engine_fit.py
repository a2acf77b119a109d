"""A built engine against the GPU, TensorRT and TensorRT-LLM that are to load it."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.reading.base import version_of

VERSION = declare(
    "engine-of-other-release", Topic.ENGINE_RUNTIME_MISMATCH, Severity.ERROR,
    says="an engine is served by the TensorRT-LLM release that built it",
    why="deserialization stops on the serialization version tag; the message names only two numbers",
    source="triton-inference-server/tensorrtllm_backend issue #531; NVIDIA/TensorRT-LLM issue #660 (maintainer)",
)  # fmt: skip
TENSORRT = declare(
    "engine-of-other-tensorrt", Topic.ENGINE_RUNTIME_MISMATCH, Severity.ERROR,
    says="an engine is loaded by the TensorRT that serialized it, or by a newer one if built for that",
    why="a plan is bound to its TensorRT version unless it was built with the version-compatible flag",
    source="NVIDIA TensorRT documentation, Version Compatibility",
)  # fmt: skip
CAPABILITY = declare(
    "engine-of-other-compute-capability", Topic.ENGINE_RUNTIME_MISMATCH, Severity.ERROR,
    says="an engine runs on the compute capability it was built on",
    why="its kernels were chosen and compiled for one; the architecture's name is not enough",
    source="NVIDIA/TensorRT-LLM issue #222 (maintainer: by design)",
)  # fmt: skip
COMPATIBLE = declare(
    "engine-hardware-compatible", Topic.ENGINE_RUNTIME_MISMATCH, Severity.WARN,
    says="a hardware-compatible engine is served on the compute capability it was built on",
    why="it loads on newer cards, with kernels that leave out what those cards add",
    source="NVIDIA TensorRT documentation, Hardware Compatibility",
)  # fmt: skip
OTHER_SKU = declare(
    "engine-of-other-sku", Topic.ENGINE_RUNTIME_MISMATCH, Severity.WARN,
    says="an engine is served on the GPU model it was tuned on",
    why="TensorRT warns that a plan across device models is not recommended: slower, or errors",
    source="NVIDIA/TensorRT-LLM issue #222; TensorRT runtime log: using an engine plan file across "
    "different models of devices is not recommended",
)  # fmt: skip
SMALLER = declare(
    "engine-on-smaller-gpu", Topic.ENGINE_RUNTIME_MISMATCH, Severity.WARN,
    says="the GPU has the memory that the engine was planned with",
    why="the KV cache gets what is left: less memory means fewer sequences",
    source="NVIDIA/TensorRT-LLM docs, Memory Usage of TensorRT-LLM",
)  # fmt: skip
TOO_LARGE = declare(
    "engine-larger-than-gpu", Topic.ENGINE_RUNTIME_MISMATCH, Severity.ERROR,
    says="the engine's bytes fit into the memory of one GPU",
    why="loading stops with an out-of-memory error before any KV cache is made",
    source="NVIDIA/TensorRT-LLM docs, Memory Usage of TensorRT-LLM",
)  # fmt: skip

_MIB = 1024 * 1024


def _tensorrt(c: Context) -> str | None:
    facts = c.evidence.stack
    if facts and facts.tensorrt_version:
        return facts.tensorrt_version
    return c.stack.tensorrt if c.stack else None


@about(Topic.ENGINE_RUNTIME_MISMATCH)
def release(c: Context) -> Iterator[Answer]:
    config = c.evidence.engine_config
    built, serves = version_of(config.version if config else None), version_of(c.trtllm)
    if config is None or built is None or serves is None or built == serves:
        return
    engine = c.evidence.engine
    serialized = version_of(engine.tensorrt_version if engine else None)
    same_tensorrt = serialized is not None and serialized == version_of(_tensorrt(c))
    patch_only = built.release[:2] == serves.release[:2] and not (built.pre or serves.pre)
    mild = same_tensorrt and patch_only
    yield VERSION.found(
        c, "engine_config.version",
        f"the engine was built by TensorRT-LLM {config.version} and {c.trtllm} is to serve it"
        + (f" (both with TensorRT {_tensorrt(c)}, so it may load)" if mild else ""),
        f"build it again in the image that serves it ({c.trtllm}), or serve it with {config.version}",
        severity=Severity.WARN if mild else None,
    )  # fmt: skip


@about(Topic.ENGINE_RUNTIME_MISMATCH)
def tensorrt(c: Context) -> Iterator[Answer]:
    engine, runtime_text = c.evidence.engine, _tensorrt(c)
    built, runtime = (
        version_of(engine.tensorrt_version if engine else None),
        version_of(runtime_text),
    )
    if engine is None or built is None or runtime is None or built == runtime:
        return
    forward = engine.version_compatible and built.major == runtime.major and runtime >= built
    if forward:
        return
    why = (
        "it is version compatible, but only with newer releases of the same major line"
        if engine.version_compatible else "it is not version compatible"
    )  # fmt: skip
    yield TENSORRT.found(
        c, "engine.tensorrt_version",
        f"the engine was serialized by TensorRT {engine.tensorrt_version}, the stack has {runtime_text}, "
        f"and {why}",
        "build it again with the TensorRT of the image that serves it",
    )  # fmt: skip


@about(Topic.ENGINE_RUNTIME_MISMATCH)
def device(c: Context) -> Iterator[Answer]:
    engine = c.evidence.engine
    built = engine.built_on if engine else None
    if engine is None or built is None:
        return
    level = engine.hardware_compatibility_level or "none"
    there = built.compute_capability
    if there is None and built.product:
        sku = c.catalog.sku_by_product(built.product)
        there = sku.compute_capability if sku else None
    here = c.compute_capability
    if there and here and there != here:
        ampere = tuple(map(int, here.split("."))) >= (8, 0) <= tuple(map(int, there.split(".")))
        if level == "ampere_plus" and ampere:
            yield COMPATIBLE.found(
                c, "engine.built_on.compute_capability",
                f"built on {there} for Ampere and newer, served on {here}: it loads, and runs without what "
                f"{here} adds",
                f"build one engine on each compute capability ({here} as well), or accept it with a benchmark",
            )  # fmt: skip
        else:
            yield CAPABILITY.found(
                c, "engine.built_on.compute_capability",
                f"built on compute capability {there}"
                + (f" ({built.product})" if built.product else "")
                + f", to be served on {here}" + (f" ({c.product})" if c.product else "")
                + ": it does not deserialize there",
                f"build it again on a {here} GPU, or pin the pods to nodes with {there}",
            )  # fmt: skip
        return
    yield from _same_capability(c, level)


def _same_capability(c: Context, level: str) -> Iterator[Answer]:
    engine = c.evidence.engine
    built = engine.built_on if engine else None
    if built is None:
        return
    other = bool(built.product and c.product) and not _same_card(
        c, built.product or "", c.product or ""
    )
    smaller = built.memory_mib and c.memory_mib and c.memory_mib < 0.95 * built.memory_mib
    memory = (
        f"; memory is {c.memory_mib} MiB instead of {built.memory_mib} MiB, so the KV cache shrinks"
        if smaller else ""
    )  # fmt: skip
    if other and level == "none":
        yield OTHER_SKU.found(
            c, "engine.built_on.product",
            f"built on {built.product}, served on {c.product}: the same compute capability "
            f"({c.compute_capability}), so it loads, but it is tuned for another card{memory}",
            f"build it on {c.product} for production, or accept it with a benchmark and a new KV-cache budget",
        )  # fmt: skip
    elif smaller:
        yield SMALLER.found(
            c, "engine.built_on.memory_mib", f"the engine was planned on another card{memory}",
            "plan the KV cache for this card, or build for it",
        )  # fmt: skip


def _same_card(c: Context, one: str, other: str) -> bool:
    if one == other:
        return True
    a, b = c.catalog.sku_by_product(one), c.catalog.sku_by_product(other)
    return a is not None and b is not None and a.id == b.id


@about(Topic.ENGINE_RUNTIME_MISMATCH, Topic.KV_CACHE)
def fits(c: Context) -> Iterator[Answer]:
    memory = c.evidence.memory
    if memory is None or memory.engine_bytes is None or c.memory_mib is None:
        return
    needed = memory.engine_bytes + (memory.other_runtime_bytes or 0)
    if needed > c.memory_mib * _MIB:
        yield TOO_LARGE.found(
            c, "memory.engine_bytes",
            f"engine and runtime need {needed / _MIB:.0f} MiB, and the GPU has {c.memory_mib} MiB",
            "use more tensor parallelism, a smaller weight format, or a larger GPU",
        )  # fmt: skip


RULES = (release, tensorrt, device, fits)
