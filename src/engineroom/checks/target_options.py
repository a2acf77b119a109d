"""Options of a target that its lane does not read, and KV blocks of a size that no kernel has."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.names import LaneName, Severity, Topic
from engineroom.types import Finding

UNUSED = declare(
    "target-option-unused", Topic.SPEC, Severity.WARN,
    says="options of a lane are set for targets of that lane",
    why="no other lane reads them",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/commands/build.py (flags); NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py (LLM arguments)",
)  # fmt: skip
BLOCK = declare(
    "tokens-per-block-refused", Topic.KV_CACHE, Severity.ERROR,
    says="tokens_per_block is a power of two that the decode kernels have",
    why="other sizes are refused; below 8 and above 128 the fast decode kernels of the engine lane are off",
    source="NVIDIA/TensorRT-LLM docs/source/advanced/kv-cache-reuse.md; docs/source/advanced/gpt-attention.md "
    "@ a7e572fb (XQA)",
)  # fmt: skip

_BLOCKS = (8, 16, 32, 64, 128)


def unused(c: TargetContext) -> Iterator[Finding]:
    lane, target = c.target.lane, c.target
    found = [
        (name, LaneName(name))
        for name in ("engine", "llmapi")
        if lane != name and getattr(target, name).model_fields_set
    ]
    keys = [
        (f"@.{name}.{sorted(getattr(target, name).model_fields_set)[0]}", of) for name, of in found
    ]
    if lane is not LaneName.ENGINE and target.limits.opt_num_tokens is not None:
        keys.append(("@.limits.opt_num_tokens", LaneName.ENGINE))
    for key, of in keys:
        yield UNUSED.found(
            c, key, f"the {lane} lane does not read it: it is for the {of} lane",
            f"leave it out, or use lane: {of}",
        )  # fmt: skip


def block(c: TargetContext) -> Iterator[Finding]:
    lane, size = c.target.lane, c.target.tokens_per_block
    if size is None:
        return
    power = size & (size - 1) == 0
    if not power or (lane is LaneName.ENGINE and size not in _BLOCKS):
        yield BLOCK.found(
            c, f"@.{lane}.tokens_per_block",
            f"tokens_per_block {size} is no power of two" if not power
            else f"the decode kernels have no blocks of {size} tokens",
            "use 32, or another of 8, 16, 64, 128",
            severity=Severity.ERROR if not power else Severity.WARN,
        )  # fmt: skip


RULES = (unused, block)
