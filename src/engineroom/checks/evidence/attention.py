"""What a quantized KV cache means for the arithmetic, and which attention implementation exists."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.catalog.load import in_range
from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic

STORED = declare(
    "kv-cache-stored-not-computed", Topic.KV_CACHE, Severity.INFO,
    says="a quantized KV cache saves memory; on some cards the products are computed in 16 bit all the same",
    why="expect more tokens in the cache, and no faster attention",
    source="NVIDIA/TensorRT-LLM docs/source/advanced/gpt-attention.md; PR #6244 (maintainers)",
)  # fmt: skip
BACKEND = declare(
    "attention-backend-unknown", Topic.LLM_ARGS, Severity.ERROR,
    says="attn_backend is one that the version has",
    why="the server stops at start",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py; docs/source/features/attention.md",
)  # fmt: skip


@about(Topic.KV_CACHE)
def stored_or_computed(c: Context) -> Iterator[Answer]:
    fmt, lane, version = c.spec.kv_cache, c.lane, c.trtllm
    if fmt is None or lane is None or version is None or c.compute_capability is None:
        return
    phases: dict[str, str] = {}
    sources: list[str] = []
    for row in c.catalog.attention.kv_compute:
        if row.lane == lane and row.kv_cache == fmt and in_range(version, row.versions):
            mode = row.modes.get(c.compute_capability)
            if mode is not None:
                phases[row.phase] = mode
                sources += row.source
    stored = [phase for phase, mode in phases.items() if mode == "stored"]
    if stored:
        yield STORED.found(
            c, "spec.kv_cache",
            f"on compute capability {c.compute_capability} an {fmt} KV cache is stored in {fmt} and turned back "
            f"into 16 bit for the {' and '.join(sorted(stored))} phase",
            "nothing; plan with the memory it saves, not with faster attention",
            source="; ".join(dict.fromkeys(sources)),
        )  # fmt: skip


@about(Topic.LLM_ARGS)
def backend_exists(c: Context) -> Iterator[Answer]:
    """For versions without a contract; with one, the contract's own list decides."""
    args, version = c.evidence.model_yaml, c.trtllm
    chosen = args.get("attn_backend") if args else None
    if not isinstance(chosen, str) or version is None or c.contract is not None:
        return
    for row in c.catalog.attention.backends:
        if row.lane == "llmapi" and in_range(version, row.versions) and len(row.values) > 1:
            if chosen not in row.values:
                yield BACKEND.found(
                    c, "model_yaml.attn_backend", f"`{chosen[:60]}` is not one of {', '.join(row.values)}",
                    f"write {row.default}", source="; ".join(row.source),
                )  # fmt: skip
            return


RULES = (stored_or_computed, backend_exists)
