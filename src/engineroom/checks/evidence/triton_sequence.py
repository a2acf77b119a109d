"""The longest prompt a server takes: max_seq_len, max_num_tokens, and whether prompts are chunked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import LaneName, Severity, Topic
from engineroom.types import Figure

_ENGINE = (
    "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/batch_manager/trtGptModel.h (maxInputLen), llmRequest.cpp "
    "(LlmRequest::validate), 1.3.0rc3"
)
_TORCH = (
    "NVIDIA/TensorRT-LLM#9277, PR#9499; tensorrt_llm/llmapi/llm.py (_check_arguments), "
    "executor/base_worker.py (_deduce_max_tokens), 1.3.0rc3"
)
PROMPT = declare(
    "prompt-over-limit", Topic.SEQUENCE_LIMITS, Severity.ERROR,
    says="a prompt is no longer than the server takes",
    why="without chunking a prompt must fit in one iteration (max_num_tokens), and always in max_seq_len - 1; "
    "longer ones are refused",
    source=f"{_ENGINE}; {_TORCH}",
)  # fmt: skip
SHORTENED = declare(
    "answer-shortened", Topic.SEQUENCE_LIMITS, Severity.WARN,
    says="prompt and new tokens together fit in max_seq_len",
    why="the runtime lowers max_tokens with a line in the log, and the answer ends early",
    source=f"{_ENGINE}; {_TORCH}",
)  # fmt: skip


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _limits(c: Context) -> tuple[int | None, int | None, list[tuple[str, int]], str]:
    """(max_seq_len, longest prompt, what bounds it by name, remedy)."""
    args = c.evidence.model_yaml
    if c.lane is LaneName.LLMAPI or (
        c.lane is None and args is not None and not c.evidence.engine_config
    ):
        return _torch(c, args or {})
    return _engine(c)


def _torch(
    c: Context, args: dict[str, Any]
) -> tuple[int | None, int | None, list[tuple[str, int]], str]:
    sequence, tokens = _number(args.get("max_seq_len")), _number(args.get("max_num_tokens"))
    if tokens is None and c.contract is not None:
        facts = c.contract.llm_fields.get("max_num_tokens") or {}
        if facts.get("default_known", True):
            tokens = _number(facts.get("default"))
    chunked = args.get("enable_chunked_prefill")
    on = chunked is True or (
        isinstance(chunked, str) and chunked.lower() in ("true", "yes", "on", "1")
    )
    bounds = [("max_seq_len - 1", sequence - 1)] if sequence else []
    if not on and tokens:
        bounds.append(("max_num_tokens (enable_chunked_prefill is off)", tokens))
    remedy = "raise max_num_tokens to the longest prompt, or set enable_chunked_prefill: true"
    return sequence, _least(bounds), bounds, remedy


def _engine(c: Context) -> tuple[int | None, int | None, list[tuple[str, int]], str]:
    build = c.evidence.engine_config.build_config if c.evidence.engine_config else None
    if build is None:
        return None, None, [], ""
    plugins = build.plugin_config
    engines = repo.engines(c)
    chunked = any(repo.flag(c, m, "enable_chunked_context") for m in engines)
    usable = plugins is None or (
        plugins.use_paged_context_fmha is not False and plugins.paged_kv_cache is not False
    )
    sequence = build.max_seq_len
    bounds = [("max_seq_len - 1", sequence - 1)] if sequence else []
    # Both are on unless the build says otherwise (trtllm-build, PluginConfig).
    packed = plugins is None or (
        plugins.context_fmha is not False and plugins.remove_input_padding is not False
    )
    if not (chunked and usable) and packed and build.max_num_tokens:
        why = "enable_chunked_context is off" if not chunked else (
            "enable_chunked_context has no effect without use_paged_context_fmha"
        )  # fmt: skip
        bounds.append((f"max_num_tokens ({why})", build.max_num_tokens))
    cache = [repo.int_parameter(m, "max_tokens_in_paged_kv_cache") for m in engines]
    cache.append(c.spec.max_tokens_in_paged_kv_cache)
    block = c.spec.tokens_per_block or 1
    whole = [n // block * block for n in cache if n and n > block]
    if whole and (sequence is None or min(whole) < sequence):
        bounds.append(("max_tokens_in_paged_kv_cache - 1", min(whole) - 1))
        sequence = min(whole)
    remedy = (
        "rebuild with --max_num_tokens of at least the longest prompt, or set enable_chunked_context to true "
        "on an engine built with use_paged_context_fmha"
    )
    return sequence, _least(bounds), bounds, remedy


def _least(bounds: list[tuple[str, int]]) -> int | None:
    return min((limit for _, limit in bounds), default=None)


@about(Topic.SEQUENCE_LIMITS)
def prompts(c: Context) -> Iterator[Answer]:
    sequence, longest, bounds, remedy = _limits(c)
    if longest is None:
        return
    yield Figure("max_prompt_tokens", longest)
    name = next(n for n, limit in bounds if limit == longest)
    for at, request in enumerate(c.evidence.requests or ()):
        prompt, new = request.prompt_tokens, request.max_tokens
        if prompt is None:
            continue
        if prompt > longest:
            fix = remedy if name.startswith("max_num_tokens") else (
                "raise max_tokens_in_paged_kv_cache" if "kv_cache" in name
                else "raise max_seq_len, if the model allows it, or send less"
            )  # fmt: skip
            yield PROMPT.found(
                c, f"requests[{at}].prompt_tokens",
                f"a prompt of {prompt} tokens, and the server takes at most {longest}: {name}. max_tokens "
                "(new tokens) does not change that", fix,
            )  # fmt: skip
        elif sequence is not None and new is not None and prompt + new > sequence:
            yield SHORTENED.found(
                c, f"requests[{at}].max_tokens", f"{prompt} prompt tokens and {new} new ones are more than "
                f"max_seq_len {sequence}: at most {sequence - prompt} are made",
                f"ask for at most {sequence - prompt}, or raise max_seq_len",
            )  # fmt: skip


RULES = (prompts,)
